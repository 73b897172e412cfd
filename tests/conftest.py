"""Shared pieces: small federations, and one thread, so that times and bits do not depend on the machine."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from data_helpers import ENV
from hypothesis import settings

import focusfl as ff
from focusfl.models import mlp

torch.set_num_threads(1)
os.environ.update(ENV)  # one cache of real data for all tests and the processes they start
settings.register_profile("focusfl", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("focusfl")


def make_ragged(seed: int = 0, sizes: tuple[int, ...] = (23, 7, 40, 12, 31)) -> ff.Federation:
    """Five agents of different size in two true clusters: the second has its labels reversed."""
    rng = np.random.default_rng(seed)
    agents, tests = [], []
    for e, n in enumerate(sizes):
        for size, into in ((n, agents), (9 + e, tests)):
            x = rng.normal(size=(size, 6)).astype("float32")
            y = (x[:, :3] * 2).argmax(1)
            into.append((x, 2 - y if e >= 3 else y))
    return ff.Federation.from_agents(
        agents, test=tests, clusters=[0, 0, 0, 1, 1], model=lambda: mlp(6, 8, 3), name="ragged"
    )


@pytest.fixture
def ragged() -> ff.Federation:
    return make_ragged()
