"""FileContents: what was read from one file, or from one folder of images, and where each example is."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focusfl.util.errors import InputError

MAX_MB = 512  # to which a compressed file may unpack, by default


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
        dropped: The columns that the user left out.
    """

    path: Path
    kind: str
    x: Any
    y: list[Any]
    places: Sequence[object]
    counted: str = ""
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    def at(self, i: int, column: str = "") -> str:
        """Return where example i is, for messages.

        >>> FileContents(Path("a.csv"), "a table", [], [], [2, 3], "counting the header").at(1, "age")
        "a.csv, row 3 (counting the header), column 'age'"
        """
        if self.kind == "images":
            return str(self.path / str(self.places[i]))
        return f"{self.path}, row {self.places[i]} ({self.counted})" + (f", column {column!r}" if column else "")


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


def describe_shape(example: NDArray[Any]) -> str:
    """Return the size of one example, for messages.

    >>> describe_shape(np.zeros([3, 8, 9])), describe_shape(np.zeros(4))
    ('9x8 RGB', 'shape [4]')
    """
    shape = list(example.shape)
    image = len(shape) == 3 and shape[0] in (1, 3)
    return f"{shape[2]}x{shape[1]} {'RGB' if shape[0] == 3 else 'grey'}" if image else f"shape {shape}"


def require_size(path: Path, size: float, max_mb: int) -> None:
    """Refuse a file that would unpack to more than is allowed."""
    if size > max_mb * 1e6:
        small = f"a file of {path.stat().st_size / 1e6:.3g} MB unpacks to {size / 1e6:,.0f} MB"
        raise InputError(f"{path}: {small}, at most {max_mb} are allowed; data.max_mb raises that")


def optional_package(name: str, path: Path, extra: str) -> Any:
    """Import an optional package, or say how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = "pillow" if extra == "images" else "pyarrow"
        raise InputError(f'{path}: reading it needs {package}: pip install "focusfl[{extra}]"') from error
