"""The nouns. Everything else in the package is written in terms of these.

E agents, M models, K local steps, T rounds; e, m, k, t run over them, as in the paper.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

Models = dict[str, Tensor]
"""A stack of M models: leading axis M on every tensor. FedAvg has M = 1."""

State = dict[str, Any]
"""A nested dict of tensors: it travels, checkpoints and vmaps as it is."""


class Data(NamedTuple):
    """Examples of one agent."""

    x: Tensor  # [n, ...]
    y: Tensor  # [n] class numbers, or [n] targets


class Predictor(Protocol):
    """h: what models say to the examples asked for."""

    def __call__(self, w: Models, only: Tensor | None = None) -> Tensor:
        """[M, n, C]; probabilities when classifying. only [M] bool: the others are not asked, theirs is 0."""


class Pull(NamedTuple):
    """A proximal term: `strength * (theta - to)` is added to the gradient (FedProx, Ditto)."""

    to: Models
    strength: Tensor | float


class Agent(Protocol):
    """All that an algorithm may ask of agent e. Its examples stay inside."""

    n: Tensor  # how many training examples it has
    lr: float  # eta in this round
    learnt: tuple[str, ...]  # the tensors of a model that training changes; the rest are batch statistics

    def losses(self, w: Models, rough: Tensor | None = None) -> Tensor:
        """Mean training loss of each model, [M], in eval mode.

        rough    [M] bool: for these a tenth of the examples will do, another tenth each round
        """

    def example_losses(self, w: Models) -> Tensor:
        """Training loss of each model on each example, [M, n], in eval mode."""

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the agent's examples: [..., n] -> [...]. The engine may have padded n; this knows."""

    def class_counts(self) -> Tensor:
        """How many training examples it has of each class, [C]."""

    def sgd(
        self,
        w: Models,
        pull: Pull | None = None,
        only: Tensor | None = None,
        weights: Tensor | None = None,
        freeze: Collection[str] = (),
    ) -> Models:
        """Each model after the K local steps: a new stack, the caller's to use up.

        only     [M] bool: the others come back as they were
        weights  [M, n]: of each example in each model's loss, which is mean(weight * loss)
        freeze   tensors, by name, that are not trained
        """


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

    @property
    def shows(self) -> bool:
        """Will there be a round, later than the first, in which the server sees something agent by agent?"""
        return False

    @property
    def room(self) -> int | None:
        """How many models the server's w may hold, where their number changes while training."""
        return None

    @abstractmethod
    def start(self, networks: Networks, E: int) -> State:
        """The server's first state, with E agents to come."""

    def enroll(self, server: State) -> State:
        """An agent's first state. It stays with the agent."""
        return {}

    def downlink(self, server: State, e: Tensor) -> State:
        """What agent e, a number [], receives of the server's state: `local`, `predict` and `label` see this."""
        return server

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

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        """What an agent that was never trained with would receive and hold. Nothing changes on the server."""
        return server, self.enroll(server)

    def check(self, w: Models, classes: int | None, E: int, h: Predictor) -> None:
        """Raise CannotRun where the method does not apply to such a model w [1, ...], to regression (classes None)
        or to E agents. h: what models say to two examples."""
        return None

    def first(self) -> Algorithm | None:
        """A method whose clusters this one needs: it is run to its end beforehand, then `given` is called."""
        return None

    def given(self, clusters: Tensor) -> Algorithm:
        """This method with the clusters, [E], that `first` found."""
        return self


def scale(w: Models, by: Tensor) -> Models:
    """Each model of the stack times its own number: by is [M] (or [], for all)."""
    return {k: v * by.reshape(by.shape + (1,) * (v.dim() - by.dim())) for k, v in w.items()}


def scale_(w: Models, by: Tensor) -> Models:
    """The same, tensor by tensor in its own place: for a stack that is not needed after, with half the memory."""
    for k in w:
        w[k] = w[k] * by.reshape(by.shape + (1,) * (w[k].dim() - by.dim()))
    return w


def mean_or_keep(w: Models, total: Models, weight: Tensor) -> Models:
    """total_m / weight_m per model; where nobody holds model m (weight_m = 0) it stays w_m. Never 0/0."""
    held = weight > 1e-20
    means = scale(total, 1 / torch.where(held, weight, 1))
    return {k: torch.where(held.reshape(-1, *(1,) * (v.dim() - 1)), means[k], v) for k, v in w.items()}


def mixed(pi: Tensor, w: Models, h: Predictor) -> Tensor:
    """sum_m pi_m h(w_m), eq. 7. Models that count for less than 1e-4 together are not asked."""
    counts = pi > 1e-4 / len(pi)
    share = torch.where(counts, pi, 0)
    return torch.einsum("m,mnc->nc", share / share.sum(), h(w, counts))


def row(tree: State, e: Tensor) -> State:
    """Row e, a number [], of every tensor. Plain indexing would not vmap."""
    return {
        k: row(v, e) if isinstance(v, dict) else v.index_select(0, e.reshape(1).to(v.device)).squeeze(0)
        for k, v in tree.items()
    }


def one_of(w: Models, m: Tensor) -> Models:
    """Model m, a number [], as a stack of one."""
    return {k: v.index_select(0, m.reshape(1).to(v.device)) for k, v in w.items()}


def one_hot(m: Tensor, M: int) -> Tensor:
    """[] -> [M], or [C] -> [C, M]: 1.0 at m, else 0.0."""
    return (m.unsqueeze(-1) == torch.arange(M, device=m.device)).float()


def vector(w: Models) -> Tensor:
    """Each model of the stack laid flat: [M, P]."""
    return torch.cat([v.reshape(len(v), -1) for v in w.values()], 1)


def parted(w: Models, learnt: tuple[str, ...]) -> tuple[Models, Models]:
    """What training changes, and the batch statistics. A length or an angle means something of the former alone."""
    return {k: w[k] for k in learnt}, {k: v for k, v in w.items() if k not in learnt}


def double(v: Tensor) -> Tensor:
    """In double precision, where the device has it."""
    return v if v.device.type == "mps" else v.double()


def clustered_start(networks: Networks, M: int, init: str) -> Models:
    """M first models: "independent" random networks, or "tied": one, M copies, 1 % noise added."""
    return networks.independent(M) if init == "independent" else networks.copies(M, noise=0.01)
