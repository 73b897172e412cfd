"""The cache: one folder per data set, either whole or not there.

ROOT/mnist/             train_x.npy, ..., manifest.json
ROOT/.mnist.lock        held while the entry is made
ROOT/.mnist.X.tmp/      being made; removed at the next attempt if its process was killed
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
from focusfl.util.progress import bytes_bar

FORMAT = 1  # of an entry; another number means: make it again


class Damaged(Exception):
    """The entry cannot be used; the text says why."""


@dataclass(frozen=True)
class Entry:
    """A whole cache entry, as its manifest describes it."""

    path: Path
    source: str
    raw: dict[str, str]  # sha256 of the raw files that it was made from
    files: dict[str, dict[str, Any]]  # bytes, sha256

    @property
    def size(self) -> int:
        return sum(one["bytes"] for one in self.files.values())

    def arrays(self) -> dict[str, Any]:
        """Memory-mapped and read-only."""
        try:
            return {
                file.removesuffix(".npy"): np.load(self.path / file, mmap_mode="r", allow_pickle=False)
                for file in self.files
                if file.endswith(".npy")
            }
        except (OSError, ValueError) as error:
            raise Damaged(f"{self.path}: {error}") from error


def read(path: Path, every_byte: bool = False) -> Entry:
    """The entry, its files' sizes compared with the manifest, and on request their bytes."""
    if not path.is_dir():
        raise Damaged("not there")
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        if manifest["format"] != FORMAT:
            raise Damaged(f"format {manifest['format']}, this version uses {FORMAT}")
        entry = Entry(path, manifest["source"], manifest["raw"], manifest["files"])
        for file, expected in entry.files.items():
            found = (path / file).stat().st_size
            if found != expected["bytes"]:
                raise Damaged(f"damaged: {path / file} has {found} bytes, expected {expected['bytes']}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"damaged: {path}: {error}") from error
    if every_byte and (wrong := [f for f, one in _describe(path).items() if one != entry.files.get(f)]):
        raise Damaged(f"damaged: {path / wrong[0]} has changed since it was written")
    return entry


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time makes an entry. What a killed one left behind is removed."""
    with (cache_root() / f".{name}.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{name}: another process is getting it; waiting for it to finish ...", file=sys.stderr)
            fcntl.flock(handle, fcntl.LOCK_EX)
        for left in cache_root().glob(f".{name}.*.tmp"):
            shutil.rmtree(left, ignore_errors=True)
        yield


@contextlib.contextmanager
def workplace(name: str) -> Iterator[Path]:
    """A temporary folder beside the entry, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=".tmp", dir=cache_root()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_arrays(folder: Path, name: str, arrays: dict[str, Any]) -> None:
    """Plain writes, not memory maps: a full disk is then an error and not a crash."""
    with bytes_bar(f"{name}: write", sum(array.nbytes for array in arrays.values())) as step:
        for key, array in arrays.items():
            whole = np.ascontiguousarray(array)
            with (folder / f"{key}.npy").open("wb") as handle:
                np.lib.format.write_array_header_1_0(handle, np.lib.format.header_data_from_array_1_0(whole))
                handle.write(whole.data)
            step(whole.nbytes)


def publish(made: Path, path: Path, source: str, raw: dict[str, str]) -> Entry:
    """Describe what was made, then put it in place with one rename."""
    files = _describe(made)
    manifest = {"format": FORMAT, "source": source, "raw": raw, "files": files}
    with (made / "manifest.json").open("w") as handle:
        handle.write(json.dumps(manifest, indent=1) + "\n")
        handle.flush()
        os.fsync(handle.fileno())
    if path.exists():
        path.rename(made.with_name("old"))
    made.rename(path)
    return Entry(path, source, raw, files)


def _describe(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and sha256 of every file, all safely on the disk."""
    found = {}
    for path in sorted(folder.iterdir()):
        if path.name == "manifest.json":
            continue
        with path.open("rb") as handle:
            os.fsync(handle.fileno())
            digest = hashlib.file_digest(handle, "sha256").hexdigest()
        found[path.name] = {"bytes": path.stat().st_size, "sha256": digest}
    return found
