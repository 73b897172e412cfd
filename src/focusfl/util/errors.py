"""Errors with a message for the user, and short checks of options that raise them."""

from __future__ import annotations

import contextlib
import difflib
import math
from collections.abc import Callable, Iterable, Iterator
from operator import index
from pathlib import Path
from typing import Any

MAX_PROBLEMS = 20  # shown at once


class InputError(ValueError):
    """The user's input cannot be used. The message names the place and says what to do. Exit code 2."""


class SeveralProblems(InputError):
    """Several things cannot be used. The message has a line for each.

    Attributes:
        problems: All of them, "place: what is wrong".
    """

    def __init__(self, message: str, problems: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class CannotRun(InputError):
    """The method does not apply to this model or data. The message says what it needs."""


class Diverged(RuntimeError):
    """Training produced NaN or infinite numbers. Exit code 1."""


class SimulationFailed(RuntimeError):
    """Flower's simulation did not start or does not answer. The message says what to do. Exit code 1."""


class Interrupted(Exception):
    """The user stopped the run; it ended after a complete round, with a checkpoint. Exit code 130."""


class LockedError(Exception):
    """Another process holds a lock that is needed here.

    Attributes:
        lock: The lock file.
    """

    def __init__(self, lock: Path) -> None:
        super().__init__(f"{lock} is locked by another process")
        self.lock = lock


class Problems:
    """Collects problems, so that the user sees all of them at once.

    Example:
        >>> problems = Problems()
        >>> for text in ("a.csv: empty", "b.csv: no label", "c.csv: empty"):
        ...     with problems.collect():
        ...         raise InputError(text)
        >>> problems.report()
        Traceback (most recent call last):
        focusfl.util.errors.SeveralProblems: 3 problems:
          a.csv: empty (and in 1 more file)
          b.csv: no label
    """

    def __init__(self) -> None:
        self._places: dict[str, list[str]] = {}  # problem -> where it is

    @contextlib.contextmanager
    def collect(self) -> Iterator[None]:
        """Keep an InputError for the report instead of raising it."""
        try:
            yield
        except SeveralProblems as error:
            for problem in error.problems:
                self.add(problem)
        except InputError as error:
            self.add(str(error))

    def add(self, message: str) -> None:
        """Keep a problem, "place: what is wrong", for the report."""
        place, _, problem = " ".join(message.split()).partition(": ")
        self._places.setdefault(problem, []).append(place)

    def lines(self) -> list[str]:
        """Return a line per problem; what several places share is told once."""
        return [_shown(problem, places) for problem, places in self._places.items()]

    def report(self) -> None:
        """Raise all problems as one error; do nothing if there are none."""
        lines = self.lines()
        count = sum(map(len, self._places.values()))
        if count == 1:
            raise InputError(lines[0])
        if lines:
            more = [f"and {len(lines) - MAX_PROBLEMS} more"] if len(lines) > MAX_PROBLEMS else []
            each = [_shown(problem, [place]) for problem, places in self._places.items() for place in places]
            several = [f"{count} problems:"] * (len(lines) > 1)
            raise SeveralProblems("\n  ".join([*several, *lines[:MAX_PROBLEMS], *more]), each)


def _shown(problem: str, places: list[str]) -> str:
    others = len(places) - 1
    more = f" (and in {others} more {'file' if others == 1 else 'files'})" if others else ""
    return f"{places[0]}{problem and ': '}{problem}{more}"


@contextlib.contextmanager
def refuse_errors(what: str) -> Iterator[None]:
    """Turn any error into an InputError: with content from a stranger, a library may raise anything.

    Args:
        what: What the user is told, before the error's first line.

    Example:
        >>> with refuse_errors("model.json cannot be used"):
        ...     {}["weights"]
        Traceback (most recent call last):
        focusfl.util.errors.InputError: model.json cannot be used (KeyError: 'weights')
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0][:200]
        raise InputError(f"{what} ({type(error).__name__}{first and ': '}{first})") from error


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint for a misspelt name: the closest known name, and all of them.

    Example:
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


def require(name: str, value: Any, ok: bool | Callable[[Any], bool], expected: str) -> None:
    """Check an option.

    Args:
        name: The option as the user writes it, for example "data.seed".
        value: Its value. Infinity and NaN are never accepted.
        ok: Whether the value is acceptable, or a function that says so. A value of a type that it cannot compare,
            such as text for a number, is not.
        expected: What would be acceptable, for the message.

    Raises:
        InputError: The value is not acceptable.

    Example:
        >>> require("data.seed", -1, ok=False, expected="0 or more")
        Traceback (most recent call last):
        focusfl.util.errors.InputError: data.seed = -1: expected 0 or more
        >>> require("train.lr", "0.1", lambda v: v > 0, "a positive number")
        Traceback (most recent call last):
        focusfl.util.errors.InputError: train.lr = '0.1': expected a positive number
    """
    try:
        fine = ok(value) if callable(ok) else ok
    except TypeError:
        value, fine = repr(value), False
    if not fine or (isinstance(value, float) and not math.isfinite(value)):
        raise InputError(f"{name} = {value}: expected {expected}")


def require_integer(name: str, value: float, least: int) -> None:
    """Raise an InputError unless the option `name` is a whole number and at least `least`."""
    ok = isinstance(value, int) and not isinstance(value, bool) and value >= least
    require(name, value, ok, f"a whole number, {least} or more")


def whole_number(name: str, value: Any, least: int) -> int:
    """Return an option that is a whole number, also one of numpy's, as an int.

    Raises:
        InputError: It is not a whole number, or less than `least`.

    Example:
        >>> whole_number("train.steps", 2.5, 1)
        Traceback (most recent call last):
        focusfl.util.errors.InputError: train.steps = 2.5: expected a whole number, 1 or more
    """
    whole = hasattr(value, "__index__") and not isinstance(value, bool)
    shown = repr(value) if isinstance(value, str) else value
    require(name, shown, whole and index(value) >= least, f"a whole number, {least} or more")
    return index(value)


def require_instance(name: str, value: object, kind: type | tuple[type, ...], expected: str) -> None:
    """Raise an InputError unless an argument is of a kind; a class in place of an object is named as such.

    Example:
        >>> require_instance("fed", [1, 2], dict, "a federation")
        Traceback (most recent call last):
        focusfl.util.errors.InputError: fed: expected a federation, found a list
    """
    if not isinstance(value, kind):
        is_class = isinstance(value, type)
        name_found = value.__name__ if isinstance(value, type) else type(value).__name__
        found = f"the class {name_found}: write {name_found}()" if is_class else f"a {name_found}"
        raise InputError(f"{name}: expected {expected}, found {found}")


def require_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise an InputError unless the option `name` is one of `choices`."""
    names = list(choices)
    require(name, value, value in names, " or ".join(names))
