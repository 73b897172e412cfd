"""The cache: one folder per data set, which is either complete or absent.

ROOT/mnist/             train_x.npy, ..., manifest.json
ROOT/.mnist.lock        held while the entry is made
ROOT/.mnist.X.tmp/      an entry being made; if its process was killed, the next attempt removes it
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from focusfl.util.files import cache_root
from focusfl.util.progress import byte_progress

FORMAT = 1  # of an entry; an entry of another format is made again


class UnusableEntry(Exception):
    """The cache has no entry that can be used. The message says why: it is missing, damaged or outdated."""


@dataclass(frozen=True)
class Entry:
    """A complete cache entry, as its manifest describes it.

    Attributes:
        path: Its folder.
        source: Where its data came from.
        raw: The sha256 of the raw files that it was made from.
        files: The size ("bytes") and "sha256" of each of its files.
    """

    path: Path
    source: str
    raw: dict[str, str]
    files: dict[str, dict[str, Any]]

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file["bytes"] for file in self.files.values())

    def arrays(self) -> dict[str, Any]:
        """Return its arrays, memory-mapped and read-only."""
        try:
            return {
                file.removesuffix(".npy"): np.load(self.path / file, mmap_mode="r", allow_pickle=False)
                for file in self.files
                if file.endswith(".npy")
            }
        except (OSError, ValueError) as error:
            raise UnusableEntry(f"{self.path}: {error}") from error


def read(path: Path, every_byte: bool = False) -> Entry:
    """Read an entry and compare its files with the manifest: their sizes, and on request every byte.

    Raises:
        UnusableEntry: It is missing, damaged or of another format.
    """
    if not path.is_dir():
        raise UnusableEntry("not there")
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        if manifest["format"] != FORMAT:
            raise UnusableEntry(f"format {manifest['format']}, this version uses {FORMAT}")
        entry = Entry(path, manifest["source"], manifest["raw"], manifest["files"])
        for file, expected in entry.files.items():
            size = (path / file).stat().st_size
            if size != expected["bytes"]:
                raise UnusableEntry(f"damaged: {path / file} has {size} bytes, expected {expected['bytes']}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnusableEntry(f"damaged: {path}: {error}") from error
    if every_byte and (changed := [f for f, one in _describe(path).items() if one != entry.files.get(f)]):
        raise UnusableEntry(f"damaged: {path / changed[0]} has changed since it was written")
    return entry


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Let one process at a time make an entry, and remove what a killed process left behind."""
    with (cache_root() / f".{name}.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{name}: another process is downloading it; waiting for it to finish ...", file=sys.stderr)
            fcntl.flock(handle, fcntl.LOCK_EX)
        for leftover in cache_root().glob(f".{name}.*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield


@contextlib.contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """Make a folder next to the entry, and remove it at the end."""
    folder = Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=".tmp", dir=cache_root()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_arrays(folder: Path, name: str, arrays: dict[str, Any]) -> None:
    """Write arrays as .npy files. Not through memory maps: with those, a full disk would crash the process."""
    with byte_progress(f"{name}: write", sum(array.nbytes for array in arrays.values())) as advance:
        for key, array in arrays.items():
            contiguous = np.ascontiguousarray(array)
            with (folder / f"{key}.npy").open("wb") as handle:
                np.lib.format.write_array_header_1_0(handle, np.lib.format.header_data_from_array_1_0(contiguous))
                handle.write(contiguous.data)
            advance(contiguous.nbytes)


def publish(folder: Path, path: Path, source: str, raw: dict[str, str]) -> Entry:
    """Add a manifest to `folder`, and rename it to `path`; an entry that is there is replaced."""
    files = _describe(folder)
    manifest = {"format": FORMAT, "source": source, "raw": raw, "files": files}
    with (folder / "manifest.json").open("w") as handle:
        handle.write(json.dumps(manifest, indent=1) + "\n")
        handle.flush()
        os.fsync(handle.fileno())
    if path.exists():
        path.rename(folder.with_name("old"))
    folder.rename(path)
    return Entry(path, source, raw, files)


def _describe(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the size and sha256 of every file, after making sure that it is on disk."""
    files = {}
    for path in sorted(folder.iterdir()):
        if path.name == "manifest.json":
            continue
        with path.open("rb") as handle:
            os.fsync(handle.fileno())
            digest = hashlib.file_digest(handle, "sha256").hexdigest()
        files[path.name] = {"bytes": path.stat().st_size, "sha256": digest}
    return files
