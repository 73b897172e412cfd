"""Ctrl-C: finish the round, write a checkpoint, then stop. A second one stops at once."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def graceful() -> Iterator[Callable[[], bool]]:
    """Yields `stop()`, true once SIGINT or SIGTERM has come."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        print("\nstopping after this round (again to stop at once) ...", file=sys.stderr)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, old in before.items():
            signal.signal(number, old)
