"""Rows that occur more than once: in training and test data of an agent, in one file, or at two agents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from focusfl.core import Data
from focusfl.data.own.schema import listed

Hashes = NDArray[np.uint64]
SHARE = 0.05  # of rows that occur more than once, from which on they are remarked on
BY_CHANCE = 3.0  # times as many as are alike by chance
MOST = 0.5  # of an agent's rows that another has too, from which on both are remarked on


def repeats_notes(
    agents: Sequence[str], training: Sequence[Data], testing: Sequence[Data], widths: Sequence[int]
) -> list[str]:
    """Count identical rows, labels included; nothing is said where rows have so few values that many are alike.

    Args:
        agents: The names of the agents.
        training: The training examples of each.
        testing: The test examples of each.
        widths: How many features each column of the table became.
    """
    if not training:
        return []
    train, test = ([row_hashes(data) for data in part] for part in (training, testing))
    each = [np.unique(np.concatenate(pair)) for pair in zip(train, test, strict=True)]
    p = alike_by_chance(training, widths)

    def many(found: int, n: int, among: int, share: float) -> bool:
        return found > max(share, BY_CHANCE * (1 - (1 - p) ** among)) * n

    shared, twice = list[str](), list[str]()
    for name, a, b in zip(agents, train, test, strict=True):
        both, repeated = int(np.isin(b, a).sum()), len(a) - len(np.unique(a))
        if many(both, len(b), len(a), SHARE):
            shared.append(f"{name} ({both} of {len(b)})")
        if many(repeated, len(a), len(a) // 2, SHARE):  # each pair counts once
            twice.append(f"{name} ({repeated} of {len(a)})")
    pairs = []
    for i, j, n in in_common(each):
        least, most = sorted((len(each[i]), len(each[j])))
        if many(n, least, most, MOST):
            pairs.append(f"{agents[i]} and {agents[j]} ({n} of {least})")
    good = "the test results are then too good"
    lines = [f"test rows that are training rows of the same agent: {listed(shared)}; {good}"] if shared else []
    if twice:
        lines.append(f"training rows that occur more than once: {listed(twice)}")
    return lines + [f"agents that share most of their rows: {listed(pairs)}; {good}"] * bool(pairs)


def in_common(each: Sequence[Hashes]) -> list[tuple[int, int, int]]:
    """Return i, j and the number of rows that both have, for each pair of agents i < j that share any.

    Args:
        each: The hashes of each agent's rows, without repetitions.

    >>> in_common([np.array([1, 2], np.uint64), np.array([7], np.uint64), np.array([2, 3], np.uint64)])
    [(0, 2, 1)]
    """
    from scipy.sparse import csr_array, triu  # takes a moment to import

    agent = np.repeat(np.arange(len(each)), [len(rows) for rows in each])
    row = np.unique(np.concatenate(each), return_inverse=True)[1]
    has = csr_array((np.ones(len(row), np.int64), (agent, row)))
    shared = triu(has @ has.T, k=1).tocoo()
    return sorted(zip(shared.row.tolist(), shared.col.tolist(), shared.data.tolist(), strict=True))


def alike_by_chance(training: Sequence[Data], widths: Sequence[int]) -> float:
    """Return the probability that two rows are the same, if columns are independent."""
    x = torch.cat([data.x.flatten(1) for data in training])
    y = torch.cat([data.y for data in training])
    out = 1.0
    for part in (*x.split(list(widths), 1), torch.zeros(len(x), 0)):
        column = row_hashes(Data(part, torch.zeros(len(x)) if part.shape[1] else y))
        counts = np.unique(column, return_counts=True)[1]
        out *= float(((counts / len(x)) ** 2).sum())
    return out


def row_hashes(data: Data) -> Hashes:
    """Return a hash of each row and its label, [n]: rows are equal if their hashes are, but for an accident."""
    x = np.ascontiguousarray(data.x.numpy().reshape(len(data.y), -1)) + np.float32(0)  # -0 becomes 0
    y = data.y.numpy().reshape(len(data.y), -1).astype(np.float32)
    words = np.concatenate([x.astype(np.float32), y], 1).view(np.uint32)
    factors = np.random.default_rng(0).integers(1, 2**63, words.shape[1:], dtype=np.uint64) | np.uint64(1)
    out = np.zeros(len(words), np.uint64)
    for j in range(words.shape[1]):
        out = (out ^ (out >> np.uint64(29))) + words[:, j].astype(np.uint64) * factors[j]
    return out
