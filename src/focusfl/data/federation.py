"""Federation: the agents' data, training and test, ragged, each example held once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from focusfl.core import Data
from focusfl.core.train import Train
from focusfl.data.check import as_data, check_agents, check_clusters
from focusfl.util.errors import InputError, require


@dataclass(frozen=True)
class Rows:
    """The examples of all agents one after the other; agent e has rows at[e] to at[e + 1]."""

    x: Tensor  # [N, ...]
    y: Tensor  # [N]
    at: Tensor  # [E + 1]

    @property
    def sizes(self) -> Tensor:
        return self.at.diff()

    def of(self, e: int) -> Data:
        a, b = int(self.at[e]), int(self.at[e + 1])
        return Data(self.x[a:b], self.y[a:b])

    def to(self, device: torch.device) -> Rows:
        """The examples there; where agents begin and end stays on the cpu."""
        return self if self.x.device == device else Rows(self.x.to(device), self.y.to(device), self.at)

    @staticmethod
    def join(agents: Sequence[Data]) -> Rows:
        sizes = torch.tensor([0] + [len(d.y) for d in agents])
        return Rows(torch.cat([d.x for d in agents]), torch.cat([d.y for d in agents]), sizes.cumsum(0))


@dataclass(frozen=True)
class Recipe:
    """What a run on this data takes when the user says nothing."""

    model: Callable[[], nn.Module] | None = None
    train: Train = field(default_factory=Train)
    rounds: int = 60


@dataclass(frozen=True)
class Federation:
    """E agents with training and test data. Made by `from_agents` or by a function of `focusfl.data`."""

    name: str
    training: Rows
    testing: Rows
    classes: int | None  # None: regression
    clusters: Tensor | None = None  # [E] the true ones, where known
    bayes: Tensor | None = None  # [E] each agent's best possible loss, where known exactly
    recipe: Recipe = field(default_factory=Recipe)

    @property
    def E(self) -> int:
        return len(self.training.at) - 1

    def train(self, e: int) -> Data:
        return self.training.of(e)

    def test(self, e: int) -> Data:
        return self.testing.of(e)

    def to(self, device: torch.device) -> Federation:
        return replace(self, training=self.training.to(device), testing=self.testing.to(device))

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of every number in it."""
        digest = hashlib.sha256()
        for part in (self.training, self.testing):
            for tensor in (part.x, part.y, part.at):
                digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
                digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()

    def remarks(self) -> list[str]:
        """What its owner should know before training."""
        return []

    def pool(self, groups: Tensor) -> Federation:
        """One agent per group 0..G-1, holding all its members' examples; groups is [E]."""
        members = [(groups == g).nonzero().flatten().tolist() for g in range(int(groups.max()) + 1)]

        def merged(rows: Rows) -> Rows:
            each = [Rows.join([rows.of(e) for e in group]) for group in members]
            return Rows.join([Data(r.x, r.y) for r in each])

        training, testing = merged(self.training), merged(self.testing)
        return replace(self, training=training, testing=testing, clusters=None, bayes=None)

    @classmethod
    def from_agents(
        cls,
        agents: Sequence[tuple[Any, Any]],
        *,
        test: float | Sequence[tuple[Any, Any]] = 0.2,
        clusters: Sequence[int] | None = None,
        classes: int | None = None,
        model: Callable[[], nn.Module] | None = None,
        train: Train | None = None,
        tokens: bool = False,
        seed: int = 0,
        name: str = "own",
    ) -> Federation:
        """A user's own data: an (x, y) pair per agent, arrays or tensors.

        test      a list of (x, y) pairs, or the share of each agent's examples to set aside
        clusters  the true cluster of each agent, if you know it
        classes   how many; by default the largest label plus one. Labels that are not whole numbers: regression
        tokens    x holds whole numbers for an embedding and stays so; else it becomes float32
        """
        require("seed", seed, seed >= 0, "0 or more")
        data = [as_data(f"agent {e}", pair, tokens) for e, pair in enumerate(agents)]
        if isinstance(test, float | int | np.floating):
            if not 0 < test < 1:
                raise InputError(f"test = {test}: expected a share between 0 and 1, or a list of (x, y) pairs")
            check_agents(data, classes, "training")
            pairs = [_split(d, float(test), seed, e) for e, d in enumerate(data)]
            data, held_out = [a for a, _ in pairs], [b for _, b in pairs]
        else:
            held_out = [as_data(f"agent {e}, test", pair, tokens) for e, pair in enumerate(test)]
            if len(held_out) != len(data):
                raise InputError(f"test has {len(held_out)} agents, training has {len(data)}: they must match")
        classes = check_agents(data, classes, "training", also=held_out)
        return cls(
            name=name,
            training=Rows.join(data),
            testing=Rows.join(held_out),
            classes=classes,
            clusters=check_clusters(clusters, len(data)),
            recipe=Recipe(model=model, train=train or Train()),
        )


def _split(data: Data, share: float, seed: int, e: int) -> tuple[Data, Data]:
    """Shuffle, then set `share` aside for testing; at least one example on either side."""
    n = len(data.y)
    if n < 2:
        raise InputError(
            f"agent {e}: {n} example cannot be split into training and test; give it more, or pass test="
        )
    order = torch.from_numpy(np.random.default_rng([seed, e]).permutation(n))
    held = min(max(round(n * share), 1), n - 1)
    rest, out = order[held:].sort().values, order[:held].sort().values
    return Data(data.x[rest], data.y[rest]), Data(data.x[out], data.y[out])
