"""A table or figure of the paper as data: experiments/paper/NAME.toml.

title, algorithms, [data], [train], [METHOD]   as in any experiment
use = "mnist"                    start from experiments/paper/shared/mnist.toml
[scale.paper], [scale.small]     changes at that scale; `deviations`: where it is not the paper's setting;
                                 `goals`: accuracies for rounds to accuracy, instead of the paper's
[[part]]                         one of several settings: a `name` and its changes
[expect.METHOD]                  the paper's numbers (within a part: of that part)
[[claim]]                        what the paper claims: `says`, `metric`, `better`, `than`
[why]                            METHOD = "why our numbers differ", shown where they do; the reasons of a shared
                                 file count for the data as it is there
[[printed]]                      of what is measured, not trained: a line of the paper's table
"""

from __future__ import annotations

import copy
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from focusfl.run.experiment import Experiment
from focusfl.util.errors import InputError, nearest

Table = dict[str, Any]
SCALES = ("small", "paper")
OWN_KEYS = ("title", "use", "scale", "part", "expect", "claim", "why", "kind", "printed")  # of no experiment
PAPER_ORDER = ["table1", "table2", "table3", "rounds", "hard", "sota", "fair", "clients100", "fig", "runtime"]
PAPER_ORDER += ["metric", "readings", "surrogates", "theory"]  # first words of the names


class Claim(BaseModel):
    """A claim of the paper: `better` is better in `metric` than each of `than`, in every part.

    With `worse` it is the other way round: "FedAvg is less fair than each of ..."
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    says: str  # the claim as a sentence
    metric: Literal["avg_acc", "avg_loss", "faa", "agnostic_loss", "rounds"]
    better: str
    than: list[str] = []  # left out: every other method
    part: str | None = None  # left out: all parts
    worse: bool = False
    within: float = 0.0  # up to this gap it counts as no worse


@dataclass(frozen=True)
class Part:
    """One setting: its experiment at this scale, and by method the paper's numbers and why ours differ."""

    name: str
    experiment: Experiment
    expect: dict[str, dict[str, float]]
    why: dict[str, str]


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of the paper at one scale."""

    name: str
    title: str
    scale: str
    kind: str  # "experiment", or what measures it: "runtime", "metric-time", "surrogates", "theory"
    parts: list[Part]
    options: Table  # if it is not an experiment
    claims: list[Claim]
    deviations: list[str]  # where the scale is not the paper's setting
    goals: tuple[float, ...]  # accuracies for rounds to accuracy; empty: the paper's
    printed: list[Table]  # the paper's lines, if it is not an experiment


def load(name: str, scale: str) -> Reproduction:
    """Load a table or figure.

    Args:
        name: A key of `catalogue()`.
        scale: "small" or "paper".

    Returns:
        The table or figure, with every part's experiment.

    Raises:
        InputError: There is no such name or scale, or a file is wrong.
    """
    known = catalogue()
    if name not in known:
        raise InputError(f"unknown table or figure {name!r}: {nearest(name, known)}")
    if scale not in SCALES:
        raise InputError(f"--scale {scale}: {nearest(scale, SCALES)}")
    path = known[name]
    own = _read(path)
    shared = _read(path.parent / "shared" / f"{own['use']}.toml") if "use" in own else {}
    raw = _merge(shared, own)
    here = raw.get("scale", {}).get(scale, {})
    deviations, goals = list(here.pop("deviations", [])), tuple(here.pop("goals", []))
    base = _merge({k: v for k, v in raw.items() if k not in OWN_KEYS} | {"name": name}, here)
    kind = raw.get("kind", "experiment")
    claims = [Claim(**claim) for claim in raw.get("claim", [])]
    parts, options = [], {} if kind == "experiment" else here
    for part in raw.get("part", [{}]) if kind == "experiment" else []:
        made = _part(base, part, raw, scale, path)
        deviations += part.get("scale", {}).get(scale, {}).get("deviations", [])
        same = made.experiment.data == _merge(shared, shared.get("scale", {}).get(scale, {})).get("data")
        why = (shared.get("why", {}) if same else {}) | own.get("why", {}) | part.get("why", {})
        parts.append(replace(made, why=why))
    printed = raw.get("printed", [])
    return Reproduction(name, raw["title"], scale, kind, parts, options, claims, deviations, goals, printed)


def catalogue() -> dict[str, Path]:
    """Return the file of every table and figure, by name, in the order of the paper."""
    here = Path(__file__).parents[2]
    for folder in (Path("experiments"), here.parents[1] / "experiments", here / "_experiments"):
        found = {path.stem: path for path in (folder / "paper").glob("*.toml")}
        if found:
            return {name: found[name] for name in sorted(found, key=_place)}
    return {}


def _place(name: str) -> tuple[int, str]:
    first = name.split("-")[0]
    return PAPER_ORDER.index(first) if first in PAPER_ORDER else len(PAPER_ORDER), name


def _part(base: Table, part: Table, raw: Table, scale: str, path: Path) -> Part:
    changes = {k: v for k, v in part.items() if k not in (*OWN_KEYS, "name")}
    at_scale = {k: v for k, v in part.get("scale", {}).get(scale, {}).items() if k != "deviations"}
    body = _merge(_merge(base, changes), at_scale)
    name = part.get("name", "")
    experiment = Experiment.parse(body, f"{path.name} {name}".strip())
    expect: dict[str, dict[str, float]] = part.get("expect", {}) if raw.get("part") else raw.get("expect", {})
    return Part(name, experiment, expect, {})


def _merge(one: Table, other: Table) -> Table:
    """Merge tables within tables; anything else is replaced."""
    out = copy.deepcopy(one)
    for k, v in other.items():
        out[k] = _merge(out[k], v) if isinstance(v, dict) and isinstance(out.get(k), dict) else copy.deepcopy(v)
    return out


def _read(path: Path) -> Table:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
