"""What every engine does: one round of `local` over a cohort, and the evaluation of all agents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from focusfl.core import Algorithm, State
from focusfl.core.train import Train
from focusfl.data.federation import Federation
from focusfl.engines.plan import Ints
from focusfl.models.task import Task

LITTLE = 1e7  # multiply-adds of a step: the demo (3e6) gains nothing from a second thread, 200 agents (2e7) do


class Scores(NamedTuple):
    """On each agent's own test data."""

    loss: Tensor  # [E]
    acc: Tensor | None  # [E]; None in regression


class Answers(NamedTuple):
    """Of the agents that answered in a round."""

    add: State  # their uploads' `add`, summed
    each: State  # their `each`, [C, ...] in the order of `cohort`
    cohort: Ints  # [C] who answered
    dropped: Mapping[int, str] = MappingProxyType({})  # who did not, and why


class Engine(ABC):
    """Runs the agents of one federation. The agents' states are stacked, [E, ...] on every tensor."""

    name: ClassVar[str]

    def __init__(self, task: Task, fed: Federation, train: Train, rounds: int, seed: int) -> None:
        self.task, self.fed, self.train, self.rounds, self.seed = task, fed, train, rounds, seed

    @contextmanager
    def threads(self) -> Iterator[None]:
        """One thread where a step is little work: more would mostly wait, and for long on a busy machine."""
        before = torch.get_num_threads()
        if step_work(self.task, self.fed, self.train) * self.at_once < LITTLE:
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
    def round(self, algorithm: Algorithm, server: State, states: State, t: int, cohort: Ints) -> Answers:
        """`local` at each agent of the cohort. Writes their new states in place."""

    @abstractmethod
    def evaluate(self, algorithm: Algorithm, server: State, states: State) -> Scores:
        """Every agent's prediction on its own test data."""

    def joined(self, agents: Ints) -> None:
        """These agents' states were set anew: where they lie elsewhere, bring them there."""
        return None

    def close(self) -> None:
        """The run is over: let go of processes, if there are any. What is asked later starts them again."""
        return None


def step_work(task: Task, fed: Federation, train: Train) -> int:
    """Multiply-adds of one agent's local step, forward, about: examples x parameters."""
    longest = int(fed.training.sizes.max())
    rows = longest if train.batch is None else min(longest, train.batch)
    return rows * sum(p.numel() for p in task.network.parameters())
