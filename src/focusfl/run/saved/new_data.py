"""New examples for a model: columns whose names are spelled alike, and what the caller should know."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from focusfl.data.own.csv_files import csv_rows
from focusfl.data.own.entries import require_regular
from focusfl.data.own.inputs import Inputs, NewData
from focusfl.data.own.schema import listed
from focusfl.data.own.table import Table
from focusfl.data.own.table_files import only_alike, parquet_columns
from focusfl.util.errors import InputError, Problems


class NewExamples(NamedTuple):
    """New examples from Python, with the names of columns that the model knows.

    Attributes:
        x: The examples: a dict of columns if they came as a table, else as they came.
        y: The label column of a table; None if there is none.
        notes: What the caller should know about them, one sentence each.
    """

    x: Any
    y: Any
    notes: tuple[str, ...] = ()


def new_names(inputs: Inputs, found: Iterable[str]) -> dict[str, str]:
    """Return the columns that are spelled otherwise than the model's, with the model's names; the label, too.

    The rule is that of training: capital letters, blanks, - and _ do not matter, if only one column is alike.
    """
    names = list(found)
    columns = [c.name for c in inputs.schema.columns] if inputs.schema is not None else list(inputs.columns)
    wanted = [*(columns if inputs.kind == "a table" else []), inputs.label]
    pairs = [(only_alike(name, names), name) for name in wanted if name not in names]
    return {old: name for old, name in pairs if old and old not in wanted and only_alike(old, wanted)}


def _renaming(where: str, new: Mapping[str, str]) -> tuple[str, ...]:
    listing = ", ".join(f"{old!r} is read as {name!r}" for old, name in new.items())
    return (f"{where}: {listing}",) if new else ()


def new_examples(inputs: Inputs, x: Any) -> NewExamples:
    """Return examples from Python with the model's names for the columns, and take the labels out of a table."""
    table = columns_of(x)
    if table is None or inputs.kind not in ("a table", "text"):
        return NewExamples(x, None)
    new = new_names(inputs, table)
    table = {new.get(name, name): column for name, column in table.items()}
    y = table.pop(inputs.label, None)
    return NewExamples(table, y, (*_renaming("x", new), *_remarks(inputs, table)))


def columns_of(x: Any) -> dict[str, Any] | None:
    """Return the columns of a dict, of a data frame or of a table of pyarrow; None if x is none of these."""
    if hasattr(x, "column_names") and hasattr(x, "to_pydict"):
        x = x.to_pydict()
    if not isinstance(x, Mapping) and not hasattr(x, "columns"):
        return None
    return {str(name): x[name] for name in (x if isinstance(x, Mapping) else x.columns)}


def _remarks(inputs: Inputs, table: Mapping[str, Any]) -> list[str]:
    """Say which values training did not have, and which cells are missing though training had them."""
    if inputs.schema is None:
        return []
    lines = []
    for column in (c for c in inputs.schema.columns if c.features and c.name in table):
        try:
            cells = Table.of({column.name: np.asarray(table[column.name])}).values(column.name)
        except (TypeError, ValueError):
            continue  # refused where the examples are encoded
        gaps, instead = cells.count(""), "the mean of the training data" if column.kind == "number" else "no value"
        if gaps and gaps == len(cells):
            lines.append(f"x, column {column.name!r}: all cells are missing; {instead} takes their place")
        elif gaps and not column.missing:
            lines.append(f"x, column {column.name!r}: {gaps} missing cells; {instead} takes their place")
        unknown = sorted({*cells} - {*column.values, ""}) if column.kind == "category" else []
        if unknown:
            lines.append(f"x, column {column.name!r}: values that training did not have: {listed(unknown)}")
    return lines


def warn(notes: Iterable[str], stacklevel: int) -> None:
    """Warn the caller that is so many functions above this one's caller."""
    for line in notes:
        warnings.warn(line, stacklevel=stacklevel + 1)


def read_examples(inputs: Inputs, path: Path) -> NewData:
    """Read new examples from a file whose columns may be spelled otherwise than in training.

    Raises:
        InputError: The file cannot be used; the message has a line for everything that is wrong with its columns.
    """
    if not path.exists():
        raise InputError(f"{path}: there is no such file")
    if inputs.kind not in ("a table", "text") or path.suffix.lower() not in (".csv", ".parquet"):
        return inputs.read(path)
    require_regular(path)
    names = next(csv_rows(path), (0, []))[1] if path.suffix.lower() == ".csv" else [*parquet_columns(path)[0]]
    new = new_names(inputs, names)
    its = _as_in_file(inputs, {name: old for old, name in new.items()})
    problems = Problems()
    with problems.collect():
        data = its.read(path)
        return data._replace(notes=(*_renaming(str(path), new), *data.notes))
    if its.schema is not None and not {*its.schema.used} <= {*names}:  # the cells of the other columns, too
        there = tuple(column for column in its.schema.columns if column.name in names)
        with problems.collect():
            replace(its, schema=replace(its.schema, columns=there)).read(path)
    problems.report()
    raise AssertionError("a problem was collected")


def _as_in_file(inputs: Inputs, old: Mapping[str, str]) -> Inputs:
    """Return the form with the names that a file has for its columns."""
    columns, schema = inputs.columns, inputs.schema
    if schema is None:
        columns = tuple(old.get(name, name) for name in columns)
    else:
        schema = replace(schema, columns=tuple(replace(c, name=old.get(c.name, c.name)) for c in schema.columns))
    return replace(inputs, columns=columns, schema=schema, label=old.get(inputs.label, inputs.label))
