"""The nouns. Everything else in the package is written in terms of these.

E agents, M models, K local steps, T rounds; e, m, k, t run over them, as in the paper.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

Models = dict[str, Tensor]
"""A stack of M models: leading axis M on every tensor. FedAvg has M = 1."""

State = dict[str, Any]
"""A nested dict of tensors: it travels, checkpoints and vmaps as it is."""

Predictor = Callable[[Models], Tensor]
"""h: the outputs of each model on the examples asked for, [M, n, C]; probabilities when classifying."""


class Data(NamedTuple):
    """Examples of one agent."""

    x: Tensor  # [n, ...]
    y: Tensor  # [n] class numbers, or [n] targets


class Pull(NamedTuple):
    """A proximal term: `strength * (theta - to)` is added to the gradient (FedProx, Ditto)."""

    to: Models
    strength: Tensor | float


class Agent(Protocol):
    """All that an algorithm may ask of agent e. Its examples stay inside."""

    n: Tensor  # how many training examples it has

    def losses(self, w: Models) -> Tensor:
        """Mean training loss of each model, [M], in eval mode."""

    def sgd(self, w: Models, pull: Pull | None = None, only: Tensor | None = None) -> Models:
        """Each model after the K local steps. `only`, [M] bool: the others come back as they were."""


class Upload(NamedTuple):
    """What one agent sends."""

    add: State  # summed over the agents: the server sees only the sum
    each: State  # the server sees it agent by agent


class Networks(Protocol):
    """Where first weights come from; the same seed gives the same weights."""

    def copies(self, M: int, noise: float = 0.0) -> Models:
        """One network M times; each copy but the first gets N(0, (noise x std)^2) added, std per tensor."""

    def independent(self, M: int) -> Models:
        """M networks drawn one by one. The first is the one `copies` gives."""


class Algorithm(ABC):
    """A federated method, written for ONE agent. Pure: state comes in and goes out, none is kept here."""

    name: ClassVar[str]
    paper: ClassVar[str]
    personal: ClassVar[bool] = False  # does every agent predict with a model of its own?

    @abstractmethod
    def start(self, networks: Networks) -> State:
        """The server's first state."""

    def enroll(self, server: State) -> State:
        """An agent's first state. It stays with the agent."""
        return {}

    @abstractmethod
    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        """One round at one agent: its new state, and what it sends."""

    @abstractmethod
    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        """The server's next state from the sums `add`, the rows `each` [C, ...] and who answered, [C]."""

    @abstractmethod
    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        """An agent's prediction, [n, C]."""

    def label(self, server: State, state: State) -> Tensor | None:
        """pi_e, [M], where the method has cluster labels."""
        return None

    def assign(self, server: State, agent: Agent) -> State:
        """The state of an agent that was never trained with. It changes nothing on the server."""
        return self.enroll(server)


def scale(w: Models, by: Tensor) -> Models:
    """Each model of the stack times its own number: by is [M] (or [], for all)."""
    return {k: v * by.reshape(by.shape + (1,) * (v.dim() - by.dim())) for k, v in w.items()}


def mean_or_keep(w: Models, total: Models, weight: Tensor) -> Models:
    """total_m / weight_m per model; where nobody holds model m (weight_m = 0) it stays w_m. Never 0/0."""
    held = weight > 1e-20
    means = scale(total, 1 / torch.where(held, weight, 1))
    return {k: torch.where(held.reshape(-1, *(1,) * (v.dim() - 1)), means[k], v) for k, v in w.items()}
