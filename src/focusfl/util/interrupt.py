"""Ctrl-C: finish the round, write a checkpoint, then stop. A second Ctrl-C stops at once."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def graceful_stop() -> Iterator[Callable[[], bool]]:
    """Catch SIGINT and SIGTERM, so that the caller can stop at a good moment.

    The second signal raises KeyboardInterrupt. Outside the main thread no signal is caught.

    Yields:
        A function that returns True once a signal has arrived.
    """
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield requested.is_set
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if requested.is_set():
            raise KeyboardInterrupt
        requested.set()
        print("\nstopping after this round (press Ctrl-C again to stop at once) ...", file=sys.stderr)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requested.is_set
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
