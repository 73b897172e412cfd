"""Progress bars: on stderr if it is a terminal, below the cell in a notebook. A log file gets a line now and then.

`_progress` is the one place that builds a bar and decides whether to show it.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
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
LINE_SECONDS = 10.0  # at least, between two lines in a log file


def shows_bars(console: Console) -> bool:
    """Say whether bars can be drawn: in a terminal, or in a notebook that has ipywidgets, which redraw them."""
    return find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal


def _progress(*columns: ProgressColumn, show: bool | None = None, elapsed: bool = True, **options: Any) -> Progress:
    """Build a bar: description, bar, `columns`, times. `show=None` shows it where `shows_bars` allows."""
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
        disable=not (shows_bars(console) if show is None else show),
        **options,
    )


class _Shown:
    """Shows its bars inside a `with` block."""

    _bars: Progress

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()


class LogLines:
    """Says on stderr how far a run is, where no bar can be shown: at most one line in ten seconds.

    There is a line after round 1, 2, 4, 8, ... and after every tenth of the run, so that a short run stays silent
    and a long one does not fill the log.

    Args:
        name: What to call the run.
        rounds: How many rounds it takes.
        clock: Gives the time in seconds.
        write: Takes a line.
    """

    def __init__(
        self,
        name: str,
        rounds: int,
        clock: Callable[[], float] = time.monotonic,
        write: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        self.name, self.rounds, self.clock, self.write = name, rounds, clock, write
        self._last_line = clock()
        self._first: tuple[int, float] | None = None  # the first round reported, and when: a run may be resumed
        self._due = False

    def __call__(self, rounds_done: int, loss: float | None) -> None:
        """Report a round: see `RoundCallback`."""
        now = self.clock()
        first, began = self._first = self._first or (rounds_done, now)
        power_of_two = rounds_done & (rounds_done - 1) == 0
        new_tenth = 10 * rounds_done // self.rounds > 10 * (rounds_done - 1) // self.rounds
        self._due = self._due or power_of_two or new_tenth
        if not self._due or now - self._last_line < LINE_SECONDS:
            return
        self._due, self._last_line = False, now
        line = f"{self.name}: round {rounds_done} of {self.rounds}"
        line += "" if loss is None else f", loss {loss:.3f}"
        if rounds_done > first:
            line += f", {duration((now - began) / (rounds_done - first) * (self.rounds - rounds_done))} left"
        self.write(line)


def duration(seconds: float) -> str:
    """Write a duration with one unit.

    Example:
        >>> duration(11.6), duration(200), duration(9000)
        ('12 s', '3 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class RunProgress(_Shown):
    """One bar per run, with its round, loss and remaining time.

    Args:
        show: Whether to show the bars; by default if stderr is a terminal or a notebook, else a line now and then.

    Example:
        >>> with RunProgress(show=False) as progress:
        ...     report = progress.add("FOCUS seed 0", rounds=60)
        ...     report(1, 0.7)  # after round 1, with a mean loss of 0.7
    """

    def __init__(self, show: bool | None = None) -> None:
        columns = (TextColumn("round"), MofNCompleteColumn(), TextColumn("{task.fields[loss]}"))
        self._bars = _progress(*columns, show=show)
        self._lines = show is None and self._bars.disable

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
        if self._lines:
            return LogLines(name, rounds)
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
