"""Inputs: what an example looks like to a model, and how new examples are brought into that form.

It travels with a trained model: the columns of a table in order, their scaling, the shape of an example. New
examples may come as arrays, as a data frame, or from a file.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from focusfl.data.check import as_inputs
from focusfl.data.federation import Federation
from focusfl.data.own.arrays import read_npz_arrays
from focusfl.data.own.contents import MAX_MB, FileContents, with_inputs
from focusfl.data.own.csv_files import csv_format, csv_rows, grouped_cells
from focusfl.data.own.entries import require_regular
from focusfl.data.own.numbers import not_a_number, number_hint, parse_cell
from focusfl.data.own.schema import Schema
from focusfl.data.own.table import Table, cell_value, number_word
from focusfl.data.own.table_files import check_names, is_unnamed, parquet_columns
from focusfl.util.errors import InputError, nearest

Kind = Literal["a table", "text", "arrays", "images"]
Encode = Callable[[list[str]], Tensor]


class NewData(NamedTuple):
    """New examples from a file.

    Attributes:
        x: The examples as the model takes them, before scaling: [n, ...].
        y: Their labels as they are written; None if the file has none.
        others: The cells of all other columns, such as a patient's number, by column.
        at: Says in which file and row the label of an example is, for messages.
        notes: What the user should know about how the file was read, one sentence each.
    """

    x: Tensor
    y: list[Any] | None
    others: dict[str, list[str]]
    at: Callable[[int], str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inputs:
    """The form of the examples that a model was trained on.

    Attributes:
        kind: "a table", "text", "arrays" or "images".
        shape: The shape of one example, as the network takes it; () where it is not known, as at a server.
        tokens: Whether examples are whole numbers for an embedding.
        columns: The features of a table, in order.
        schema: How the cells of a table become these features; None where all columns are numbers without gaps, as
            at a node.
        columns_digest: Where the names of the columns are not known, as at a server: a digest of them, sorted.
        label: The name of the label column.
        text: The name of the text column.
        own_encoder: Whether texts were turned into numbers by a function of the user's own.
        mean: Subtracted from each feature, [...]; None if the features are not scaled.
        deviation: What each feature is then divided by, [...].
    """

    kind: Kind
    shape: tuple[int, ...]
    tokens: bool = False
    columns: tuple[str, ...] = ()
    label: str = "label"
    text: str = "text"
    own_encoder: bool = False
    mean: Tensor | None = None
    deviation: Tensor | None = None
    columns_digest: str = ""
    schema: Schema | None = None

    @staticmethod
    def of(fed: Federation) -> Inputs:
        """Return the form of a federation's examples: that of its files, or of its arrays."""
        known = getattr(fed, "inputs", None)
        if isinstance(known, Inputs):
            return known
        x = fed.training.x
        return Inputs("arrays", tuple(x.shape[1:]), tokens=not x.is_floating_point())

    def scaled(self, x: Tensor) -> Tensor:
        """Scale raw values as the training data were scaled."""
        if self.mean is None or self.deviation is None:
            return x
        return (x - self.mean.to(x.device)) / self.deviation.to(x.device)

    def unscaled(self, x: Tensor) -> Tensor:
        """Return the raw values of scaled ones, correct to the last digits of float32."""
        if self.mean is None or self.deviation is None:
            return x
        mean, deviation = (v.to(x.device, torch.float64) for v in (self.mean, self.deviation))
        return (x.double() * deviation + mean).float()

    def tensor(self, x: Any, encode: Encode | None = None) -> Tensor:
        """Return new examples as the network takes them: columns in order, scaled.

        Args:
            x: Arrays or tensors [n, ...] with features in the order of `columns`; or a data frame or a dict of the
                files' columns, in any order, with missing cells and categories; or a list of texts, if the model
                was trained on text.
            encode: Turns texts into numbers, if the model was trained with a function of the user's own.

        Raises:
            InputError: A column is missing, or the examples have another shape or kind.
        """
        if isinstance(x, str):
            raise InputError(f"x: expected examples, found {x[:40]!r}; put a text into a list, read a file first")
        table = _columns_of(x)
        if self.kind == "text" and table is not None:
            self._require("x", table, (self.text,))
            x = list(table[self.text])
        elif table is not None and (self.columns or self.columns_digest):
            x = self._from_columns(table)
        if self.kind == "text" and _are_texts(x):
            x = self._encoded([str(text) for text in x], encode)
        raw = as_inputs("x", x)
        if self.shape and tuple(raw.shape[1:]) != self.shape:
            wanted = f"{list(self.shape)}" + (f" ({', '.join(self.columns)})" if self.columns else "")
            hint = "select and order the features to match"
            if self.schema is not None and self.schema.used != self.columns:
                hint += ", or pass a data frame or a dict of columns"
            raise InputError(
                f"x: an example has shape {list(raw.shape[1:])}; the model was trained on {wanted}; {hint}"
            )
        inputs = self.scaled(raw.long() if self.tokens else raw.float())
        if not torch.isfinite(inputs).all():
            row = int((~torch.isfinite(inputs.flatten(1))).any(1).nonzero()[0])
            raise InputError(f"x, row {row}: NaN, infinite or too large; fill in or remove such values")
        return inputs

    def read(self, path: Path, encode: Encode | None = None, max_mb: int = MAX_MB) -> NewData:
        """Read new examples from a csv, parquet or npz file. Labels are optional, columns may have any order.

        Args:
            path: The file.
            encode: See `tensor`.
            max_mb: A compressed file that would unpack to more megabytes is refused.

        Raises:
            InputError: The file cannot be used; the message names the row or the column.
        """
        suffix = path.suffix.lower()
        if self.kind == "images":
            raise InputError(f"{path}: the model was trained on images: give them to model.predict as an array")
        require_regular(path)
        if suffix == ".npz" and self.kind == "arrays":
            arrays = read_npz_arrays(path, max_mb)
            if "x" not in arrays or arrays.keys() - {"x", "y"}:
                raise InputError(f"{path}: expected x, and y if there are labels; found {', '.join(arrays)}")
            x = as_inputs(f"{path}, x", arrays["x"])
            y = arrays["y"].tolist() if "y" in arrays else None
            return NewData(x, y, {}, lambda i: f"{path}, row {i} of y, counting from 0")
        if suffix not in (".csv", ".parquet") or self.kind == "arrays":
            expected = "an npz file" if self.kind == "arrays" else "a csv or parquet file"
            raise InputError(f"{path}: the model was trained on {self.kind}: expected {expected}")
        columns, places = _read_csv(path) if suffix == ".csv" else parquet_columns(path, max_mb)
        labels = columns.pop(self.label, None)
        wanted = (self.text,) if self.kind == "text" else self._table_columns(str(path), columns)
        self._require(str(path), columns, wanted)
        counted = "counting the header" if suffix == ".csv" else "counting from 1"
        contents, notes = FileContents(path, self.kind, [], labels or [], places, counted, wanted), list[str]()
        if suffix == ".csv":
            self._require_clear(path, wanted)
        if self.kind == "text":
            texts: list[str] = with_inputs(contents, columns[self.text]).x
            x = self._encoded(texts, encode)
        elif self.schema is not None:
            contents = replace(contents, x=Table.of({name: columns[name] for name in wanted}))
            x, notes = self._features(contents), self.schema.notes(contents)
        else:
            cells = [
                [parse_cell(cell, contents.at(i, name)) for i, cell in enumerate(columns[name])] for name in wanted
            ]
            x = torch.from_numpy(with_inputs(contents, np.array(cells, dtype=float).T.reshape(-1, len(wanted))).x)
        if not len(x):
            raise InputError(f"{path}: no examples; expected a header and rows")
        others = {
            name: ["" if cell is None else str(cell) for cell in cells]
            for name, cells in columns.items()
            if name not in wanted
        }
        return NewData(x, labels, others, partial(contents.at, column=self.label), tuple(notes))

    def _require_clear(self, path: Path, wanted: Sequence[str]) -> None:
        """Refuse a column of numbers in which 1.182 may be 1182."""
        known = {} if self.schema is None else {column.name: column.kind for column in self.schema.columns}
        grouped = grouped_cells(path, csv_format(path))
        header = next(csv_rows(path))[1] if grouped and self.kind == "a table" else []
        for name in (name for name in wanted if name in header and known.get(name, "number") == "number"):
            if header.index(name) in grouped:
                row, cell = grouped[header.index(name)]
                where = f"{path}, row {row} (counting the header), column {name!r}"
                raise not_a_number(cell, where, number_hint(cell))

    def _table_columns(self, where: str, found: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the columns of a table that the model needs."""
        return self.schema.used if self.schema is not None else self.columns or self._sorted(where, found)

    def _features(self, file: FileContents) -> Tensor:
        assert self.schema is not None
        return torch.from_numpy(self.schema.filled(self.schema.encode(file)))

    def _sorted(self, where: str, found: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the columns, sorted, if they are those whose digest is known."""
        names = tuple(sorted(found))
        if columns_digest(names) != self.columns_digest:
            raise InputError(
                f"{where}: its columns {', '.join(names)} are not those that the federation trained on"
            )
        return names

    def _from_columns(self, found: Mapping[str, Any]) -> Any:
        wanted = self._table_columns("x", found)
        self._require("x", found, wanted)
        try:
            if self.schema is not None:
                table = Table.of({name: _one_per_row(found[name]) for name in wanted})
                places = range(len(table))
                return self._features(FileContents(Path("x"), "a table", table, [], places, "counting from 0"))
            return np.stack([np.asarray(found[name], dtype=np.float64) for name in wanted], 1)
        except InputError:
            raise
        except (TypeError, ValueError) as error:
            raise InputError(f"x: expected one number per row in every column: {error}") from error

    def _require(self, where: str, found: Mapping[str, Any], wanted: Sequence[str]) -> None:
        missing = [name for name in wanted if name not in found]
        if missing:
            extra = [name for name in found if name not in wanted]
            similar = resembling(missing[0], extra)
            hint = f"; it also has {', '.join(extra)}" if extra else ""
            hint = f"; did you mean {similar!r}? Then rename that column to {missing[0]!r}" if similar else hint
            raise InputError(f"{where}: no column {', '.join(missing)}, which the model was trained on{hint}")

    def _encoded(self, texts: list[str], encode: Encode | None) -> Tensor:
        if self.own_encoder and encode is None:
            raise InputError("the texts were encoded by a function of your own: pass it as encode=, from Python")
        if encode is None:
            from focusfl.models.text import embed

            encode = embed
        return encode(texts).float()


def _columns_of(x: Any) -> Mapping[str, Any] | None:
    """Return the columns of a dict, of a data frame or of a table of pyarrow; None if x is none of these."""
    if hasattr(x, "column_names") and hasattr(x, "to_pydict"):
        x = x.to_pydict()
    if not isinstance(x, Mapping) and not hasattr(x, "columns"):
        return None
    return {str(name): x[name] for name in (x if isinstance(x, Mapping) else x.columns)}


def _one_per_row(column: Any) -> NDArray[Any]:
    cells = np.asarray(column)
    if cells.ndim != 1:
        raise ValueError(f"a column has shape {list(cells.shape)}")
    return cells


def _are_texts(x: Any) -> bool:
    """Whether x is a list, a column or an array of texts."""
    if isinstance(x, Tensor) or not isinstance(x, Iterable):
        return False
    return all(isinstance(text, str) for text in x)


def resembling(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like a name, apart from capital letters; None if none is like it.

    Example:
        >>> resembling("pressure", ["id", "Presure"]), resembling("diagnosis", ["id"])
        ('Presure', None)
    """
    lower = {other.strip().lower(): other for other in known}
    close = difflib.get_close_matches(name.strip().lower(), lower, n=1, cutoff=0.6)
    return lower[close[0]] if close else None


def columns_digest(names: Sequence[str]) -> str:
    """Return the sha256 of column names, by which nodes and servers compare them."""
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()


def _read_csv(path: Path) -> tuple[dict[str, list[Any]], list[int]]:
    """Return the cells of each column, and the row of each example as a person counts it."""
    rows = csv_rows(path)
    header = next(rows, (0, []))[1]
    check_names(path, header)
    places: list[int] = []
    columns: dict[str, list[Any]] = {name: [] for name in header if not is_unnamed(name)}
    for row, cells in rows:
        places.append(row)
        for name, cell in zip(header, cells, strict=True):
            if name in columns:
                columns[name].append(cell.strip())
    return columns, places


def label_numbers(
    y: Any, labels: Sequence[str], classes: int | None, at: Callable[[int], str] | None = None
) -> Any:
    """Turn labels as people write them into numbers: names of classes, or numbers, written or not.

    Args:
        y: The labels: a list, an array or a column of a data frame. Tensors, and arrays with several labels per
            example, are returned as they are.
        labels: The names of the classes, if they have names.
        classes: The number of classes; None for regression.
        at: Says where a label is, for messages; by default its row, counting from 0.

    Raises:
        InputError: A label is empty, not one of the classes, or not a number; the message names the row.

    Example:
        >>> label_numbers(["well", "ill"], ("ill", "well"), 2), label_numbers(np.array(["1", "0"]), (), 2)
        ([1, 0], [1, 0])
    """
    if isinstance(y, Tensor):
        return y
    try:
        values = np.asarray(y)
    except ValueError:  # rows of different lengths, which are refused later
        return y
    if values.ndim == 2 and values.shape[1] == 1:  # a data frame with one column
        values = values[:, 0]
    if values.ndim != 1:
        return y
    numbers = []
    for i, label in enumerate(values.tolist()):
        try:
            numbers.append(_label_number(label, labels, classes))
        except ValueError as error:
            where = f"the labels, row {i}, counting from 0" if at is None else at(i)
            raise InputError(f"{where}: {error}") from error
    return numbers


def _number_name(label: Any) -> str:
    """Return how a class is called whose label is a number; empty if it is none."""
    value = cell_value(label)
    return number_word(value) if isinstance(value, float) else ""


def _label_number(label: Any, labels: Sequence[str], classes: int | None) -> int | float:
    """Return the number of one label; raise a ValueError that says what is wrong with it."""
    word = label.decode(errors="replace") if isinstance(label, bytes) else label
    word = word.strip() if isinstance(word, str) else word
    if word is None or word == "" or (not isinstance(word, str) and str(word) in ("nan", "<NA>", "NaT")):
        raise ValueError("the label is empty or NaN; fill it in, or remove the example")
    if labels and (named := _number_name(word)) in labels:  # classes that are called 1, 2
        return list(labels).index(named)
    if isinstance(word, str) and labels:
        alike = [name for name in labels if name.casefold() == " ".join(word.split()).casefold()]
        if word not in labels and len(alike) == 1:
            return list(labels).index(alike[0])
        if word not in labels:
            raise ValueError(f"label {word!r}: {nearest(word, labels)}")
        return list(labels).index(word)
    expected = "a finite number" if classes is None else f"0 to {classes - 1}"
    try:
        number = float(word)
    except (TypeError, ValueError):
        number = math.nan
    whole = classes is None or (math.isfinite(number) and number % 1 == 0 and 0 <= number < classes)
    if not math.isfinite(number) or not whole:
        raise ValueError(f"label {word!r}: expected {', '.join(labels) or expected}")
    return number if classes is None else int(number)
