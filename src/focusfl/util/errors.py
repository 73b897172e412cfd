"""What can go wrong, in words for the user."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from pathlib import Path


class InputError(ValueError):
    """The user's input cannot be used; the message names the place and says what to do. Exit code 2."""


class CannotRun(InputError):
    """The method does not apply to this model or data; the message says what it needs."""


class Diverged(RuntimeError):
    """Training left the finite numbers. Exit code 1."""


class Interrupted(Exception):
    """Stopped on request, after a whole round and with a checkpoint. Exit code 130."""


class Busy(Exception):
    """Another process is at work on what is needed here, and holds `lock` as long."""

    def __init__(self, lock: Path) -> None:
        super().__init__(f"{lock}: held by another process")
        self.lock = lock


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name.

    >>> nearest("fedavgg", ["focus", "fedavg"])
    "did you mean 'fedavg'? Known: fedavg, focus"
    >>> nearest("xyz", ["focus", "fedavg"])
    'known: fedavg, focus'
    """
    names = sorted(known)
    lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.5)
    listed = ", ".join(names)
    return f"did you mean {lower[close[0]]!r}? Known: {listed}" if close else f"known: {listed}"


def whole(name: str, value: float, least: int) -> None:
    """Raise an InputError unless it is a whole number, `least` or more."""
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
    require(name, value, fits, f"a whole number, {least} or more")


def choice(name: str, value: str, known: Iterable[str]) -> None:
    """Raise an InputError unless it is one of them."""
    names = list(known)
    require(name, value, value in names, " or ".join(names))


def require(name: str, value: object, ok: bool, expected: str) -> None:
    """Raise an InputError that names the option unless `ok`. Infinities and NaN are never ok."""
    if not ok or (isinstance(value, float) and not math.isfinite(value)):
        raise InputError(f"{name} = {value}: expected {expected}")
