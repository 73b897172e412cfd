"""The interface of all engines, and the types they return: the replies of a round, the scores of an evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from focusfl.core import Algorithm, Predictor, State
from focusfl.core.train import Train
from focusfl.core.tree import take
from focusfl.data.federation import Federation
from focusfl.engines.plan import Ints
from focusfl.models.task import Score, Task

# Multiply-adds of a step up to which a second thread gains nothing (measured: 3e6 no, 2e7 yes).
MAX_SINGLE_THREAD_WORK = 1e7
NONE_DROPPED: Mapping[int, str] = MappingProxyType({})


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
    """The scores of all agents on their own test data.

    Attributes:
        loss: The mean loss of each agent, [E]; NaN for agents that sent none.
        acc: The accuracy of each agent, [E]; None in regression.
        examples: The loss of each test example [N], agent after agent; None if these stay at the nodes.
        dropped: The agents that sent no scores, and why.
    """

    loss: Tensor
    acc: Tensor | None
    examples: Tensor | None = None
    dropped: Mapping[int, str] = NONE_DROPPED

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
    """

    name: ClassVar[str]
    agents_at_once: int = 1

    def __init__(self, task: Task, fed: Federation, train: Train, rounds: int, seed: int) -> None:
        self.task, self.fed, self.train, self.rounds, self.seed = task, fed, train, rounds, seed

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
    def evaluate(self, algorithm: Algorithm, server: State, states: State) -> Scores:
        """Return the scores of every agent on its own test data, on the cpu."""

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

    def close(self) -> None:
        """Stop the engine's processes, if there are any, after a run. A later call starts them again."""
        return None


@torch.no_grad()
def score(algorithm: Algorithm, view: State, state: State, task: Task, h: Predictor, y: Tensor) -> Score:
    """Judge one agent's predictions example by example: the evaluation of every engine and every node.

    Args:
        algorithm: The method.
        view: What the agent receives of the server's state.
        state: What the agent holds.
        task: The network with its loss.
        h: Predictions of models for the examples.
        y: Labels of the examples.
    """
    return task.score(algorithm.predict(view, state, h), y)


def step_work(task: Task, fed: Federation, train: Train) -> int:
    """Return about how many multiply-adds one agent's forward pass takes in a local step: examples x parameters."""
    longest = int(fed.training.sizes.max())
    rows = longest if train.batch is None else min(longest, train.batch)
    return rows * sum(p.numel() for p in task.network.parameters())
