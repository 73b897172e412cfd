"""Schema: what the columns of a table are, and how their cells become numbers.

The training files of all agents decide. The first rule that fits a column is taken:

    category    the option `categorical` names it
    constant    no cell has a value, or all cells have the same word or, in training, the same number
    id          whole numbers, nearly all different in each file, and the name says so (id, nr, patient, ...)
    number      numbers, or mostly numbers: then the words among them are errors
    date        all words are dates, such as 2024-01-31, 31.1.2024 or 1/31/2024
    id          words, nearly all different, and the name says so
    category    words with at most 20 different values, or one for ten cells, unless a file looks like names:
                more than 20 words, nearly all different
    id          words, nearly all different
    text        other words

Numbers and categories become features. A category has one feature per value. All else is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from focusfl.data.own.contents import FileContents
from focusfl.data.own.numbers import not_a_number, number_hint
from focusfl.data.own.table import Table
from focusfl.util.errors import InputError, Problems, nearest

ColumnKind = Literal["number", "category", "id", "date", "constant", "text"]
MissingOption = Literal["impute", "refuse"]
LEFT_OUT: dict[ColumnKind, str] = {"id": "identifier", "date": "date", "constant": "one value", "text": "text"}
DIFFERENT = 0.95  # share of different values from which on a column may be an identifier
FEW_VALUES = 20  # a column of words is a category if it has so few different ones, or ...
CELLS_PER_VALUE = 10  # ... one for so many cells
MAX_VALUES = 1_000  # of a category
MAX_NAMES = 12  # in one remark
ID_WORDS = {"id", "ids", "pid", "uuid", "guid", "mrn"}  # anywhere in a name
LAST_ID_WORDS = {"patient", "record", "case", "key"}  # at the end of a name
NUMBER_WORDS = {"nr", "no", "number", "num"}  # alone, or after what is numbered:
NUMBERED = {
    "pat",
    "patient",
    "person",
    "subject",
    "record",
    "case",
    "visit",
    "admission",
    "study",
    "sample",
    "insurance",
}
JOINED = re.compile(f"({'|'.join(sorted(NUMBERED))})({'|'.join(sorted(ID_WORDS | NUMBER_WORDS | {'key'}))})")
FEW_ROWS = 20  # of a file; in larger ones, whole numbers that all differ are remarked on
DAY = r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))"
DATE = re.compile(DAY + r"([T ]\d{1,2}:\d{2}(:\d{2})?.*)?", re.ASCII)


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: Its name.
        kind: What it is.
        mean: Of a number: replaces missing cells.
        missing: Whether training files have missing cells: a number then has a feature that says so, and missing is
            a value of a category.
        values: The known values of a category, sorted.
    """

    name: str
    kind: ColumnKind
    mean: float = 0.0
    missing: bool = False
    values: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features that the column becomes."""
        extra = (f"{self.name} is missing",) if self.missing else ()
        if self.kind == "number":
            return (self.name, *extra)
        return (*(f"{self.name} = {value}" for value in self.values), *extra) if self.kind == "category" else ()


@dataclass(frozen=True)
class Schema:
    """The columns of a table.

    Attributes:
        columns: The columns, in the order of the first file.
        missing: "impute": a missing number becomes the mean; "refuse": it is an error.
    """

    columns: tuple[Column, ...]
    missing: MissingOption = "impute"

    @property
    def used(self) -> tuple[str, ...]:
        """The columns that become features."""
        return tuple(column.name for column in self.columns if column.features)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features, in order."""
        return tuple(feature for column in self.columns for feature in column.features)

    @property
    def amounts(self) -> list[bool]:
        """Whether each feature is a number of the table, not 0 or 1 for a category or a missing cell."""
        return [c.kind == "number" and feature == c.features[0] for c in self.columns for feature in c.features]

    def encode(self, file: FileContents, problems: Problems | None = None) -> NDArray[np.float32]:
        """Return the features of a table, [n, features]; NaN where a number is missing.

        Args:
            file: A file whose x is a table with at least the columns that are used.
            problems: Collects what is wrong in files of the federation; by default, for new data, it is raised.

        Raises:
            InputError: A cell of a number is a word, infinite or too large, or missing although that is refused.
        """
        found, parts = problems or Problems(), [np.zeros((len(file.x), 0), np.float32)]
        for column in self.columns:
            with found.collect():
                parts.append(self._encode(column, file, training=problems is not None))
        if problems is None:
            found.report()
        return np.concatenate(parts, 1, dtype=np.float32)

    def _encode(self, column: Column, file: FileContents, training: bool) -> NDArray[np.float32]:
        table: Table = file.x
        if not column.features:
            return np.zeros((len(table), 0), np.float32)
        if column.kind == "number":
            return self._encode_number(column, file, training)
        cells = table.values(column.name)
        if self.missing == "refuse" and "" in cells:
            raise self._refused(column, file, cells.index(""))
        places = {value: k for k, value in enumerate((*column.values, *([""] * column.missing)))}
        out = np.zeros((len(cells), len(places)), np.float32)
        for i, cell in enumerate(cells):
            if cell in places:
                out[i, places[cell]] = 1
        return out

    def _encode_number(self, column: Column, file: FileContents, training: bool) -> NDArray[np.float32]:
        j = file.x.columns.index(column.name)
        words: dict[int, str] = file.x.words[j]
        if words:
            i = min(words)
            hint = number_hint(words[i])
            hint += "; data.categorical makes categories" if training else ""
            others = listed(sorted({word for word in words.values() if word != words[i]}))
            hint += f"; nor are {others}" if others else f"; {len(words)} such cells" if len(words) > 1 else ""
            raise not_a_number(words[i], file.at(i, column.name), hint)
        numbers = file.x.numbers[:, j]
        with np.errstate(over="ignore"):
            out = numbers.astype(np.float32)[:, None]
        gaps = np.isnan(numbers)
        refused = np.isinf(out[:, 0]) | (gaps if self.missing == "refuse" else False)
        if refused.any():
            raise self._refused(column, file, int(refused.argmax()))
        return np.concatenate([out, gaps[:, None].astype(np.float32)], 1) if column.missing else out

    @staticmethod
    def _refused(column: Column, file: FileContents, i: int) -> InputError:
        where = file.at(i, column.name)
        return InputError(f"{where}: empty, NaN or infinite; fill in or remove such values")

    def with_means(self, means: NDArray[np.float64]) -> Schema:
        """Return the schema with the mean of each feature, [features]; those of numbers fill missing cells."""
        columns, k = [], 0
        for column in self.columns:
            columns.append(replace(column, mean=float(means[k])) if column.kind == "number" else column)
            k += len(column.features)
        return replace(self, columns=tuple(columns))

    def without_constants(self, constant: Sequence[bool]) -> tuple[Schema, list[int]]:
        """Leave out numbers that are the same in all training examples: no weight for them could be learned.

        Args:
            constant: Whether each feature is the same in all training examples.

        Returns:
            The schema, and the features that are kept; all of them if none would be left.
        """
        columns, keep, k = list[Column](), list[int](), 0
        for column in self.columns:
            place = range(k, k + len(column.features))
            k = place.stop
            left_out = column.kind == "number" and not column.missing and constant[place.start]
            columns.append(Column(column.name, "constant") if left_out else column)
            keep += [] if left_out else place
        return (replace(self, columns=tuple(columns)), keep) if keep else (self, [*range(k)])

    def require_features(self, where: str) -> None:
        """Raise an InputError if no column becomes a feature."""
        if not self.features:
            reasons = ", ".join(f"{c.name} ({LEFT_OUT.get(c.kind, c.kind)})" for c in self.columns)
            hint = "expected numbers or categories; if the examples are texts, data.text names their column"
            raise InputError(f"{where}: no column to learn from: {reasons or 'all are dropped'}; {hint}")

    def filled(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return features with the mean where a number is missing."""
        means = [c.mean if c.kind == "number" else 0.0 for c in self.columns for _ in c.features]
        return np.where(np.isnan(x), np.asarray(means, np.float32), x) if np.isnan(x).any() else x

    def notes(self, file: FileContents) -> list[str]:
        """Say which cells of new data are missing, or have a value that is not known."""
        gaps, new = {}, []
        for column in (column for column in self.columns if column.features):
            if column.kind == "number":
                gaps[column.name] = int(np.isnan(file.x.numbers[:, file.x.columns.index(column.name)]).sum())
            else:
                unknown = {*file.x.values(column.name)} - {*column.values, ""}
                new += [f"{column.name} = {value}" for value in sorted(unknown)]
        lines = []
        if any(gaps.values()):
            counts = listed([f"{name} ({n})" for name, n in gaps.items() if n])
            lines.append(f"{file.path}: missing cells, filled with the mean of the training data: {counts}")
        if new:
            lines.append(f"{file.path}: values that training did not have: {listed(new)}")
        return lines

    def remarks(self) -> list[str]:
        """Say what was decided; nothing if all columns are numbers without missing cells."""
        plain = all(c.kind == "number" and not c.missing for c in self.columns)
        return [] if plain else self.describe()

    def describe(self) -> list[str]:
        """Say what the columns are: numbers, categories, what is left out, and which have missing cells."""
        named = {kind: [c for c in self.columns if c.kind == kind] for kind in ("number", "category")}
        out = [c for c in self.columns if not c.features]
        gaps = [c for c in self.columns if c.missing]
        lines = [f"numbers: {listed([c.name for c in named['number']])}"] if named["number"] else []
        if named["category"]:
            lines.append(f"categories: {listed([f'{c.name} ({len(c.values)})' for c in named['category']])}")
        if gaps:
            how = "numbers become the mean, each such column gets one that says so"
            lines.append(f"missing cells: {listed([c.name for c in gaps])}: {how}")
        if out:
            keep = "data.categorical keeps a column as categories"
            lines.append(f"left out: {listed([f'{c.name} ({LEFT_OUT[c.kind]})' for c in out])}; {keep}")
        return lines


def infer(
    files: Sequence[FileContents],
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    missing: MissingOption = "impute",
) -> Schema:
    """Decide what the columns of tables are.

    Args:
        files: The training files of all agents, with the same columns.
        drop: Columns to leave out.
        categorical: Columns that are categories, even if they are numbers.
        missing: See `Schema`.

    Raises:
        InputError: An option names no column, a category has too many values, or no column is left.
    """
    names = files[0].columns
    require_columns(names, drop, categorical)
    tables = [file.x for file in files]
    kept = []
    for name in (name for name in names if name not in drop):
        counts = added(Counts.of(table, name) for table in tables)
        values = {value for table in tables for value in table.values(name)} - {""}
        kept.append(column_of(name, counts, len(values), values, name in categorical))
    schema = Schema(tuple(kept), missing)
    schema.require_features(str(files[0].path))
    return schema


def require_columns(names: Sequence[str], drop: Sequence[str], categorical: Sequence[str]) -> None:
    """Raise an InputError if an option names no column of the tables."""
    for option, columns in (("drop", drop), ("categorical", categorical)):
        for name in columns:
            if name not in names:
                raise InputError(f"data.{option}: no column {name!r}: {nearest(name, names)}")


class Counts(NamedTuple):
    """What a file says about a column, in numbers that add up over files: over those of several machines, too.

    Attributes:
        rows: The rows of the file.
        numbers: The cells that are numbers.
        words: The cells that are words.
        fractions: The numbers that are not whole.
        different_numbers: The different numbers in the file.
        different_words: The different words in the file.
        dates: The words that are dates.
        like_names: 1 if the file has more than 20 words, nearly all different: they may be names of persons.
    """

    rows: int
    numbers: int
    words: int
    fractions: int
    different_numbers: int
    different_words: int
    dates: int
    like_names: int

    @property
    def cells(self) -> int:
        """The cells that are not missing."""
        return self.numbers + self.words

    @property
    def missing(self) -> bool:
        """Whether a cell is missing."""
        return self.cells < self.rows

    @staticmethod
    def of(table: Table, name: str) -> Counts:
        """Count the cells of one column."""
        j = table.columns.index(name)
        numbers, words = table.numbers[:, j], list(table.words[j].values())
        numbers = numbers[~np.isnan(numbers)]
        fractions = int((np.floor(numbers) != numbers).sum())
        different = len(np.unique(numbers)), len({*words})
        dates = sum(DATE.fullmatch(word) is not None for word in words)
        like_names = int(len(words) > FEW_VALUES and _differ(different[1], len(words)))
        return Counts(len(table), len(numbers), len(words), fractions, *different, dates, like_names)


def added(counts: Iterable[Counts]) -> Counts:
    """Return the sum of counts.

    >>> added([Counts(3, 1, 2, 0, 1, 2, 0, 0), Counts(2, 2, 0, 0, 1, 0, 0, 0)]).cells
    5
    """
    return Counts(*map(sum, zip(*counts, strict=True)))


def column_of(
    name: str, counts: Counts, different: int, values: Iterable[str], categorical: bool = False
) -> Column:
    """Decide what a column is.

    Args:
        name: Its name.
        counts: Its cells, over all training files.
        different: How many different values it has; at least so many, if that is more than a category may have.
        values: The values themselves; they are used for a category only.
        categorical: Whether it is to be a category, whatever its cells are.

    Raises:
        InputError: A category has too many values.
    """
    kind: ColumnKind | None = "category" if categorical else kind_of_numbers(name, counts)
    if kind == "number":
        return Column(name, kind, missing=counts.missing)
    kind = kind or kind_of_words(name, counts, different)
    if kind == "category":
        if different > MAX_VALUES:
            hint = f"at most {MAX_VALUES} are allowed; data.drop leaves the column out"
            raise InputError(f"column {name!r}: {different} different values; {hint}")
        return Column(name, kind, missing=counts.missing, values=tuple(sorted(values)))
    return Column(name, kind)


def kind_of_numbers(name: str, counts: Counts) -> Literal["constant", "id", "number"] | None:
    """Return what a column of numbers is; None if it is one of words."""
    if not counts.cells:
        return "constant"
    if counts.words >= counts.numbers:
        return None
    whole = not counts.words and not counts.fractions
    differ = _differ(counts.different_numbers, counts.numbers)
    return "id" if whole and _is_id_name(name) and differ else "number"


def kind_of_words(name: str, counts: Counts, values: int) -> ColumnKind:
    """Return what a column of words with so many different values is."""
    if values == 1 and not counts.missing:
        return "constant"
    if counts.dates == counts.cells:
        return "date"
    differ = _differ(counts.different_words, counts.cells)
    if differ and _is_id_name(name):
        return "id"
    if not counts.like_names and values <= min(max(FEW_VALUES, counts.cells / CELLS_PER_VALUE), MAX_VALUES):
        return "category"
    return "id" if differ else "text"


def _differ(different: int, cells: int) -> bool:
    """Whether nearly all cells of a column differ from the others in their file."""
    return different >= DIFFERENT * cells


def _is_id_name(name: str) -> bool:
    """Whether a column is called like an identifier.

    >>> [_is_id_name(name) for name in ("ID", "patient_id", "PatientID", "patnr", "case no.", "nr", "pid")]
    [True, True, True, True, True, True, True]
    >>> [_is_id_name(name) for name in ("patient age", "paid", "kidney_no", "platelet number")]
    [False, False, False, False]
    """
    split = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    words = [word.lower() for word in split]
    if not words:
        return False
    if not ID_WORDS.isdisjoint(words) or words[-1] in LAST_ID_WORDS or JOINED.fullmatch(words[-1]):
        return True
    return words[-1] in NUMBER_WORDS and (len(words) == 1 or words[-2] in NUMBERED)


def like_identifiers(schema: Schema, files: Sequence[FileContents]) -> tuple[str, ...]:
    """Return the numbers of a schema that are whole and all different in every file of at least 20 rows."""
    large = [file.x for file in files if len(file.x) >= FEW_ROWS]
    found = []
    for name in (column.name for column in schema.columns if column.kind == "number" and large):
        counts = [Counts.of(table, name) for table in large]
        if all(c.numbers >= FEW_ROWS and not c.fractions and c.different_numbers == c.numbers for c in counts):
            found.append(name)
    return tuple(found)


def listed(names: Sequence[str]) -> str:
    """Return names for a remark; of many, the first."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES])}{more}"
