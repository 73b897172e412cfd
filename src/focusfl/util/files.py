"""Files that are either whole or not there."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from focusfl.util.errors import InputError


def write(path: Path, fill: Callable[[Path], Any]) -> None:
    """`fill` a temporary file next to `path`, then rename it: a reader never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            fill(temporary)
        except SafetensorError as error:  # of a full disk
            raise OSError(errno.EIO, str(error), str(path)) from error
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_rows(path: Path, head: dict[str, Any], rows: list[Any]) -> None:
    """{..., "rows": [...]} with a line a row: small, and a change shows as the rows that changed."""
    lines = ",\n".join(json.dumps(row, allow_nan=False, separators=(",", ":")) for row in rows)
    start = json.dumps(head, indent=1, allow_nan=False)[:-2]
    write_text(path, f'{start},\n "rows": [\n{lines}\n]}}\n')


def read_json(path: Path) -> Any:
    """Parsed, or an InputError that names the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not JSON ({error}); delete it or name another folder") from error


@contextlib.contextmanager
def readable_errors(what: Path) -> Iterator[None]:
    """Turn the system's refusals into input errors that name the place."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
            raise
        raise InputError(f"{what}: cannot be used: {error.strerror}") from error


def make_folder(path: Path) -> Path:
    """Create it and make sure that it can be written to."""
    with readable_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        write(path / "writable", lambda temporary: temporary.touch())
        (path / "writable").unlink(missing_ok=True)  # another process may be at it too
    return path


@contextlib.contextmanager
def lock(path: Path, wait: float = math.inf) -> Iterator[bool]:
    """Hold `path` against other processes, after so many seconds' wait at most; yields whether it is held.

    It falls open when the process ends.
    """
    with path.open("a") as handle:
        try:
            import fcntl
        except ImportError:  # not a POSIX system: work alone there
            yield True
            return
        until = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait == math.inf else fcntl.LOCK_NB))
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    yield False
                    return
                time.sleep(0.05)
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                    raise
                break  # a file system without locks: work alone there
        yield True


def cache_root() -> Path:
    """FOCUSFL_DATA, else focusfl in the user's cache folder."""
    if named := os.environ.get("FOCUSFL_DATA"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "focusfl"


def offline() -> bool:
    """FOCUSFL_OFFLINE forbids every download."""
    return os.environ.get("FOCUSFL_OFFLINE", "0") not in ("", "0")
