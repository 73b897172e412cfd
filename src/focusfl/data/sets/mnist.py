"""Rotated MNIST: the paper's main data set."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from focusfl.core.train import Train
from focusfl.data.federation import Federation, Recipe
from focusfl.data.sets.rotated import share_out
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
    """60,000 digits among E agents; of ten, seven upright, two at 90 degrees, one at 180.

    outliers   k = 0, 1, 3 or 5 agents in ten that are not upright (table 2)
    n, n_test  images an agent; by default all there are, in equal parts
    mix        below 1: scenario 2 of the hard-clustering table, 0.8 in the paper: that share of an agent's images
               has its own rotation, the rest the others'. mix_train = false mixes the test images alone
    normalise  subtract MNIST's mean and divide by its standard deviation; the default is pixels / 255
    """
    require("data.seed", seed, seed >= 0, "0 or more")
    require("data.hidden", hidden, hidden >= 1, "1 or more")
    require("data.E", E, E > 0 and E % 10 == 0, "a multiple of 10")
    require("data.outliers", outliers, outliers in TURNS, "one of " + ", ".join(map(str, TURNS)))
    require("data.mix", mix, 0 < mix <= 1, "above 0 and at most 1")
    turns = [k for k in TURNS[outliers] for _ in range(E // 10)]
    raw = load("mnist")
    look = {"centre": 0.1307, "spread": 0.3081} if normalise else {}
    rng = np.random.default_rng([seed, 3])
    training = share_out(raw["train_x"], raw["train_y"], turns, rng, n, mix if mix_train else 1.0, **look)
    testing = share_out(raw["test_x"], raw["test_y"], turns, rng, n_test, mix, **look)
    kinds = sorted(set(turns))
    return Federation(
        name="rotated-mnist",
        training=training,
        testing=testing,
        classes=10,
        clusters=torch.tensor([kinds.index(k) for k in turns]),
        recipe=Recipe(model=partial(mlp, 784, hidden, 10), train=Train(lr=0.1, steps=10), rounds=300),
    )
