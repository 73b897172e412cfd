"""How far noise moves FAA: intervals from each agent's excess risk and its standard error. Pure functions.

The largest of E noisy numbers is too large and the least too small, so FAA is biased upwards, and where agents tie
the bootstrap of it fails: docs/decisions/22-faa-intervals.md. The mean of many examples is normal, so that noise
is drawn as a number an agent and not as examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor

from focusfl.fairness import ties

LEVEL = 0.95
MIDDLE = (0.05, 0.95)


class Interval(NamedTuple):
    """`estimate`: corrected for the bias that noise brings."""

    low: float
    estimate: float
    high: float


def faa(excess: Tensor, se: Tensor, level: float = LEVEL) -> Interval:
    """FAA = max E_e - min E_e of excess risks [E] that are known up to noise of standard error se [E].

    low   max_e (E_e - c s_e) - min_e (E_e + c s_e), c the quantile of the noise of those tied at either end
    high  max over pairs of E_e - E_f + z sqrt(s_e^2 + s_f^2), z the normal quantile: one pair is the true one

    >>> from torch import tensor
    >>> [round(v) for v in faa(tensor([0.0, 200.0, 500.0]), tensor([10.0, 10.0, 10.0]))]
    [472, 500, 528]
    """
    unit, gap = float(se.max()), float(excess.max() - excess.min())
    if not unit or len(se) < 2:
        return Interval(gap, gap, gap)
    x, s = _scaled(excess, se)
    top, low = ties.ends(x, s, level)
    steepest = ties.steepest(s, top, low)
    t = _tail(steepest, ties.widest(x, s, 1.96)[1], 1 - level)
    c, z = torch.quantile(steepest, 1 - t), float(torch.special.ndtri(torch.tensor(1 - t)))
    below = float((x - c * s).max() - (x + c * s).min())
    a, b = ties.shrunk(x[top], s[top]), ties.shrunk(x[low], s[low])
    noisy = torch.cat([(up + a).amax(1) - (down + b).amin(1) for up, down in ties.noise(s, top, low)])
    bias = max(0.0, float(noisy.mean() - (a.max() - b.min())))
    return _positive(below * unit, gap - bias * unit, ties.widest(x, s, z)[0] * unit)


def middle(excess: Tensor) -> float:
    """The 95th less the 5th percentile of the excess risks: FAA without the ends, for many agents.

    >>> middle(torch.arange(101.0))
    90.0
    """
    return float(torch.quantile(excess.double(), torch.tensor(MIDDLE, dtype=torch.double)).diff())


def middle_interval(excess: Tensor, se: Tensor, level: float = LEVEL) -> Interval:
    """Of `middle`: noise without bias, or that of ties with the agent at either percentile, if it goes further."""
    unit, found = float(se.max()), middle(excess)
    if not unit or len(se) < 2:
        return Interval(found, found, found)
    x, s = _scaled(excess, se)
    c, gathered, drawn = ties.reach(s, level), x.clone(), x.clone()
    for q in MIDDLE:
        who = ties.near(x, s, (x - torch.quantile(x, q)).abs().argmin(), c)
        gathered[who], drawn[who] = x[who].mean(), ties.shrunk(x[who], s[who])
    free, tied, partly = (_middle_noise(centre, s) for centre in (x, gathered, drawn))
    each = torch.stack([free - free.mean(), tied])
    up = float(torch.quantile(each, (1 + level) / 2, dim=1).max())
    down = float(torch.quantile(each, (1 - level) / 2, dim=1).min())
    return _positive(found - up * unit, found - float(partly.mean()) * unit, found - down * unit)


def correlation(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], both: Tensor) -> float:
    """Of the noise of two methods' FAA on the same examples: (excess, se) of each and their covariance, all [E]."""
    if not one[1].max() or not other[1].max():
        return 0.0
    r = (both / (one[1] * other[1])).nan_to_num(0, 0, 0).clamp(-1, 1).float()
    each = [(x, s.clamp_min(1e-9 * float(s.max()))) for x, s in (one, other)]
    ends = [(s.float(), *ties.ends(x, s, LEVEL)) for x, s in each]
    found = []
    for z, rest in zip(ties.draws(len(r), ties.FEW), ties.draws(len(r), ties.FEW, seed=1), strict=True):
        noise = z, r * z + (1 - r.square()).sqrt() * rest
        gaps = [(s * v)[:, a].amax(1) - (s * v)[:, b].amin(1) for v, (s, a, b) in zip(noise, ends, strict=True)]
        found.append(torch.stack(gaps))
    return float(torch.corrcoef(torch.cat(found, 1)).nan_to_num()[0, 1])


def difference(one: Interval, other: Interval, rho: float = 0.0) -> Interval:
    """one - other, whose noise has correlation rho, from the limits of both (Zou and Donner 2008)."""

    def combined(a: float, b: float) -> float:
        return sqrt(max(0.0, a * a + b * b - 2 * rho * a * b))

    gap = one.estimate - other.estimate
    below = combined(one.estimate - one.low, other.high - other.estimate)
    return Interval(gap - below, gap, gap + combined(one.high - one.estimate, other.estimate - other.low))


def over_seeds(runs: Sequence[Interval]) -> Interval:
    """Of the mean: the mean of the limits, or Student's t of the estimates where that is wider."""
    low, estimate, high = torch.tensor(runs, dtype=torch.double).T
    S, mean = len(runs), float(estimate.mean())
    t = float(stdtrit(S - 1, 0.975) * estimate.std()) / sqrt(S) if S > 1 else 0.0
    return Interval(min(float(low.mean()), mean - t), mean, max(float(high.mean()), mean + t))


def _scaled(excess: Tensor, se: Tensor) -> tuple[Tensor, Tensor]:
    """Around 0, in units of the largest standard error, in the order of risk: who is who does not matter."""
    x, order = excess.double().sort()
    return (x - x.mean()) / float(se.max()), (se.double()[order] / float(se.max())).clamp_min(1e-9)


def _middle_noise(centre: Tensor, s: Tensor) -> Tensor:
    """How much `middle` grows when noise is added to `centre`. [FEW]"""
    noisy = (z * s.float() + centre.float() for z in ties.draws(len(s), ties.FEW))
    low, high = np.concatenate([np.quantile(v.numpy(), MIDDLE, axis=1) for v in noisy], 1)  # torch's would sort
    return torch.from_numpy(high - low) - middle(centre)


def _tail(steepest: Tensor, share: float, alpha: float) -> float:
    """The error to allow either limit: alpha in all, whether the ties are real or the widest pair stands alone."""
    t = torch.linspace(alpha / 2, alpha, 51)
    c, z = torch.quantile(steepest, 1 - t), torch.special.ndtri(1 - t)
    other = torch.maximum((steepest[:, None] < -z * share).float().mean(0), torch.special.ndtr(-c / share))
    return float(t[t + other <= alpha].max()) if (t + other <= alpha).any() else alpha / 2


def _positive(low: float, estimate: float, high: float) -> Interval:
    low, high = max(0.0, low), max(0.0, high)
    return Interval(low, min(max(estimate, low), high), high)
