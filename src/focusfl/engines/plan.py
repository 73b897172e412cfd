"""Which agents take part in a round, and which of their examples are in which local step.

Both depend only on (seed, t) and (seed, t, e). So every engine, and every node of a real network, draws the same
rows without any communication.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from focusfl.core.train import Train

Ints = NDArray[np.int64]
ESTIMATE_EVERY = 10  # an estimated loss takes every tenth example ...
MIN_EXAMPLES_TO_ESTIMATE = 1000  # ... of agents with at least this many


class Plan(NamedTuple):
    """The rows of each local step of C agents, counted from the agent's own first row.

    Attributes:
        rows: [C, K, B]; beyond `size` any valid row.
        size: [C, K], how many of the B rows count; 0 if the agent has no such step.
    """

    rows: Ints
    size: Ints

    def step(self, c: int, k: int) -> Ints:
        """Return the rows of the c-th agent's step k."""
        return self.rows[c, k, : self.size[c, k]]


def cohort(seed: int, t: int, E: int, fraction: float, present: Ints | None = None) -> Ints:
    """Draw the agents of a round.

    Args:
        seed: The seed of the run.
        t: The round.
        E: The number of agents.
        fraction: The fraction of the present agents to draw; at least one agent is drawn.
        present: The agents that are present in this round; None for all E.

    Returns:
        The agents, ascending.

    Example:
        >>> cohort(seed=0, t=0, E=10, fraction=0.3).tolist()
        [0, 6, 8]
    """
    present = np.arange(E) if present is None else present
    size = min(max(round(fraction * len(present)), 1), len(present))
    if size == len(present):
        return present
    keys = _keys(seed, t, np.array([-1]), 0, E)[0]
    return np.sort(present[np.argsort(keys[present], kind="stable")[:size]])


def dropout_seed(seed: int, t: int, e: int) -> int:
    """Return the seed of the dropout of agent e in round t."""
    return int(_keys(seed, t, np.array([e]), 0, 1)[0, 0] >> np.uint64(2))


def steps(train: Train, n: int) -> int:
    """Return the number of local steps K of an agent with n examples."""
    if train.epochs is None:
        return train.steps
    return train.epochs * (1 if train.batch is None else -(-n // train.batch))


def estimate_rows(t: int, n: int) -> slice:
    """Return the examples that an estimated loss takes in round t: every tenth, or all of a small agent's."""
    return slice(t % ESTIMATE_EVERY, None, ESTIMATE_EVERY) if n >= MIN_EXAMPLES_TO_ESTIMATE else slice(None)


def batches(seed: int, t: int, agents: Ints, n: Ints, train: Train) -> Plan:
    """Draw the mini-batches of round t: shuffle, cut into batches (the last one may be short), shuffle again, ...

    Args:
        seed: The seed of the run.
        t: The round.
        agents: The agents' numbers, [C].
        n: Their numbers of examples, [C].
        train: The options of local training; `batch` must be given.
    """
    assert train.batch is not None
    B = min(train.batch, int(n.max()))
    per_epoch = -(-n // B)  # [C] batches per epoch
    K = np.array([steps(train, int(size)) for size in n])  # [C] steps of each agent
    last_epoch = -(-K // per_epoch) - 1  # [C]
    begin = (np.arange(K.max()) % per_epoch[:, None]) * B  # [C, K] where the batch begins in its epoch
    rows = np.empty((len(agents), int(K.max()), B), dtype=np.int64)
    for epoch in range(int(last_epoch.max()) + 1):
        active = np.flatnonzero(last_epoch >= epoch)  # small agents have more epochs than others
        order = _order(seed, t, agents[active], n[active], 1 + epoch)
        first = epoch * per_epoch[active]  # the epoch's first step
        count = np.where(last_epoch[active] == epoch, K.max() - first, per_epoch[active])  # steps of this epoch
        i, k = np.nonzero(np.arange(count.max()) < count[:, None])
        c, k = active[i], first[i] + k
        at = np.minimum(begin[c, k][:, None] + np.arange(B), n[c][:, None] - 1)
        rows[c, k] = order[i[:, None], at]
    size = np.where(np.arange(K.max()) < K[:, None], np.minimum(n[:, None] - begin, B), 0)
    return Plan(rows, size)


def _order(seed: int, t: int, agents: Ints, n: Ints, stream: int) -> Ints:
    """Return the examples of each agent, shuffled, as the first n of its row, [C, largest n]."""
    keys = _keys(seed, t, agents, stream, int(n.max()))
    keys[np.arange(keys.shape[1]) >= n[:, None]] = np.iinfo(np.uint64).max  # no such example: to the end
    return np.argsort(keys, axis=1, kind="stable")


def merge_single_examples(steps: list[Ints]) -> list[Ints]:
    """Append each batch of one example to the batch before, for networks that cannot train on one example.

    Example:
        >>> steps = [np.array([3, 1]), np.array([2]), np.array([1, 2]), np.array([3])]
        >>> [step.tolist() for step in merge_single_examples(steps)]
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
    """Return a 64-bit random number for each (agent, i), i < n: splitmix64 over (seed, t, stream, e, i)."""
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
