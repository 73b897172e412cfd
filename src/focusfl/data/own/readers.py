"""Read one csv, parquet or npz file, or one folder of images. Error messages name the file and the row."""

from __future__ import annotations

import codecs
import csv
import importlib
import math
import re
import sys
import warnings
import zipfile
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from focusfl.data.own.table import Table, cell_value
from focusfl.util.errors import InputError, nearest
from focusfl.util.files import visible

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
# Pillow's name for what the pixels hold -> what they are converted to.
PIXEL_MODES = {"1": "L", "L": "L", "LA": "L", "RGB": "RGB", "RGBA": "RGB", "P": "RGB", "CMYK": "RGB"}
Number = TypeVar("Number", int, float)
MAX_MB = 512  # to which a compressed file may unpack, by default
DELIMITERS = (",", ";", "\t", "|")
FALLBACK_ENCODINGS = ("cp1252", "latin-1")  # of files that are no UTF-8
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?", re.ASCII)
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True)
class FileContents:
    """The contents of one file, or of one folder of images.

    Attributes:
        path: The file or folder.
        kind: "a table", "text", "arrays" or "images".
        x: float32 [n, ...]; of a table a `Table`, for text a list of str.
        y: The labels as they are written, numbers or words, [n].
        places: The row of each example as a person counts it, or the file name of an image, [n].
        counted: How rows are counted, for messages.
        columns: The names of a table's features, in order.
        notes: What the user should know about how the file was read, one sentence each.
    """

    path: Path
    kind: str
    x: Any
    y: list[Any]
    places: Sequence[object]
    counted: str = ""
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def at(self, i: int, column: str = "") -> str:
        """Return where example i is, for messages.

        >>> FileContents(Path("a.csv"), "a table", [], [], [2, 3], "counting the header").at(1, "age")
        "a.csv, row 3 (counting the header), column 'age'"
        """
        if self.kind == "images":
            return str(self.path / str(self.places[i]))
        return f"{self.path}, row {self.places[i]} ({self.counted})" + (f", column {column!r}" if column else "")


# --- what is in a folder, and which reader it needs


def visible_entries(folder: Path, root: Path) -> list[Path]:
    """Return what is in a folder, sorted, without hidden files and README; refuse links that lead out of `root`."""
    try:
        places = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {error.strerror}") from error
    places = [p for p in places if not p.name.startswith(".") and p.stem.lower() != "readme"]
    for place in (p for p in places if p.is_symlink()):
        try:
            inside = place.resolve(strict=True).is_relative_to(root.resolve())
        except (OSError, RuntimeError) as error:  # nothing is there, or links lead back to themselves
            raise InputError(f"{place}: a link that leads nowhere; put the data itself there") from error
        if not inside:
            raise InputError(f"{place}: a link out of {root}, which is not followed; put the data itself there")
    return places


def read_file(path: Path, label: str, text: str, max_mb: int = MAX_MB) -> list[FileContents]:
    """Read a file by its suffix: one item, or two, training and test, if an npz file has both.

    Args:
        path: A csv, parquet or npz file.
        label: The name of the label column in csv and parquet.
        text: The name of the text column in csv and parquet.
        max_mb: A compressed file that would unpack to more megabytes is refused before it is unpacked.

    Raises:
        InputError: The file cannot be used; the message says why, and names the row.
    """
    if path.suffix.lower() not in READERS:
        raise InputError(f"{path}: unexpected; expected a file that ends in {', '.join(READERS)}")
    require_regular(path)
    return READERS[path.suffix.lower()](path, label, text, max_mb)


def require_regular(path: Path) -> None:
    """Refuse what is not a regular file: reading a pipe or a device may never end."""
    if not path.is_file():
        raise InputError(f"{path}: expected a regular file, found a folder, a pipe, a device or nothing")


def _require_size(path: Path, size: float, max_mb: int) -> None:
    """Refuse a file that would unpack to more than is allowed."""
    if size > max_mb * 1e6:
        small = f"a file of {path.stat().st_size / 1e6:.3g} MB unpacks to {size / 1e6:,.0f} MB"
        raise InputError(f"{path}: {small}, at most {max_mb} are allowed; data.max_mb raises that")


# --- tables and text


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


class CsvFormat(NamedTuple):
    """How a csv file is written.

    Attributes:
        encoding: The encoding of its text, as Python calls it.
        delimiter: What separates its columns.
    """

    encoding: str
    delimiter: str

    def notes(self, path: Path) -> tuple[str, ...]:
        """Say that the encoding was guessed, if it was."""
        guessed = self.encoding in FALLBACK_ENCODINGS
        return (f"{path}: not UTF-8, read as {self.encoding}: check its special letters",) if guessed else ()


def csv_format(path: Path) -> CsvFormat:
    """Find the encoding of a csv file, and the delimiter that gives its header the most columns.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        encoding = _encoding(path)
        with path.open(encoding=encoding, newline="") as handle:
            header = next((line for line in handle if line.strip()), "")
    except (OSError, UnicodeError) as error:
        raise InputError(f"{path}: cannot be read as a csv file in UTF-8: {error}") from error
    return CsvFormat(encoding, max(DELIMITERS, key=lambda mark: _cells(header, mark)))


def _encoding(path: Path) -> str:
    """Return UTF-16 if the file has its mark, UTF-8 if it is valid, else Windows-1252 or Latin-1."""
    possible = ["utf-8-sig", *FALLBACK_ENCODINGS]
    with path.open("rb") as handle:
        if handle.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16"
    for encoding in possible[:-1]:
        with suppress(UnicodeDecodeError), path.open(encoding=encoding, newline="") as handle:
            while handle.read(1 << 20):
                pass
            return encoding
    return possible[-1]


def _cells(header: str, delimiter: str) -> int:
    """Return the number of columns that a delimiter gives a header; a tie is the comma's."""
    try:
        return len(next(csv.reader([header], delimiter=delimiter), []))
    except csv.Error:
        return 0


def csv_rows(path: Path, form: CsvFormat | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield (row, cells), the header first. Blank rows are skipped but counted; all rows need the same width.

    Columns that are not separated by commas may have decimal commas: 1,5 becomes 1.5.
    """
    encoding, delimiter = form or csv_format(path)
    row, width = 0, 0
    try:
        with path.open(encoding=encoding, newline="") as handle:
            for row, cells in enumerate(csv.reader(handle, strict=True, delimiter=delimiter), 1):
                if not cells:
                    continue
                if any("\0" in cell for cell in cells):
                    raise InputError(f"{path}, row {row} (counting the header): a NUL byte; write it as UTF-8 text")
                if width and len(cells) != width:
                    problem = f"{len(cells)} cells, but the header has {width}"
                    raise InputError(f"{path}, row {row} (counting the header): {problem}")
                if width and delimiter != ",":
                    cells = [_with_point(cell) for cell in cells]
                yield row, cells if width else [name.strip() for name in cells]
                width = len(cells)
    except csv.Error as error:
        raise InputError(f"{path}, row {row + 1} (counting the header): {error}") from error
    except (OSError, UnicodeError) as error:
        raise InputError(f"{path}: cannot be read as a csv file in UTF-8: {error}") from error


def _with_point(cell: str) -> str:
    """Write a number that has a decimal comma with a point.

    >>> [_with_point(cell) for cell in ("1,5", " -0,25", "3e1", "a,b", "1,2,3")]
    ['1.5', ' -0.25', '3e1', 'a,b', '1,2,3']
    """
    return cell.replace(",", ".") if "," in cell and DECIMAL_COMMA.fullmatch(cell.strip()) else cell


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
    parquet = _package("pyarrow.parquet", path, "tables")
    try:
        with parquet.ParquetFile(path) as file:
            about = file.metadata
            groups = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
            _require_size(path, max(groups, 8.0 * about.num_rows * about.num_columns), max_mb)
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


def parse_number(kind: Callable[[str], Number], cell: str) -> Number:
    """Return the number in a cell. Python reads 1_000 as a number; here it is a word, and raises a ValueError.

    >>> parse_number(int, "12"), parse_number(float, "1e3")
    (12, 1000.0)
    """
    if "_" in cell:
        raise ValueError(cell)
    return kind(cell)


def parse_cell(cell: Any, where: str, text: str = "") -> float:
    """Return the number in a cell; an empty cell becomes NaN, which is refused later.

    Args:
        cell: The cell.
        where: Its place, for the message.
        text: The option data.text, where the reader has it.
    """
    cell = "" if cell is None else str(cell)
    try:
        return parse_number(float, cell) if cell.strip() else float("nan")
    except ValueError as error:
        hint = "write decimals with a point" if "," in cell else "fill in or remove such values"
        raise not_a_number(cell, where, "if it is the text column, set data.text" if text else hint) from error


def not_a_number(cell: str, where: str, hint: str) -> InputError:
    """Return the error that a cell is not a number."""
    short = cell if len(cell) < 40 else cell[:37] + "..."
    return InputError(f"{where}: {short!r} is not a number ({hint})")


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


# --- arrays


def read_npz(path: Path, label: str, text: str, max_mb: int = MAX_MB) -> list[FileContents]:
    """Read an npz file with x and y, or with x_train, y_train, x_test and y_test; nothing is unpickled."""
    arrays = read_npz_arrays(path, max_mb)
    ends = [""] if "x" in arrays else ["_train", "_test"]
    if arrays.keys() != {f"{name}{end}" for name in "xy" for end in ends}:
        expected = "expected x and y, or x_train, y_train, x_test and y_test"
        raise InputError(f"{path}: found {', '.join(arrays) or 'nothing'}; {expected}")
    return [_from_arrays(path, arrays, end) for end in ends]


def read_npz_arrays(path: Path, max_mb: int = MAX_MB) -> dict[str, NDArray[Any]]:
    """Read the arrays of an npz file, of which there are at most four; nothing is unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if members.keys() - {f"{name}{end}" for name in "xy" for end in ("", "_train", "_test")}:
                expected = "expected x and y, or x_train, y_train, x_test and y_test"
                raise InputError(f"{path}: found {', '.join(members)}; {expected}")
            packed = [info.file_size for info in archive.infolist() if info.compress_type != zipfile.ZIP_STORED]
            _require_size(path, sum(packed), max_mb)
            return {name: _read_array(archive, info) for name, info in members.items()}
    except InputError:
        raise
    except zipfile.BadZipFile as error:
        raise InputError(f"{path}: not an npz file, or damaged: {error}") from error
    except Exception as error:  # invalid bytes can make zipfile and numpy raise anything
        reason = str(error) or type(error).__name__
        raise InputError(f"{path}: cannot be read as an npz file (nothing is unpickled): {reason}") from error


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """Read one array; its header must claim as many bytes as there are."""
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        if version not in HEADERS:
            raise ValueError(f"{info.filename} is written in version {version} of the format")
        shape, _, dtype = HEADERS[version](member)
        claimed, there = math.prod(shape) * dtype.itemsize, info.file_size - member.tell()
        if dtype.hasobject:
            raise ValueError(f"{info.filename} holds Python objects")
        if claimed != there:
            what = f"{list(shape)[:8]} {dtype} is {claimed} bytes"
            raise ValueError(f"{info.filename}: {what}, but there are {there}")
    with archive.open(info) as member:
        return np.asarray(np.lib.format.read_array(member, allow_pickle=False))


def _from_arrays(path: Path, arrays: dict[str, NDArray[Any]], end: str) -> FileContents:
    x, y = arrays[f"x{end}"], arrays[f"y{end}"]
    if x.dtype.kind not in "biuf":
        raise InputError(f"{path}, x{end}: expected numbers, found {x.dtype}")
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if x.ndim < 2 or y.shape != x.shape[:1]:
        shapes = f"x{end} has shape {list(x.shape)} and y{end} {list(y.shape)}"
        raise InputError(f"{path}: {shapes}; expected [examples, features...] and [examples]")
    counted = f"of x{end} and y{end}, counting from 0"
    return with_inputs(FileContents(path, "arrays", [], y.tolist(), range(len(y)), counted), x)


# --- images


def read_images(folder: Path, root: Path) -> FileContents:
    """Read a folder with one sub-folder of images per class: x is [n, C, H, W] in 0..1."""
    files, x = _image_files(folder, root), []
    Image = _package("PIL.Image", folder, "images")
    for file in files:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # remarks of Pillow on metadata ...
                warnings.simplefilter("error", Image.DecompressionBombWarning)  # ... but not on a huge image
                with Image.open(file, formats=("PNG", "JPEG")) as image:
                    image.verify()  # the checksums of a PNG, which decoding ignores
                with Image.open(file, formats=("PNG", "JPEG")) as image:
                    mode = PIXEL_MODES.get(image.mode)
                    pixels = np.asarray(image.convert(mode))
        except Exception as error:  # invalid bytes can make Pillow raise anything
            raise InputError(f"{file}: cannot be read as an image: {error}") from error
        if mode is None:
            expected = "expected grey or RGB with 8 bits per channel"
            raise InputError(f"{file}: pixels of kind {image.mode}; {expected}")
        x.append(pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0))
        if x[-1].shape != x[0].shape:
            sizes = f"{describe_shape(x[-1])}, but {files[0]}: {describe_shape(x[0])}"
            raise InputError(f"{file}: {sizes}; all images need the same size and colours")
    stack = np.asarray(x, np.float32)
    stack /= 255
    places = [file.relative_to(folder) for file in files]
    return FileContents(folder, "images", stack, [visible(file.parent.name) for file in files], places)


def _image_files(folder: Path, root: Path) -> list[Path]:
    files: list[Path] = []
    for group in visible_entries(folder, root):
        if not group.is_dir():
            allowed = f"one file ({', '.join(READERS)}), train and test, or a folder of images per class"
            raise InputError(f"{group}: unexpected; an agent has {allowed}")
        files += visible_entries(group, root)
    for file in files:
        if file.suffix.lower() not in IMAGE_SUFFIXES or not file.is_file():
            raise InputError(f"{file}: unexpected; expected images ({', '.join(IMAGE_SUFFIXES)})")
    return files


def describe_shape(example: NDArray[Any]) -> str:
    """Return the size of one example, for messages.

    >>> describe_shape(np.zeros([3, 8, 9])), describe_shape(np.zeros(4))
    ('9x8 RGB', 'shape [4]')
    """
    shape = list(example.shape)
    image = len(shape) == 3 and shape[0] in (1, 3)
    return f"{shape[2]}x{shape[1]} {'RGB' if shape[0] == 3 else 'grey'}" if image else f"shape {shape}"


# --- common to the readers

READERS = {".csv": read_csv, ".parquet": read_parquet, ".npz": read_npz}


def with_inputs(contents: FileContents, x: Any) -> FileContents:
    """Return the contents with x filled in; refuse numbers that are not finite, and missing texts."""
    if contents.kind == "text":
        for i, cell in enumerate(x):
            if not isinstance(cell, str) or not cell.strip():
                raise InputError(f"{contents.at(i, contents.columns[0])}: expected text, found {cell!r}")
    else:
        with np.errstate(over="ignore"):
            x = np.asarray(x, dtype=np.float32)
        bad = np.argwhere(~np.isfinite(x))
        if len(bad):
            i, j = bad[0][:2]
            column = contents.columns[j] if contents.columns else ""
            raise InputError(f"{contents.at(i, column)}: empty, NaN or infinite; fill in or remove such values")
    return replace(contents, x=x)


def _package(name: str, path: Path, extra: str) -> Any:
    """Import an optional package, or say how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = "pillow" if extra == "images" else "pyarrow"
        raise InputError(f'{path}: reading it needs {package}: pip install "focusfl[{extra}]"') from error
