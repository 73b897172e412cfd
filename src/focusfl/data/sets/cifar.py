"""Rotated CIFAR-10."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from focusfl.core.train import Train
from focusfl.data.federation import Federation, Recipe
from focusfl.data.sets.rotated import share_out
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
    """50,000 photographs in ten classes among E agents, the last `outliers` of whom turn them by 180 degrees.

    n, n_test  images an agent; by default all there are, in equal parts
    width      of the ResNet-18: 64 is the real one, 16 or 8 for small machines
    """
    require("data.seed", seed, seed >= 0, "0 or more")
    require("data.width", width, width >= 1, "1 or more")
    require("data.E", E, 2 <= E <= 10000, "from 2 to 10000")
    require("data.outliers", outliers, 0 <= outliers < E, f"from 0 to {E - 1}")
    turns = [0] * (E - outliers) + [2] * outliers
    raw = load("cifar10")
    rng = np.random.default_rng([seed, 4])
    training = share_out(raw["train_x"], raw["train_y"], turns, rng, n, centre=MEAN, spread=STD)
    testing = share_out(raw["test_x"], raw["test_y"], turns, rng, n_test, centre=MEAN, spread=STD)
    return Federation(
        name="rotated-cifar",
        training=training,
        testing=testing,
        classes=10,
        clusters=torch.tensor(turns) // 2,
        recipe=Recipe(model=partial(resnet18, 10, width), train=Train(lr=0.1, batch=100, epochs=2), rounds=300),
    )
