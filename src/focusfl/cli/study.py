"""focusfl study. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from focusfl.util.errors import Interrupted

if TYPE_CHECKING:
    from focusfl.research.studies.keeping import Job

app = typer.Typer(help="Measure the methods themselves.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def study() -> None:
    """Measure the methods themselves."""


Cells = Annotated[Path, typer.Option(help="Folder of the runs: one line each in NAME.jsonl")]
Results = Annotated[Path, typer.Option(help="Folder for NAME.md and NAME.json, NAME being the study's")]
CELLS, RESULTS = Path("runs/study"), Path("docs/results")


@app.command()
def start(
    only: Annotated[
        list[str],
        typer.Option(
            "--only",
            help="Run these alone: synthetic, digits, mnist, text, cifar, auto, more, warmup, full, or a case",
        ),
    ] = [],  # noqa: B006
    seeds: Annotated[int, typer.Option(help="Runs of each case and start", min=1)] = 10,
    cells: Cells = CELLS,
    results: Results = RESULTS,
) -> None:
    """How often each start of FOCUS finds the true clusters; killed at any time, the same command goes on."""
    from focusfl.research.studies import cases, runs, table

    mine, every = cases.chosen(only), cases.cases()
    _folders(cells, results)
    jobs = runs.jobs(mine, seeds, runs.read(cells, results, every))
    _make(runs.STUDY, cells, jobs, lambda: table.write(results, every, seeds, runs.read(cells, results, every)))


@app.command()
def bad(
    only: Annotated[
        list[str], typer.Option("--only", help="Run these cases or methods alone, by their names in the table")
    ] = [],  # noqa: B006
    seeds: Annotated[int, typer.Option(help="Runs of each case and method", min=1)] = 3,
    cells: Cells = CELLS,
    results: Results = RESULTS,
) -> None:
    """What bad agents do to the good ones, under every method; killed at any time, the same command goes on."""
    from focusfl.research.studies import bad, bad_runs, bad_table

    cases, methods = bad.chosen(only)
    _folders(cells, results)
    jobs = bad_runs.jobs(cases, methods, seeds, bad_runs.read(cells, results))
    _make(bad_runs.STUDY, cells, jobs, lambda: bad_table.write(results, seeds, bad_runs.read(cells, results)))


def _folders(*folders: Path) -> None:
    from focusfl.util import files

    for folder in folders:
        files.make_folder(folder)


def _make(study: str, cells: Path, jobs: list[Job], write: Callable[[], Path]) -> None:
    """Make the runs, then the page."""
    from focusfl.research.studies import keeping
    from focusfl.util.progress import TotalProgress

    try:
        with TotalProgress(sum(job.seconds for job in jobs), unit="runs") as bar:
            keeping.make(study, cells, jobs, bar)
    except Interrupted as stopped:
        raise Interrupted(f"{stopped}; finished runs are kept, and the same command goes on") from stopped
    finally:  # also of what there is when it is stopped
        page = write()
    print(f"Results: {page}")
