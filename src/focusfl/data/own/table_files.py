"""Read one csv or parquet file: a table, or texts, with their labels."""

from __future__ import annotations

import math
import re
import sys
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from focusfl.data.own.contents import MAX_MB, FileContents, optional_package, require_size, with_inputs
from focusfl.data.own.csv_files import csv_format, csv_rows, grouped_cells
from focusfl.data.own.numbers import GROUPED, is_number, not_a_number, number_hint, parse_number
from focusfl.data.own.table import Table, cell_value
from focusfl.util.errors import InputError, Problems

CLOSE_LABEL = 0.75  # how alike the name of a column must be to be suggested as the label


def read_csv(
    path: Path, label: str, text: str, max_mb: int = MAX_MB, drop: Collection[str] = ()
) -> list[FileContents]:
    """Read a csv file with a header."""
    form = csv_format(path)
    rows = csv_rows(path, form)
    header = next(rows, (0, []))[1]
    about = _check_header(path, header, label, text, drop)
    kind, features = about.kind, about.columns
    positions, label_position = [header.index(name) for name in features], header.index(about.label)
    values, places = array("d"), array("q")
    words = tuple(dict[int, str]() for _ in positions)
    texts: list[str] = []
    y: list[str] = []
    contents = about.contents(path, y, places, "counting the header", form.notes(path))
    grouped = grouped_cells(path, form)
    if label_position in grouped:
        row, cell = grouped[label_position]
        where = f"{path}, row {row} (counting the header), column {about.label!r}"
        raise not_a_number(cell, where, number_hint(cell))
    unclear = [k for k, j in enumerate(positions) if j in grouped]
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
        for k in unclear:
            if GROUPED.fullmatch(cell := cells[positions[k]].strip()):
                words[k][len(y) - 1] = sys.intern(cell)
                values[k - len(positions)] = math.nan
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


def read_parquet(
    path: Path, label: str, text: str, max_mb: int = MAX_MB, drop: Collection[str] = ()
) -> list[FileContents]:
    """Read a parquet file."""
    table = _parquet_table(path, max_mb)
    about = _check_header(path, table.column_names, label, text, drop)
    places, y = range(1, len(table) + 1), table[about.label].to_pylist()
    contents = about.contents(path, y, places, "counting from 1")
    if about.kind == "text":
        return [with_inputs(contents, table[text].to_pylist())]
    return [replace(contents, x=Table.of({name: _parquet_column(table[name]) for name in about.columns}))]


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
    names = [name for name in table.column_names if not is_unnamed(name)]
    return {name: table[name].to_pylist() for name in names}, range(1, len(table) + 1)


def is_unnamed(name: str) -> bool:
    """Whether a column has no name of its own, such as an index that pandas wrote; it is left out."""
    return not name or name.startswith("__index_level_") or name == "Unnamed: 0"


def check_names(path: Path, header: Sequence[str]) -> None:
    """Refuse a header without names, or with names twice."""
    if not header:
        raise InputError(f"{path}: empty; leave the agent out, or add a header and rows")
    twice = [name for name, n in Counter(header).items() if n > 1 and not is_unnamed(name)]
    if twice:
        names = ", ".join(map(repr, twice))
        raise InputError(f"{path}: two columns are called {names}; rename or remove one of them")


class Header(NamedTuple):
    """What a header says about a file.

    Attributes:
        kind: "text" or "a table".
        label: The label column, as it is written.
        columns: The columns that are used.
        dropped: The columns that the user left out.
        notes: What the user should know, one sentence each.
    """

    kind: str
    label: str
    columns: tuple[str, ...]
    dropped: tuple[str, ...]
    notes: tuple[str, ...]

    def contents(
        self, path: Path, y: list[Any], places: Sequence[object], counted: str, notes: tuple[str, ...] = ()
    ) -> FileContents:
        """Return the contents of the file, without its examples."""
        notes = (*notes, *(f"{path}: {note}" for note in self.notes))
        return FileContents(path, self.kind, [], y, places, counted, self.columns, notes, self.dropped)


def _check_header(path: Path, header: Sequence[str], label: str, text: str, drop: Collection[str]) -> Header:
    """Return what a header says; refuse one that cannot be used, with all that is wrong with it."""
    problems = Problems()
    with problems.collect():
        check_names(path, header)
    named = [name for name in header if not is_unnamed(name)]
    found = label if label in named else only_alike(label, named)
    if header and not found:
        hint = _label_hint(label, named)
        if named and all(is_number(name) for name in named):
            hint = "the first row has only numbers: write the names of the columns above it"
        problems.add(f"{path}: no label column {label!r} (data.label): {hint}")
    chosen = {name if name in named else only_alike(name, named) for name in drop}
    dropped = tuple(name for name in named if name in chosen and name != found)
    features = tuple(name for name in named if name not in (found, *dropped))
    if text != "text" and text in features and len(features) > 1:
        others = ",".join(name for name in features if name != text)
        hint = f"data.drop={others} leaves the others out"
        problems.add(f"{path}: a file with text ({text!r}) can have only a label besides it; {hint}")
    if found and not features:
        problems.add(f"{path}: only labels; expected columns of numbers, or a text column called {text!r}")
    problems.report()
    notes = [f"column {j + 1} has no name and is left out" for j, name in enumerate(header) if is_unnamed(name)]
    return Header("text" if features == (text,) else "a table", found, features, dropped, tuple(notes))


def _label_hint(label: str, named: Sequence[str]) -> str:
    """Say which column may be meant as the label, or that the user has to name it.

    >>> _label_hint("diagnoses", ["age", "diagnosis"]), _label_hint("label", ["age", "ill"])
    ("did you mean 'diagnosis'? Known: age, diagnosis", 'data.label=NAME says which it is. Known: age, ill')
    """
    lower = {name.casefold(): name for name in named}
    close = get_close_matches(label.casefold(), lower, n=1, cutoff=CLOSE_LABEL)
    hint = f"did you mean {lower[close[0]]!r}?" if close else "data.label=NAME says which it is."
    return f"{hint} Known: {', '.join(sorted(named))}"


def only_alike(name: str, names: Sequence[str]) -> str:
    """Return the only name that differs from `name` in capital letters, blanks, - and _ alone; else nothing.

    >>> only_alike("blood pressure", ["age", "Blood_Pressure"]), only_alike("a", ["A", "a "])
    ('Blood_Pressure', '')
    """
    alike = [other for other in names if simplified(other) == simplified(name)]
    return alike[0] if len(alike) == 1 else ""


def simplified(name: str) -> str:
    """Return a name without capital letters, blanks, - and _."""
    return re.sub(r"[\s_-]+", "", name).casefold()
