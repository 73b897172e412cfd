"""The nouns. Everything else in the package is written in terms of these.

E agents, M models, K local steps, T rounds; e, m, k, t run over them, as in the paper.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol, TypedDict, Unpack

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
    """h: predictions of models for some examples."""

    def __call__(self, w: Models, only: Tensor | None = None) -> Tensor:
        """[M, n, C]; in classification probabilities. Models outside `only` ([M] bool) are skipped, with zeros."""


class Pull(NamedTuple):
    """A proximal term: `strength * (theta - to)` is added to the gradient (FedProx, Ditto)."""

    to: Models
    strength: Tensor | float


class SgdOptions(TypedDict, total=False):
    """Options of one agent's local training, `Agent.sgd`."""

    pull: Pull | None  # a proximal term in every step
    only: Tensor | None  # [M] bool: the other models come back as they were
    weights: Tensor | None  # [M, n]: of each example in each model's loss, which is mean(weight * loss)
    freeze: Collection[str]  # tensors, by name, that are not trained


class Agent(Protocol):
    """All that an algorithm may ask of agent e. Its examples stay inside."""

    n: Tensor  # how many training examples it has
    lr: float  # eta in this round
    learnt: tuple[str, ...]  # the tensors of a model that training changes; the rest are batch statistics

    def losses(self, w: Models, rough: Tensor | None = None) -> Tensor:
        """Mean training loss of each model, [M], in eval mode.

        Args:
            w: The models.
            rough: [M] bool: for these, a tenth of the examples is enough; another tenth each round.
        """

    def example_losses(self, w: Models) -> Tensor:
        """Training loss of each model on each example, [M, n], in eval mode."""

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the agent's examples: [..., n] -> [...]. The engine may have padded n; this knows."""

    def class_counts(self) -> Tensor:
        """How many training examples it has of each class, [C]."""

    def sgd(self, w: Models, **options: Unpack[SgdOptions]) -> Models:
        """Each model after the K local steps: a new stack, which the caller may change."""


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


class Prerequisite(NamedTuple):
    """A method that has to be run first, and what its clusters make of the one that needs them."""

    algorithm: Algorithm
    with_clusters: Callable[[Tensor], Algorithm]  # [E] the clusters found


class Algorithm(ABC):
    """A federated method, written for ONE agent. Pure: state comes in and goes out, none is kept here.

    A method needs `start`, `local`, `aggregate` and `predict`. The rest has defaults that suit a method with one
    shared model. docs/add-an-algorithm.md shows a whole one.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    personal: ClassVar[bool] = False  # does every agent predict with a model of its own?

    @abstractmethod
    def start(self, networks: Networks, E: int) -> State:
        """The server's first state, for E agents."""

    @abstractmethod
    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        """One round at one agent: its new state, and what it sends."""

    @abstractmethod
    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        """The server's next state from the sums `add`, the rows `each` [C, ...] and who answered, [C]."""

    @abstractmethod
    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        """An agent's prediction, [n, C]."""

    def enroll(self, server: State) -> State:
        """An agent's first state. It stays with the agent."""
        return {}

    def downlink(self, server: State, e: Tensor) -> State:
        """What agent e (a tensor []) receives of the server's state: `local`, `predict` and `label` see this."""
        return server

    def label(self, server: State, state: State) -> Tensor | None:
        """pi_e, [M], where the method has cluster labels."""
        return None

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        """What a newcomer, an agent that was never trained with, receives and holds. The server does not change."""
        return server, self.enroll(server)

    def check(self, w: Models, classes: int | None, E: int, h: Predictor) -> None:
        """Raise CannotRun where the method does not apply.

        Args:
            w: One model of the kind to be trained, [1, ...].
            classes: Number of classes; None for regression.
            E: Number of agents.
            h: Predictions of models for two examples.
        """
        return None

    def prerequisite(self) -> Prerequisite | None:
        """The method whose clusters this one needs: it is run to its end first."""
        return None

    @property
    def max_models(self) -> int | None:
        """How many models the server's w may hold, where their number changes while training."""
        return None


@dataclass(frozen=True)
class Wrapper(Algorithm):
    """A method around another one: it forwards everything, and a subclass changes what it is about."""

    inner: Algorithm

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.inner.name

    @property
    def paper(self) -> str:  # type: ignore[override]
        return self.inner.paper

    @property
    def personal(self) -> bool:  # type: ignore[override]
        return self.inner.personal

    @property
    def max_models(self) -> int | None:
        return self.inner.max_models

    def start(self, networks: Networks, E: int) -> State:
        return self.inner.start(networks, E)

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        return self.inner.local(server, state, agent)

    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        return self.inner.aggregate(server, add, each, cohort)

    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        return self.inner.predict(server, state, h)

    def enroll(self, server: State) -> State:
        return self.inner.enroll(server)

    def downlink(self, server: State, e: Tensor) -> State:
        return self.inner.downlink(server, e)

    def label(self, server: State, state: State) -> Tensor | None:
        return self.inner.label(server, state)

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        return self.inner.assign(server, agent)

    def check(self, w: Models, classes: int | None, E: int, h: Predictor) -> None:
        self.inner.check(w, classes, E, h)

    def prerequisite(self) -> Prerequisite | None:
        """Both the prerequisite and what is made of its clusters are wrapped too."""
        needed = self.inner.prerequisite()
        if needed is None:
            return None
        return Prerequisite(
            replace(self, inner=needed.algorithm),
            lambda clusters: replace(self, inner=needed.with_clusters(clusters)),
        )
