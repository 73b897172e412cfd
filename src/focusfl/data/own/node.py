"""One agent's own data, from a folder on its own machine: what a node of a deployment reads.

No node sees another's table, so each sorts its columns by name, and the server compares digests of the names.
(`folder` sees all tables and takes the order of the first: the same features, it may be in another order.)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from focusfl.core import Data
from focusfl.data.own.folder import alike, features, number_labels, read_agent, split
from focusfl.data.own.readers import Part, plain
from focusfl.util.errors import InputError, nearest, require


class Own(NamedTuple):
    """What a node has."""

    training: Data
    testing: Data
    columns: str  # digest of a table's column names, by which nodes are compared; empty: it is no table


def own(
    path: str | Path,
    labels: Sequence[str] = (),
    agent: str = "agent",
    seed: int = 0,
    test: float = 0.2,
    label: str = "label",
    text: str = "text",
    regression: bool = False,
) -> Own:
    """Training and test data of the agent whose folder, or csv, parquet or npz file, this is.

    labels       the classes in order, where they are words: every node must number them alike
    test         share to set aside where there is no test data; `agent` and `seed` decide which examples
    label, text  names of these columns in csv and parquet
    regression   labels are amounts, also where all of them happen to be whole
    """
    require("test", test, 0 < test < 1, "a share between 0 and 1")
    place = Path(path).expanduser()
    if not place.exists():
        raise InputError(f"{place}: no such folder or file; the node's configuration names it as data")
    read = read_agent(place, place if place.is_dir() else place.parent, label, text)
    parts = alike([_by_name(part) for part in read])
    y, words = number_labels([_amounts(part) for part in parts] if regression else parts)
    if labels and not words:
        hint = f"write the words, or have numbers at all nodes and classes = {len(labels)} for labels"
        raise InputError(f"{place}: the labels are numbers, the run has {', '.join(labels)}: {hint}")
    if words:
        unknown = [word for word in words if word not in labels]
        if unknown:
            hint = nearest(unknown[0], labels) if labels else 'name all classes in order: labels = "ill,well"'
            raise InputError(f"{place}: label {unknown[0]!r} is a word: {hint}")
        order = torch.tensor([list(labels).index(word) for word in words])
        y = [order[part] for part in y]
    data = [Data(*pair) for pair in zip(features(parts, None), y, strict=True)]
    pair = (data[0], data[1]) if len(data) == 2 else split(data[0], test, seed, agent, parts[0].path)
    return Own(*pair, _digest(parts[0]))


def _by_name(part: Part) -> Part:
    """A table's columns in sorted order."""
    if part.kind != "a table":
        return part
    names = tuple(sorted(part.columns))
    return replace(part, x=part.x[:, [part.columns.index(name) for name in names]], columns=names)


def _digest(part: Part) -> str:
    if part.kind != "a table":
        return ""
    return hashlib.sha256(json.dumps(part.columns).encode()).hexdigest()


def _amounts(part: Part) -> Part:
    """Labels as floats; the name of a folder of images is a word."""
    return part if part.kind == "images" else replace(part, y=[_amount(label) for label in part.y])


def _amount(label: Any) -> Any:
    """What is no number stays as it is.

    >>> [_amount(label) for label in ("3", -2, "2.5", "ill", "1_2")]
    [3.0, -2.0, 2.5, 'ill', '1_2']
    """
    try:
        return plain(float, str(label))
    except ValueError:
        return label
