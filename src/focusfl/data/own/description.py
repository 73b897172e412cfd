"""Description: what every agent must know of all data together, so that all encode their own in the same way.

One process that has all files finds it in `folder.py`. Nodes on different machines find it from sums (`Counted`,
`Spread`): each node counts its own table, and only the sums over the nodes are needed to decide what a column is,
what fills a missing cell, and by what features and targets are scaled. Names (values of categories, classes) are
no sums; `flower/protocol/names.py` adds them up in a form from which their union can be read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from focusfl.data.own.inputs import Inputs, Kind
from focusfl.data.own.labels import MAX_CLASSES, TargetOption, label_order
from focusfl.data.own.moments import Floats, Moments, deviations, means
from focusfl.data.own.schema import (
    MAX_VALUES,
    Column,
    Counts,
    MissingOption,
    Schema,
    column_of,
    kind_of_numbers,
    kind_of_words,
    require_columns,
)
from focusfl.util.errors import InputError, require, require_choice

BUCKETS = 1024  # of hashed values, by which the number of different values is estimated
LABEL_KINDS = ("words", "floats", "whole numbers")


@dataclass(frozen=True)
class Reading:
    """How the nodes of a run read their own data; the same at all of them.

    Attributes:
        label: The name of the label column.
        text: The name of the text column.
        seed: The seed of the run.
        test: The share of the examples to set aside, if there is no test data.
        scale: Whether features are scaled; None: those of tables are.
        drop: Columns of a table to leave out.
        categorical: Columns of a table that are categories.
        missing: See `folder`.
        target: See `folder`.
        classes: The number of classes, if it is given.
        labels: The names of the classes in order, if they are given.
    """

    label: str = "label"
    text: str = "text"
    seed: int = 0
    test: float = 0.2
    scale: bool | None = None
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    missing: MissingOption = "impute"
    target: TargetOption = "auto"
    classes: int | None = None
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require("test", self.test, 0 < self.test < 1, "a share between 0 and 1")
        require_choice("missing", self.missing, get_args(MissingOption))
        require_choice("target", self.target, get_args(TargetOption))

    @property
    def given_classes(self) -> int | None:
        """The number of classes that the run names; None if it is found from the labels."""
        return len(self.labels) or self.classes

    def scales(self, kind: str) -> bool:
        """Whether features of such files are scaled."""
        return kind == "a table" if self.scale is None else self.scale


class Form(NamedTuple):
    """The form of a node's files, which must be the same at all nodes.

    Attributes:
        kind: "a table", "text", "arrays" or "images".
        columns: The columns of a table.
        shape: The shape of an example, unless it is a table.
    """

    kind: Kind
    columns: tuple[str, ...]
    shape: tuple[int, ...]

    def sums(self, reading: Reading) -> int:
        """Return how many features or columns are summed in the first step."""
        if self.kind == "a table":
            return len(self.columns)
        return int(np.prod(self.shape)) if reading.scales(self.kind) else 0


class Counted(NamedTuple):
    """The first step: counts and sums over all nodes.

    Attributes:
        columns: What is in each column of a table.
        occupied: How many buckets the hashed words of each column fall into, then those of the labels: about the
            number of different ones, never more. [columns + 1]
        known: The training examples in which a column (or a feature of arrays) is a number, [F].
        total: The sum of these numbers, [F].
        labels: The labels that are words, floats, and whole numbers, [3].
        n: The training examples.
        target: The sum of the labels in training that are numbers.
    """

    columns: tuple[Counts, ...]
    occupied: tuple[int, ...]
    known: Floats
    total: Floats
    labels: tuple[int, ...]
    n: int
    target: float

    @property
    def means(self) -> Floats:
        """The mean of each column or feature, [F]."""
        return means(self.known, self.total)

    @property
    def target_mean(self) -> float:
        """The mean of the labels, where they are numbers."""
        return self.target / self.n

    def is_regression(self, reading: Reading) -> bool:
        """Whether labels are amounts.

        Raises:
            InputError: Words and numbers are mixed.
        """
        if reading.target == "number":
            return True
        if reading.given_classes is not None:
            return False
        words, floats, whole = self.labels
        if words and floats + whole:
            found = ", ".join(f"{n} {kind}" for n, kind in zip(self.labels, LABEL_KINDS, strict=True) if n)
            raise InputError(f"labels of different kinds, {found}: use words, whole numbers or floats at all nodes")
        return bool(floats)

    def named(self, reading: Reading, form: Form) -> list[int]:
        """Return the columns whose different values are needed; the number of columns stands for the labels.

        These are the columns that may be categories. What looks like names of persons is not among them, unless
        the option `categorical` names it.
        """
        found = []
        for j, (name, counts) in enumerate(zip(form.columns, self.columns, strict=True)):
            if name in reading.drop:
                continue
            if name in reading.categorical:
                needed = self.occupied[j] <= MAX_VALUES
            else:
                kind = kind_of_words(name, counts, self.occupied[j]) if counts.cells else "constant"
                needed = kind_of_numbers(name, counts) is None and kind in ("category", "constant")
            found += [j] * needed
        labels = reading.given_classes is None and not self.is_regression(reading)
        if labels and self.occupied[-1] > MAX_VALUES:
            hint = f"name their number, classes = {self.occupied[-1]}, or set target = number if they are amounts"
            raise InputError(f"the labels have more than {MAX_VALUES} different values: {hint}")
        return found + [len(form.columns)] * labels


class Spread(NamedTuple):
    """The second step: sums of squared differences from the means of the first.

    Attributes:
        n: The training examples of the nodes that answered.
        squares: Of each column or feature, [F].
        target: Of the labels.
    """

    n: int
    squares: Floats
    target: float


class Description(NamedTuple):
    """What every agent must know of all data together.

    Attributes:
        inputs: The form of an example: columns, categories, what fills missing cells, and the scaling.
        classes: The number of classes; None for regression.
        labels: The names of the classes, if they have names.
        target: The mean and deviation of a regression's targets.
    """

    inputs: Inputs
    classes: int | None
    labels: tuple[str, ...] = ()
    target: tuple[float, float] | None = None


def describe(
    reading: Reading, form: Form, counted: Counted, spread: Spread, names: Mapping[int, Collection[str]]
) -> Description:
    """Return the description that the sums give, as `folder` would with all files in one place.

    Args:
        reading: How the nodes read their data.
        form: The form of their files.
        counted: The sums of the first step.
        spread: The sums of the second.
        names: The different values of the columns in `counted.named`.

    Raises:
        InputError: The data cannot be used.
    """
    classes, labels = _classes(reading, counted, names.get(len(form.columns), ()))
    moments = Moments(counted.means, deviations(spread.squares, spread.n))
    inputs = Inputs(form.kind, form.shape, label=reading.label, text=reading.text)
    if form.kind == "a table":
        inputs = _table_inputs(reading, form, counted, moments, spread.squares == 0, names)
    elif reading.scales(form.kind):
        mean, deviation = moments.scaling(form.shape)
        inputs = Inputs(**vars(inputs) | {"mean": mean, "deviation": deviation})
    target = None
    if classes is None:
        target = counted.target_mean, float(deviations(np.array([spread.target]), spread.n)[0])
    return Description(inputs, classes, labels, target)


def _table_inputs(
    reading: Reading,
    form: Form,
    counted: Counted,
    moments: Moments,
    constant: NDArray[np.bool_],
    names: Mapping[int, Collection[str]],
) -> Inputs:
    require_columns(form.columns, reading.drop, reading.categorical)
    columns: list[Column] = []
    chosen: list[int] = []  # of each feature, its column
    for j, name in enumerate(form.columns):
        if name in reading.drop:
            continue
        values = names.get(j)
        different = counted.occupied[j] if values is None else len(values)
        columns.append(column_of(name, counted.columns[j], different, values or (), name in reading.categorical))
        chosen += [j] * len(columns[-1].features)
    schema = Schema(tuple(columns), reading.missing)
    schema.require_features("the nodes' tables")
    schema, keep = schema.without_constants(constant[chosen].tolist())
    chosen = [chosen[k] for k in keep]
    schema = schema.with_means(moments.mean[chosen])
    features = schema.features
    shape = (len(features),)
    inputs = Inputs("a table", shape, columns=features, label=reading.label, text=reading.text, schema=schema)
    if not reading.scales("a table"):
        return inputs
    mean, deviation = Moments(moments.mean[chosen], moments.deviation[chosen]).scaling(shape, schema.amounts)
    return Inputs(**vars(inputs) | {"mean": mean, "deviation": deviation})


def _classes(reading: Reading, counted: Counted, found: Collection[str]) -> tuple[int | None, tuple[str, ...]]:
    """Return the number of classes and their names: None for regression."""
    if counted.is_regression(reading):
        return None, ()
    if reading.given_classes is not None:
        return reading.given_classes, reading.labels
    if counted.labels[0]:
        return max(2, len(found)), tuple(sorted(found, key=label_order))
    numbers = [int(name) for name in found if name.isdecimal()]
    if len(numbers) < len(found) or max(numbers, default=0) >= MAX_CLASSES:
        hint = f"a class is 0 to {MAX_CLASSES - 1}; for regression set target = number"
        raise InputError(f"the labels are whole numbers, but not all of them are classes: {hint}")
    return max(2, 1 + max(numbers, default=0)), ()


def bucket(value: str) -> int:
    """Return the bucket that a value falls into."""
    return int.from_bytes(hashlib.sha256(value.encode()).digest()[:8], "big") % BUCKETS


def counts_array(columns: Sequence[Counts]) -> Floats:
    """Return counts as numbers to add up, [columns, 8]."""
    return np.array(columns, float).reshape(len(columns), len(Counts._fields))


def counts_of(array: Floats) -> tuple[Counts, ...]:
    """Undo `counts_array`."""
    return tuple(Counts(*map(int, row)) for row in array.tolist())


def as_kind(kind: str) -> Kind:
    """Return the kind of files, if it is one."""
    require_choice("kind", kind, get_args(Kind))
    return cast(Kind, kind)
