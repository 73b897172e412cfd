"""One small reader per kind of data: csv, parquet, npz, images. A message names the file and the row."""

from __future__ import annotations

import csv
import importlib
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from focusfl.util.errors import InputError, nearest

MODES = {"1": "L", "L": "L", "LA": "L", "RGB": "RGB", "RGBA": "RGB", "P": "RGB", "CMYK": "RGB"}
N = TypeVar("N", int, float)
IMAGES = (".png", ".jpg", ".jpeg")


@dataclass(frozen=True)
class Part:
    """What one file, or one folder of images, holds."""

    path: Path
    kind: str  # a table, text, arrays, images
    x: Any  # float32 [n, ...]; the texts of kind text
    y: list[Any]  # [n] labels as they stand there: numbers or words
    places: Sequence[object]  # [n] the row as a person counts it; the file name of an image
    counted: str = ""  # how rows are counted
    columns: tuple[str, ...] = ()  # of a table

    def at(self, i: int, column: str = "") -> str:
        """Where example i is.

        >>> Part(Path("a.csv"), "a table", [], [], [2, 3], "counting the header").at(1, "age")
        "a.csv, row 3 (counting the header), column 'age'"
        """
        if self.kind == "images":
            return str(self.path / str(self.places[i]))
        return f"{self.path}, row {self.places[i]} ({self.counted})" + (f", column {column!r}" if column else "")


def read_csv(path: Path, label: str, text: str) -> list[Part]:
    rows = csv_rows(path)
    header = next(rows, (0, []))[1]
    kind, features = _columns(path, header, label, text)
    at, target = [header.index(name) for name in features], header.index(label)
    values, places = array("d"), array("q")
    texts: list[str] = []
    y: list[str] = []
    part = Part(path, kind, [], y, places, "counting the header", tuple(features))
    for row, cells in rows:
        places.append(row)
        y.append(cells[target].strip())
        if kind == "text":
            texts.append(cells[at[0]])
            continue
        try:
            values.extend([plain(float, cells[j]) for j in at])
        except ValueError:
            values.extend([_number(cells[j], part.at(len(y) - 1, header[j]), text) for j in at])
    x = texts if kind == "text" else np.frombuffer(values).reshape(len(y), len(at))
    return [_checked(part, x)]


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(row, cells), the header first, blank rows left out but counted, all of one width."""
    row, width = 0, 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            for row, cells in enumerate(csv.reader(handle, strict=True), 1):
                if not cells:
                    continue
                if width and len(cells) != width:
                    found = f"{len(cells)} cells, the header has {width}"
                    raise InputError(f"{path}, row {row} (counting the header): {found}")
                yield row, cells if width else [name.strip() for name in cells]
                width = len(cells)
    except csv.Error as error:
        raise InputError(f"{path}, row {row + 1} (counting the header): {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as csv in UTF-8: {error}") from error


def read_parquet(path: Path, label: str, text: str) -> list[Part]:
    parquet = _package("pyarrow.parquet", path, "tables")
    try:
        with parquet.ParquetFile(path) as file:
            table = file.read()
    except (OSError, ValueError, RuntimeError) as error:  # what pyarrow's own errors are
        raise InputError(f"{path}: cannot be read as parquet: {' '.join(str(error).split())}") from error
    kind, features = _columns(path, table.column_names, label, text)
    places, y = range(1, len(table) + 1), table[label].to_pylist()
    part = Part(path, kind, [], y, places, "counting from 1", tuple(features))
    if kind == "text":
        return [_checked(part, table[text].to_pylist())]
    x = np.empty((len(table), len(features)))
    for j, name in enumerate(features):
        column = table[name].to_numpy()  # an empty cell becomes NaN, or None
        if column.dtype.kind not in "biuf":
            for i, cell in enumerate(column):
                _number(str("" if cell is None else cell), part.at(i, name), text)
            raise InputError(f"{path}, column {name!r}: {table[name].type}, expected numbers")
        x[:, j] = column
    return [_checked(part, x)]


def read_npz(path: Path, label: str, text: str) -> list[Part]:
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as found:
            held = {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError, RuntimeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        reason = "not an npz file" if isinstance(error, TypeError) else str(error)
        raise InputError(f"{path}: cannot be read as npz (nothing is unpickled): {reason}") from error
    ends = [""] if "x" in held else ["_train", "_test"]
    if held.keys() != {f"{name}{end}" for name in "xy" for end in ends}:
        raise InputError(f"{path}: holds {', '.join(held)}; expected x and y, or x_train, y_train, x_test, y_test")
    return [_arrays(path, held, end) for end in ends]


def _arrays(path: Path, held: dict[str, NDArray[Any]], end: str) -> Part:
    x, y = held[f"x{end}"], held[f"y{end}"]
    if x.dtype.kind not in "biuf":
        raise InputError(f"{path}, x{end}: {x.dtype}, expected numbers")
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if x.ndim < 2 or y.shape != x.shape[:1]:
        shapes = f"x{end} has shape {list(x.shape)} and y{end} {list(y.shape)}"
        raise InputError(f"{path}: {shapes}; expected [examples, features...] and [examples]")
    counted = f"of x{end} and y{end}, counting from 0"
    return _checked(Part(path, "arrays", [], y.tolist(), range(len(y)), counted), x)


def read_images(folder: Path, root: Path) -> Part:
    """x float32 [n, C, H, W] in 0..1; a label is the name of the image's folder."""
    files, x = _image_files(folder, root), []
    Image = _package("PIL.Image", folder, "images")
    for file in files:
        try:
            with Image.open(file, formats=("PNG", "JPEG")) as image:
                mode = MODES.get(image.mode)
                pixels = np.asarray(image.convert(mode))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise InputError(f"{file}: cannot be read as an image: {error}") from error
        if mode is None:
            raise InputError(f"{file}: pixels of kind {image.mode}; expected grey or RGB with 8 bits a channel")
        x.append(pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0))
        if x[-1].shape != x[0].shape:
            raise InputError(f"{file}: {size(x[-1])}, but {files[0]}: {size(x[0])}; use one for all")
    stack = np.asarray(x, np.float32)
    stack /= 255
    places = [file.relative_to(folder) for file in files]
    return Part(folder, "images", stack, [readable(file.parent.name) for file in files], places)


def _image_files(folder: Path, root: Path) -> list[Path]:
    files: list[Path] = []
    for group in entries(folder, root):
        if not group.is_dir():
            wanted = f"one file ({', '.join(READERS)}), train and test, or a folder of images per class"
            raise InputError(f"{group}: unexpected; an agent has {wanted}")
        files += entries(group, root)
    for file in files:
        if file.suffix.lower() not in IMAGES or not file.is_file():
            raise InputError(f"{file}: unexpected; expected images ({', '.join(IMAGES)})")
    return files


def size(example: NDArray[Any]) -> str:
    """For messages.

    >>> size(np.zeros([3, 8, 9])), size(np.zeros(4))
    ('9x8 RGB', 'shape [4]')
    """
    shape = list(example.shape)
    image = len(shape) == 3 and shape[0] in (1, 3)
    return f"{shape[2]}x{shape[1]} {'RGB' if shape[0] == 3 else 'grey'}" if image else f"shape {shape}"


def entries(inside: Path, root: Path) -> list[Path]:
    """Sorted, without hidden files and README. Links that lead out of the root are not followed."""
    try:
        places = sorted(inside.iterdir())
    except OSError as error:
        raise InputError(f"{inside}: cannot be read: {error.strerror}") from error
    places = [p for p in places if not p.name.startswith(".") and p.stem.lower() != "readme"]
    for place in places:
        if place.is_symlink() and not place.resolve().is_relative_to(root.resolve()):
            raise InputError(f"{place}: a link out of {root}, which is not followed; put the data itself there")
    return places


READERS = {".csv": read_csv, ".parquet": read_parquet, ".npz": read_npz}


def read_file(path: Path, label: str, text: str) -> list[Part]:
    """One part; two, training and test, where an npz file has both."""
    if path.suffix.lower() not in READERS:
        raise InputError(f"{path}: unexpected; expected a file of {', '.join(READERS)}")
    return READERS[path.suffix.lower()](path, label, text)


def _columns(path: Path, header: Sequence[str], label: str, text: str) -> tuple[str, list[str]]:
    """What kind of table this is, and its columns without the label."""
    if not header:
        raise InputError(f"{path}: empty, not even a header")
    for j, name in enumerate(header):
        if not name or name.startswith("__index_level_"):
            raise InputError(f"{path}: column {j + 1} has no name; if it is an index, write the file without it")
        if name in header[:j]:
            raise InputError(f"{path}: two columns are called {name!r}")
    if len(header) == 1 and (mark := next((c for c in ";\t|" if c in header[0]), "")):
        raise InputError(f"{path}: columns are separated by {mark!r}, expected commas: write it with ',' instead")
    if label not in header:
        raise InputError(f"{path}: no column {label!r} with labels (data.label): {nearest(label, header)}")
    features = [name for name in header if name != label]
    if text in features and len(features) > 1:
        others = ", ".join(name for name in features if name != text)
        raise InputError(f"{path}: beside text ({text!r}) only a label can stand, found also {others}")
    if not features:
        raise InputError(f"{path}: only labels; expected columns of numbers, or one of text called {text!r}")
    return ("text" if text in features else "a table"), features


def plain(kind: Callable[[str], N], cell: str) -> N:
    """The number in a cell; 1_000 is one in Python alone, and a word here.

    >>> plain(int, "12"), plain(float, "1e3")
    (12, 1000.0)
    """
    if "_" in cell:
        raise ValueError(cell)
    return kind(cell)


def readable(text: str) -> str:
    """A name from the disk, or a text with such names, as it can be printed: bytes that are no UTF-8 as \\xfc."""
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _number(cell: str, where: str, text: str) -> float:
    """An empty cell is NaN, which is refused later."""
    try:
        return plain(float, cell) if cell.strip() else float("nan")
    except ValueError as error:
        short = cell if len(cell) < 40 else cell[:37] + "..."
        raise InputError(f"{where}: {short!r} is not a number (a column of text alone: data.text)") from error


def _checked(part: Part, x: Any) -> Part:
    """With x filled in, every number finite, every text there."""
    if part.kind == "text":
        for i, cell in enumerate(x):
            if not isinstance(cell, str) or not cell.strip():
                raise InputError(f"{part.at(i, part.columns[0])}: expected text, found {cell!r}")
    else:
        with np.errstate(over="ignore"):
            x = np.asarray(x, dtype=np.float32)
        bad = np.argwhere(~np.isfinite(x))
        if len(bad):
            i, j = bad[0][:2]
            column = part.columns[j] if part.columns else ""
            raise InputError(f"{part.at(i, column)}: empty, NaN or infinite; clean the data first")
    return replace(part, x=x)


def _package(name: str, path: Path, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = "pillow" if extra == "images" else "pyarrow"
        raise InputError(f'{path}: to read this you need {package}: pip install "focusfl[{extra}]"') from error
