"""Read one npz file. Nothing is unpickled."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focusfl.data.own.contents import MAX_MB, FileContents, require_size, with_inputs
from focusfl.util.errors import InputError

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_npz(
    path: Path, label: str, text: str, max_mb: int = MAX_MB, drop: Collection[str] = ()
) -> list[FileContents]:
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
            require_size(path, sum(packed), max_mb)
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
