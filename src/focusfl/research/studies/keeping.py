"""One run after another, each kept as a line of JSON as soon as it is done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from focusfl.util import files
from focusfl.util.errors import Diverged, Interrupted
from focusfl.util.interrupt import graceful_stop
from focusfl.util.machine import git_commit

Row = dict[str, Any]
Step = Callable[[float], None]  # hears which share of the run is done
Stop = Callable[[], bool]
Watch = Callable[[float, int, int], None]  # hears of the work done, in seconds; of the runs done; of all


class Job(NamedTuple):
    """A run that is to be made."""

    make: Callable[[Step, Stop], Row]
    seconds: float  # it takes, about; the bar goes by it


def read(study: str, cells: Path, results: Path) -> list[Row]:
    """The runs there are: of the results, then of the cells. A line cut short by a kill is no run."""
    page, lines = results / f"{study}.json", cells / f"{study}.jsonl"
    found: list[Row] = files.read_json(page)["rows"] if page.exists() else []
    for line in lines.read_text(encoding="utf-8").splitlines() if lines.exists() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def same(row: Row, settings: Any) -> bool:
    """Was it made with these settings? Its own have been through JSON."""
    return bool(row["settings"] == json.loads(json.dumps(settings)))


def make(study: str, cells: Path, jobs: list[Job], watch: Watch = lambda seconds, done, runs: None) -> None:
    """Run all of them and keep each with the commit it was made by."""
    source, before = git_commit(), 0.0
    with graceful_stop() as stop:
        for done, job in enumerate(jobs):

            def step(share: float, job: Job = job, before: float = before, done: int = done) -> None:
                watch(before + share * job.seconds, done, len(jobs))

            keep(study, cells, job.make(step, stop) | {"commit": source})
            before += job.seconds
            watch(before, done + 1, len(jobs))


def row_of(about: Row, names: tuple[str, ...], measure: Callable[[], Row]) -> Row:
    """A run's row: what it is about, what it measured (of one that diverges nothing) and its seconds."""
    clock = time.perf_counter()
    try:
        found = measure()
    except Diverged:
        found = dict.fromkeys(names)
    except Interrupted as stopped:
        which = ", ".join(str(v) for k, v in about.items() if k not in ("seed", "settings"))
        raise Interrupted(f"{stopped}, {which}, seed {about['seed']}") from stopped
    return about | found | {"seconds": round(time.perf_counter() - clock, 2)}


def keep(study: str, cells: Path, row: Row) -> None:
    """Append it. What a kill cut short stays a line of its own."""
    path = cells / f"{study}.jsonl"
    with files.lock(cells / "lock"), path.open("a+b") as handle:
        if handle.tell() and path.read_bytes()[-1:] != b"\n":
            handle.write(b"\n")
        handle.write((json.dumps(row, allow_nan=False) + "\n").encode())
