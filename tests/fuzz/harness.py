"""Run the command line in this process, and judge it: exit code, one line of error, no traceback, no hang."""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from focusfl.cli import app as cli

SECONDS = 30.0  # a case that takes longer hangs
EXIT_CODES = (0, 1, 2, 130)
PROGRESS = re.compile(r"\S.* seed \d+: round \d+ of \d+, loss ")  # where no bar can be shown, every ten seconds
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
FAULTS = ("traceback", "hang", "exit code", "many lines", "raw escape", "half written", "silent change")


class Hang(BaseException):
    """The time of a case is over."""


@dataclass(frozen=True)
class Fault:
    """What a case should not have done: one of FAULTS, and where."""

    name: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}" if self.detail else self.name


@dataclass(frozen=True)
class Ended:
    """How a command ended, and the faults that can be seen from outside."""

    code: object
    out: str
    err: str
    faults: list[Fault]


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """Raise Hang in this thread after SECONDS, also within a system call."""

    def stop(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS, 0.5)  # again and again: something might swallow it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def guarded(action: Callable[[], Any], allowed: tuple[type[BaseException], ...] = ()) -> tuple[Any, list[Fault]]:
    """Call a function; an error that is not allowed, or a hang, is a fault."""
    try:
        with time_limit():
            return action(), []
    except allowed:
        return None, []
    except Hang as error:
        return None, [Fault("hang", place(error))]
    except BaseException as error:
        return None, [Fault("traceback", f"{type(error).__name__} at {place(error)}: {str(error)[:80]!r}")]


def focusfl(*words: object) -> Ended:
    """Run a command as a user does, with what it prints captured."""
    out, err = io.StringIO(), io.StringIO()

    def call() -> object:
        try:
            cli.main()
        except SystemExit as stopped:
            return stopped.code
        return None

    with (
        mock.patch.object(sys, "argv", ["focusfl", *map(str, words)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code, faults = guarded(call)
    ended = Ended(code, out.getvalue(), err.getvalue(), faults)
    if not faults:
        faults.extend(_visible_faults(ended))
    return ended


def _visible_faults(ended: Ended) -> Iterator[Fault]:
    if ended.code not in EXIT_CODES:
        yield Fault("exit code", repr(ended.code))
    lines = [line for line in ended.err.split("\n")[:-1] if not line.startswith(("note: ", "  "))]
    lines = [line for line in lines if not PROGRESS.match(line)]
    if len(lines) != (ended.code != 0):
        yield Fault("many lines", f"exit code {ended.code}, {len(lines)} lines: {ended.err[:200]!r}")
    if raw := CONTROL.search(ended.out + ended.err):
        yield Fault("raw escape", repr((ended.out + ended.err)[max(0, raw.start() - 30) : raw.end() + 10]))


def half_written(folder: Path, *ours: Path) -> list[Fault]:
    """Find temporary and incomplete files in a folder; `ours` were damaged on purpose."""
    faults = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p not in ours):
        bad = path.name.endswith(".tmp")
        if path.suffix == ".json":
            try:
                json.loads(path.read_text())
            except ValueError:
                bad = True
        if path.suffix == ".html":
            bad = not path.read_text().endswith("</html>\n")
        if bad:
            faults.append(Fault("half written", path.name))
    return faults


def place(error: BaseException) -> str:
    """Return the innermost line of focusfl that an error went through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "focusfl" in frame.filename]
    return f"{frames[-1].filename.partition('focusfl/')[2]}:{frames[-1].lineno}" if frames else "?"
