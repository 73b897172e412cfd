"""Progress bars on stderr. Nothing is shown when stderr is not a terminal.

`_progress` is the one place that builds a bar and decides whether to show it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from threading import Timer
from types import TracebackType
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

RoundCallback: TypeAlias = Callable[[int, float | None], None]  # rounds done; the mean loss, where it was evaluated
Advance: TypeAlias = Callable[[int], None]  # how much was done since the last call


def _progress(*columns: ProgressColumn, show: bool | None = None, elapsed: bool = True, **options: Any) -> Progress:
    """Build a bar: description, bar, `columns`, times. `show=None` shows it if stderr is a terminal."""
    console = Console(stderr=True)
    remaining = TimeRemainingColumn(elapsed_when_finished=False)
    times: list[ProgressColumn] = [TimeElapsedColumn()] if elapsed else []
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        *times,
        TextColumn("left"),
        remaining,
        console=console,
        disable=not (console.is_terminal if show is None else show),
        **options,
    )


class _Shown:
    """Shows its bars inside a `with` block."""

    _bars: Progress

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()


class RunProgress(_Shown):
    """One bar per run, with its round, loss and remaining time.

    Args:
        show: Whether to show the bars; by default only if stderr is a terminal.

    Example:
        >>> with RunProgress(show=False) as progress:
        ...     report = progress.add("FOCUS seed 0", rounds=60)
        ...     report(1, 0.7)  # after round 1, with a mean loss of 0.7
    """

    def __init__(self, show: bool | None = None) -> None:
        columns = (TextColumn("round"), MofNCompleteColumn(), TextColumn("{task.fields[loss]}"))
        self._bars = _progress(*columns, show=show)

    @property
    def visible(self) -> bool:
        """Whether anybody can see the bars."""
        return not self._bars.disable

    def add(self, name: str, rounds: int, at_once: bool = True) -> RoundCallback:
        """Add a bar for a run.

        Args:
            name: What to call the run.
            rounds: How many rounds it takes.
            at_once: Show the bar now; else with the first round, as the run may not be needed at all.

        Returns:
            A function to call after every round with the rounds done and the mean loss (None: not evaluated).
        """
        task = self._bars.add_task(name, total=rounds, loss="loss   -   ", visible=at_once)

        def report(rounds_done: int, loss: float | None) -> None:
            self._bars.update(task, completed=rounds_done, visible=True)
            if loss is not None:
                self._bars.update(task, loss=f"loss {loss:.4f}")

        return report

    def __enter__(self) -> RunProgress:
        self._bars.start()
        return self


class TotalProgress(_Shown):
    """One bar for many runs in other processes.

    Args:
        total: The amount of work, in any unit, for example rounds.
        show: Whether to show the bar; by default only if stderr is a terminal.
        unit: What the bar counts, for example "cells".

    Example:
        >>> with TotalProgress(600, show=False) as progress:
        ...     progress(150, done=2, cells=10)  # 150 of 600 rounds and 2 of 10 cells are done
    """

    def __init__(self, total: float, show: bool | None = None, unit: str = "cells") -> None:
        self.unit = unit
        self._bars = _progress(TaskProgressColumn(), show=show, speed_estimate_period=600)
        self._task = self._bars.add_task(unit, total=total)

    def __call__(self, completed: float, done: int, cells: int) -> None:
        self._bars.update(self._task, completed=completed, description=f"{done} of {cells} {self.unit}")

    def __enter__(self) -> TotalProgress:
        self._bars.start()
        return self


@contextlib.contextmanager
def byte_progress(what: str, total: int) -> Iterator[Advance]:
    """Show a bar over bytes; it disappears at the end.

    Args:
        what: The text beside the bar.
        total: The number of bytes expected.

    Yields:
        A function to call with the number of bytes done since its last call.
    """
    with _progress(DownloadColumn(), transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda done: bars.update(task, advance=done)


@contextlib.contextmanager
def count_progress(what: str, total: int, delay: float = 0) -> Iterator[Advance]:
    """Show a bar over a number of items.

    Args:
        what: The text beside the bar.
        total: The number of items.
        delay: Seconds to wait before the bar appears, so that short work shows none.

    Yields:
        A function to call with the number of items done since its last call.
    """
    bars = _progress(MofNCompleteColumn(), elapsed=False)
    task = bars.add_task(what, total=total)
    timer = Timer(delay, bars.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done: bars.advance(task, done)
    finally:
        timer.cancel()
        timer.join()
        bars.stop()
