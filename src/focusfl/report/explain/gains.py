"""Who gained and who lost: each agent's loss under one method against another's. On rows of results.json.

A difference counts where it is beyond noise and more than a small share of the loss. Its noise is the standard
error over the test examples: of the difference itself where two methods were judged in pairs (`gap_se`), else of
both; the mean over the seeds, or the spread of the seeds where that is wider. Where nothing is known of the noise,
the small share alone decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, isfinite, sqrt
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

from focusfl.report.explain.groups import Row, numbers

BASES = {"fedavg": "FedAvg", "local": "training alone"}  # what a method is held against
CHANCE = 0.05  # of naming anyone where nobody differs, roughly: more agents, more evidence for each
SMALL = 0.02  # share of the loss up to which a difference is nobody's concern, however certain


class Pair(NamedTuple):
    """The loss of one agent, or of all on average, under the method and under the other."""

    ours: float
    theirs: float
    se: float | None  # of the difference


class Gains(NamedTuple):
    """Everyone is in one of the first three."""

    gained: list[int]
    lost: list[int]
    same: list[int]
    each: dict[int, list[Pair]]  # one a seed
    overall: int  # of the mean over the agents: -1 gained, 1 lost, 0 about the same

    @property
    def limit(self) -> str:
        """What a difference that counts is more than."""
        seeds = next(iter(self.each.values()))
        return "noise" if len(seeds) > 1 or seeds[0].se is not None else f"{100 * SMALL:g} %"

    def losses(self, agents: Sequence[int]) -> tuple[float, float]:
        """Means over those agents and the seeds, under the method and under the other."""
        pairs = [pair for e in agents for pair in self.each[e]]
        return fmean(p.ours for p in pairs), fmean(p.theirs for p in pairs)


def against(runs: Sequence[Row], others: Sequence[Row]) -> Gains | None:
    """Of a method's runs against another's on the same seeds; None where they share no seed or no agent."""
    seeds = [_pairs(a, b) for a in runs for b in others if a["seed"] == b["seed"]]
    agents = sorted(set.intersection(*map(set, seeds))) if seeds else []
    if not agents:
        return None
    each = {e: [pairs[e] for pairs in seeds] for e in agents}
    found = {e: verdict(pairs, len(agents)) for e, pairs in each.items()}
    gained, lost, same = ([e for e in agents if found[e] == sign] for sign in (-1, 1, 0))
    overall = verdict([_average([pairs[e] for e in agents]) for pairs in seeds])
    return Gains(gained, lost, same, each, overall)


def verdict(seeds: Sequence[Pair], among: int = 1) -> int:
    """-1 gained, 1 lost, 0 about the same; `among` how many such questions (Bonferroni).

    >>> verdict([Pair(0.7, 1.0, 0.14)]), verdict([Pair(0.7, 1.0, 0.14)], among=10), verdict([Pair(1.03, 1, None)])
    (-1, 0, 1)
    """
    gaps = [p.ours - p.theirs for p in seeds]
    noise = [p.se for p in seeds if p.se is not None]
    se = fmean(noise) if len(noise) == len(seeds) else 0.0
    if len(seeds) > 1:
        se = max(se, stdev(gaps) / sqrt(len(seeds)))
    least = max(NormalDist().inv_cdf(1 - CHANCE / 2 / among) * se, SMALL * abs(fmean(p.theirs for p in seeds)))
    gap = fmean(gaps)
    return 0 if abs(gap) <= least else 1 if gap > 0 else -1


def wanted(one: Row, other: Row) -> bool:
    """Is the standard error of their difference worth keeping, and is it that of their excess risks?"""
    labels = one["pi"] is not None or other["pi"] is not None
    return labels and bool({one["algorithm"], other["algorithm"]} & BASES.keys()) and one["bayes"] == other["bayes"]


def alone(row: Row) -> Row | None:
    """The run of training alone that is in a row whose best losses are those of agents alone."""
    if row.get("bayes_kind") != "agent":
        return None
    known = {} if row.get("excess_se") is None else {"excess_se": [0.0] * len(row["loss"])}  # theirs: of both
    return {"algorithm": "local", "pi": None, "loss": row["bayes"], "bayes": row["bayes"]} | known | _where(row)


def named(row: Row) -> str:
    """As gap_se has it."""
    return str(row.get("method", row["algorithm"]))


def _where(row: Row) -> Row:
    return {key: row[key] for key in ("seed", "agents") if key in row}


def _pairs(one: Row, other: Row) -> dict[int, Pair]:
    noise, theirs = _noise(one, other), _by_agent(other, other["loss"])
    losses = {e: (ours, theirs[e]) for e, ours in _by_agent(one, one["loss"]).items() if e in theirs}
    return {e: Pair(a, b, noise.get(e)) for e, (a, b) in losses.items() if isfinite(a) and isfinite(b)}


def _noise(one: Row, other: Row) -> dict[int, float]:
    """The standard error of each agent's difference; empty where it is not known."""
    for a, b in ((one, other), (other, one)):
        if named(b) in a.get("gap_se", {}):
            return _by_agent(a, a["gap_se"][named(b)])
    if one.get("excess_se") is None or other.get("excess_se") is None:
        return {}
    theirs = _by_agent(other, other["excess_se"])
    return {e: hypot(se, theirs[e]) for e, se in _by_agent(one, one["excess_se"]).items() if e in theirs}


def _by_agent(row: Row, values: Sequence[float]) -> dict[int, float]:
    return dict(zip(numbers(row), values, strict=True))


def _average(pairs: Sequence[Pair]) -> Pair:
    """Over the agents, whose test examples are different ones."""
    noise = [p.se for p in pairs if p.se is not None]
    se = hypot(*noise) / len(pairs) if len(noise) == len(pairs) else None
    return Pair(fmean(p.ours for p in pairs), fmean(p.theirs for p in pairs), se)
