"""One agent's data, read from a folder on its own machine: what a node of a deployment does.

No node sees another's data. So a node first only reads (`OwnData`); it counts and adds up what the others need to
know, in two steps; and once all sums are known (`Description`), it encodes its own data by them, with the functions
that `folder` uses: schema, means for missing cells, scaling, numbers of classes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from focusfl.core import Data
from focusfl.data.own.contents import MAX_MB, FileContents
from focusfl.data.own.description import (
    BUCKETS,
    Description,
    Form,
    Reading,
    as_kind,
    bucket,
    counts_array,
)
from focusfl.data.own.examples import align, input_tensors, split_rows
from focusfl.data.own.labels import encode_labels, label_values, missing_label, with_labels
from focusfl.data.own.layout import expanded, read_agent
from focusfl.data.own.moments import Floats, squares, sums, target_squares, target_sum
from focusfl.data.own.numbers import parse_number
from focusfl.data.own.schema import MAX_VALUES, Column, Counts, Schema, kind_of_numbers
from focusfl.data.own.table import Table
from focusfl.util.errors import InputError, Problems, nearest

LOGGER = logging.getLogger("focusfl")
MAX_NAME_BYTES = 120  # of a value whose name is told to the others


class Pair(NamedTuple):
    """A node's data as its network takes it."""

    training: Data
    testing: Data


@dataclass(frozen=True)
class OwnData:
    """The data of one node, as it was read.

    Attributes:
        parts: The training and the test file, or one file with all examples.
        agent: The agent's name; with the seed it decides which examples are set aside for testing.
        reading: How it was read.
    """

    parts: tuple[FileContents, ...]
    agent: str
    reading: Reading

    @property
    def form(self) -> Form:
        """The form of the files, with the columns of a table in their order."""
        first = self.parts[0]
        is_table, is_text = first.kind == "a table", first.kind == "text"
        shape = () if is_table or is_text else tuple(first.x.shape[1:])
        return Form(as_kind(first.kind), first.columns if is_table else (), shape)

    @cached_property
    def rows(self) -> tuple[Tensor, Tensor]:
        """Which rows of the first file are for training, and which of the last one for testing."""
        sizes = [len(part.y) for part in self.parts]
        if len(sizes) == 2:
            return torch.arange(sizes[0]), torch.arange(sizes[1])
        return split_rows(sizes[0], self.reading.test, self.reading.seed, self.agent, self.parts[0].path)

    @property
    def n(self) -> int:
        """The number of training examples."""
        return len(self.rows[0])

    def counted(self, columns: Sequence[str]) -> dict[str, Floats]:
        """Return what the first step adds up over the nodes (see `Counted`).

        Args:
            columns: The columns of the table, in the order in which all nodes count them.
        """
        counts = [Counts.of(self.parts[0].x, name) for name in columns]
        seen = [self._buckets(name, c) for name, c in zip(columns, counts, strict=True)]
        known, total = sums(self._numbers(columns))
        y = self._training_numbers()
        kinds = [0, 0, 0]
        labels = [value for part in self.parts for value in label_values(part, self.reading.target)]
        for value in labels:
            kinds[0 if isinstance(value, str) else 1 if isinstance(value, float) else 2] += 1
        asked = not kinds[1] and self.reading.given_classes is None and self.reading.target != "number"
        seen.append(_occupied(self._label_words()) if asked else np.zeros(BUCKETS))
        return {
            "columns": counts_array(counts),
            "seen": np.stack(seen),
            "known": known,
            "total": total,
            "labels": np.array(kinds, float),
            "n": np.array(float(self.n)),
            "target": np.array(0.0 if y is None else target_sum(y)),
        }

    def spread(self, columns: Sequence[str], means: Floats, target_mean: float) -> dict[str, Floats]:
        """Return what the second step adds up (see `Spread`), besides the names."""
        y = self._training_numbers()
        return {
            "n": np.array(float(self.n)),
            "squares": squares(self._numbers(columns), means),
            "target": np.array(0.0 if y is None else target_squares(y, target_mean)),
        }

    def names(self, columns: Sequence[str], asked: Sequence[int]) -> list[tuple[int, str]]:
        """Return the different values of these columns; the number of columns stands for the labels.

        The node decides by itself that values which look like names of persons stay here, unless the run's option
        `categorical` names their column.
        """
        found: list[tuple[int, str]] = []
        for j in asked:
            name = columns[j] if j < len(columns) else self.reading.label
            values = sorted(self._values(name) if j < len(columns) else self._label_words())
            long = next((value for value in values if len(value.encode()) > MAX_NAME_BYTES), None)
            if long is not None:
                limit = f"longer than {MAX_NAME_BYTES} bytes; shorten it, or leave the column out with drop"
                raise InputError(f"{self.parts[0].path}: column {name!r}: the value {long[:40]!r}... is {limit}")
            found += [(j, value) for value in values]
        if asked:
            told = ", ".join(columns[j] if j < len(columns) else self.reading.label for j in asked)
            LOGGER.info(f"this node tells which values these columns have: {told}")
        return found

    def _values(self, name: str) -> set[str]:
        """Return the different values of a column; refuse if they may be names of persons."""
        table = self.parts[0].x
        if Counts.of(table, name).like_names and name not in self.reading.categorical:
            raise InputError(f"{self.parts[0].path}: column {name!r} looks like names: its values stay here")
        return {*table.values(name)} - {""}

    def _label_words(self) -> set[str]:
        return {str(value) for part in self.parts for value in label_values(part, self.reading.target)}

    def require_numbers(self, columns: Sequence[str], counts: Sequence[Counts]) -> None:
        """Raise an InputError if there is a word in a column of numbers, or a cell that cannot be used."""
        reading, found = self.reading, []
        for name, counted in zip(columns, counts, strict=True):
            if name not in (*reading.drop, *reading.categorical) and kind_of_numbers(name, counted) == "number":
                found.append(Column(name, "number", missing=counted.missing))
        problems = Problems()
        for part in self.parts:
            Schema(tuple(found), reading.missing).encode(part, problems)
        problems.report()

    def data(self, description: Description) -> Pair:
        """Return the data as the network takes it.

        Raises:
            InputError: A cell or label does not fit the description; the message names the file and the row.
        """
        x, y = self._inputs(description), self._labels(description)
        train, test = self.rows
        pair = Pair(Data(x[0][train], y[0][train]), Data(x[-1][test], y[-1][test]))
        schema, scaled = description.inputs.schema, []
        for part in pair:
            raw = part.x if schema is None else torch.from_numpy(schema.filled(part.x.numpy()))
            scaled.append(Data(description.inputs.scaled(raw), part.y))
        return Pair(*scaled)

    def _inputs(self, description: Description) -> list[Tensor]:
        schema = description.inputs.schema
        if schema is None:
            return input_tensors(list(self.parts), None)
        problems = Problems()
        x = [torch.from_numpy(schema.encode(part, problems)) for part in self.parts]
        problems.report()
        return x

    def _labels(self, description: Description) -> list[Tensor]:
        parts, path = list(self.parts), self.parts[0].path
        if description.classes is None:
            return encode_labels([_labels_as_floats(part) for part in parts])[0]
        y, words = encode_labels(parts, self.reading.target)
        labels = description.labels
        if labels and not words:
            hint = f"write the words, or use numbers on all nodes and classes = {len(labels)} instead of labels"
            known = ", ".join(labels)
            raise InputError(f"{path}: the labels are numbers, but the run has the labels {known}: {hint}")
        unknown = [word for word in words if word not in labels]
        if unknown:
            hint = nearest(unknown[0], labels) if labels else 'name all classes in order: labels = "ill,well"'
            raise InputError(f"{path}: label {unknown[0]!r} is a word: {hint}")
        if words:
            order = torch.tensor([labels.index(word) for word in words])
            y = [order[part] for part in y]
        return y

    def _numbers(self, columns: Sequence[str]) -> NDArray[np.float32]:
        """Return the training examples as numbers, [n, F]: of a table its columns, NaN where there is no number."""
        x, train = self.parts[0].x, self.rows[0].numpy()
        if isinstance(x, Table):
            order = [x.columns.index(name) for name in columns]
            with np.errstate(over="ignore"):
                raw = x.numbers[train][:, order].astype(np.float32)
            return np.where(np.isfinite(raw), raw, np.float32(np.nan))
        if not self.form.sums(self.reading):
            return np.zeros((self.n, 0), np.float32)
        found: NDArray[np.float32] = np.asarray(x, np.float32)[train]
        return found

    def _training_numbers(self) -> Tensor | None:
        """Return the labels of the training examples, if all of them are numbers."""
        values = label_values(_labels_as_floats(self.parts[0]), "auto")
        if any(isinstance(value, str) for value in values):
            return None
        return torch.tensor([float(value) for value in values])[self.rows[0]]

    def _buckets(self, name: str, counts: Counts) -> Floats:
        """Return which buckets the values of a column fall into: all of them if it cannot be a category."""
        if name in self.reading.drop:
            return np.zeros(BUCKETS)
        if name not in self.reading.categorical:
            if counts.words < max(counts.numbers, 1):
                return np.zeros(BUCKETS)
            if counts.like_names:
                return np.ones(BUCKETS)
        return _occupied({*self.parts[0].x.values(name)} - {""})


def read_own_data(
    path: str | Path, agent: str = "agent", reading: Reading | None = None, max_mb: int = MAX_MB
) -> OwnData:
    """Read the training and test data of one agent from its folder, or from its csv, parquet or npz file.

    Args:
        path: The folder or file.
        agent: The agent's name; with the seed it decides which examples are set aside for testing.
        reading: How it is read: the options of the run.
        max_mb: A compressed file that would unpack to more megabytes is refused.

    Raises:
        InputError: The data cannot be used; the message names the file and the row.
    """
    place, reading = expanded(path), reading or Reading()
    if not place.exists():
        raise InputError(f"{place}: no such folder or file; the key data in the node's configuration names it")
    parts = read_agent(place, place if place.is_dir() else place.parent, reading.label, reading.text, max_mb)
    if reading.missing == "impute":
        is_gap = missing_label(parts)
        parts = [with_labels(part, is_gap) if part.y else part for part in parts]
    own = OwnData(tuple(align(parts)), agent, reading)
    if not own.n:
        raise InputError(f"{place}: no training examples")
    return own


def _occupied(values: set[str]) -> Floats:
    """Return 1 for each bucket that one of the values falls into; all of them, if the values are too many."""
    if len(values) > MAX_VALUES:
        return np.ones(BUCKETS)
    found = np.zeros(BUCKETS)
    found[[bucket(value) for value in values]] = 1
    return found


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
