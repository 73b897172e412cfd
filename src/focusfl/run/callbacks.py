"""Callbacks: code of the user's own that runs at the start, after each round and at the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from focusfl.util.errors import InputError

if TYPE_CHECKING:
    from focusfl.run.loop import Round
    from focusfl.run.result import Result
    from focusfl.run.setup import Setup


class Callback:
    """Override what you need; every method does nothing by default.

    A callback only watches: what it is given is not to be changed. `ff.fit(callbacks=[...])` takes them.
    """

    def on_start(self, setup: Setup) -> None:
        """Called before the first round, also of a run that is resumed."""

    def on_round(self, setup: Setup, done: Round) -> bool | None:
        """Called after each round; return True to stop training after this round.

        Args:
            setup: The run.
            done: The round: its number, scores, labels and states. The next round overwrites the states.
        """

    def on_end(self, setup: Setup, result: Result) -> None:
        """Called with the result of a run that has finished or was stopped by a callback."""


Watcher: TypeAlias = "Callback | Callable[[Setup, Round], bool | None]"


class Callbacks(Callback):
    """Several callbacks as one. All are called, in order; each may be a function, which is called as `on_round`.

    Args:
        each: Callbacks and functions, or a single one.

    Raises:
        InputError: One of them is neither.
    """

    def __init__(self, each: Watcher | Iterable[Watcher]) -> None:
        if isinstance(each, Callback) or not isinstance(each, Iterable):
            each = [each]
        self.each = [one if isinstance(one, Callback) else _Function(one) for one in each]

    def on_start(self, setup: Setup) -> None:
        for one in self.each:
            one.on_start(setup)

    def on_round(self, setup: Setup, done: Round) -> bool:
        wishes = [one.on_round(setup, done) for one in self.each]
        return any(wishes)

    def on_end(self, setup: Setup, result: Result) -> None:
        for one in self.each:
            one.on_end(setup, result)


class _Function(Callback):
    def __init__(self, function: Callable[[Setup, Round], bool | None]) -> None:
        if isinstance(function, type) or not callable(function):
            raise InputError(f"callbacks: {function!r} is neither a Callback nor a function of (setup, done)")
        self.function = function

    def on_round(self, setup: Setup, done: Round) -> bool | None:
        return self.function(setup, done)
