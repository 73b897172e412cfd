"""Read a csv file: its encoding, what separates its columns, and its rows."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from focusfl.data.own.numbers import DECIMAL_COMMA, GROUPED, is_number, with_point
from focusfl.util.errors import InputError

DELIMITERS = (",", ";", "\t", "|")
SEPARATOR_LINE = re.compile(r'"?sep=.?"?')  # how Excel says what separates columns
FALLBACK_ENCODINGS = ("cp1252", "latin-1")  # of files that are no UTF-8


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
            lines = (line for line in handle if line.strip())
            header = next(lines, "")
            header = next(lines, "") if SEPARATOR_LINE.fullmatch(header.strip()) else header
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


def grouped_cells(path: Path, form: CsvFormat) -> dict[int, tuple[int, str]]:
    """Return the columns in which 1.182 may be 1182: position -> the row of the first such cell, and the cell.

    Such cells have a point before three digits, in a file with decimal commas. In a column without decimal commas
    that has a number such as 0.5, the point is that of a decimal.
    """
    found: dict[int, tuple[int, str]] = {}
    commas, points = set[int](), set[int]()
    if form.delimiter == ",":
        return found
    rows = csv_rows(path, form, raw=True)
    with suppress(InputError):  # the reader of the file tells what is wrong with it
        next(rows, None)
        for row, cells in rows:
            for j, cell in enumerate(cells):
                if "," in cell and DECIMAL_COMMA.fullmatch(cell.strip()):
                    commas.add(j)
                elif "." in cell and GROUPED.fullmatch(cell.strip()):
                    found.setdefault(j, (row, cell.strip()))
                elif "." in cell and is_number(cell):
                    points.add(j)
    return {j: first for j, first in found.items() if commas and (j in commas or j not in points)}


def csv_rows(path: Path, form: CsvFormat | None = None, raw: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yield (row, cells), the header first. Blank rows are skipped but counted; all rows need the same width.

    Columns that are not separated by commas may have decimal commas: 1,5 becomes 1.5. Excel's first line "sep=;" is
    skipped.

    Args:
        path: The file.
        form: How it is written, if that is known.
        raw: Whether decimal commas stay.

    Raises:
        InputError: The file cannot be read, or, after all rows that can be used, some have another width.
    """
    encoding, delimiter = form or csv_format(path)
    row, width = 0, 0
    odd: list[tuple[int, int]] = []  # row and width
    try:
        with path.open(encoding=encoding, newline="") as handle:
            for row, cells in enumerate(csv.reader(handle, strict=True, delimiter=delimiter), 1):
                if _is_blank(cells, width) or (not width and SEPARATOR_LINE.fullmatch(delimiter.join(cells))):
                    continue
                if any("\0" in cell for cell in cells):
                    raise InputError(f"{path}, row {row} (counting the header): a NUL byte; write it as UTF-8 text")
                if width and len(cells) != width:
                    odd.append((row, len(cells)))
                    continue
                if width and delimiter != "," and not raw:
                    cells = [with_point(cell) for cell in cells]
                yield row, cells if width else [name.strip() for name in cells]
                width = len(cells)
    except csv.Error as error:
        raise InputError(f"{path}, row {row + 1} (counting the header): {error}") from error
    except (OSError, UnicodeError) as error:
        raise InputError(f"{path}: cannot be read as a csv file in UTF-8: {error}") from error
    if odd:
        more = f", and {len(odd) - 1} more such rows" if len(odd) > 1 else ""
        problem = f"{odd[0][1]} cells, but the header has {width}{more}; quote cells that hold a {delimiter!r}"
        raise InputError(f"{path}, row {odd[0][0]} (counting the header): {problem}")


def _is_blank(cells: list[str], width: int) -> bool:
    """Whether a row has nothing in it; an empty cell may be missing, so a row of them counts below the header."""
    return not cells or (len(cells) != width and (not width or len(cells) == 1) and not any(map(str.strip, cells)))
