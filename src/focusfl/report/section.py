"""What a page shows of one experiment, or of one table or figure of the paper."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from focusfl.report.rows import Row

Measurement: TypeAlias = dict[str, Any]  # a line of a table that is measured, not trained: any columns, by heading
DIFFERENCES = "Where our numbers differ from the paper's, and why:"


@dataclass(frozen=True)
class JudgedClaim:
    """A claim of the paper, and whether it holds here."""

    text: str
    verdict: str  # holds | holds weakly | does not hold | not measured
    numbers: str  # on which the verdict rests


@dataclass(frozen=True)
class Difference:
    """Numbers of ours that are not the paper's."""

    where: str  # "k = 1: FOCUS"
    numbers: str  # "FAA 0.013 instead of 0.094"
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.numbers}. {self.why}."


@dataclass(frozen=True)
class Section:
    """The results of one experiment. Its rows have the keys `part` and `history`."""

    name: str  # "table1-mnist"
    title: str  # "Table 1: rotated MNIST"
    scale: str  # "paper", "small", or "" for an experiment that is not the paper's
    rows: list[Row]
    expect: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)  # the paper's, by (part, method)
    deviations: list[str] = field(default_factory=list)  # where this scale is not the paper's setting
    claims: list[JudgedClaim] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # runs that are not computed yet: "k = 1, FOCUS, seed 2"
    left_out: dict[str, str] = field(default_factory=dict)  # methods that cannot run here, and why
    absent: dict[str, str] = field(default_factory=dict)  # agents that missed rounds, and why: nodes fail
    table: list[Measurement] = field(default_factory=list)  # of what is measured, not trained
    made: dict[str, Any] = field(default_factory=dict)  # settings, versions, machine, commit
