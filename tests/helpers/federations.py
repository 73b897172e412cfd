"""Small federations for tests."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

import focusfl as ff
from focusfl.data.own.folder import FolderFederation
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
        agents, test=tests, clusters=[0, 0, 0, 1, 1][: len(sizes)], model=lambda: mlp(6, 8, 3), name="ragged"
    )


def make_named(names: tuple[str, ...], labels: tuple[str, ...] = ()) -> FolderFederation:
    """The ragged federation as if it were read from a folder, with one name per agent."""
    ragged = make_ragged(sizes=(23, 7, 40, 12, 31)[: len(names)])
    plain = {f.name: getattr(ragged, f.name) for f in fields(ragged)}
    return FolderFederation(**plain, agents=names, labels=labels, columns=tuple("abcdef"))
