"""The interface between methods and the rest of the package: what an algorithm defines and what it may use.

E agents, M models, K local steps, T rounds; e, m, k, t run over them, as in the paper.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypedDict, Unpack

from torch import Tensor

Models = dict[str, Tensor]
"""A stack of M models: every tensor has a leading axis of length M. FedAvg has M = 1."""

State = dict[str, Any]
"""A nested dict of tensors. It can be sent, saved in a checkpoint and vmapped as it is."""


class Data(NamedTuple):
    """The examples of one agent.

    Attributes:
        x: Inputs [n, ...].
        y: Class numbers [n], or targets [n] in regression.
    """

    x: Tensor
    y: Tensor


class Predictor(Protocol):
    """A function h that returns the predictions of models for a fixed set of examples."""

    def __call__(self, w: Models, only: Tensor | None = None) -> Tensor:
        """Return the predictions of each model.

        Args:
            w: The models.
            only: [M] bool. The other models are skipped, and their predictions are zeros.

        Returns:
            [M, n, C]; class probabilities in classification.
        """


class Pull(NamedTuple):
    """A proximal term: local training adds `strength * (theta - to)` to the gradient (FedProx, Ditto).

    Attributes:
        to: The models that training is pulled towards.
        strength: The weight of the term.
    """

    to: Models
    strength: Tensor | float


class SgdOptions(TypedDict, total=False):
    """The options of `Agent.sgd`; all may be left out.

    Attributes:
        pull: A proximal term for every step.
        only: [M] bool. The other models are returned unchanged.
        weights: [M, n], the weight of each example in each model's loss, which becomes mean(weight * loss).
        freeze: Names of tensors that are not trained.
        steps: The number of steps, in place of the K local steps of a round.
        rate: A factor of the learning rate.
    """

    pull: Pull | None
    only: Tensor | None
    weights: Tensor | None
    freeze: Collection[str]
    steps: int
    rate: float


AgentPart = Literal["validation", "all"]
"""The examples that the agent set aside for validation, or all that are not for testing."""


class Agent(Protocol):
    """What an algorithm may ask of agent e. The agent never hands out its examples.

    Attributes:
        n: The number of training examples, a tensor [].
        lr: The learning rate eta of this round.
        trainable: Names of the model's tensors that training changes; the others are batch statistics.
        log_loss: Whether a loss is -log of a probability, as cross-entropy is, so that losses can be compared with
            a prior.

    Example:
        The local step of FedAvg::

            def local(self, server, state, agent):
                theta = agent.sgd(server["w"])
                return state, Upload(add={"theta": scale(theta, agent.n), "n": agent.n}, each={})
    """

    n: Tensor
    lr: float
    trainable: tuple[str, ...]
    log_loss: bool

    def on(self, part: AgentPart) -> Agent:
        """Return the same agent with other examples; it may have no validation examples (n = 0)."""

    @property
    def plain(self) -> Agent:
        """The same agent, training by plain SGD with the default options; itself if the optimiser is SGD.

        An update of Adam says little of how an agent would change a model: each coordinate moves by about the
        learning rate, noise included.
        """

    def losses(self, w: Models, estimate: Tensor | None = None) -> Tensor:
        """Return the mean training loss of each model, [M], in eval mode.

        Args:
            w: The models.
            estimate: [M] bool. The losses of these models may be estimated on a tenth of the examples, a different
                tenth each round.
        """

    def example_losses(self, w: Models) -> Tensor:
        """Return the training loss of each model on each example, [M, n], in eval mode."""

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over the agent's examples, [..., n] -> [...]. It leaves out an engine's padding."""

    def class_counts(self) -> Tensor:
        """Return the number of training examples of each class, [C]."""

    def sgd(self, w: Models, **options: Unpack[SgdOptions]) -> Models:
        """Return each model after the K local steps, as a new stack that the caller may change.

        Args:
            w: The models to start from.
            **options: See `SgdOptions`.
        """


class Upload(NamedTuple):
    """What one agent sends to the server.

    Attributes:
        add: Is summed over the agents; the server sees only the sum.
        each: Reaches the server agent by agent.

    Example:
        >>> Upload(add={"n": 20}, each={})
        Upload(add={'n': 20}, each={})
    """

    add: State
    each: State


class Contribution(NamedTuple):
    """What an upload, or the sum of several, says and does, in a form that a server can check.

    Attributes:
        w: The models before.
        change: How it changes them: theta_m - w_m, or the weighted mean of that over the agents of a sum.
        weight: The weights that it claims, [m]; None if the method averages without weights.
        total: What honest weights add up to, [], or what each of them is, [m]; None if the server cannot know.
        shares: Other numbers that lie between 0 and 1 for each agent, by name.
        others: Other numbers whose size is compared between the agents, by name.
    """

    w: Models
    change: Models
    weight: Tensor | None = None
    total: Tensor | None = None
    shares: Mapping[str, Tensor] = MappingProxyType({})
    others: Mapping[str, Any] = MappingProxyType({})


class Networks(Protocol):
    """The source of first weights. The same seed gives the same weights."""

    def copies(self, M: int, noise: float = 0.0) -> Models:
        """Return one network M times.

        Args:
            M: The number of copies.
            noise: Every copy but the first gets N(0, (noise * std)^2) added, with the std of each tensor.
        """

    def independent(self, M: int) -> Models:
        """Return M networks, each with random weights of its own. The first is the one that `copies` returns."""


class Prerequisite(NamedTuple):
    """A method that has to run first because another method needs its clusters.

    Attributes:
        algorithm: The method to run first.
        with_clusters: Takes the clusters found, [E], and returns the method that uses them.
    """

    algorithm: Algorithm
    with_clusters: Callable[[Tensor], Algorithm]


class Algorithm(ABC):
    """A federated method, written for ONE agent. It is pure: state comes in and goes out, the object keeps none.

    A method must define `start`, `local`, `aggregate` and `predict`. The defaults of the other members suit a
    method with one shared model. docs/add-an-algorithm.md shows a complete example.

    Attributes:
        name: The name of the method as its paper writes it.
        paper: A short reference.
        personal: Whether every agent predicts with a model of its own.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    personal: ClassVar[bool] = False

    @abstractmethod
    def start(self, networks: Networks, E: int) -> State:
        """Return the server's first state, for E agents."""

    @abstractmethod
    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        """Run one round at one agent.

        Args:
            server: What the agent received (see `downlink`).
            state: The agent's state.
            agent: Gives losses and local training on the agent's data.

        Returns:
            The agent's next state, and what it sends.
        """

    @abstractmethod
    def aggregate(self, server: State, add: State, each: State, cohort: Tensor) -> State:
        """Return the server's next state.

        Args:
            server: The server's state.
            add: The sums of the agents' `Upload.add`.
            each: The agents' `Upload.each`, [C, ...] in the order of `cohort`.
            cohort: The agents that answered, [C].
        """

    @abstractmethod
    def predict(self, server: State, state: State, h: Predictor) -> Tensor:
        """Return an agent's predictions, [n, C]."""

    def enroll(self, server: State) -> State:
        """Return an agent's first state. It stays with the agent."""
        return {}

    def downlink(self, server: State, e: Tensor) -> State:
        """Return what agent e (a tensor []) receives of the server's state, for `local`, `predict` and `label`."""
        return server

    def label(self, server: State, state: State) -> Tensor | None:
        """Return the agent's cluster labels pi_e, [M], or None if the method has none."""
        return None

    def assign(self, server: State, agent: Agent) -> tuple[State, State]:
        """Return what a new agent, which did not train, receives, and its state. The server does not change."""
        return server, self.enroll(server)

    def released(self, server: State) -> State:
        """Return the server's state as it may leave the run in a saved model: without what single agents sent.

        `downlink`, `predict`, `label` and `assign` must give the same with it; training does not continue from it.
        """
        return server

    def contribution(self, server: State, upload: Upload, n: Tensor, agents: int = 1) -> Contribution:
        """Return what an upload claims and how it changes the models, for the server's checks (engines/audit.py).

        By default nothing is known about an upload, and only the size of its tensors is compared.

        Args:
            server: What the agent received; for a sum, the server's state.
            upload: One agent's upload, or the sum of several.
            n: The number of training examples of the agent, or of all agents of the sum, [].
            agents: The number of agents in the sum.
        """
        return Contribution({}, {}, others={**upload.add, **upload.each})

    def check(self, w: Models, classes: int | None, E: int, h: Predictor) -> None:
        """Check that the method applies to this model and data.

        Args:
            w: One model of the kind to be trained, [1, ...].
            classes: The number of classes; None for regression.
            E: The number of agents.
            h: Returns predictions for two examples.

        Raises:
            CannotRun: The method does not apply; the message says what it needs.
        """
        return None

    def prerequisite(self) -> Prerequisite | None:
        """Return the method whose clusters this one needs, or None. It is run to its end first."""
        return None

    def settled(self, server: State) -> bool:
        """Return whether validation losses may decide when to stop: not while FOCUS has one model for all."""
        return True

    def keep_together(self, server: State) -> State | None:
        """Return a state from before the method settled, changed such that one model goes on for all agents.

        None if that is not a choice: the method has no groups, or was told how many.
        """
        return None

    def finish(self, server: State) -> State | None:
        """Return the server's state for one more round, in which all agents take part, or None if there is none.

        It is asked after the last round of training, and again after each round that it adds.
        """
        return None

    @property
    def max_models(self) -> int | None:
        """The largest number of models in the server's w if it changes during training, else None."""
        return None


@dataclass(frozen=True)
class Wrapper(Algorithm):
    """A method around another one. It forwards every member; a subclass overrides what it changes.

    Args:
        inner: The wrapped method.
    """

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

    def released(self, server: State) -> State:
        return self.inner.released(server)

    def contribution(self, server: State, upload: Upload, n: Tensor, agents: int = 1) -> Contribution:
        return self.inner.contribution(server, upload, n, agents)

    def check(self, w: Models, classes: int | None, E: int, h: Predictor) -> None:
        self.inner.check(w, classes, E, h)

    def settled(self, server: State) -> bool:
        return self.inner.settled(server)

    def keep_together(self, server: State) -> State | None:
        return self.inner.keep_together(server)

    def finish(self, server: State) -> State | None:
        return self.inner.finish(server)

    def prerequisite(self) -> Prerequisite | None:
        """Return the inner method's prerequisite; it and the method made from its clusters are wrapped too."""
        needed = self.inner.prerequisite()
        if needed is None:
            return None
        return Prerequisite(
            replace(self, inner=needed.algorithm),
            lambda clusters: replace(self, inner=needed.with_clusters(clusters)),
        )
