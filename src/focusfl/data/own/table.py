"""Table: the cells of a table before they are encoded. A cell is a number, a word, or missing."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MISSING = frozenset(
    ("", "NA", "N/A", "n/a", "#N/A", "#NV", "NaN", "nan", "null", "NULL", "None", "none", "?", "-", "<NA>", "NaT")
)
TRUTH = {"true": 1.0, "false": 0.0}


@dataclass(frozen=True)
class Table:
    """The cells of a table, without its labels.

    Attributes:
        columns: The names of the columns, [d].
        numbers: The cells that are numbers; NaN where a cell is a word or missing, [n, d].
        words: For each column, the words by row, [d].
    """

    columns: tuple[str, ...]
    numbers: NDArray[np.float64]
    words: tuple[Mapping[int, str], ...]

    @staticmethod
    def of(columns: Mapping[str, Iterable[Any]]) -> Table:
        """Return the table of columns that hold cells of any kind, as in a dict or a data frame."""
        makers = {name: _column(cells) for name, cells in columns.items()}
        n = max((len(numbers) for numbers, _ in makers.values()), default=0)
        numbers = np.empty((n, len(makers)))
        for j, (name, (column, _)) in enumerate(makers.items()):
            if len(column) != n:
                raise ValueError(f"column {name!r} has {len(column)} rows, another has {n}")
            numbers[:, j] = column
        return Table(tuple(makers), numbers, tuple(words for _, words in makers.values()))

    def __len__(self) -> int:
        return len(self.numbers)

    def select(self, columns: Sequence[str]) -> Table:
        """Return the table with these columns, in this order."""
        if tuple(columns) == self.columns:
            return self
        order = [self.columns.index(name) for name in columns]
        return Table(tuple(columns), self.numbers[:, order], tuple(self.words[j] for j in order))

    def rows(self, keep: Sequence[int]) -> Table:
        """Return the table with these rows, in this order."""
        words = tuple({i: column[old] for i, old in enumerate(keep) if old in column} for column in self.words)
        return Table(self.columns, self.numbers[keep], words)

    def values(self, column: str) -> list[str]:
        """Return the cells of a column as words; a missing one is empty.

        >>> Table.of({"ward": ["A", 7, None, "7.0", "-"]}).values("ward")
        ['A', '7', '', '7', '']
        """
        j = self.columns.index(column)
        numbers, words = self.numbers[:, j].tolist(), self.words[j]
        return [words[i] if i in words else number_word(number) for i, number in enumerate(numbers)]


def _column(cells: Iterable[Any]) -> tuple[NDArray[np.float64], dict[int, str]]:
    """Return the numbers of a column, and its words by row."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
        return cells.astype(np.float64), {}
    numbers, words = array("d"), dict[int, str]()
    for i, cell in enumerate(cells):
        value = cell_value(cell)
        if isinstance(value, str):
            words[i] = value
            value = math.nan
        numbers.append(value)
    return np.array(numbers), words


def cell_value(cell: Any) -> float | str:
    """Return the number in a cell, or its word; NaN if the cell is missing.

    >>> [cell_value(cell) for cell in ("1e3", " ill ", "NA", None, True, "False", "1_000")]
    [1000.0, 'ill', nan, nan, 1.0, 0.0, '1_000']
    """
    if isinstance(cell, float):
        return float(cell)
    text = cell.decode(errors="replace") if isinstance(cell, bytes) else str(cell)
    text = text.strip()
    if cell is None or text in MISSING:
        return math.nan
    try:
        return float(text) if "_" not in text else text
    except ValueError:
        return TRUTH.get(text.lower(), text)


def is_missing(cell: Any) -> bool:
    """Whether a cell has no value."""
    value = cell_value(cell)
    return isinstance(value, float) and math.isnan(value)


def number_word(number: float) -> str:
    """Return a number as a word, for categories; empty if it is NaN.

    >>> number_word(7.0), number_word(0.1), number_word(float("nan"))
    ('7', '0.1', '')
    """
    return "" if math.isnan(number) else f"{number:.15g}"
