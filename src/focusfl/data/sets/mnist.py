"""Rotated MNIST: the paper's main data set."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from focusfl.core.train import Train
from focusfl.data.federation import Federation, Recipe
from focusfl.data.sets.rotated import distribute_rotated
from focusfl.data.store import load
from focusfl.models import mlp
from focusfl.util.errors import require

TURNS = {  # quarter turns of ten agents, by the number of outliers k (table 2)
    0: (0,) * 10,
    1: (0,) * 9 + (2,),
    3: (0,) * 7 + (1, 1, 2),
    5: (0,) * 5 + (1, 1, 2, 2, 3),
}


def rotated_mnist(
    seed: int = 0,
    E: int = 10,
    outliers: int = 3,
    n: int | None = None,
    n_test: int | None = None,
    mix: float = 1.0,
    mix_train: bool = True,
    normalise: bool = False,
    hidden: int = 200,
) -> Federation:
    """MNIST's 70,000 digits, split equally among agents who rotate them: of ten, two by 90 degrees, one by 180.

    Args:
        seed: Decides who gets which digit.
        E: The number of agents, a multiple of 10.
        outliers: How many agents in ten are not upright: 0, 1, 3 or 5 (table 2).
        n: Training images per agent; by default all, in equal parts.
        n_test: Test images per agent; by default all, in equal parts.
        mix: Below 1, scenario 2 of the hard-clustering table (0.8 in the paper): the share of an agent's images
            that has its own rotation; the rest has the rotations of the other agents.
        mix_train: Whether `mix` holds for training images too, and not only for test images.
        normalise: Whether to subtract MNIST's mean and divide by its standard deviation, instead of pixels / 255.
        hidden: Hidden units of the recipe's MLP.

    Returns:
        A federation with 10 classes.

    Raises:
        InputError: An option is out of range, or MNIST could not be downloaded.

    Example:
        ``fed = rotated_mnist(n=600)``
    """
    require("data.seed", seed, lambda v: v >= 0, "0 or more")
    require("data.hidden", hidden, lambda v: v >= 1, "1 or more")
    require("data.E", E, lambda v: v > 0 and v % 10 == 0, "a multiple of 10")
    require("data.outliers", outliers, outliers in TURNS, "one of " + ", ".join(map(str, TURNS)))
    require("data.mix", mix, lambda v: 0 < v <= 1, "above 0 and at most 1")
    turns = [k for k in TURNS[outliers] for _ in range(E // 10)]
    raw = load("mnist")
    scaling = {"centre": 0.1307, "spread": 0.3081} if normalise else {}
    rng = np.random.default_rng([seed, 3])
    training = distribute_rotated(
        raw["train_x"], raw["train_y"], turns, rng, n, mix if mix_train else 1.0, **scaling
    )
    testing = distribute_rotated(raw["test_x"], raw["test_y"], turns, rng, n_test, mix, **scaling)
    kinds = sorted(set(turns))
    return Federation(
        name="rotated-mnist",
        training=training,
        testing=testing,
        classes=10,
        clusters=torch.tensor([kinds.index(k) for k in turns]),
        recipe=Recipe(model=partial(mlp, 784, hidden, 10), train=Train(lr=0.1, steps=10), rounds=300),
    )
