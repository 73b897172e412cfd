"""The layout of a folder of the user's own: its agents, the files of each, and the true clusters."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor

from focusfl.data.own.arrays import read_npz
from focusfl.data.own.contents import MAX_MB, FileContents
from focusfl.data.own.csv_files import csv_rows
from focusfl.data.own.entries import SUFFIXES, require_regular, visible_entries
from focusfl.data.own.images import read_images
from focusfl.data.own.table_files import read_csv, read_parquet
from focusfl.util.errors import InputError, Problems, nearest
from focusfl.util.files import visible

FILE_KINDS = "csv, parquet or npz file"
SPREADSHEET = ": save it as csv"
READERS = dict(zip(SUFFIXES, (read_csv, read_parquet, read_npz), strict=True))


def expanded(path: str | Path) -> Path:
    """Return the path with ~ replaced by the home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InputError(f"{path}: no such user; write the folder's path (data.path)") from error


def find_agents(root: Path, problems: Problems) -> dict[str, Path]:
    """Return agent name -> file or sub-folder, in sorted order; what else is in the folder is a problem.

    Raises:
        InputError: There are fewer than two agents.
    """
    if not root.is_dir():
        raise InputError(f"{root}: no such folder (data.path)")
    agents: dict[str, Path] = {}
    for place in (p for p in visible_entries(root, root) if p.name != "clusters.csv"):
        name = visible(place.name if place.is_dir() else place.stem)
        if not place.is_dir() and place.suffix.lower() not in SUFFIXES:
            expected = f"expected one sub-folder or one {FILE_KINDS} per agent"
            problems.add(f"{place}: unexpected; {expected}{SPREADSHEET * place.suffix.lower().startswith('.xls')}")
        elif name in agents:
            problems.add(f"{place}: {agents[name]} is an agent of the same name; rename one of them")
        else:
            agents[name] = place
    if len(agents) < 2 or agents.keys() == {"train", "test"}:
        expected = f"expected two or more agents, one sub-folder or one {FILE_KINDS} each"
        problems.add(f"{root}: {expected}; found {', '.join(agents) or 'no agents'}")
        problems.report()
    return dict(sorted(agents.items()))


def read_agent(
    place: Path, root: Path, label: str, text: str, max_mb: int = MAX_MB, drop: Collection[str] = ()
) -> list[FileContents]:
    """Read one agent's file or sub-folder.

    Args:
        place: The file or sub-folder.
        root: Links that lead out of this folder are refused.
        label: The name of the label column.
        text: The name of the text column.
        max_mb: See `read_file`.
        drop: Columns to leave out.

    Returns:
        [training, test], or [all examples].

    Raises:
        InputError: The layout or a file cannot be used.
    """
    if not place.is_dir():
        return read_file(place, label, text, max_mb, drop)
    entries = visible_entries(place, root)
    named = {p.name if p.is_dir() else p.stem: p for p in entries}
    halves = [named[half] for half in ("train", "test") if half in named]
    if len(halves) == 1:
        hint = "; add test data, or rename it to data, and a share is set aside" if "train" in named else ""
        raise InputError(f"{place}: only {halves[0].name}, expected train and test{hint}")
    if not halves and not (len(entries) == 1 and entries[0].is_file()):
        return [read_images(place, root)]
    for extra in (p for p in entries if halves and p not in halves):
        raise InputError(f"{extra}: unexpected next to train and test; remove it")
    problems, read = Problems(), list[list[FileContents]]()
    for p in halves or entries:
        with problems.collect():
            read.append([read_images(p, root)] if p.is_dir() else read_file(p, label, text, max_mb, drop))
    problems.report()
    if len(read) == 2 and max(map(len, read)) == 2:
        raise InputError(f"{place}: x_train and x_test inside train or test; expected x and y there")
    return [part for parts in read for part in parts]


def read_file(
    path: Path, label: str, text: str, max_mb: int = MAX_MB, drop: Collection[str] = ()
) -> list[FileContents]:
    """Read a file by its suffix: one item, or two, training and test, if an npz file has both.

    Args:
        path: A csv, parquet or npz file.
        label: The name of the label column in csv and parquet.
        text: The name of the text column in csv and parquet.
        max_mb: A compressed file that would unpack to more megabytes is refused before it is unpacked.
        drop: Columns to leave out.

    Raises:
        InputError: The file cannot be used; the message says why, and names the row.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: unexpected; expected a file that ends in {', '.join(SUFFIXES)}")
    require_regular(path)
    return READERS[path.suffix.lower()](path, label, text, max_mb, drop)


def read_clusters(path: Path, agents: list[str]) -> Tensor | None:
    """Return the true clusters from clusters.csv, columns agent and cluster; None if there is no such file."""
    if not path.exists():
        return None
    require_regular(path)
    rows = csv_rows(path)
    header = next(rows, (0, []))[1]
    if sorted(header) != ["agent", "cluster"]:
        raise InputError(f"{path}: expected the columns agent and cluster, found {', '.join(header) or 'nothing'}")
    cluster_of: dict[str, str] = {}
    for row, cells in rows:
        cluster, agent = (visible(cells[header.index(name)].strip()) for name in ("cluster", "agent"))
        where = f"{path}, row {row} (counting the header)"
        if agent not in agents:
            raise InputError(f"{where}: no agent {agent!r}: {nearest(agent, agents)}")
        if agent in cluster_of or not cluster:
            raise InputError(f"{where}: expected exactly one cluster for agent {agent!r}")
        cluster_of[agent] = cluster
    for agent in agents:
        if agent not in cluster_of:
            raise InputError(f"{path}: no row for agent {agent!r}; add one")
    names = sorted({*cluster_of.values()})
    return torch.tensor([names.index(cluster_of[agent]) for agent in agents])
