"""Which agents take part in a round, and which of their examples are in which local step.

Both come from (seed, t) and (seed, t, e) alone, so every engine, and every node of a real network, draws the
same rows without asking anyone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from focusfl.core.train import Train

Ints = NDArray[np.int64]
ROUGH, FEW = 10, 1000


class Plan(NamedTuple):
    """Rows of each local step of C agents, counted from the agent's own first row."""

    rows: Ints  # [C, K, B]; beyond `size` any valid row
    size: Ints  # [C, K] how many of the B rows count; 0: the agent has no such step

    def step(self, c: int, k: int) -> Ints:
        return self.rows[c, k, : self.size[c, k]]


def cohort(seed: int, t: int, E: int, fraction: float, there: Ints | None = None) -> Ints:
    """The agents of round t, ascending: a `fraction` of those that are there (None: all E), at least one."""
    there = np.arange(E) if there is None else there
    size = min(max(round(fraction * len(there)), 1), len(there))
    if size == len(there):
        return there
    keys = _keys(seed, t, np.array([-1]), 0, E)[0]
    return np.sort(there[np.argsort(keys[there], kind="stable")[:size]])


def draw(seed: int, t: int, e: int) -> int:
    """One random number for agent e in round t: what its dropout starts from."""
    return int(_keys(seed, t, np.array([e]), 0, 1)[0, 0] >> np.uint64(2))


def full(train: Train, n: Ints) -> bool:
    """Is every batch of these agents all of the agent's data?"""
    return train.batch is None or train.batch >= int(n.max())


def steps(train: Train, n: int) -> int:
    """K of an agent with n examples."""
    if train.epochs is None:
        return train.steps
    return train.epochs * (1 if train.batch is None else -(-n // train.batch))


def rough(t: int, n: int) -> slice:
    """The examples of round t that will do for a rough loss: every tenth; all, where there are few."""
    return slice(t % ROUGH, None, ROUGH) if n >= FEW else slice(None)


def batches(seed: int, t: int, agents: Ints, n: Ints, train: Train) -> Plan:
    """Mini-batches of round t: shuffle, cut into batches (the last one may be short), shuffle again, ..."""
    assert train.batch is not None
    B = min(train.batch, int(n.max()))
    per_epoch = -(-n // B)  # [C] batches an epoch
    count = np.array([steps(train, int(size)) for size in n])  # [C] K of each agent
    K = int(count.max())
    last = -(-count // per_epoch) - 1  # [C] the last epoch of each agent
    first = (np.arange(K) % per_epoch[:, None]) * B  # [C, K] where the batch begins in its epoch
    rows = np.empty((len(agents), K, B), dtype=np.int64)
    for epoch in range(int(last.max()) + 1):
        some = np.flatnonzero(last >= epoch)  # a small agent has more epochs than others
        order = _order(seed, t, agents[some], n[some], 1 + epoch)
        begin = epoch * per_epoch[some]
        many = np.where(last[some] == epoch, K - begin, per_epoch[some])  # steps of this epoch
        i, k = np.nonzero(np.arange(many.max()) < many[:, None])
        c, k = some[i], begin[i] + k
        at = np.minimum(first[c, k][:, None] + np.arange(B), n[c][:, None] - 1)
        rows[c, k] = order[i[:, None], at]
    size = np.where(np.arange(K) < count[:, None], np.minimum(n[:, None] - first, B), 0)
    return Plan(rows, size)


def _order(seed: int, t: int, agents: Ints, n: Ints, stream: int) -> Ints:
    """The examples of each agent, shuffled: the first n of its row, [C, largest n]."""
    keys = _keys(seed, t, agents, stream, int(n.max()))
    keys[np.arange(keys.shape[1]) >= n[:, None]] = np.iinfo(np.uint64).max  # no such example: to the end
    return np.argsort(keys, axis=1, kind="stable")


def joined(steps: list[Ints]) -> list[Ints]:
    """Where one example alone cannot be trained on: such a batch, the last of its epoch, joins the one before.

    >>> [step.tolist() for step in joined([np.array([3, 1]), np.array([2]), np.array([1, 2]), np.array([3])])]
    [[3, 1, 2], [1, 2, 3]]
    """
    out: list[Ints] = []
    for rows in steps:
        if len(rows) == 1 and out:
            out[-1] = np.concatenate([out[-1], rows])
        else:
            out.append(rows)
    return out


def _keys(seed: int, t: int, agents: Ints, stream: int, n: int) -> NDArray[np.uint64]:
    """A 64-bit random number for each (agent, i), i < n: splitmix64 over (seed, t, stream, e, i)."""
    with np.errstate(over="ignore"):
        state = np.asarray(np.uint64(seed & 0xFFFFFFFFFFFFFFFF))
        for part in (t, stream):
            state = _splitmix(state) ^ np.uint64(part)
        state = _splitmix(state)
        lanes = _splitmix(state ^ agents.astype(np.uint64))  # [C]
        return np.asarray(_splitmix(lanes[:, None] ^ _splitmix(np.arange(n, dtype=np.uint64))))


def _splitmix(z: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))
