"""Per cent of the draws whose 95 % interval holds the truth; widths and biases in standard errors of a mean."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from math import sqrt

import torch
from torch import Tensor

from focusfl.fairness import intervals, metrics
from focusfl.fairness.examples import agent_means, correlation, standard_error
from focusfl.fairness.intervals import Interval
from focusfl.research.coverage.cases import CASES, PAIRS, Case, N
from focusfl.research.coverage.rivals import rivals

ALIKE = 0.8  # correlation of two methods' losses on an example
SEEDS = 3
Row = dict[str, float]


def one_faa(case: Case, rng: torch.Generator) -> Row:
    """Ours, and what else there is."""
    drawn = case.examples(case.noise(rng))
    x, s, risk = agent_means(drawn), standard_error(drawn), case.risk.double() / sqrt(N)
    truth, found = metrics.faa(risk), intervals.faa(x, s)
    row = {"ours": _holds(found, truth), "width": _units(found.high - found.low)}
    row |= {"FAA's bias": _units(metrics.faa(x) - truth), "corrected": _units(found.estimate - truth)}
    row["5-95 %"] = _holds(intervals.middle_interval(x, s), intervals.middle(risk)) if len(x) > 10 else float("nan")
    return row | {k: _holds(v.clamp_min(0), truth) for k, v in rivals(x, s, N, rng).items()}


def one_difference(pair: tuple[Case, Case], rng: torch.Generator) -> Row:
    """Two methods on the same examples."""
    z, other = (pair[0].noise(rng) for _ in range(2))
    drawn = [pair[0].examples(z), pair[1].examples(ALIKE * z + sqrt(1 - ALIKE**2) * other)]
    each = [intervals.faa(agent_means(one), standard_error(one)) for one in drawn]
    truth = metrics.faa(pair[0].risk.double() / sqrt(N)) - metrics.faa(pair[1].risk.double() / sqrt(N))
    row: Row = {}
    for name, rho in (("paired", correlation(drawn[0], drawn[1])), ("as if independent", 0.0)):
        found = intervals.difference(each[0], each[1], rho)
        row |= {name: _holds(found, truth), f"width, {name}": _units(found.high - found.low)}
    return row


def one_mean(case: Case, sway: float, rng: torch.Generator) -> Row:
    """Over seeds: the last agent's risk differs from seed to seed by `sway` standard errors."""
    runs = []
    for _ in range(SEEDS):
        risk = case.risk.clone()
        risk[-1] += sway * float(torch.randn(1, generator=rng))
        drawn = case._replace(risk=risk).examples(case.noise(rng))
        runs.append(intervals.faa(agent_means(drawn), standard_error(drawn)))
    found = intervals.over_seeds(runs)
    return {"over seeds": _holds(found, metrics.faa(case.risk) / sqrt(N)), "width": _units(found.high - found.low)}


def table(head: str, rows: dict[str, Callable[[torch.Generator], Row]], draws: int) -> None:
    """Means over the draws, printed line by line as Markdown."""
    for i, (name, one) in enumerate(rows.items()):
        rng = torch.Generator().manual_seed(i)
        each = [one(rng) for _ in range(draws)]
        if i == 0:
            print(f"\n| {head} | {' | '.join(each[0])} |\n| --- |{' ---: |' * len(each[0])}")
        means = (sum(row[k] for row in each) / draws for k in each[0])
        print(f"| {name} | {' | '.join('' if v != v else f'{v:.1f}' for v in means)} |", flush=True)


def _holds(limits: Interval | Tensor, truth: float) -> float:
    return 100.0 * (float(limits[0]) <= truth + 1e-9 <= float(limits[-1]) + 2e-9)


def _units(v: float) -> float:
    return v * sqrt(N)


def main() -> None:
    asked = argparse.ArgumentParser(prog="python -m focusfl.research.coverage", description=__doc__)
    asked.add_argument("--draws", type=int, default=500, help="of each case; 500 take about nine minutes")
    draws = asked.parse_args().draws
    print(__doc__)
    table("FAA of one run", {k: partial(one_faa, v) for k, v in CASES.items()}, draws)
    table("difference of two methods", {k: partial(one_difference, v) for k, v in PAIRS.items()}, draws)
    swaying = {
        f"{name}, swaying by {sway}": (CASES[name], sway) for name in list(CASES)[:4:2] for sway in (0, 1, 5)
    }
    table(f"mean over {SEEDS} seeds", {k: partial(one_mean, *v) for k, v in swaying.items()}, draws)


if __name__ == "__main__":
    main()
