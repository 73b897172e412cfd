"""Measure how often 95 % intervals of FAA contain the true value: `python -m focusfl.research.coverage`.

With --best-loss it measures those of validated best losses (best_loss_coverage.py).

The test examples of every agent are drawn from a distribution with a known mean, so the true FAA is known. The file
has three parts: the cases, other ways to construct an interval, and the measurements.
docs/decisions/22-faa-intervals.md shows the tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor
from torch.special import ndtr, ndtri

from focusfl.fairness import intervals, metrics
from focusfl.fairness.examples import Examples, agent_means, correlation, standard_error
from focusfl.fairness.intervals import Interval
from focusfl.research import best_loss_coverage

EXPLANATION = (
    "Percentage of draws whose 95 % interval contains the true value. "
    "Widths and biases are in standard errors of the mean of one agent's examples."
)
N = 1000  # test examples per agent, unless a case has other sizes
ERROR_RATE, LOSS_IF_WRONG, LOSS_IF_RIGHT = 0.05, 2.0, 0.05  # of a good classifier; the losses are means
LOSS_CORRELATION = 0.8  # of two methods' losses on the same example
SEEDS = 3
BOOTSTRAP_DRAWS = 1000
TAILS = torch.tensor([0.025, 0.975], dtype=torch.double)
Row = dict[str, float]


# Cases


def gaussian(risk: Tensor, z: Tensor) -> Tensor:
    """Excess losses with the means `risk` [n], from standard normal numbers z [n]."""
    return risk + z


def squared(risk: Tensor, z: Tensor) -> Tensor:
    """Squared errors of a linear model, as on the synthetic data, minus the best loss, 1."""
    return (1 + risk) * z.square() - 1


def rare(risk: Tensor, z: Tensor) -> Tensor:
    """Losses of a good classifier: few examples are wrong, with large losses. Standard deviation 1, skewness 9."""
    u = ndtr(z)
    wrong = -LOSS_IF_WRONG * (u / ERROR_RATE).log()
    right = -LOSS_IF_RIGHT * ((u - ERROR_RATE) / (1 - ERROR_RATE)).log()
    losses = torch.where(u < ERROR_RATE, wrong, right)
    centre = ERROR_RATE * LOSS_IF_WRONG + (1 - ERROR_RATE) * LOSS_IF_RIGHT
    variance = 2 * ERROR_RATE * LOSS_IF_WRONG**2 + 2 * (1 - ERROR_RATE) * LOSS_IF_RIGHT**2 - centre**2
    return risk + (losses - centre) / sqrt(variance)


class Case(NamedTuple):
    """Agents with known risks."""

    risk: Tensor  # [E], in standard errors of a mean of N examples with standard deviation 1
    kind: Callable[[Tensor, Tensor], Tensor] = gaussian  # the distribution of the losses
    sizes: Tensor | None = None  # [E] test examples; None: N each

    @property
    def at(self) -> Tensor:
        """Where each agent's examples start, and where the last agent's end, [E + 1]."""
        n = torch.full((len(self.risk),), N) if self.sizes is None else self.sizes
        return torch.cat([torch.zeros(1, dtype=torch.long), n.cumsum(0)])

    def noise(self, rng: torch.Generator) -> Tensor:
        """One standard normal number per test example."""
        return torch.randn(int(self.at[-1]), generator=rng, dtype=torch.double)

    def examples(self, z: Tensor) -> Examples:
        """The excess losses of all test examples for this noise."""
        risk = self.risk.double() / sqrt(N)
        return Examples(self.kind(risk.repeat_interleave(self.at.diff()), z), self.at)

    @property
    def faa(self) -> float:
        """The true FAA."""
        return metrics.faa(self.risk.double() / sqrt(N))


def groups(*sizes_and_risks: tuple[int, float]) -> Tensor:
    """The risks of groups of agents that have equal risks.

    >>> groups((2, 0), (1, 10)).tolist()
    [0.0, 0.0, 10.0]
    """
    return torch.cat([torch.full((n,), float(risk)) for n, risk in sizes_and_risks])


UNEQUAL_SIZES = torch.tensor([150, 1300, 50, 340, 2000, 75, 510, 110, 800, 220])
NORMAL_QUANTILES = ndtri((torch.arange(100) + 0.5) / 100)
CASES = {
    "10 agents, 10 apart": Case(10.0 * torch.arange(10)),
    "10 equal": Case(groups((10, 0))),
    "9 and 1, 20 apart": Case(groups((9, 0), (1, 20))),
    "7 and 3, 10 apart": Case(groups((7, 0), (3, 10))),
    "7, 2 and 1, 5 apart": Case(groups((7, 0), (2, 5), (1, 10))),
    "10 agents, 1 apart": Case(1.0 * torch.arange(10)),
    "100 equal": Case(groups((100, 0))),
    "70 and 30, 10 apart": Case(groups((70, 0), (30, 10))),
    "70, 20 and 10, 10 apart": Case(groups((70, 0), (20, 10), (10, 20))),
    "100 of N(0, 10^2)": Case(10 * NORMAL_QUANTILES),
    "100 of N(0, 3^2)": Case(3 * NORMAL_QUANTILES),
    "squared errors, 10 equal": Case(groups((10, 0)), squared),
    "squared errors, 9 and 1": Case(sqrt(N) * groups((9, 1), (1, 81)), squared),  # FedAvg on synthetic data
    "rare errors, 10 equal": Case(groups((10, 0)), rare),
    "rare errors, 7 and 3": Case(groups((7, 0), (3, 10)), rare),
    "7 and 3, 50 to 2,000 examples": Case(groups((7, 0), (3, 10)), sizes=UNEQUAL_SIZES),
}
PAIRS = {  # two methods on the same examples
    "apart - apart": (Case(10.0 * torch.arange(10)), Case(10.0 * torch.arange(10))),
    "apart - apart, the other way": (Case(10.0 * torch.arange(10)), Case(-10.0 * torch.arange(10))),
    "9 and 1 - equal": (Case(groups((9, 0), (1, 20))), Case(groups((10, 0)))),
    "9 and 1, 24 apart - 9 and 1, 20 apart": (Case(groups((9, 0), (1, 24))), Case(groups((9, 0), (1, 20)))),
    "7 and 3 - 7 and 3": (Case(groups((7, 0), (3, 10))), Case(groups((7, 0), (3, 10)))),
    "equal - equal": (Case(groups((10, 0))), Case(groups((10, 0)))),
    "1 apart - equal": (Case(1.0 * torch.arange(10)), Case(groups((10, 0)))),
}


# Other ways to construct an interval of FAA


def other_intervals(x: Tensor, s: Tensor, n: int, rng: torch.Generator) -> dict[str, Tensor]:
    """Construct the interval of FAA in other ways.

    Args:
        x: the mean excess loss of each agent, [E].
        s: their standard errors, [E].
        n: the number of examples per agent.
        rng: draws the noise. The bootstrap resamples the means, which are normal, not the examples.

    Returns:
        The limits of each interval, [2].
    """
    z = s * torch.randn(BOOTSTRAP_DRAWS, len(x), generator=rng, dtype=torch.double)
    measured = _gap(x, x)

    def changes(step: float) -> Tensor:
        """The change of FAA under noise of `step` times its size, divided by `step`."""
        return (_gap(x + step * z, x + step * z) - measured) / step

    once = changes(1)
    bias = ndtri((once < 0).double().mean().clamp(1 / BOOTSTRAP_DRAWS, 1 - 1 / BOOTSTRAP_DRAWS))
    every = torch.arange(len(s))
    c = torch.quantile(intervals.steepest_noise(s, every, every, intervals.ROUGH_DRAWS), 0.95)
    top, low = intervals.tied(x, s, 0.95, (x.argmax(), x.argmin()))
    half = torch.quantile(intervals.steepest_noise(s, top, low), 0.975)
    return {
        "percentile": measured + torch.quantile(once, TAILS),
        "basic": measured - torch.quantile(once, TAILS.flip(0)),
        "bias-corrected": measured + torch.quantile(once, ndtr(2 * bias + ndtri(TAILS))),
        "m of n": measured - torch.quantile(changes(n ** (1 / 6)), TAILS.flip(0)),  # m = n^(2/3)
        "numerical delta": measured - torch.quantile(changes(n ** (1 / 4)), TAILS.flip(0)),  # Hong and Li: n^(-1/4)
        "bands": torch.stack([_gap(x - c * s, x + c * s), _gap(x + c * s, x - c * s)]),
        "ties, halves": torch.stack(
            [_gap(x - half * s, x + half * s), torch.tensor(intervals.widest_pair(x, s, 1.96)[0])]
        ),
    }


def _gap(x: Tensor, y: Tensor) -> Tensor:
    return x.amax(-1) - y.amin(-1)


# Measurements


def measure_faa(case: Case, rng: torch.Generator) -> Row:
    """Draw test examples once: does the interval of FAA contain the true value? And do the other intervals?"""
    examples = case.examples(case.noise(rng))
    x, s, risk = agent_means(examples), standard_error(examples), case.risk.double() / sqrt(N)
    interval = intervals.faa(x, s)
    row = {"ours": _contains(interval, case.faa), "width": _in_errors(interval.high - interval.low)}
    row["FAA's bias"] = _in_errors(metrics.faa(x) - case.faa)
    row["corrected"] = _in_errors(interval.estimate - case.faa)
    middle = len(x) > 10
    row["5-95 %"] = _contains(intervals.middle_interval(x, s), intervals.middle(risk)) if middle else float("nan")
    others = other_intervals(x, s, N, rng)
    return row | {name: _contains(limits.clamp_min(0), case.faa) for name, limits in others.items()}


def measure_difference(pair: tuple[Case, Case], rng: torch.Generator) -> Row:
    """Draw test examples once for two methods: does the interval of the difference contain the true difference?"""
    z, other = (pair[0].noise(rng) for _ in range(2))
    correlated = LOSS_CORRELATION * z + sqrt(1 - LOSS_CORRELATION**2) * other
    one, two = pair[0].examples(z), pair[1].examples(correlated)
    both = [intervals.faa(agent_means(each), standard_error(each)) for each in (one, two)]
    row: Row = {}
    for name, rho in (("paired", correlation(one, two)), ("as if independent", 0.0)):
        interval = intervals.difference(both[0], both[1], rho)
        row[name] = _contains(interval, pair[0].faa - pair[1].faa)
        row[f"width, {name}"] = _in_errors(interval.high - interval.low)
    return row


def measure_mean(case: Case, sway: float, rng: torch.Generator) -> Row:
    """Does the interval over several seeds contain the true value?

    The last agent's risk differs from seed to seed, with a standard deviation of `sway` standard errors.
    """
    runs = []
    for _ in range(SEEDS):
        risk = case.risk.clone()
        risk[-1] += sway * float(torch.randn(1, generator=rng))
        examples = case._replace(risk=risk).examples(case.noise(rng))
        runs.append(intervals.faa(agent_means(examples), standard_error(examples)))
    interval = intervals.over_seeds(runs)
    contains = _contains(interval, metrics.faa(case.risk) / sqrt(N))
    return {"over seeds": contains, "width": _in_errors(interval.high - interval.low)}


def print_table(
    title: str, measurements: Mapping[str, Callable[[torch.Generator], Row]], draws: int, digits: int = 1
) -> None:
    """Print the means over the draws as a Markdown table, line by line."""
    for i, (name, measure) in enumerate(measurements.items()):
        rng = torch.Generator().manual_seed(i)
        rows = [measure(rng) for _ in range(draws)]
        if i == 0:
            print(f"\n| {title} | {' | '.join(rows[0])} |\n| --- |{' ---: |' * len(rows[0])}")
        means = (sum(row[k] for row in rows) / draws for k in rows[0])
        print(f"| {name} | {' | '.join('' if v != v else f'{v:.{digits}f}' for v in means)} |", flush=True)


def _contains(limits: Interval | Tensor, truth: float) -> float:
    return 100.0 * (float(limits[0]) <= truth + 1e-9 <= float(limits[-1]) + 2e-9)


def _in_errors(v: float) -> float:
    return v * sqrt(N)


def main() -> None:
    """Print all tables."""
    description = "Measure how often 95 % intervals of FAA contain the true value."
    parser = argparse.ArgumentParser(prog="python -m focusfl.research.coverage", description=description)
    parser.add_argument("--draws", type=int, default=500, help="draws per case (default: 500, about nine minutes)")
    parser.add_argument("--best-loss", action="store_true", help="measure the intervals of best losses instead")
    given = parser.parse_args()
    draws = given.draws
    if given.best_loss:
        print(best_loss_coverage.EXPLANATION)
        cases = best_loss_coverage.CASES.items()
        print_table("best loss", {k: partial(best_loss_coverage.measure, v) for k, v in cases}, draws, digits=2)
        return
    print(EXPLANATION)
    print_table("FAA of one run", {k: partial(measure_faa, v) for k, v in CASES.items()}, draws)
    print_table("difference of two methods", {k: partial(measure_difference, v) for k, v in PAIRS.items()}, draws)
    seeds = {
        f"{name}, swaying by {sway}": partial(measure_mean, CASES[name], sway)
        for name in list(CASES)[:4:2]
        for sway in (0, 1, 5)
    }
    print_table(f"mean over {SEEDS} seeds", seeds, draws)


if __name__ == "__main__":
    main()
