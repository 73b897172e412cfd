"""Ctrl-C: finish the round, write a checkpoint, then stop. A second Ctrl-C stops at once, a third does not wait.

On the command line KeyboardInterrupt is raised once. While it is handled, and while the interpreter closes, another
Ctrl-C ends the process with exit code 130: raised there, it would show a traceback. In a program that imports
focusfl, a third Ctrl-C raises KeyboardInterrupt again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

EXIT_CODE = 130
_command_line = threading.Event()  # this process is the command focusfl
_stopping = threading.Event()  # KeyboardInterrupt was raised: on the command line, the next signal ends the process
SHOW_CURSOR = "\x1b[?25h"  # a progress bar hides it


@contextlib.contextmanager
def graceful_stop() -> Iterator[Callable[[], bool]]:
    """Catch SIGINT and SIGTERM, so that the caller can stop at a good moment.

    The second signal raises KeyboardInterrupt. Outside the main thread no signal is caught.

    Yields:
        A function that returns True once a signal has arrived.
    """
    requested = threading.Event()
    if not _in_main_thread():
        yield requested.is_set
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if requested.is_set():
            _raise_once(number, frame)
        requested.set()
        print("\nstopping after this round (press Ctrl-C again to stop at once) ...", file=sys.stderr)

    _stopping.clear()
    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requested.is_set
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def ignored() -> Iterator[None]:
    """Ignore SIGINT; processes that are started meanwhile ignore it too. Outside the main thread: do nothing."""
    if not _in_main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def end_at_second() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt once, and the next one ends the process."""
    if _in_main_thread():
        _stopping.clear()
        _command_line.set()
        signal.signal(signal.SIGINT, _raise_once)


def end_at_next() -> None:
    """From now on Ctrl-C ends the process."""
    if _in_main_thread():
        signal.signal(signal.SIGINT, _end)


def _raise_once(number: int, frame: FrameType | None) -> None:
    if _stopping.is_set() and _command_line.is_set():
        _end(number, frame)
    _stopping.set()
    raise KeyboardInterrupt


def _end(number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), SHOW_CURSOR.encode())
    os._exit(EXIT_CODE)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
