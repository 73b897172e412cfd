"""Small federations for tests."""

from __future__ import annotations

import numpy as np

import focusfl as ff
from focusfl.models import mlp


def make_ragged(seed: int = 0, sizes: tuple[int, ...] = (23, 7, 40, 12, 31)) -> ff.Federation:
    """Five agents of different size in two true clusters: the second has its labels reversed."""
    rng = np.random.default_rng(seed)
    agents, tests = [], []
    for e, n in enumerate(sizes):
        for size, data in ((n, agents), (9 + e, tests)):
            x = rng.normal(size=(size, 6)).astype("float32")
            y = (x[:, :3] * 2).argmax(1)
            data.append((x, 2 - y if e >= 3 else y))
    return ff.Federation.from_agents(
        agents, test=tests, clusters=[0, 0, 0, 1, 1], model=lambda: mlp(6, 8, 3), name="ragged"
    )
