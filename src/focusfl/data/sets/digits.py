"""Rotated digits: the 8 x 8 digits that come with scikit-learn, rotated differently by different agents."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from focusfl.core import Data
from focusfl.core.train import Train
from focusfl.data.federation import Federation, Recipe, Rows
from focusfl.models import mlp
from focusfl.util.errors import InputError, require


def rotated_digits(
    seed: int = 0,
    turns: Sequence[int] = (0, 0, 0, 0, 0, 0, 0, 1, 1, 2),
    test: float = 0.25,
    hidden: int = 32,
) -> Federation:
    """Scikit-learn's 1,797 digits of 8 x 8 pixels, split equally among agents who rotate them; no download.

    By default seven agents see the digits upright, two rotated by 90 degrees and one by 180, as the paper does with
    MNIST: three true clusters.

    Args:
        seed: Decides who gets which digit.
        turns: By how many quarter turns each agent's digits are rotated; one entry per agent.
        test: The share of each agent's digits that is set aside for testing.
        hidden: Hidden units of the recipe's MLP.

    Returns:
        A federation with 10 classes.

    Raises:
        InputError: An option is out of range.

    Example:
        >>> fed = rotated_digits()
        >>> fed.E, fed.clusters.tolist()
        (10, [0, 0, 0, 0, 0, 0, 0, 1, 1, 2])
    """
    from sklearn.datasets import load_digits  # takes a second to import

    E = len(turns)
    require("data.turns", list(turns), 2 <= E <= 400, "from 2 to 400 agents")
    require("data.seed", seed, lambda v: v >= 0, "0 or more")
    require("data.hidden", hidden, lambda v: v >= 1, "1 or more")
    require("data.test", test, lambda v: 0 < v < 1, "a share between 0 and 1")
    if any(k != int(k) for k in turns):
        raise InputError(f"data.turns = {list(turns)}: expected whole numbers of quarter turns")
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images.reshape(-1, 8, 8) / 16, dtype=torch.float32)
    y = torch.tensor(labels)
    order = torch.from_numpy(np.random.default_rng([seed, 2]).permutation(len(y)))
    agents, held_out = [], []
    for part, k in zip(order.tensor_split(E), turns, strict=True):
        turned = torch.rot90(x[part], int(k), dims=(1, 2))
        held = min(max(round(len(part) * test), 1), len(part) - 1)
        agents.append(Data(turned[held:], y[part][held:]))
        held_out.append(Data(turned[:held], y[part][:held]))
    kinds = sorted({int(k) % 4 for k in turns})
    return Federation(
        name="rotated-digits",
        training=Rows.join(agents),
        testing=Rows.join(held_out),
        classes=10,
        clusters=torch.tensor([kinds.index(int(k) % 4) for k in turns]),
        recipe=Recipe(model=partial(mlp, 64, hidden, 10), train=Train(lr=0.3, steps=20), rounds=60),
    )
