"""Means and deviations of features over all agents, from sums over each agent's examples.

In one process and across machines these are the same sums: each agent adds up its own examples in double
precision, and the agents' sums are added exactly. So the result does not depend on where the agents are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]


class Sums(NamedTuple):
    """What one agent's examples add up to.

    Attributes:
        known: The examples whose value is not missing, [F].
        total: The sum of their values, [F].
    """

    known: Floats
    total: Floats


def sums(x: NDArray[np.float32]) -> Sums:
    """Return the sums over examples x [n, ...]; a missing value is NaN."""
    columns = _columns(x)
    return Sums(np.array([len(c) for c in columns], float), np.array([c.sum() for c in columns], float))


def squares(x: NDArray[np.float32], means: Floats) -> Floats:
    """Return the sums of (x - mean)^2 over examples x [n, ...], [F]: of differences, so no digits are lost."""
    return np.array([((c - m) ** 2).sum() for c, m in zip(_columns(x), means, strict=True)], float)


def _columns(x: NDArray[np.float32]) -> list[Floats]:
    """Return the known values of each feature, each in memory of its own, so that its sum depends on it alone."""
    flat = x.reshape(len(x), -1)
    return [np.array(c[~np.isnan(c)], np.float64) for c in flat.T]


def total(terms: Iterable[Floats]) -> Floats:
    """Add arrays; every entry is the exact sum, rounded once, so the order of the terms changes nothing.

    >>> total([np.array([1e16]), np.array([1.0]), np.array([-1e16])]).tolist()
    [1.0]
    """
    stack = np.stack(list(terms))
    flat = [math.fsum(entry) for entry in stack.reshape(len(stack), -1).T.tolist()]
    return np.array(flat, float).reshape(stack.shape[1:])


def means(known: Floats, summed: Floats) -> Floats:
    """Return the mean of each feature; 0 where no value is known."""
    return np.divide(summed, known, out=np.zeros_like(summed), where=known > 0)


def deviations(squared: Floats, n: float) -> Floats:
    """Return the standard deviation of each feature over n examples; 1 where it is constant.

    A missing value counts as the mean, as which the network sees it.
    """
    found = np.sqrt(squared / n)
    return np.where((found > 0) & np.isfinite(found), found, 1.0)


class Moments(NamedTuple):
    """The mean and the deviation of each feature, [F]."""

    mean: Floats
    deviation: Floats

    @staticmethod
    def of(agents: Sequence[NDArray[np.float32]]) -> Moments:
        """Return those over the examples of all agents."""
        each = [sums(x) for x in agents]
        mean = means(total(s.known for s in each), total(s.total for s in each))
        return Moments(mean, deviations(total(squares(x, mean) for x in agents), sum(map(len, agents))))

    def scaling(self, shape: Sequence[int], amounts: Sequence[bool] | None = None) -> tuple[Tensor, Tensor]:
        """Return what an example of this shape is shifted and divided by, as the network takes it.

        Args:
            shape: The shape of an example.
            amounts: Whether each feature is scaled; 0 and 1 of categories stay as they are. None: all are.
        """
        mean, deviation = torch.from_numpy(self.mean), torch.from_numpy(self.deviation)
        if amounts is not None:
            scaled = torch.tensor(list(amounts))
            mean, deviation = torch.where(scaled, mean, 0.0), torch.where(scaled, deviation, 1.0)
        smallest = torch.finfo(torch.float32).tiny  # below it, a deviation would become 0 in float32
        deviation = torch.where(deviation < smallest, 1.0, deviation)
        return mean.float().reshape(tuple(shape)), deviation.float().reshape(tuple(shape))


def target_sum(y: Tensor) -> float:
    """Return the sum of one agent's targets; their order changes nothing."""
    return math.fsum(y.double().tolist())


def target_squares(y: Tensor, mean: float) -> float:
    """Return the sum of (y - mean)^2 over one agent's targets."""
    return math.fsum(((y.double() - mean) ** 2).tolist())


def target_scale(agents: Sequence[Tensor]) -> tuple[float, float]:
    """Return the mean and the deviation of the targets of all agents; a deviation of 0 becomes 1."""
    n = sum(len(y) for y in agents)
    mean = math.fsum(map(target_sum, agents)) / n
    squared = np.array([math.fsum(target_squares(y, mean) for y in agents)])
    return mean, float(deviations(squared, n)[0])
