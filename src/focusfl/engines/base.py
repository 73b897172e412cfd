"""What every engine does: one round of `local` over a cohort, and the evaluation of all agents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from torch import Tensor

from focusfl.core import Algorithm, State, Upload
from focusfl.data.federation import Federation
from focusfl.engines.plan import Ints
from focusfl.task import Task
from focusfl.train import Train


class Scores(NamedTuple):
    """On each agent's own test data."""

    loss: Tensor  # [E]
    acc: Tensor | None  # [E]; None in regression


class Engine(ABC):
    """Runs the agents of one federation. The agents' states are stacked, [E, ...] on every tensor."""

    name: ClassVar[str]

    def __init__(self, task: Task, fed: Federation, train: Train, rounds: int, seed: int) -> None:
        self.task, self.fed, self.train, self.rounds, self.seed = task, fed, train, rounds, seed

    @abstractmethod
    def round(self, algorithm: Algorithm, server: State, states: State, t: int, cohort: Ints) -> Upload:
        """`local` at each agent of the cohort. Writes their new states in place; returns the sums of `add`
        and the rows of `each` in the cohort's order."""

    @abstractmethod
    def evaluate(self, algorithm: Algorithm, server: State, states: State) -> Scores:
        """Every agent's prediction on its own test data."""
