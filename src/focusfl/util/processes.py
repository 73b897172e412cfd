"""Processes of this machine: which ones run, since when, and whose they are. Ids alone are used again."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """A running process.

    Attributes:
        pid: Its id.
        user: Its user's id.
        started: When it started, in words of the system; with `pid` it tells it from all other processes.
        command: Its command line.
    """

    pid: int
    user: int
    started: str
    command: tuple[str, ...]


def machine() -> str:
    """Return the name of this machine; where the system has them, with its space of process ids (a container's)."""
    try:
        return f"{socket.gethostname()} {(PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def find(pid: int) -> Process | None:
    """Return the process with this id; None if there is none, or it has ended and is only not yet waited for."""
    if not (PROC / "self").exists():
        return next((process for process in _ps() if process.pid == pid), None)
    try:
        # the name, in parentheses, may contain anything; the state and the start time come after it
        state, *fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
        user = (PROC / str(pid)).stat().st_uid
    except (OSError, ValueError):
        return None
    started = f"{fields[18]} {(PROC / 'sys/kernel/random/boot_id').read_text().strip()}"
    return None if state in "ZX" else Process(pid, user, started, tuple(os.fsdecode(word) for word in words[:-1]))


def every() -> Iterator[Process]:
    """Yield all running processes that this user may see."""
    if not (PROC / "self").exists():
        yield from _ps()
        return
    for folder in PROC.iterdir():
        if folder.name.isdigit() and (process := find(int(folder.name))) is not None:
            yield process


def _ps() -> Iterator[Process]:
    """Yield all running processes of a system without /proc."""
    command = ["ps", "-axwwo", "pid=,uid=,stat=,lstart=,command="]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):  # not a POSIX system
        return
    for line in listed.splitlines():
        pid, user, state, *words = line.split()
        if not state.startswith("Z"):
            yield Process(int(pid), int(user), " ".join(words[:5]), tuple(words[5:]))
