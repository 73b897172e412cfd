"""Federation: the training and test data of all agents. Agents may have different numbers of examples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import index
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from focusfl.core import Data
from focusfl.core.train import Train
from focusfl.data.check import ColumnOrder, as_data, check_agents, check_clusters
from focusfl.data.overview import overview, summary
from focusfl.models import SkipMlp, mlp
from focusfl.util.errors import InputError, nearest, whole_number

VALIDATION = 1  # the purpose of a split that is not for testing: its draws are others


@dataclass(frozen=True)
class Rows:
    """The examples of all agents, one agent after the other.

    Attributes:
        x: Inputs [N, ...].
        y: Labels [N]; [N, L] with several labels per example, each 0 or 1.
        offsets: [E + 1]; agent e has rows offsets[e] to offsets[e + 1].
    """

    x: Tensor
    y: Tensor
    offsets: Tensor

    @property
    def sizes(self) -> Tensor:
        """The number of examples of each agent, [E]."""
        return self.offsets.diff()

    def of(self, e: int) -> Data:
        """Return the examples of agent e."""
        a, b = int(self.offsets[e]), int(self.offsets[e + 1])
        return Data(self.x[a:b], self.y[a:b])

    def to(self, device: torch.device) -> Rows:
        """Return the same with the examples on `device`; the offsets stay on the cpu."""
        return self if self.x.device == device else Rows(self.x.to(device), self.y.to(device), self.offsets)

    @staticmethod
    def join(agents: Sequence[Data]) -> Rows:
        """Put the examples of several agents together."""
        sizes = torch.tensor([0] + [len(d.y) for d in agents])
        return Rows(torch.cat([d.x for d in agents]), torch.cat([d.y for d in agents]), sizes.cumsum(0))


@dataclass(frozen=True)
class Recipe:
    """The default settings of a run on a federation.

    Attributes:
        model: A function that makes a network; None if the user must give one.
        train: The options of local training.
        rounds: The number of rounds.
        validation: The share of each agent's training examples that is set aside for validation.
        patience: Training stops after this many evaluations without a lower validation loss; None: it does not.
        adapt: Whether the agents of FOCUS adapt the shared model to their own data after the last round.
        scale_target: Whether a regression is trained on targets of mean 0 and deviation 1. Predictions and losses
            are in the target's own units all the same.
        scale_features: Whether the run scales features to mean 0 and deviation 1; predictions take raw ones.
        own: Whether it is a user's own data: then methods with an option `weight_by_n` give all agents the same
            weight if it is not set, and tables of a regression show errors in the target's own units.

    Example:
        >>> Recipe(rounds=20).rounds
        20
    """

    model: Callable[[], nn.Module] | None = None
    train: Train = field(default_factory=Train)
    rounds: int = 60
    validation: float = 0.0
    patience: int | None = None
    adapt: bool = False
    scale_target: bool = False
    scale_features: bool = False
    own: bool = False

    def without_aids(self) -> Recipe:
        """Return the recipe for a user who gives the options of training: nothing is added to them."""
        return Recipe(self.model, self.train, self.rounds, own=self.own)


def own_recipe(features: int, classes: int | None, hidden: int | None = None) -> Recipe:
    """Return the recipe of a user's own data: vectors of numbers about which nothing else is known.

    Args:
        features: The numbers in one example.
        classes: The number of classes; None for regression.
        hidden: See `default_model`.
    """
    train = Train(lr="auto", optimiser="adam", steps=20, batch=64)
    model = default_model(features, classes, hidden)
    early = Recipe(model, train, rounds=60, validation=0.2, patience=12)
    return replace(early, adapt=True, scale_target=True, own=True)


def default_model(features: int, classes: int | None, hidden: int | None = None) -> Callable[[], nn.Module]:
    """Return the function that makes the network of a user's own data.

    Args:
        features: The numbers in one example.
        classes: The number of classes; None for regression.
        hidden: Hidden units of an MLP beside a linear model; 0 is the linear model alone. By default 32.
    """
    width = 32 if hidden is None else hidden
    return partial(SkipMlp, features, width, classes or 1) if width else partial(mlp, features, classes or 1)


@dataclass(frozen=True)
class Federation:
    """E agents with training and test data. Made by `from_agents` or by a function of `focusfl.data`.

    Attributes:
        name: A short name for reports.
        training: The training examples of all agents.
        testing: The test examples of all agents.
        validation: Examples on which runs are chosen and stopped early, if there are any; an agent may have none.
        classes: The number of classes, or of labels per example; None means regression.
        clusters: The true cluster of each agent, [E]; None if unknown.
        bayes: The lowest loss that each agent can reach, [E]; None unless it is known exactly.
        recipe: The default model, training options and number of rounds.

    Example:
        >>> fed = Federation.from_agents([([[0.0], [1.0]], [0, 1]), ([[2.0], [3.0]], [1, 0])], test=0.5)
        >>> fed.E, fed.classes, fed.train(1).x.shape
        (2, 2, torch.Size([1, 1]))
    """

    name: str
    training: Rows
    testing: Rows
    classes: int | None
    clusters: Tensor | None = None
    bayes: Tensor | None = None
    recipe: Recipe = field(default_factory=Recipe)
    validation: Rows | None = None

    @property
    def E(self) -> int:
        """The number of agents."""
        return len(self.training.offsets) - 1

    @property
    def multi_label(self) -> bool:
        """Whether an example has several labels, each 0 or 1."""
        return self.training.y.dim() == 2

    def train(self, agent: int | str) -> Data:
        """Return the training examples of an agent.

        Args:
            agent: Its number, or its name if the agents have names.

        Raises:
            InputError: There is no such agent.
        """
        return self.training.of(self._number(agent))

    def test(self, agent: int | str) -> Data:
        """Return the test examples of an agent, as `train` does."""
        return self.testing.of(self._number(agent))

    def _number(self, agent: int | str) -> int:
        """Return the number of an agent that is given by number or name."""
        if isinstance(agent, str):
            names = list(getattr(self, "agents", ()))
            if agent in names:
                return names.index(agent)
            unnamed = f"the agents have no names: use their numbers, 0 to {self.E - 1}"
            raise InputError(f"agent {agent!r}: {nearest(agent, names) if names else unnamed}")
        if not hasattr(agent, "__index__") or not 0 <= index(agent) < self.E:
            raise InputError(f"agent {agent}: there are agents 0 to {self.E - 1}")
        return index(agent)

    def to(self, device: torch.device) -> Federation:
        """Return the same federation with its examples on `device`."""
        validation = None if self.validation is None else self.validation.to(device)
        return replace(
            self, training=self.training.to(device), testing=self.testing.to(device), validation=validation
        )

    @property
    def validation_rows(self) -> Rows:
        """The validation examples of all agents; none of anybody if there are none."""
        if self.validation is not None:
            return self.validation
        return Rows(self.training.x[:1], self.training.y[:1], torch.zeros_like(self.training.offsets))

    @cached_property
    def all_rows(self) -> Rows:
        """The training examples of each agent, followed by its validation examples."""
        if self.validation is None:
            return self.training
        pairs = [(self.training.of(e), self.validation.of(e)) for e in range(self.E)]
        return Rows.join([Data(torch.cat([a.x, b.x]), torch.cat([a.y, b.y])) for a, b in pairs])

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of all its examples."""
        digest = hashlib.sha256()
        parts = [self.training, self.testing] + ([] if self.validation is None else [self.validation])
        for part in parts:
            for tensor in (part.x, part.y, part.offsets):
                digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
                digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()

    def understood(self) -> list[str]:
        """Return how files were read, one sentence each; nothing if there are none."""
        return []

    def describe(self) -> str:
        """Return in words what is in the federation, how files were read, and all remarks.

        Example:
            >>> Federation.from_agents([([[0.0], [1.0]], [0, 1]), ([[2.0], [3.0]], [1, 0])], test=0.5).describe()
            'own: 2 agents, 2 training and 2 test examples of shape 1, 2 classes.'
        """
        return "\n".join(dict.fromkeys([f"{self.name}: {summary(self)}", *self.understood(), *self.remarks()]))

    def remarks(self) -> list[str]:
        """Return warnings about the data for its owner, one sentence each."""
        return []

    def _repr_html_(self) -> str:
        """Show the agents and their labels in a notebook."""
        return overview(self)

    def pool(self, groups: Tensor) -> Federation:
        """Return a federation with one agent per group, who holds the examples of all the group's members.

        Args:
            groups: The group 0..G-1 of each agent, [E].
        """
        members = [(groups == g).nonzero().flatten().tolist() for g in range(int(groups.max()) + 1)]

        def merged(rows: Rows) -> Rows:
            each = [Rows.join([rows.of(e) for e in group]) for group in members]
            return Rows.join([Data(r.x, r.y) for r in each])

        training, testing = merged(self.training), merged(self.testing)
        return replace(self, training=training, testing=testing, clusters=None, bayes=None, validation=None)

    def with_validation(self, share: float | None, seed: int) -> Federation:
        """Return the federation with a share of each agent's training examples set aside for validation.

        Args:
            share: Of the examples; at least one of each agent that has two or more. An agent with one keeps it.
            seed: Decides which examples are set aside.

        Returns:
            The same federation if it has validation data already, or share is 0 or None.

        Raises:
            InputError: No agent has two examples.
        """
        if self.validation is not None or not share:
            return self
        if not (self.training.sizes > 1).any():
            raise InputError(f"validation = {share}: every agent has one training example, none can be set aside")
        pairs = [split_validation(self.training.of(e), share, seed, e) for e in range(self.E)]
        training, validation = (Rows.join(list(part)) for part in zip(*pairs, strict=True))
        return replace(self, training=training, validation=validation)

    @classmethod
    def from_agents(
        cls,
        agents: Sequence[tuple[Any, Any]],
        *,
        test: float | Sequence[tuple[Any, Any]] = 0.2,
        validation: Sequence[tuple[Any, Any]] | None = None,
        clusters: Sequence[int] | None = None,
        classes: int | None = None,
        model: Callable[[], nn.Module] | None = None,
        train: Train | None = None,
        tokens: bool = False,
        seed: int = 0,
        name: str = "own",
    ) -> Federation:
        """Make a federation from your own arrays or tensors.

        Args:
            agents: A list with one (x, y) pair per agent, two agents or more. Labels y that are whole numbers are
                classes; floats mean regression; y [n, L] of 0 and 1 are L labels of each example. Data frames need
                the same columns, in any order; rows of x and y that have names are matched by them.
            test: A list of (x, y) pairs, or the share of each agent's examples to set aside for testing.
            validation: A list of (x, y) pairs, on which runs are chosen and stopped early. The option `validation`
                of a run sets a share of the training examples aside instead.
            clusters: The true cluster of each agent, if you know it.
            classes: The number of classes; by default the largest label plus one.
            model: A function that makes a network. By default an MLP with 32 hidden units beside a linear model;
                there is none for tokens.
            train: The default options of local training. By default, if `model` is left out too and an example is a
                vector, those of `own_recipe`, with validation data, early stopping, scaling and adaptation.
            tokens: Whether x holds whole numbers for an embedding; otherwise x becomes float32.
            seed: Decides which examples are set aside for testing.
            name: A short name for reports.

        Returns:
            The federation.

        Raises:
            InputError: The data cannot be used; the message names the agent and the row.

        Example:
            >>> import numpy as np
            >>> rng = np.random.default_rng(0)
            >>> agents = [(rng.normal(size=(50, 4)), rng.integers(0, 3, 50)) for _ in range(5)]
            >>> fed = Federation.from_agents(agents, test=0.2)
            >>> fed.E, fed.classes, fed.training.sizes.tolist()
            (5, 3, [40, 40, 40, 40, 40])
        """
        seed, orders = whole_number("seed", seed, 0), (ColumnOrder(), ColumnOrder())
        data = [as_data(f"agent {e}", pair, tokens, orders) for e, pair in enumerate(_pairs("agents", agents))]
        if isinstance(test, float | int | np.number):
            if not 0 < test < 1:
                raise InputError(f"test = {test}: expected a share between 0 and 1, or a list of (x, y) pairs")
            check_agents(data, classes, "training")
            pairs = [_split(d, float(test), seed, e) for e, d in enumerate(data)]
            data, held_out = [a for a, _ in pairs], [b for _, b in pairs]
        else:
            held_out = _given("test", test, len(data), tokens, orders)
        chosen_on = None if validation is None else _given("validation", validation, len(data), tokens, orders)
        found = [check_agents(data, classes, "training", also=held_out)]
        if chosen_on is not None:
            found.append(check_agents(data, classes, "training", also=chosen_on, also_kind="validation"))
        number = max((found_classes for found_classes in found if found_classes is not None), default=None)
        recipe = Recipe(model=model, train=train or Train(), own=True)
        if model is None and not tokens:
            recipe = replace(recipe, model=default_model(data[0].x[0].numel(), number))
            if train is None and data[0].x.dim() == 2:
                recipe = replace(own_recipe(data[0].x[0].numel(), number), scale_features=True)
        return cls(
            name=name,
            training=Rows.join(data),
            testing=Rows.join(held_out),
            classes=number,
            clusters=check_clusters(clusters, len(data)),
            recipe=recipe,
            validation=None if chosen_on is None else Rows.join(chosen_on),
        )


def _pairs(name: str, agents: Any) -> list[tuple[Any, Any]]:
    """Return the (x, y) pairs of all agents, if that is what was given."""
    if isinstance(agents, Mapping):
        hint = "pass a list, [*agents.values()]; agents are numbered, those of focusfl.data.folder have names"
        raise InputError(f"{name}: expected a list of (x, y) pairs, found a {type(agents).__name__}: {hint}")
    if not isinstance(agents, Iterable) or isinstance(agents, str | bytes | Tensor) or hasattr(agents, "columns"):
        found = type(agents).__name__
        raise InputError(f"{name}: expected a list of (x, y) pairs, one per agent, found {found}")
    return list(agents)


def _given(
    kind: str, pairs: Sequence[tuple[Any, Any]], E: int, tokens: bool, orders: tuple[ColumnOrder, ColumnOrder]
) -> list[Data]:
    """Return the user's own test or validation data of each agent."""
    each = enumerate(_pairs(kind, pairs))
    data = [as_data(f"agent {e}, {kind}", pair, tokens, orders) for e, pair in each]
    if len(data) != E:
        raise InputError(f"{kind} has {len(data)} agents, training has {E}: give each agent both")
    return data


def split_validation(data: Data, share: float, seed: int, e: int) -> tuple[Data, Data]:
    """Return the training and the validation examples of agent e; one that has a single example trains on it.

    Args:
        data: The agent's examples that are not for testing.
        share: Of the examples, for validation.
        seed: Decides which examples are set aside.
        e: The agent's number.
    """
    return _split(data, share, seed, e, VALIDATION) if len(data.y) > 1 else (data, Data(data.x[:0], data.y[:0]))


def _split(data: Data, share: float, seed: int, e: int, *purpose: int) -> tuple[Data, Data]:
    """Shuffle, then set `share` aside, for testing if not said otherwise; both get at least one example each."""
    n = len(data.y)
    if n < 2:
        raise InputError(
            f"agent {e}: {n} example cannot be split into training and test; add examples, or pass test data"
        )
    order = torch.from_numpy(np.random.default_rng([seed, e, *purpose]).permutation(n))
    held = min(max(round(n * share), 1), n - 1)
    train, test = order[held:].sort().values, order[:held].sort().values
    return Data(data.x[train], data.y[train]), Data(data.x[test], data.y[test])
