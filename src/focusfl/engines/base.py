"""The interface of all engines, and the types they return: the replies of a round, the scores of an evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from focusfl.core import Algorithm, State
from focusfl.core.train import Train
from focusfl.core.tree import take
from focusfl.data.federation import Federation, Rows
from focusfl.engines.plan import Ints
from focusfl.fairness import scores as named_scores
from focusfl.fairness.constant import Constant, constant_scores
from focusfl.fairness.scores import Metric
from focusfl.models.task import Task

# Multiply-adds of a step up to which a second thread gains nothing (measured: 3e6 no, 2e7 yes).
MAX_SINGLE_THREAD_WORK = 1e7
NONE_DROPPED: Mapping[int, str] = MappingProxyType({})
NO_METRICS: Mapping[str, Tensor] = MappingProxyType({})
Part = Literal["test", "validation"]  # which examples of the agents


class Replies(NamedTuple):
    """The replies of the agents that answered in a round.

    Attributes:
        add: The sum of their `Upload.add`.
        each: Their `Upload.each`, [C, ...] in the order of `cohort`.
        cohort: The agents that answered, [C].
        dropped: The agents that did not answer, and why; in a secure sum, also those that sent wrong shares.
    """

    add: State
    each: State
    cohort: Ints
    dropped: Mapping[int, str] = NONE_DROPPED


class Scores(NamedTuple):
    """The scores of all agents on their own test or validation data.

    Attributes:
        loss: The mean loss of each agent, [E]; NaN for agents that sent none or have no such examples.
        acc: The accuracy of each agent, [E]; None in regression.
        examples: The loss of each test example [N], agent after agent; None if these stay at the nodes.
        dropped: The agents that sent no scores, and why.
        metrics: The metrics that were asked for, [E] by name; NaN where one is not defined. Test data only.
    """

    loss: Tensor
    acc: Tensor | None
    examples: Tensor | None = None
    dropped: Mapping[int, str] = NONE_DROPPED
    metrics: Mapping[str, Tensor] = NO_METRICS

    @staticmethod
    def of_examples(loss: Tensor, correct: Tensor, offsets: Tensor, classes: int | None) -> Scores:
        """Average the scores of examples over each agent, in double precision.

        Args:
            loss: The loss of each example, [N], agent after agent.
            correct: 1 where the predicted class is correct, [N].
            offsets: [E + 1]; agent e has examples offsets[e] to offsets[e + 1].
            classes: The number of classes; None for regression.
        """
        loss, n = loss.cpu(), offsets.diff()
        agent = torch.repeat_interleave(torch.arange(len(n)), n)
        sums = torch.zeros(2, len(n), dtype=torch.double)
        sums.index_add_(1, agent, torch.stack([loss, correct.cpu()]).double())
        means = (sums / n).to(loss.dtype)
        return Scores(means[0], None if classes is None else means[1], loss)


class Engine(ABC):
    """Runs the agents of one federation. The agents' states are stacked: [E, ...] on every tensor.

    Args:
        task: The network and its loss.
        fed: The agents' data.
        train: The options of local training.
        rounds: The number of rounds T; schedules of the learning rate depend on it.
        seed: The seed that batches are drawn with.

    Attributes:
        agents_at_once: The number of agents for which a step is computed at the same time.
        metrics: What is measured of the predictions for test data besides loss and accuracy. Set by the run.
        rate: The factor of the learning rate in the next rounds. Set by the run.
        best: The round to which the run may return, 0 for the start. Set by the run.
        returns: The rounds to which it has returned, where the agents' states live elsewhere.
        judges: The agents whose validation losses were averaged last; None: always the same ones.
    """

    name: ClassVar[str]
    agents_at_once: int = 1
    rate: float = 1.0
    best: int = 0
    returns: tuple[int, ...] = ()
    judges: tuple[int, ...] | None = None

    def __init__(self, task: Task, fed: Federation, train: Train, rounds: int, seed: int) -> None:
        self.task, self.fed, self.train, self.rounds, self.seed = task, fed, train, rounds, seed
        self.metrics: Mapping[str, Metric] = {}

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Use one thread while a step is little work: more threads would mostly wait for each other."""
        before = torch.get_num_threads()
        if step_work(self.task, self.fed, self.train) * self.agents_at_once < MAX_SINGLE_THREAD_WORK:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def lr_at(self, t: int) -> float:
        """Return the learning rate of round t."""
        return self.rate * self.train.lr_at(t, self.rounds)

    @abstractmethod
    def round(self, algorithm: Algorithm, server: State, states: State, t: int, cohort: Ints) -> Replies:
        """Run `local` at each agent of the cohort, and write the agents' new states in place.

        Args:
            algorithm: The method.
            server: The server's state.
            states: The states of all agents, [E, ...].
            t: The round, from 0.
            cohort: The agents of this round, ascending.
        """

    @abstractmethod
    def evaluate(self, algorithm: Algorithm, server: State, states: State, part: Part = "test") -> Scores:
        """Return the scores of every agent on its own test or validation data, on the cpu."""

    def examples(self, part: Part) -> Rows:
        """Return the test or validation examples of all agents."""
        rows = self.fed.testing if part == "test" else self.fed.validation
        assert rows is not None
        return rows

    def collect(self, scored: Sequence[tuple[Tensor, Tensor, Tensor]], part: Part) -> Scores:
        """Return the agents' scores, from loss, correctness and prediction of each example, agent after agent."""
        loss, correct, predictions = (torch.cat(parts) for parts in zip(*scored, strict=True))
        rows = self.examples(part)
        found = Scores.of_examples(loss, correct, rows.offsets, self.task.classes)
        if part == "validation" or not self.metrics:
            return found
        values = predictions.squeeze(-1) if self.task.classes is None else predictions
        measured = named_scores.measure(
            self.metrics, values, rows.y, rows.offsets, lambda: self.constant.skill(found.loss)
        )
        return found._replace(metrics=measured)

    @cached_property
    def constant(self) -> Constant:
        """The scores of each agent's constant prediction on its test data."""
        known, test = self.fed.all_rows, self.fed.testing
        return constant_scores(self.task, (known.y, known.offsets), (test.y, test.offsets))

    def labels(self, algorithm: Algorithm, server: State, states: State) -> Tensor | None:
        """Return the agents' cluster labels pi, [E, M], on the cpu; None if the method has none."""

        def label(state: State, e: Tensor) -> Tensor | None:
            return algorithm.label(algorithm.downlink(server, e), state)

        if label(take(states, 0), torch.tensor(0)) is None:
            return None
        return torch.as_tensor(vmap(label)(states, torch.arange(self.fed.E))).cpu()

    def agents_joined(self, agents: Ints) -> None:
        """Handle agents that join in this round and got a new first state; override if states live elsewhere."""
        return None

    def returned_to(self, t: int) -> None:
        """Handle that the run returned to the states after round t; override if states live elsewhere."""
        self.agents_joined(np.arange(self.fed.E))

    def adapting_from(self, t: int) -> None:
        """Handle that the rounds after training begin, from the states after round t; as `returned_to`."""
        return None

    def judge_again(self, algorithm: Algorithm, server: State, judges: tuple[int, ...]) -> float | None:
        """Return the mean validation loss of the best round, by these agents; None if others answered.

        Args:
            algorithm: The method.
            server: The server's state after the best round.
            judges: The agents, where not always the same ones are asked.
        """
        return None

    def close(self) -> None:
        """Stop the engine's processes, if there are any, after a run. A later call starts them again."""
        return None


def step_work(task: Task, fed: Federation, train: Train) -> int:
    """Return about how many multiply-adds one agent's forward pass takes in a local step: examples x parameters."""
    longest = int(fed.training.sizes.max())
    rows = longest if train.batch is None else min(longest, train.batch)
    return rows * sum(p.numel() for p in task.network.parameters())
