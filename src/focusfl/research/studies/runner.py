"""Run a study: one run after another, each stored as soon as it is finished.

A study called NAME has three files. NAME.jsonl, in the folder of the runs, gets one line per finished run.
NAME.json and NAME.md, in the folder of the results, hold the rows of all runs and the page about them. An
interrupted study resumes from NAME.jsonl and NAME.json.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from focusfl.util import files, sealed
from focusfl.util.errors import Diverged, Interrupted
from focusfl.util.interrupt import graceful_stop
from focusfl.util.machine import git_commit, provenance

Row = dict[str, Any]  # one run: its case, its variant, its seed, its settings and what was measured
Key = tuple[str, str, int]  # case, variant, seed
ReportProgress = Callable[[float], None]  # is called with the finished fraction of one run
StudyProgress = Callable[[float, int, int], None]  # is called with the finished work in seconds, runs and all runs
Stop = Callable[[], bool]  # asks whether the user wants to stop


class Job(NamedTuple):
    """A run that is still to be done."""

    run: Callable[[ReportProgress, Stop], Row]
    seconds: float  # expected duration on one core, for the progress bar


@dataclass(frozen=True)
class Study:
    """Where the runs of a study are stored.

    Args:
        name: the name of the study and of its files.
        variant: the column of a row that says what is compared within a case, for example "method".
    """

    name: str
    variant: str

    def read(self, cells: Path, results: Path, settings: dict[tuple[str, str], Any]) -> dict[Key, Row]:
        """Read the finished runs.

        Args:
            cells: the folder of NAME.jsonl.
            results: the folder of NAME.json.
            settings: the present settings of each case and variant. Runs with other settings are ignored.

        Returns:
            The rows by case, variant and seed. Lines of NAME.jsonl override rows of NAME.json.
        """
        page, lines = results / f"{self.name}.json", cells / f"{self.name}.jsonl"
        rows: list[Row] = sealed.read_json(page)["rows"] if page.exists() else []
        rows += sealed.read_lines(lines, torn_anywhere=True)
        as_stored = json.loads(json.dumps([[*key, value] for key, value in settings.items()]))
        present = {(case, variant): value for case, variant, value in as_stored}
        return {
            (row["case"], row[self.variant], row["seed"]): row
            for row in rows
            if row["settings"] == present.get((row["case"], row[self.variant]))
        }

    def run(
        self, cells: Path, jobs: list[Job], progress: StudyProgress = lambda seconds, done, total: None
    ) -> None:
        """Run all jobs in order and store each row, with the commit of the source, as soon as it is finished."""
        source, before = git_commit(), 0.0
        with graceful_stop() as stop:
            for done, job in enumerate(jobs):

                def run_progress(fraction: float, job: Job = job, before: float = before, done: int = done) -> None:
                    progress(before + fraction * job.seconds, done, len(jobs))

                self.append(cells, job.run(run_progress, stop) | {"commit": source})
                before += job.seconds
                progress(before, done + 1, len(jobs))

    def append(self, cells: Path, row: Row) -> None:
        """Append a row to NAME.jsonl."""
        with files.lock(cells / "lock"):
            sealed.append_line(cells / f"{self.name}.jsonl", row)

    def write(self, results: Path, seeds: int, rows: list[Row], page: str) -> Path:
        """Write NAME.json and NAME.md; return the path of the latter."""
        head = {"study": self.name, "seeds": seeds, "written_by": provenance()}
        sealed.write_rows(results / f"{self.name}.json", head, rows)
        files.write_text(results / f"{self.name}.md", page)
        return results / f"{self.name}.md"

    def source_note(self, rows: Iterable[Row]) -> str:
        """The last sentence of a page: where the rows are, and which commits computed them."""
        commits = ", ".join(sorted({str(row["commit"]) for row in rows})) or "none"
        return f"`{self.name}.json` has one row per run. Their commits (+: with uncommitted changes): {commits}."


def timed_row(identity: Row, measures: tuple[str, ...], measure: Callable[[], Row]) -> Row:
    """Measure one run.

    Args:
        identity: the case, the variant, the seed and the settings of the run.
        measures: the names of what is measured; their values are None if the run diverges.
        measure: does the run and returns the measures.

    Returns:
        The identity, the measures and the seconds the run took.

    Raises:
        Interrupted: the user stopped the run; the message names it.
    """
    clock = time.perf_counter()
    try:
        measured = measure()
    except Diverged:
        measured = dict.fromkeys(measures)
    except Interrupted as stopped:
        which = ", ".join(str(v) for k, v in identity.items() if k not in ("seed", "settings"))
        raise Interrupted(f"{stopped}, {which}, seed {identity['seed']}") from stopped
    return identity | measured | {"seconds": round(time.perf_counter() - clock, 2)}


def with_notes(text: str, missing: int, diverged: int) -> str:
    """Append how many runs are missing or diverged.

    >>> with_notes("9 of 9", missing=1, diverged=0), with_notes("+0.5", missing=2, diverged=1)
    ('9 of 9 (1 missing)', '+0.5 (2 missing, 1 diverged)')
    """
    notes = ", ".join(f"{n} {what}" for what, n in (("missing", missing), ("diverged", diverged)) if n)
    return f"{text} ({notes})" if notes else text


def missing_note(missing: int, planned: int) -> list[str]:
    """The paragraph that says how many runs are missing; none if the study is complete."""
    return [f"Missing: {missing} of {planned} runs."] if missing else []


def options_text(options: dict[str, Any]) -> str:
    """Options as they are shown in a table.

    >>> options_text({"M": 3, "init": "split"})
    'M = 3, init = split'
    """
    return ", ".join(f"{k} = {v}" for k, v in options.items())
