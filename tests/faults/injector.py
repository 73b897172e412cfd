"""Lets the n-th operation that writes below a folder go wrong, in this process.

Operations are counted where they become system calls: opening a file to write, each write (what a buffer holds, not
each call of `write`), truncating, fsync of a file or folder, renaming, deleting, making a folder. safetensors
writes in Rust, where nothing can be replaced: its files are written here by the same operations.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import signal
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError

FAULTS = {  # what happens at the n-th operation
    "kill": "SIGKILL; a write is half done",
    "power": "a power cut: SIGKILL, and what was not synced is lost, content and names",
    "ENOSPC": "no space left, once; a write is half done",
    "full": "no space left from then on; deleting still works",
    "EIO": "an input/output error, once; a write is half done",
    "fsync": "an input/output error of the n-th fsync",
    "clock": "the clock jumps, back by a day and forward by ten years in turn; nothing fails",
}
DAY, CHUNK = 86400.0, 8192


class Injector:
    """Replaces functions of this process until it ends.

    Args:
        root: Operations below this folder count.
        fault: One of FAULTS.
        at: At which operation, from 1; 0: never.
    """

    def __init__(self, root: Path, fault: str, at: int) -> None:
        self.root, self.fault, self.at, self.count, self.ahead = str(root.resolve()), fault, at, 0, 0.0
        self.synced_size: dict[str, int] = {}  # of files with content that is not on the disk
        self.undo: list[tuple[str, Callable[[], None]]] = []  # by folder: how to lose a name
        self.real = {name: getattr(os, name) for name in ("fsync", "replace", "rename", "unlink", "mkdir", "open")}
        self.real |= {"rmdir": os.rmdir, "time": time.time, "io.open": io.open}

    def install(self) -> None:
        """Replace the functions."""
        os.fsync, os.replace, os.rename = self.fsync, self.replace, self.replace
        os.unlink = os.remove = self.unlink
        os.mkdir, os.rmdir, os.open = self.mkdir, self.rmdir, self.open_descriptor
        io.open = builtins.open = self.open
        time.time = lambda: self.real["time"]() + self.ahead
        safetensors.torch.serialize_file = self.serialize_file

    def step(
        self, path: str, act: Callable[[], Any], half: Callable[[], Any] = lambda: None, kind: str = ""
    ) -> Any:
        """Count an operation and do it, unless it is the one that goes wrong."""
        if not path.startswith(self.root + "/") and path != self.root:
            return act()
        if self.fault == "fsync" and kind != "fsync":
            return act()
        self.count += 1
        if not self.at or self.count < self.at or (self.count > self.at and self.fault != "full"):
            return act()
        if self.fault == "clock":
            self.ahead += -DAY if self.at % 2 else 3650 * DAY
            return act()
        if self.fault == "full" and kind == "unlink":
            return act()
        half()
        if self.fault in ("kill", "power"):
            if self.fault == "power":
                self.lose_what_is_not_synced()
            os.kill(os.getpid(), signal.SIGKILL)
        code = errno.ENOSPC if self.fault in ("ENOSPC", "full") else errno.EIO
        raise OSError(code, os.strerror(code), path)

    def lose_what_is_not_synced(self) -> None:
        for path, size in self.synced_size.items():
            if Path(path).exists():
                os.truncate(path, size)
        for _, undo in reversed(self.undo):
            undo()

    def name_changed(self, path: str, undo: Callable[[], None]) -> None:
        self.undo.append((str(Path(path).parent), undo))

    def open(self, file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **options: Any) -> Any:
        writes = any(letter in mode for letter in "wax+")
        if not writes or isinstance(file, int):
            return self.real["io.open"](file, mode, buffering, *rest, **options)
        path, raw_mode = str(Path(file).absolute()), mode.replace("b", "").replace("t", "")
        new = not Path(path).exists()
        raw = self.step(path, lambda: CountedFile(self, path, raw_mode))
        if new:
            self.name_changed(path, lambda: Path(path).exists() and self.real["unlink"](path))
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *rest, **options)

    def open_descriptor(self, path: Any, flags: int, *rest: Any, **options: Any) -> int:
        act = lambda: self.real["open"](path, flags, *rest, **options)  # noqa: E731
        return self.step(os.path.abspath(os.fspath(path)), act) if flags & os.O_CREAT else act()  # noqa: PTH100

    def fsync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
        self.step(path, lambda: self.real["fsync"](descriptor), kind="fsync")
        self.synced_size.pop(path, None)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self.undo = [(folder, undo) for folder, undo in self.undo if folder != path]

    def replace(self, source: Any, target: Any) -> None:
        old, new = (str(Path(path).absolute()) for path in (source, target))
        replaced = Path(new).read_bytes() if Path(new).is_file() else None
        self.step(new, lambda: self.real["replace"](old, new))
        if old in self.synced_size:
            self.synced_size[new] = self.synced_size.pop(old)

        def undo() -> None:
            self.real["replace"](new, old)
            if replaced is not None:
                Path(new).write_bytes(replaced)

        self.name_changed(new, undo)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        full = _absolute(path, dir_fd)
        content = Path(full).read_bytes() if Path(full).is_file() else None
        self.step(full, lambda: self.real["unlink"](path, dir_fd=dir_fd), kind="unlink")
        self.synced_size.pop(full, None)

        def undo() -> None:
            if content is not None and Path(full).parent.exists():
                Path(full).write_bytes(content)

        self.name_changed(full, undo)

    def mkdir(self, path: Any, *rest: Any, **options: Any) -> None:
        self.step(str(Path(path).absolute()), lambda: self.real["mkdir"](path, *rest, **options))

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self.step(_absolute(path, dir_fd), lambda: self.real["rmdir"](path, dir_fd=dir_fd), kind="unlink")

    def serialize_file(self, tensors: Any, filename: Any, metadata: Any = None) -> None:
        """Write what safetensors would write, under a name of its own at first, and fail as it does."""
        with tempfile.TemporaryDirectory() as folder:
            REAL_SERIALIZE(tensors, f"{folder}/a", metadata=metadata)
            content = Path(f"{folder}/a").read_bytes()
        own = Path(filename).with_name(".tmpAbC123")
        try:
            with self.open(own, "wb", 0) as handle:
                handle.truncate(len(content))
                for at in range(0, len(content), CHUNK):
                    handle.write(content[at : at + CHUNK])
                    handle.flush()
            self.replace(own, filename)
        except OSError as error:
            with contextlib.suppress(OSError):
                self.unlink(own)
            raise SafetensorError(f"Error while serializing: I/O error: {error}") from error


REAL_SERIALIZE = safetensors.torch.serialize_file


class CountedFile(io.FileIO):
    """A file whose writes are counted."""

    def __init__(self, injector: Injector, path: str, mode: str) -> None:
        size = Path(path).stat().st_size if Path(path).exists() and "w" not in mode else 0
        super().__init__(path, mode)
        self.injector, self.path = injector, path
        injector.synced_size.setdefault(path, size)

    def write(self, data: Any) -> int:
        if self.path not in self.injector.synced_size:  # it was synced since it was opened
            self.injector.synced_size[self.path] = os.fstat(self.fileno()).st_size
        half = bytes(data)[: len(data) // 2]
        act, write_half = (lambda: io.FileIO.write(self, data)), (lambda: io.FileIO.write(self, half))
        return int(self.injector.step(self.path, act, write_half))

    def truncate(self, size: int | None = None) -> int:
        return int(self.injector.step(self.path, lambda: io.FileIO.truncate(self, size)))


def _absolute(path: Any, dir_fd: int | None) -> str:
    folder = Path.cwd() if dir_fd is None else Path(os.readlink(f"/proc/self/fd/{dir_fd}"))  # noqa: PTH115
    return str(folder / os.fspath(path))
