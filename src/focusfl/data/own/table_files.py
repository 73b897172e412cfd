"""Read one csv or parquet file: a table, or texts, with their labels."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from focusfl.data.own.contents import MAX_MB, FileContents, optional_package, require_size, with_inputs
from focusfl.data.own.csv_files import csv_format, csv_rows
from focusfl.data.own.numbers import parse_cell, parse_number
from focusfl.data.own.table import Table, cell_value
from focusfl.util.errors import InputError, nearest


def read_csv(path: Path, label: str, text: str, max_mb: int = MAX_MB) -> list[FileContents]:
    """Read a csv file with a header."""
    form = csv_format(path)
    rows = csv_rows(path, form)
    header = next(rows, (0, []))[1]
    kind, features = _check_header(path, header, label, text)
    positions, label_position = [header.index(name) for name in features], header.index(label)
    values, places = array("d"), array("q")
    words = tuple(dict[int, str]() for _ in positions)
    texts: list[str] = []
    y: list[str] = []
    contents = FileContents(path, kind, [], y, places, "counting the header", tuple(features), form.notes(path))
    for row, cells in rows:
        places.append(row)
        y.append(cells[label_position].strip())
        if kind == "text":
            texts.append(cells[positions[0]])
            continue
        try:
            values.extend([parse_number(float, cells[j]) for j in positions])
        except ValueError:
            values.extend(_numbers([cells[j] for j in positions], words, len(y) - 1))
    if kind == "text":
        return [with_inputs(contents, texts)]
    numbers = np.array(values).reshape(len(y), len(positions))
    return [replace(contents, x=Table(contents.columns, numbers, words))]


def _numbers(cells: list[str], words: tuple[dict[int, str], ...], i: int) -> Iterator[float]:
    """Yield the numbers in row i; NaN where a cell is missing, or a word, which is put into `words`."""
    for cell, column in zip(cells, words, strict=True):
        value = cell_value(cell)
        if isinstance(value, str):
            column[i] = sys.intern(value)
        yield value if isinstance(value, float) else math.nan


def read_parquet(path: Path, label: str, text: str, max_mb: int = MAX_MB) -> list[FileContents]:
    """Read a parquet file."""
    table = _parquet_table(path, max_mb)
    kind, features = _check_header(path, table.column_names, label, text)
    places, y = range(1, len(table) + 1), table[label].to_pylist()
    contents = FileContents(path, kind, [], y, places, "counting from 1", tuple(features))
    if kind == "text":
        return [with_inputs(contents, table[text].to_pylist())]
    return [replace(contents, x=Table.of({name: _parquet_column(table[name]) for name in features}))]


def _parquet_column(column: Any) -> Any:
    """Return the cells of a column of pyarrow: an array if they are numbers, where an empty cell is NaN."""
    numbers = column.to_numpy()
    return numbers if numbers.dtype.kind in "biuf" else column.to_pylist()


def _parquet_table(path: Path, max_mb: int) -> Any:
    """Read a parquet file as a table of pyarrow."""
    parquet = optional_package("pyarrow.parquet", path, "tables")
    try:
        with parquet.ParquetFile(path) as file:
            about = file.metadata
            groups = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
            require_size(path, max(groups, 8.0 * about.num_rows * about.num_columns), max_mb)
            table = file.read()
            table.validate(full=True)
    except InputError:
        raise
    except Exception as error:  # invalid bytes can make pyarrow raise anything
        raise InputError(f"{path}: cannot be read as a parquet file: {' '.join(str(error).split())}") from error
    return table


def parquet_columns(path: Path, max_mb: int = MAX_MB) -> tuple[dict[str, list[Any]], range]:
    """Return the cells of each column of a parquet file, and the row of each example, counting from 1."""
    table = _parquet_table(path, max_mb)
    check_names(path, table.column_names)
    return {name: table[name].to_pylist() for name in table.column_names}, range(1, len(table) + 1)


def check_names(path: Path, header: Sequence[str]) -> None:
    """Refuse a header without names, or with a name twice."""
    if not header:
        raise InputError(f"{path}: empty; expected a header and rows")
    for j, name in enumerate(header):
        if not name or name.startswith("__index_level_"):
            raise InputError(f"{path}: column {j + 1} has no name; if it is an index, write the file without it")
        if name in header[:j]:
            raise InputError(f"{path}: two columns are called {name!r}; rename one of them")


def _check_header(path: Path, header: Sequence[str], label: str, text: str) -> tuple[str, list[str]]:
    """Return "text" or "a table", and the columns without the label; refuse a header that cannot be used."""
    check_names(path, header)
    if label not in header:
        raise InputError(f"{path}: no label column {label!r} (data.label): {nearest(label, header)}")
    features = [name for name in header if name != label]
    if text in features and len(features) > 1:
        others = ", ".join(name for name in features if name != text)
        raise InputError(f"{path}: a file with text ({text!r}) can have only a label besides it; remove {others}")
    if not features:
        raise InputError(f"{path}: only labels; expected columns of numbers, or a text column called {text!r}")
    return ("text" if text in features else "a table"), features


def numbers_only(contents: FileContents, text: str = "") -> FileContents:
    """Return a table with x [n, columns] as numbers; refuse words and missing cells. Other contents stay.

    Args:
        contents: What was read.
        text: The option data.text, for the message.
    """
    if contents.kind != "a table":
        return contents
    words = [(min(column), j) for j, column in enumerate(contents.x.words) if column]
    if words:
        i, j = min(words)
        parse_cell(contents.x.words[j][i], contents.at(i, contents.columns[j]), text)
    return with_inputs(contents, contents.x.numbers)
