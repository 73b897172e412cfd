"""Bars on stderr: what runs, round, loss, time left. Silent where nobody watches a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TypeAlias

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Watch: TypeAlias = Callable[[int, float | None], None]  # rounds done, and the mean loss where it was evaluated


class Bars:
    """One bar per run: `with Bars() as bars: watch = bars.add("FOCUS seed 0", 60)`."""

    def __init__(self, show: bool | None = None) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("round"),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not (console.is_terminal if show is None else show),
        )

    @property
    def shown(self) -> bool:
        return not self._progress.disable

    def add(self, name: str, rounds: int) -> Watch:
        """A new bar; call what comes back after every round."""
        task = self._progress.add_task(name, total=rounds, loss="loss   -   ")

        def watch(rounds_done: int, loss: float | None) -> None:
            self._progress.update(task, completed=rounds_done)
            if loss is not None:
                self._progress.update(task, loss=f"loss {loss:.4f}")

        return watch

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._progress.stop()


class Whole:
    """One bar for many runs in other processes: `with Whole(rounds) as bar: bar(rounds_done, done, cells)`."""

    def __init__(self, rounds: float, show: bool | None = None, unit: str = "cells") -> None:
        console = Console(stderr=True)
        self.unit = unit
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=console,
            disable=not (console.is_terminal if show is None else show),
            speed_estimate_period=600,
        )
        self._task = self._progress.add_task(unit, total=rounds)

    def __call__(self, rounds: float, done: int, cells: int) -> None:
        self._progress.update(self._task, completed=rounds, description=f"{done} of {cells} {self.unit}")

    def __enter__(self) -> Whole:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._progress.stop()


Step: TypeAlias = Callable[[int], None]


@contextlib.contextmanager
def bytes_bar(what: str, total: int) -> Iterator[Step]:
    """Call what comes back with the number of bytes done since the last call."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, advance=done)
