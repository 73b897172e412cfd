"""Files: atomic writes, locks, folders, and where the cache is."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from focusfl.util.errors import InputError

# control characters, line separators, and those that turn the direction of what follows
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


# The permissions that this process takes away from new files. To read them is to set them for a moment, so they are
# read once, before there are threads; what another file would get meanwhile is less, not more.
_UMASK = os.umask(0o077)
os.umask(_UMASK)


def write(path: Path, fill: Callable[[Path], Any], private: bool = False) -> None:
    """Write a file atomically: a reader sees the complete file or none, and so it is after a power cut.

    Args:
        path: The file to write.
        fill: Writes the content to the temporary path it is called with; that file is then renamed to `path`.
        private: Whether only the owner may read it; otherwise the umask decides, also where a library such as
            safetensors writes the content.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            fill(temporary)
        except SafetensorError as error:  # how safetensors reports a full disk
            raise OSError(errno.EIO, str(error), str(path)) from error
        temporary.chmod(0o600 if private else 0o666 & ~_UMASK)
        sync_file(temporary)
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Wait until a file's content is on the disk."""
    with path.open("rb") as handle:
        os.fsync(handle.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names of a folder's files are on the disk: a renamed file may otherwise lose its new name."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # a file system that does not sync folders
            raise
    finally:
        os.close(descriptor)


def remove_temporary_files(folder: Path) -> None:
    """Delete what killed processes left half written, in a folder that this process has locked, and below it."""
    for path in temporary_files(folder):
        path.unlink(missing_ok=True)


def temporary_files(folder: Path) -> list[Path]:
    """Return the files in a folder and below it that are being written, or that killed processes left."""
    patterns = (".*.tmp", ".tmp" + 6 * "[0-9A-Za-z]")  # ours, and those of safetensors
    return [path for pattern in patterns for path in folder.rglob(pattern)]


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically; NaN and infinity are refused."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_rows(path: Path, head: dict[str, Any], rows: list[Any]) -> None:
    """Write {**head, "rows": rows} as JSON with one line per row: compact, and a diff shows the changed rows."""
    lines = ",\n".join(json.dumps(row, allow_nan=False, separators=(",", ":")) for row in rows)
    start = json.dumps(head, indent=1, allow_nan=False)[:-2]
    write_text(path, f'{start},\n "rows": [\n{lines}\n]}}\n')


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        InputError: The file is not JSON; the message names it.
    """
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, IsADirectoryError) as error:
        raise InputError(f"{path}: not JSON ({error}); delete it or name another folder") from error


def parse_json(text: str) -> Any:
    """Parse JSON; NaN and Infinity, which Python accepts but JSON does not have, are a ValueError."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a number in JSON")

    return json.loads(text, parse_constant=refuse)


@contextlib.contextmanager
def readable_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into an InputError that names `path`; a full or broken disk stays an OSError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
            raise
        raise InputError(f"{path}: cannot be used: {error.strerror}") from error


def make_folder(path: Path) -> Path:
    """Create a folder, check that it can be written to, and return it.

    Raises:
        InputError: It cannot be created or written to.
    """
    with readable_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".writable.{os.getpid()}.tmp"
        probe.touch()
        probe.unlink(missing_ok=True)  # another process may have removed temporary files at this moment
    return path


@contextlib.contextmanager
def lock(path: Path, wait: float = math.inf) -> Iterator[bool]:
    """Hold a lock file against other processes. The lock is released when the process ends.

    On systems and file systems without locks nothing is locked, and True is yielded.

    Args:
        path: The lock file; it is created if necessary.
        wait: How many seconds to wait for another process to release it.

    Yields:
        Whether this process holds the lock.
    """
    with path.open("a") as handle:
        try:
            import fcntl
        except ImportError:  # not a POSIX system
            yield True
            return
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait == math.inf else fcntl.LOCK_NB))
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    yield False
                    return
                time.sleep(0.05)
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                    raise
                break  # a file system without locks
        yield True


def printable(text: str) -> str:
    r"""Return text that may contain file names in a form that can be printed as UTF-8.

    Example:
        >>> printable("Z\udcfcrich.csv")
        'Z\\xfcrich.csv'
    """
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")


def visible(text: str) -> str:
    r"""Return text from outside, such as a file name, as one line in which nothing controls the terminal.

    Example:
        >>> visible("Z\udcfcrich\x1b[31m\n")
        'Z\\xfcrich\\x1b[31m\\n'
    """
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), printable(text))


def cache_root() -> Path:
    """Return the folder for data sets and embeddings: FOCUSFL_DATA, else focusfl in the user's cache folder."""
    if named := os.environ.get("FOCUSFL_DATA"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "focusfl"


def offline() -> bool:
    """Return whether FOCUSFL_OFFLINE forbids downloads."""
    return os.environ.get("FOCUSFL_OFFLINE", "0") not in ("", "0")
