"""One agent's data, read from a folder on its own machine: what a node of a deployment does.

A node's table has numbers only and no missing cells: a schema (`schema.py`) needs the tables of all agents.
No node sees another's table, so each sorts its columns by name, and the server compares digests of the names.
(`folder` sees all tables and uses the column order of the first: the same features, possibly in another order.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from focusfl.core import Data
from focusfl.data.own.contents import MAX_MB, FileContents
from focusfl.data.own.examples import align, input_tensors, inputs_of, split_test
from focusfl.data.own.inputs import Inputs, columns_digest
from focusfl.data.own.labels import encode_labels
from focusfl.data.own.layout import expanded, read_agent
from focusfl.data.own.numbers import parse_number
from focusfl.data.own.table_files import numbers_only
from focusfl.util.errors import InputError, nearest, require


class NodeData(NamedTuple):
    """The data of one node.

    Attributes:
        training: Training examples.
        testing: Test examples.
        columns: A digest of a table's column names, by which the server compares nodes; empty if it is no table.
        inputs: The form of the node's examples, which stays at the node.
    """

    training: Data
    testing: Data
    columns: str
    inputs: Inputs


def read_node_data(
    path: str | Path,
    labels: Sequence[str] = (),
    agent: str = "agent",
    seed: int = 0,
    test: float = 0.2,
    label: str = "label",
    text: str = "text",
    regression: bool = False,
    max_mb: int = MAX_MB,
) -> NodeData:
    """Read the training and test data of one agent from its folder, or from its csv, parquet or npz file.

    Args:
        path: The folder or file.
        labels: The classes in order, if the labels are words: all nodes must number them in the same way.
        agent: The agent's name; with `seed` it decides which examples are set aside for testing.
        seed: The seed of the run.
        test: The share of the examples to set aside, if there is no test data.
        label: The name of the label column in csv and parquet.
        text: The name of the text column in csv and parquet.
        regression: Whether labels are amounts, even if all of them happen to be whole numbers.
        max_mb: A compressed file that would unpack to more megabytes is refused.

    Returns:
        The data, and a digest of the column names.

    Raises:
        InputError: The data cannot be used; the message names the file and the row.
    """
    require("test", test, 0 < test < 1, "a share between 0 and 1")
    place = expanded(path)
    if not place.exists():
        raise InputError(f"{place}: no such folder or file; the key data in the node's configuration names it")
    read = read_agent(place, place if place.is_dir() else place.parent, label, text, max_mb)
    parts = align([_sort_columns(numbers_only(part, text)) for part in read])
    y, words = encode_labels([_labels_as_floats(part) for part in parts] if regression else parts)
    if labels and not words:
        hint = f"write the words, or use numbers on all nodes and classes = {len(labels)} instead of labels"
        raise InputError(f"{place}: the labels are numbers, but the run has the labels {', '.join(labels)}: {hint}")
    if words:
        unknown = [word for word in words if word not in labels]
        if unknown:
            hint = nearest(unknown[0], labels) if labels else 'name all classes in order: labels = "ill,well"'
            raise InputError(f"{place}: label {unknown[0]!r} is a word: {hint}")
        order = torch.tensor([list(labels).index(word) for word in words])
        y = [order[part] for part in y]
    data = [Data(*pair) for pair in zip(input_tensors(parts, None), y, strict=True)]
    pair = (data[0], data[1]) if len(data) == 2 else split_test(data[0], test, seed, agent, parts[0].path)
    inputs = inputs_of(parts[0], pair[0].x, label, text)
    return NodeData(*pair, columns_digest(inputs.columns) if inputs.columns else "", inputs)


def _sort_columns(part: FileContents) -> FileContents:
    """Return a table with its columns sorted by name."""
    if part.kind != "a table":
        return part
    names = tuple(sorted(part.columns))
    return replace(part, x=part.x[:, [part.columns.index(name) for name in names]], columns=names)


def _labels_as_floats(part: FileContents) -> FileContents:
    """Return the file with its labels as floats; the label of an image is a folder's name and stays a word."""
    return part if part.kind == "images" else replace(part, y=[_as_float(label) for label in part.y])


def _as_float(label: Any) -> Any:
    """Return the label as a float; a word stays as it is.

    >>> [_as_float(label) for label in ("3", -2, "2.5", "ill", "1_2")]
    [3.0, -2.0, 2.5, 'ill', '1_2']
    """
    try:
        return parse_number(float, str(label))
    except ValueError:
        return label
