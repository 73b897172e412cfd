"""Who may write results into a folder: one check for `ff.fit(out=)`, `focusfl run`, `compare` and `sweep`."""

from __future__ import annotations

from pathlib import Path

from focusfl.data.federation import Federation
from focusfl.data.own.folder import FolderFederation
from focusfl.util.errors import InputError
from focusfl.util.files import visible

SHOWN = 3  # names of foreign files in a message


def require_outside_data(out: Path, fed: Federation) -> None:
    """Refuse results inside the folder of the data: they would be read as an agent's data.

    Raises:
        InputError: The folder of the data is `out`, or above it.
    """
    data = fed.root.resolve() if isinstance(fed, FolderFederation) and fed.root is not None else None
    if data in (out.resolve(), *out.resolve().parents):
        raise InputError(f"{out}: results cannot be inside the folder of the data; choose another (--out, or out=)")


def require_empty(out: Path, wanted: str) -> None:
    """Refuse a folder that is not empty, before it is claimed. Hidden files, such as .lock, do not count.

    Args:
        out: The folder.
        wanted: What it is to hold, for the message: "an experiment".

    Raises:
        InputError: It holds something; the message names it.
    """
    found = sorted(visible(path.name) for path in out.iterdir() if not path.name.startswith("."))
    if found:
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        names = f"{', '.join(found[:SHOWN])}{more}"
        raise InputError(f"{out} is not empty and does not hold {wanted} ({names}): use a new folder")
