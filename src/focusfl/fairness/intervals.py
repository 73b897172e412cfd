"""How far noise moves FAA: intervals from each agent's excess risk and its standard error. Pure functions.

The largest of E noisy numbers is too large and the least too small, so FAA is biased upwards, and where agents tie
the bootstrap fails: docs/decisions/22-faa-intervals.md. The mean of many examples is normal, so noise is drawn as
one number per agent, not as examples. The draws come from a fixed seed and in parts of bounded size, so that
100,000 agents need no more memory than a thousand.

Two agents tie if their difference may be noise. x [E] are numbers that are known up to normal noise
of standard error s [E].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

LEVEL = 0.95  # of the intervals
PERCENTILES = (0.05, 0.95)  # of the agents, between which `middle` measures
LIMIT_DRAWS = 8000  # draws of the noise for a limit of an interval
ROUGH_DRAWS = 1000  # for everything that needs less precision
MIN_DRAWS = 500  # with many agents
MAX_NUMBERS = 4_000_000  # drawn at a time
LEAST_ERROR = 1e-9  # standard error of an agent, as a share of the largest: stands for none at all
RATIO_PRECISION = 1e-9  # a smaller rise, as a share of the ratio, ends the search for the steepest pair


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    estimate: float  # corrected for the bias that noise brings
    high: float


def faa(excess: Tensor, se: Tensor, level: float = LEVEL) -> Interval:
    """Estimate FAA = max E_e - min E_e of excess risks that are known up to noise.

    low   max_e (E_e - c s_e) - min_e (E_e + c s_e), c the quantile of the noise of the agents tied at either end
    high  max over pairs of E_e - E_f + z sqrt(s_e^2 + s_f^2), z the normal quantile: one pair is the true one

    Args:
        excess: [E] excess risks.
        se: [E] their standard errors.
        level: Probability that the interval holds the true FAA.

    Returns:
        The interval.

    >>> from torch import tensor
    >>> [round(v) for v in faa(tensor([0.0, 200.0, 500.0]), tensor([10.0, 10.0, 10.0]))]
    [472, 500, 528]
    """
    unit, gap = float(se.max()), float(excess.max() - excess.min())
    if not unit or len(se) < 2:
        return Interval(gap, gap, gap)
    x, s = _scaled(excess, se)
    top, low = tied(x, s, level, (x.argmax(), x.argmin()))
    steepest = steepest_noise(s, top, low)
    t = _limit_error(steepest, widest_pair(x, s, 1.96)[1], 1 - level)
    c, z = torch.quantile(steepest, 1 - t), float(torch.special.ndtri(torch.tensor(1 - t)))
    below = float((x - c * s).max() - (x + c * s).min())
    a, b = shrunk(x[top], s[top]), shrunk(x[low], s[low])
    noisy = torch.cat([(up + a).amax(1) - (down + b).amin(1) for up, down in end_noise(s, top, low)])
    bias = max(0.0, float(noisy.mean() - (a.max() - b.min())))
    lowest, highest = max(0.0, below * unit), max(0.0, widest_pair(x, s, z)[0] * unit)
    return Interval(lowest, min(max(gap - bias * unit, lowest), highest), highest)


def middle(excess: Tensor) -> float:
    """Return the 95th minus the 5th percentile of the excess risks: FAA without the ends, for many agents.

    >>> middle(torch.arange(101.0))
    90.0
    """
    return float(torch.quantile(excess.double(), torch.tensor(PERCENTILES, dtype=torch.double)).diff())


def middle_interval(excess: Tensor, se: Tensor, level: float = LEVEL) -> Interval:
    """Estimate `middle`: noise without bias, or that of ties with the agent at either percentile if that is wider.

    Args:
        excess: [E] excess risks.
        se: [E] their standard errors.
        level: Probability that the interval holds the true value.

    Returns:
        The interval.
    """
    unit, measured = float(se.max()), middle(excess)
    if not unit or len(se) < 2:
        return Interval(measured, measured, measured)
    x, s = _scaled(excess, se)
    gathered, drawn = x.clone(), x.clone()
    for who in tied(x, s, level, [(x - torch.quantile(x, q)).abs().argmin() for q in PERCENTILES]):
        gathered[who], drawn[who] = x[who].mean(), shrunk(x[who], s[who])
    growths = []  # of `middle` by noise around each of three centres
    for centre in (x, gathered, drawn):
        noisy = (z * s.float() + centre.float() for z in draws(len(s), ROUGH_DRAWS))
        low, high = np.concatenate([np.quantile(v.numpy(), PERCENTILES, axis=1) for v in noisy], 1)  # torch sorts
        growths.append(torch.from_numpy(high - low) - middle(centre))
    free, at_ties, partly = growths
    each = torch.stack([free - free.mean(), at_ties])
    up = float(torch.quantile(each, (1 + level) / 2, dim=1).max())
    down = float(torch.quantile(each, (1 - level) / 2, dim=1).min())
    lowest, highest = max(0.0, measured - up * unit), max(0.0, measured - down * unit)
    return Interval(lowest, min(max(measured - float(partly.mean()) * unit, lowest), highest), highest)


def difference(one: Interval, other: Interval, rho: float = 0.0) -> Interval:
    """Subtract two estimates, by the limits of both (Zou and Donner 2008).

    Args:
        one: An interval.
        other: The interval to subtract.
        rho: Correlation of their noise.

    Returns:
        The interval of the difference.
    """
    gap = one.estimate - other.estimate
    sides = (
        (one.estimate - one.low, other.high - other.estimate),
        (one.high - one.estimate, other.estimate - other.low),
    )
    below, above = (sqrt(max(0.0, a * a + b * b - 2 * rho * a * b)) for a, b in sides)
    return Interval(gap - below, gap, gap + above)


def over_seeds(runs: Sequence[Interval]) -> Interval:
    """Return the interval of the mean: the mean of the limits, or Student's t of the estimates if that is wider."""
    from scipy.special import stdtrit  # takes a quarter of a second to import

    low, estimate, high = torch.tensor(runs, dtype=torch.double).T
    S, mean = len(runs), float(estimate.mean())
    t = float(stdtrit(S - 1, 0.975) * estimate.std()) / sqrt(S) if S > 1 else 0.0
    return Interval(min(float(low.mean()), mean - t), mean, max(float(high.mean()), mean + t))


def draws(agents: int, times: int = LIMIT_DRAWS, seed: int = 0) -> Iterator[Tensor]:
    """Draw standard normal noise, one number per agent.

    Args:
        agents: How many.
        times: How many draws; fewer for thousands of agents.
        seed: Of the generator.

    Yields:
        [rows, agents] at a time: each draw and its opposite, so that the mean is 0.
    """
    rng, rows = torch.Generator().manual_seed(seed), max(1, MAX_NUMBERS // agents // 2)
    pairs = min(times, max(MIN_DRAWS, MAX_NUMBERS // agents)) // 2
    for begin in range(0, pairs, rows):
        z = torch.randn(min(rows, pairs - begin), agents, generator=rng)
        yield torch.cat([z, -z])


def end_noise(s: Tensor, top: Tensor, low: Tensor, times: int = LIMIT_DRAWS) -> Iterator[tuple[Tensor, Tensor]]:
    """Draw the noise of the agents `top` and of the agents `low`; an agent in both has the same noise in both."""
    both = torch.unique(torch.cat([top, low]))
    for z in draws(len(both), times):
        z = z.double() * s[both]
        yield z[:, torch.searchsorted(both, top)], z[:, torch.searchsorted(both, low)]


def steepest_noise(s: Tensor, top: Tensor, low: Tensor, times: int = LIMIT_DRAWS) -> Tensor:
    """Return max over e in top, f in low of (z_e - z_f) / (s_e + s_f) of each draw z, by Dinkelbach's iteration.

    Every step takes the ratio of some pair of agents, and counts only where it is larger than the one before. There
    are finitely many pairs, so it ends however numbers are rounded; in practice after a few steps.
    """
    s, found = _least_errors(s) if s.any() else torch.ones_like(s, dtype=torch.double), []
    a, b = s[top], s[low]
    for up, down in end_noise(s, top, low, times):
        c, rising = torch.full([len(up)], -torch.inf, dtype=torch.double), torch.arange(len(up))
        while len(rising):
            now = c[rising, None].nan_to_num(neginf=0.0)  # 0 is where the search starts, and no pair's ratio
            z_up, z_down = up[rising], down[rising]
            e, f = (z_up - now * a).argmax(1, keepdim=True), (z_down + now * b).argmin(1, keepdim=True)
            ratio = ((z_up.gather(1, e) - z_down.gather(1, f)) / (a[e] + b[f])).flatten()
            higher = ratio > c[rising] + RATIO_PRECISION * ratio.abs()
            rising = rising[higher]
            c[rising] = ratio[higher]
        found.append(c)
    return torch.cat(found)


def tied(x: Tensor, s: Tensor, level: float, which: Sequence[Tensor]) -> list[Tensor]:
    """Find the agents whose risks noise does not distinguish from those of given agents.

    Args:
        x: [E] numbers.
        s: [E] their standard errors.
        level: Probability that no two equal agents are distinguished.
        which: The given agents, each a scalar tensor.

    Returns:
        For each given agent the indices of those tied with it.

    >>> from torch import tensor
    >>> tied(tensor([0.0, 7.0, 9.0]), tensor([1.0, 1.0, 1.0]), 0.95, [tensor(2)])
    [tensor([1, 2])]
    """
    every = torch.arange(len(s))
    c = torch.quantile(steepest_noise(s, every, every, ROUGH_DRAWS), level)  # Tukey's range, in units of s_e + s_f
    return [((x[e] - x).abs() <= c * (s[e] + s)).nonzero().flatten() for e in which]


def shrunk(x: Tensor, s: Tensor) -> Tensor:
    """Move x towards its mean as far as noise explains its spread (James and Stein).

    >>> from torch import tensor
    >>> shrunk(tensor([-2.0, 2.0]), tensor([2.0, 2.0])), shrunk(tensor([-2.0, 2.0]), tensor([4.0, 4.0]))
    (tensor([-1.,  1.]), tensor([0., 0.]))
    """
    if not s.any():
        return x  # nothing of its spread is noise
    w = 1 / _least_errors(s).square()
    mean = (w * x).sum() / w.sum()
    spread = (w * (x - mean).square()).sum()
    return mean + (x - mean) * (1 - (len(x) - 1) / spread.clamp_min(1e-12)).clamp_min(0)


def widest_pair(x: Tensor, s: Tensor, z: float) -> tuple[float, float]:
    """Find the widest pair of agents e != f.

    The upper one is not an agent that two others exceed both in x and in s: one of the two is not its partner, and
    would make the pair as wide. The rest are few, as a rule. The same holds for the lower one.

    Args:
        x: [E] numbers.
        s: [E] their standard errors.
        z: How many standard errors of their difference count.

    Returns:
        The largest x_e - x_f + z sqrt(s_e^2 + s_f^2), and sqrt(s_e^2 + s_f^2) / (s_e + s_f) of that pair.

    >>> from torch import tensor
    >>> round(widest_pair(tensor([0.0, 5.0, -5.0]), tensor([10.0, 0.1, 0.1]), 1.96)[0], 1)  # 0 and 2, or 1 and 0
    24.6
    """
    ends = []
    for values in (x, -x):
        left, outer = values.argsort(descending=True, stable=True), []
        for _ in range(2):
            before = torch.cat([s.new_tensor([-torch.inf]), s[left].cummax(0).values[:-1]])
            beyond = s[left] > before
            outer.append(left[beyond])
            left = left[~beyond]
        ends.append(torch.cat(outer))
    top, low = ends
    best, share = -torch.inf, 1.0
    for e in top.split(max(1, MAX_NUMBERS // len(low))):
        both = torch.hypot(s[e, None], s[low])
        width = (x[e, None] - x[low] + z * both).masked_fill(e[:, None] == low, -torch.inf)
        if width.max() > best:
            best, share = float(width.max()), float((both / (s[e, None] + s[low])).flatten()[width.argmax()])
    return best, share


def _least_errors(s: Tensor) -> Tensor:
    """Return the standard errors with a small number for 0, so that ratios have their limits and not NaN."""
    return s.double().clamp_min(LEAST_ERROR * float(s.max()))


def _scaled(excess: Tensor, se: Tensor) -> tuple[Tensor, Tensor]:
    """Return both sorted by risk, centred at 0, in units of the largest standard error."""
    x, order = excess.double().sort()
    return (x - x.mean()) / float(se.max()), _least_errors(se[order] / float(se.max()))


def _limit_error(steepest: Tensor, share: float, alpha: float) -> float:
    """The error that either limit may have: alpha in all, whether the ties are real or the widest pair is alone."""
    t = torch.linspace(alpha / 2, alpha, 51, dtype=steepest.dtype)
    c, z = torch.quantile(steepest, 1 - t), torch.special.ndtri(1 - t)
    other = torch.maximum((steepest[:, None] < -z * share).float().mean(0), torch.special.ndtr(-c / share))
    return float(t[t + other <= alpha].max()) if (t + other <= alpha).any() else alpha / 2
