"""Rotated CIFAR-10: photographs, upside down for some agents."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from focusfl.core.train import Train
from focusfl.data.federation import Federation, Recipe
from focusfl.data.sets.rotated import distribute_rotated
from focusfl.data.store import load
from focusfl.models import resnet18
from focusfl.util.errors import require

MEAN = torch.tensor([0.4914, 0.4822, 0.4465])[:, None, None]
STD = torch.tensor([0.2470, 0.2435, 0.2616])[:, None, None]


def rotated_cifar(
    seed: int = 0,
    E: int = 10,
    outliers: int = 3,
    n: int | None = None,
    n_test: int | None = None,
    width: int = 64,
) -> Federation:
    """CIFAR-10's 60,000 photographs, split equally; the last `outliers` agents see them upside down.

    Args:
        seed: Decides who gets which photograph.
        E: The number of agents.
        outliers: How many agents rotate their photographs by 180 degrees.
        n: Training images per agent; by default all, in equal parts.
        n_test: Test images per agent; by default all, in equal parts.
        width: Width of the recipe's ResNet-18: 64 is the usual one, 16 or 8 suit small machines.

    Returns:
        A federation with 10 classes.

    Raises:
        InputError: An option is out of range, or CIFAR-10 could not be downloaded.

    Example:
        ``fed = rotated_cifar(n=500, width=16)``
    """
    require("data.seed", seed, lambda v: v >= 0, "0 or more")
    require("data.width", width, lambda v: v >= 1, "1 or more")
    require("data.E", E, lambda v: 2 <= v <= 10000, "from 2 to 10000")
    require("data.outliers", outliers, lambda v: 0 <= v < E, f"from 0 to {E - 1}")
    turns = [0] * (E - outliers) + [2] * outliers
    raw = load("cifar10")
    rng = np.random.default_rng([seed, 4])
    training = distribute_rotated(raw["train_x"], raw["train_y"], turns, rng, n, centre=MEAN, spread=STD)
    testing = distribute_rotated(raw["test_x"], raw["test_y"], turns, rng, n_test, centre=MEAN, spread=STD)
    return Federation(
        name="rotated-cifar",
        training=training,
        testing=testing,
        classes=10,
        clusters=torch.tensor(turns) // 2,
        recipe=Recipe(model=partial(resnet18, 10, width), train=Train(lr=0.1, batch=100, epochs=2), rounds=300),
    )
