"""The entries of a folder, and the files among them that may be read."""

from __future__ import annotations

from pathlib import Path

from focusfl.util.errors import InputError

SUFFIXES = (".csv", ".parquet", ".npz")


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


def require_regular(path: Path) -> None:
    """Refuse what is not a regular file: reading a pipe or a device may never end."""
    if not path.is_file():
        raise InputError(f"{path}: expected a regular file, found a folder, a pipe, a device or nothing")
