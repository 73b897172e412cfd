"""Who gained and who lost: each agent's loss under one method, compared with its loss under another.

A difference counts if it is beyond noise and more than a small share of the loss. Its noise is the standard error
over the test examples: that of the difference itself where two methods were evaluated in pairs (`gap_se`),
otherwise that of both; the mean over the seeds, or the spread of the seeds where that is wider. Where nothing is
known about the noise of any agent, the small share alone decides; where only some agents have too few test examples
to know it, they are left out, and the others are judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot, isfinite, sqrt
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

from focusfl.report.rows import Row, agent_numbers, direction

BASELINES = {"fedavg": "FedAvg", "local": "training alone"}  # what methods are compared with, by algorithm
NOISE = "noise"  # the threshold of gains where noise is known
ERROR_RATE = 0.05  # chance to name any agent where no agent differs: more agents need more evidence for each
MIN_RELATIVE_GAP = 0.02  # of the loss: a smaller difference does not matter, however certain it is
MIN_METRIC_GAP = 0.01  # the same of metrics of which higher values are better, such as accuracy


class Pair(NamedTuple):
    """The loss of one agent, or of all agents on average, under the method and under the other."""

    ours: float
    theirs: float
    se: float | None  # of the difference


class Gains(NamedTuple):
    """One method compared with another. Every agent is in one of the first three lists, or in `unknown`."""

    gained: list[int]
    lost: list[int]
    same: list[int]
    pairs: dict[int, list[Pair]]  # by agent that is judged, one pair per seed
    overall: int  # of the mean over the agents: -1 gained, 1 lost, 0 about the same
    threshold: str  # what a difference that counts is larger than: "noise", or "2 %" where no noise is known
    unknown: Sequence[int] = ()  # agents that are left out: their noise is not known, that of others is

    def mean_losses(self, agents: Sequence[int]) -> tuple[float, float]:
        """Return the mean over these agents and the seeds, under the method and under the other."""
        pairs = [pair for e in agents for pair in self.pairs[e]]
        return fmean(p.ours for p in pairs), fmean(p.theirs for p in pairs)


def compare_losses(runs: Sequence[Row], others: Sequence[Row]) -> Gains | None:
    """Compare the agents' losses under two methods.

    Args:
        runs: The runs of one method.
        others: The runs of the other.

    Returns:
        Who gained and who lost, on the seeds that both have; None where they share no seed or no agent.
    """
    seeds = [_pairs(a, b) for a in runs for b in others if a["seed"] == b["seed"]]
    shared = sorted(set.intersection(*map(set, seeds))) if seeds else []
    noisy_seeds = [seed for seed in seeds if any(seed[e].se is not None for e in shared)]
    unknown = [e for e in shared if any(seed[e].se is None for seed in noisy_seeds)]
    agents = [e for e in shared if e not in set(unknown)]
    if not agents:
        return None
    pairs = {e: [seed[e] for seed in seeds] for e in agents}
    verdicts = {e: verdict(each, len(agents)) for e, each in pairs.items()}
    gained, lost, same = ([e for e in agents if verdicts[e] == sign] for sign in (-1, 1, 0))
    means = []
    for each in ([seed[e] for e in agents] for seed in seeds):
        noise = [p.se for p in each if p.se is not None]  # agents have different test examples
        se = hypot(*noise) / len(each) if len(noise) == len(each) else None
        means.append(Pair(fmean(p.ours for p in each), fmean(p.theirs for p in each), se))
    noisy = len(seeds) > 1 or bool(noisy_seeds)
    threshold = NOISE if noisy else f"{100 * MIN_RELATIVE_GAP:g} %"
    return Gains(gained, lost, same, pairs, verdict(means), threshold, unknown)


def rivals(runs: Sequence[Row], others: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the runs of other methods, by method.

    Where the losses of agents that train alone were measured for the best losses, they are the runs of training
    alone, if there are none.
    """
    found: dict[str, list[Row]] = {}
    for row in others:
        if row["method"] != runs[0]["method"]:
            found.setdefault(row["method"], []).append(row)
    if not any(rows[0]["algorithm"] == "local" for rows in found.values()):
        alone = [rival for row in runs if (rival := alone_run(row)) is not None]
        found |= {"local": alone} if alone else {}
    return found


def alone_run(row: Row) -> Row | None:
    """Return the run of training alone that was part of finding the best losses, if there was one."""
    alone = row | {"method": "local", "algorithm": "local", "gap_se": {}, "acc": None, "metrics": {}, "params": {}}
    alone.pop("validation_loss", None)
    if "alone" in row:
        errors = {row["method"]: row["alone_se"]} if "alone_se" in row else {}
        return alone | {"loss": row["alone"], "gap_se": errors}
    if row["bayes_kind"] != "agent":
        return None
    if "excess_se" in row:
        known = row["excess_se"]  # that of the method is already of both
        alone["excess_se"] = [None if se is None else 0.0 for se in known]
    return alone | {"loss": row["bayes"]}


def compare_with_baselines(runs: Sequence[Row], others: Sequence[Row]) -> dict[str, Gains]:
    """Compare a method with FedAvg and with training alone, as far as there are runs of them (`rivals`).

    If one of them ran with several options, the first counts.
    """
    found = {}
    for name in BASELINES:
        rows = runs_of(name, rivals(runs, others))
        if rows and name != runs[0]["algorithm"] and (gains := compare_losses(runs, rows)) is not None:
            found[name] = gains
    return found


def runs_of(algorithm: str, found: Mapping[str, list[Row]]) -> list[Row]:
    """Return the runs of one algorithm; if it ran with several options, of the first."""
    return next((rows for rows in found.values() if rows[0]["algorithm"] == algorithm), [])


class Judged(NamedTuple):
    """One method compared with another by a metric: means over the agents for whom it is defined."""

    ours: float
    theirs: float
    overall: int  # of the mean over the agents: -1 gained, 1 lost, 0 about the same
    better: list[int]  # the agents that have a better value under the method ...
    worse: list[int]  # ... and under the other
    tied: int  # how many have the same value


def deciding_metric(rows: Sequence[Row]) -> str:
    """Return the metric by which methods are judged: the first of those measured, or "", which is the loss.

    It must be known which values are better, and each row must have it for two agents or more.
    """
    names = list(rows[0].get("metrics", {})) if rows else []
    for name in names:
        each = [row.get("metrics", {}).get(name, []) for row in rows]
        if direction(name) and all(sum(v is not None for v in values) > 1 for values in each):
            return name
    return ""


def judge(runs: Sequence[Row], others: Sequence[Row], name: str) -> Judged | None:
    """Compare two methods by a metric.

    How certain a metric is, is not known for one agent. The difference of the means counts if it is beyond the
    spread of the differences over the agents and, with several seeds, over the seeds (Student's t), and not small.

    Args:
        runs: The runs of one method.
        others: The runs of the other.
        name: The metric.

    Returns:
        The verdict on the seeds that both have; None where they share no seed, or fewer than two agents.
    """
    seeds = [_values(a, b, name) for a in runs for b in others if a["seed"] == b["seed"]]
    agents = sorted(set.intersection(*map(set, seeds))) if seeds else []
    if len(agents) < 2:
        return None
    sign = 1 if direction(name) == "lower" else -1
    pairs = {e: tuple(map(fmean, zip(*(seed[e] for seed in seeds), strict=True))) for e in agents}
    worse_by = {e: sign * (ours - theirs) for e, (ours, theirs) in pairs.items()}
    by_seed = [fmean(sign * (a - b) for e, (a, b) in seed.items() if e in pairs) for seed in seeds]
    noise = max(_half_width(list(worse_by.values())), _half_width(by_seed))
    ours, theirs = (fmean(each) for each in zip(*pairs.values(), strict=True))
    gap = fmean(worse_by.values())
    small = MIN_METRIC_GAP if sign < 0 else MIN_RELATIVE_GAP * abs(theirs)
    overall = 0 if abs(gap) <= max(noise, small) else 1 if gap > 0 else -1
    better, worse = ([e for e, v in worse_by.items() if k * v < 0] for k in (1, -1))
    return Judged(ours, theirs, overall, better, worse, len(pairs) - len(better) - len(worse))


def _values(one: Row, other: Row, name: str) -> dict[int, tuple[float, float]]:
    """The values of the agents for whom both runs have one."""
    ours, theirs = (
        dict(zip(agent_numbers(row), row.get("metrics", {}).get(name, ()), strict=False)) for row in (one, other)
    )
    return {e: (a, b) for e, a in ours.items() if a is not None and (b := theirs.get(e)) is not None}


def _half_width(gaps: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean of these numbers; 0 for one number."""
    if len(gaps) < 2:
        return 0.0
    from scipy.special import stdtrit  # takes a quarter of a second to import

    return float(stdtrit(len(gaps) - 1, 1 - ERROR_RATE / 2)) * stdev(gaps) / sqrt(len(gaps))


class WorseOff(NamedTuple):
    """How many agents lose more than MIN_RELATIVE_GAP, with the 95 % interval of that number."""

    low: int
    measured: int
    high: int
    agents: int  # of how many

    def __str__(self) -> str:
        interval = f" ({self.low} to {self.high})" if self.low < self.high else ""
        return f"{self.measured}{interval} of {self.agents}"


def worse_off(gains: Gains) -> WorseOff:
    """Count the agents that are worse off under the method than under the other.

    The limits hold for all agents at the same time: with a probability of 95 %, every agent counted in `low` is
    worse off, and none that is not counted in `high`. Where nothing is known about the noise, all three are equal.
    """
    z, found = _quantile(len(gains.pairs)), []
    for pairs in gains.pairs.values():
        gap, se, small = _gap(pairs)
        found.append((gap - small > z * se, gap > small, gap - small > -z * se))
    low, measured, high = (sum(each) for each in zip(*found, strict=True))
    return WorseOff(low, measured, high, len(found))


def verdict(seeds: Sequence[Pair], questions: int = 1) -> int:
    """Judge one agent, or all on average.

    Args:
        seeds: The losses, one pair per seed.
        questions: How many such questions are asked at the same time (Bonferroni).

    Returns:
        -1 gained, 1 lost, 0 about the same.

    >>> verdict([Pair(0.7, 1.0, 0.14)]), verdict([Pair(0.7, 1.0, 0.14)], 10), verdict([Pair(1.03, 1, None)])
    (-1, 0, 1)
    """
    gap, se, small = _gap(seeds)
    return 0 if abs(gap) <= max(_quantile(questions) * se, small) else 1 if gap > 0 else -1


def _gap(seeds: Sequence[Pair]) -> tuple[float, float, float]:
    """The mean difference over the seeds, its standard error, and a difference that is too small to matter."""
    gaps = [p.ours - p.theirs for p in seeds]
    noise = [p.se for p in seeds if p.se is not None]
    se = fmean(noise) if len(noise) == len(seeds) else 0.0
    if len(seeds) > 1:
        se = max(se, stdev(gaps) / sqrt(len(seeds)))
    return fmean(gaps), se, MIN_RELATIVE_GAP * abs(fmean(p.theirs for p in seeds))


def _quantile(questions: int) -> float:
    """How many standard errors count where so many questions are asked at the same time (Bonferroni)."""
    return NormalDist().inv_cdf(1 - ERROR_RATE / 2 / questions)


def needs_gap_se(one: Row, other: Row) -> bool:
    """Say whether a row should keep the standard error of the difference between two runs (`gap_se`).

    It should if one of them groups agents or is a baseline, as it is then compared with the other, and if their
    best losses are the same: then the error of the difference of their excess risks is that of their losses.
    """
    labels = one["pi"] is not None or other["pi"] is not None
    baseline = bool({one["algorithm"], other["algorithm"]} & BASELINES.keys())
    return (labels or baseline) and one["bayes"] == other["bayes"]


def _pairs(one: Row, other: Row) -> dict[int, Pair]:
    """The agents that both have, with the standard error of their difference where it is known."""
    ours, theirs = agent_numbers(one), agent_numbers(other)
    se: dict[int, float | None] = {}
    if other["method"] in one.get("gap_se", {}):
        se = dict(zip(ours, one["gap_se"][other["method"]], strict=True))
    elif one["method"] in other.get("gap_se", {}):
        se = dict(zip(theirs, other["gap_se"][one["method"]], strict=True))
    elif one.get("excess_se") is not None and other.get("excess_se") is not None:
        its = dict(zip(theirs, other["excess_se"], strict=True))
        errors = {e: (v, its.get(e)) for e, v in zip(ours, one["excess_se"], strict=True)}
        se = {e: hypot(a, b) for e, (a, b) in errors.items() if a is not None and b is not None}
    losses = dict(zip(theirs, other["loss"], strict=True))
    both = {e: (loss, losses[e]) for e, loss in zip(ours, one["loss"], strict=True) if e in losses}
    return {e: Pair(a, b, se.get(e)) for e, (a, b) in both.items() if _is_known(a) and _is_known(b)}


def _is_known(loss: float | None) -> bool:
    """Say whether an agent has a finite loss; of candidates for best losses that diverged there is none."""
    return loss is not None and isfinite(loss)
