"""Where things stand in a plot: ticks of an axis, agents side by side in the groups of their true clusters."""

from __future__ import annotations

import math
from typing import Any

from focusfl.report.explain.groups import numbers
from focusfl.report.section import Row

WARP = {"linear": lambda v: v, "root": lambda v: math.copysign(abs(v) ** 0.5, v), "log": math.log10}
GAP = 0.6  # between two groups, in agents


def axis(kind: str, values: list[float], most: int) -> dict[str, Any]:
    """From the least to the largest of the values; linear, logarithmic or by square root; about `most` gaps."""
    lo, hi = min(values), max(values)
    if hi == lo:
        hi = lo + (abs(lo) or 1) * 1e-3
    return {"kind": kind, "lo": lo, "hi": hi, "ticks": ticks(kind, lo, hi, most)}


def ticks(kind: str, lo: float, hi: float, most: int) -> list[float]:
    """
    >>> ticks("linear", 0.62, 0.97, 4)
    [0.7, 0.8, 0.9]
    >>> ticks("root", -0.1, 4.4, 5), ticks("log", 0.01, 40, 5)
    ([0, 2, 0.5], [10, 1, 0.1, 0.01])
    """
    if kind == "linear":
        raw = (hi - lo) / most
        power = 10.0 ** math.floor(math.log10(raw))
        step = power * next(m for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
        return [_tidy(i * step) for i in range(math.ceil(lo / step - 1e-9), math.floor(hi / step + 1e-9) + 1)]
    warp, powers = WARP[kind], [10.0**p for p in range(9, -10, -1)]
    if kind == "root":
        marks = [0.0, *(sign * m * p for p in powers for m in (5, 2, 1) for sign in (1, -1))]
    else:
        marks = [m * p for m in (1, 5, 2) for p in powers]
    kept: list[float] = []
    apart, slack = (warp(hi) - warp(lo)) / most, 1e-9 * (hi - lo)
    for v in marks:
        if lo - slack <= v <= hi + slack and all(abs(warp(v) - warp(u)) >= apart for u in kept):
            kept.append(_tidy(v))
    return kept or [_tidy(hi)]


def order(row: Row) -> list[int]:
    """The agents' places in the row, by true cluster where that is known."""
    true = row["true_clusters"]
    return sorted(range(len(row["loss"])), key=lambda e: (true[e] if true else 0, e))


def side_by_side(row: Row) -> dict[str, Any]:
    """Their places, in units of one agent: `slots` the middle of each, `groups` (name, from, to), `units` all."""
    true, agents, number = row["true_clusters"], order(row), numbers(row)
    slots: list[float] = []
    groups: list[tuple[str, float, float]] = []
    at = 0.0
    for c in sorted(set(true)) if true else [None]:
        n = len(agents) if c is None else true.count(c)
        at += GAP if groups else 0
        groups.append(("" if c is None else str(c), round(at, 3), round(at + n, 3)))
        slots += [round(at + i + 0.5, 3) for i in range(n)]
        at += n
    who = [f"agent {number[e]}" + (f", true cluster {true[e]}" if true else "") for e in agents]
    return {"slots": slots, "groups": groups, "units": round(at, 3), "who": who}


def _tidy(v: float) -> float:
    short = float(f"{v:.9g}")
    return int(short) if short.is_integer() else short
