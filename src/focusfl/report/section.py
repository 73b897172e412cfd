"""What a page shows of one experiment, or of one table or figure of the paper."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
OFF = "Where ours is off the paper's number, and why:"


@dataclass(frozen=True)
class Claim:
    """Something the paper says, and how it fared here."""

    says: str
    verdict: str  # holds | holds weakly | does not hold | not measured
    numbers: str  # the figures it rests on


@dataclass(frozen=True)
class Off:
    """Numbers of ours that are not the paper's."""

    where: str  # "k = 1: FOCUS"
    numbers: str  # "FAA 0.013 instead of 0.094"
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.numbers}. {self.why}."


@dataclass(frozen=True)
class Section:
    """Rows are those of results.json, each with two more entries:

    part     "" or which of several settings it belongs to ("k = 1")
    history  {"round": [...], "avg_loss": [...], "avg_acc": [...] or null, "agnostic_loss": [...],
              "pi": {"round": [...], "pi": [rounds][E][M]} or null}
    """

    name: str  # "table1-mnist"
    title: str  # "Table 1: rotated MNIST"
    scale: str  # "paper", "small", or "" for an experiment that is not the paper's
    rows: list[Row]
    expect: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)  # (part, method): the paper's
    deviations: list[str] = field(default_factory=list)  # where this scale is not the paper's setting
    claims: list[Claim] = field(default_factory=list)
    off: list[Off] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # cells not computed yet: "k = 1, FOCUS, seed 2"
    left_out: dict[str, str] = field(default_factory=dict)  # methods that cannot run here, and why
    absent: dict[str, str] = field(default_factory=dict)  # agents left out of rounds, and why: nodes fail
    table: list[Row] = field(default_factory=list)  # for what is not trained but timed: any columns
    made: dict[str, Any] = field(default_factory=dict)  # settings, versions, machine, commit
