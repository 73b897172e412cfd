"""What every engine does: one round of `local` over a cohort, and the evaluation of all agents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from focusfl.core import Algorithm, State
from focusfl.core.train import Train
from focusfl.core.tree import take
from focusfl.data.federation import Federation
from focusfl.engines.plan import Ints
from focusfl.models.task import Task

ONE_THREAD = 1e7  # multiply-adds of a step up to which a second thread gains nothing (measured: 3e6 no, 2e7 yes)
NOBODY: Mapping[int, str] = MappingProxyType({})


class Replies(NamedTuple):
    """Of the agents that answered in a round."""

    add: State  # their uploads' `add`, summed
    each: State  # their `each`, [C, ...] in the order of `cohort`
    cohort: Ints  # [C] who answered
    dropped: Mapping[int, str] = NOBODY  # who did not, and why


class Scores(NamedTuple):
    """On each agent's own test data."""

    loss: Tensor  # [E]; NaN for agents that sent none
    acc: Tensor | None  # [E]; None in regression
    examples: Tensor | None = None  # [N] loss of each test example, agent after agent; None: they stay at the nodes
    dropped: Mapping[int, str] = NOBODY  # agents that sent no scores, and why

    @staticmethod
    def of_examples(loss: Tensor, correct: Tensor, at: Tensor, classes: int | None) -> Scores:
        """Means over each agent's examples, in double precision: agent e has examples at[e] to at[e + 1]."""
        loss, n = loss.cpu(), at.diff()
        whose = torch.repeat_interleave(torch.arange(len(n)), n)
        sums = torch.zeros(2, len(n), dtype=torch.double)
        sums.index_add_(1, whose, torch.stack([loss, correct.cpu()]).double())
        means = (sums / n).to(loss.dtype)
        return Scores(means[0], None if classes is None else means[1], loss)


class Engine(ABC):
    """Runs the agents of one federation. The agents' states are stacked, [E, ...] on every tensor."""

    name: ClassVar[str]

    def __init__(self, task: Task, fed: Federation, train: Train, rounds: int, seed: int) -> None:
        self.task, self.fed, self.train, self.rounds, self.seed = task, fed, train, rounds, seed

    @contextmanager
    def threads(self) -> Iterator[None]:
        """One thread where a step is little work: more would mostly wait for each other."""
        before = torch.get_num_threads()
        if step_work(self.task, self.fed, self.train) * self.at_once < ONE_THREAD:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    @property
    def at_once(self) -> int:
        """How many agents a step is taken for at the same time."""
        return 1

    @abstractmethod
    def round(self, algorithm: Algorithm, server: State, states: State, t: int, cohort: Ints) -> Replies:
        """`local` at each agent of the cohort. Writes their new states in place."""

    @abstractmethod
    def evaluate(self, algorithm: Algorithm, server: State, states: State) -> Scores:
        """Every agent's predictions on its own test data, judged; on the cpu."""

    def labels(self, algorithm: Algorithm, server: State, states: State) -> Tensor | None:
        """The agents' cluster labels pi, [E, M], on the cpu; None where the method has none."""

        def label(state: State, e: Tensor) -> Tensor | None:
            return algorithm.label(algorithm.downlink(server, e), state)

        if label(take(states, 0), torch.tensor(0)) is None:
            return None
        return torch.as_tensor(vmap(label)(states, torch.arange(self.fed.E))).cpu()

    def joined(self, agents: Ints) -> None:
        """These agents got a new first state: send it to them if they live elsewhere."""
        return None

    def close(self) -> None:
        """The run is over: stop processes, if there are any. A later call starts them again."""
        return None


def step_work(task: Task, fed: Federation, train: Train) -> int:
    """Multiply-adds of one agent's local step, forward, about: examples x parameters."""
    longest = int(fed.training.sizes.max())
    rows = longest if train.batch is None else min(longest, train.batch)
    return rows * sum(p.numel() for p in task.network.parameters())
