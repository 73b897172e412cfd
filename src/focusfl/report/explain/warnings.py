"""Where grouping agents is the wrong tool, or has the wrong options: each from what was measured, with advice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from focusfl.report.explain.gains import Gains
from focusfl.report.explain.groups import Row, agents, empty, groups, numbers, uncertain

MANY = 1 / 3  # with more than this share of the agents uncertain, the groups themselves are in doubt
SOME = 5  # rounds after the warm-up of FOCUS, before anything is said of its groups
FEW = 50  # training examples of a group: below, scikit-learn's guide to estimators says "get more data"


def warnings(runs: Sequence[Row], bases: dict[str, Gains]) -> Iterator[str]:
    """Of a method's runs and what they are held against: fedavg, local, as far as there is any."""
    row, fedavg, local = runs[0], bases.get("fedavg"), bases.get("local")
    if row["algorithm"] == "focus" and row["params"].get("init") == "split":
        rounds, warmup = row.get("rounds", math.inf), row["params"].get("warmup", 0)
        if rounds < warmup + SOME:
            yield f"only {rounds} rounds, {warmup} of them warm-up: too few to judge. Train for more rounds."
            return
    E, unsure = len(numbers(row)), len(uncertain(runs))
    one = all(len(groups(run)) == 1 for run in runs)
    yield from _alike(row, one, fedavg, local)
    if fedavg is not None and fedavg.lost:
        yield f"{_worse(fedavg, 'under FedAvg')}. {_advice(row, one)}."
    if local is not None and local.lost and not one:
        alone = f"Let {'it' if len(local.lost) == 1 else 'them'} train alone"
        yield f"{_worse(local, 'alone')}. {alone}, or try {_other_start(row) or 'more clusters'}."
    yield from _few(row, one)
    if unsure > MANY * E:
        yield f"{unsure} of {E} agents are uncertain. Use fewer clusters, or train for more rounds."
    elif not one:
        yield from _empty(runs)


def _alike(row: Row, one: bool, fedavg: Gains | None, local: Gains | None) -> Iterator[str]:
    """Agents alike need no groups."""
    all_in_one = f"all {len(numbers(row))} agents are in one group"
    if one and local is not None and local.lost:
        start = "M = 2 or more" if len(row["pi"][0]) == 1 else _other_start(row) or "another seed"
        yield f"{all_in_one}, but {_worse(local, 'alone')}. Try {start}."
    elif one and len(row["pi"][0]) == 1:
        yield f"{all_in_one}, as M = 1 leaves no choice. Try M = 2 or more; or FedAvg will do."
    elif one:
        yield f"{all_in_one}: they look alike. FedAvg will do."
    elif fedavg is not None and not fedavg.gained and fedavg.overall >= 0:
        ours, theirs = fedavg.losses(list(fedavg.each))
        both = f"mean loss {ours:.3g}, under FedAvg {theirs:.3g}"
        yield f"nobody does better than under FedAvg by more than {fedavg.limit} ({both}). FedAvg will do."


def _worse(found: Gains, there: str) -> str:
    ours, theirs = found.losses(found.lost)
    do = "does" if len(found.lost) == 1 else "do"
    return f"{agents(found.lost)} {do} worse than {there} (mean loss {ours:.3g}, {there} {theirs:.3g})"


def _advice(row: Row, one: bool) -> str:
    """To those who lose against FedAvg: their group fits them badly, or is too small to learn from."""
    if one:
        return "Use FedAvg"
    warmup = f"a warmup longer than {row['params'].get('warmup')} rounds" if row["algorithm"] == "focus" else ""
    return " or ".join(filter(None, ["Use fewer clusters", _other_start(row) or warmup]))


def _other_start(row: Row) -> str:
    """The start of FOCUS that finds groups most often, if it was not that one."""
    return 'init = "split"' if row["algorithm"] == "focus" and row["params"].get("init") != "split" else ""


def _few(row: Row, one: bool) -> Iterator[str]:
    """More clusters than the data can feed."""
    n = dict(zip(numbers(row), row.get("n") or [FEW] * len(row["loss"]), strict=True))
    examples = {m: sum(n[e] for e in who) for m, who in groups(row).items()}
    said = [f"{agents(who)} ({examples[m]})" for m, who in groups(row).items() if examples[m] < FEW]
    if said:
        advice = "Gather more" if one else "Use fewer clusters, or gather more"
        yield f"fewer than {FEW} training examples for a model of {' and of '.join(said)}. {advice}."


def _empty(runs: Sequence[Row]) -> Iterator[str]:
    M, unused = runs[0]["params"].get("M"), min(empty(row) for row in runs)
    if isinstance(M, int) and unused:
        yield f"{unused} of {M} clusters {'is' if unused == 1 else 'are'} empty. M = {M - unused} will do."
