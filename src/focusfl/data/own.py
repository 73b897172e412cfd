"""One agent's own data, from a folder on its own machine: what a node of a deployment reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from focusfl.core import Data
from focusfl.data.folder import alike, features, number_labels, read_agent, split
from focusfl.errors import InputError, nearest, require


def own(
    path: str | Path,
    labels: Sequence[str] = (),
    agent: str = "agent",
    seed: int = 0,
    test: float = 0.2,
    label: str = "label",
    text: str = "text",
) -> tuple[Data, Data]:
    """Training and test data of the agent whose folder, or csv, parquet or npz file, this is.

    labels       the classes in order, where they are words: every node must number them alike
    test         share to set aside where there is no test data; `agent` and `seed` decide which examples
    label, text  names of these columns in csv and parquet
    """
    require("test", test, 0 < test < 1, "a share between 0 and 1")
    place = Path(path).expanduser()
    if not place.exists():
        raise InputError(f"{place}: no such folder or file; the node's configuration names it as data")
    parts = alike(read_agent(place, place if place.is_dir() else place.parent, label, text))
    y, words = number_labels(parts)
    if words:
        unknown = [word for word in words if word not in labels]
        if unknown:
            hint = nearest(unknown[0], labels) if labels else 'name all classes in order: labels = "ill,well"'
            raise InputError(f"{place}: label {unknown[0]!r} is a word: {hint}")
        order = torch.tensor([list(labels).index(word) for word in words])
        y = [order[part] for part in y]
    data = [Data(*pair) for pair in zip(features(parts, None), y, strict=True)]
    return (data[0], data[1]) if len(data) == 2 else split(data[0], test, seed, agent, parts[0].path)
