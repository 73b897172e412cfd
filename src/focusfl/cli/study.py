"""focusfl study: measure the methods themselves. Each command imports what is heavy only when it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from focusfl.util.errors import Interrupted

if TYPE_CHECKING:
    from focusfl.research.studies.runner import Job, Study

app = typer.Typer(help="Measure the methods themselves.", no_args_is_help=True, rich_markup_mode=None)

Cells = Annotated[Path, typer.Option(help="Folder for finished runs: one line per run in STUDY.jsonl")]
Results = Annotated[Path, typer.Option(help="Folder for the results: STUDY.md and STUDY.json")]
CELLS, RESULTS = Path("runs/study"), Path("docs/results")


@app.command()
def start(
    only: Annotated[
        list[str],
        typer.Option(
            "--only",
            help="Run only these: synthetic, digits, mnist, text, cifar, auto, more, warmup, full, or one case",
        ),
    ] = [],  # noqa: B006
    seeds: Annotated[int, typer.Option(help="Number of runs per case and start", min=1)] = 10,
    cells: Cells = CELLS,
    results: Results = RESULTS,
) -> None:
    """Measure how often each start of FOCUS finds the true clusters. If interrupted, run it again to resume."""
    from focusfl.research.studies import starts, starts_report
    from focusfl.util import files

    selected, cases = starts.select(only), starts.all_cases()
    files.make_folder(cells)
    files.make_folder(results)
    jobs = starts.missing_jobs(selected, seeds, starts.read(cells, results, cases))

    def write() -> Path:
        return starts_report.write(results, cases, seeds, starts.read(cells, results, cases))

    _run(starts.STUDY, cells, jobs, write)


@app.command()
def bad(
    only: Annotated[
        list[str],
        typer.Option(
            "--only", help="Run only these cases or methods; their names are those in the tables of bad.md"
        ),
    ] = [],  # noqa: B006
    seeds: Annotated[int, typer.Option(help="Number of runs per case and method", min=1)] = 3,
    cells: Cells = CELLS,
    results: Results = RESULTS,
) -> None:
    """Measure what bad agents do to the good ones, with every method. If interrupted, run it again to resume."""
    from focusfl.research.studies import bad_agents, bad_agents_report
    from focusfl.util import files

    cases, methods = bad_agents.select(only)
    files.make_folder(cells)
    files.make_folder(results)
    jobs = bad_agents.missing_jobs(cases, methods, seeds, bad_agents.read(cells, results))

    def write() -> Path:
        return bad_agents_report.write(results, seeds, bad_agents.read(cells, results))

    _run(bad_agents.STUDY, cells, jobs, write)


def _run(study: Study, cells: Path, jobs: list[Job], write: Callable[[], Path]) -> None:
    """Run the jobs, then write the page; if the runs are interrupted, write it about the finished ones."""
    from focusfl.util.progress import TotalProgress

    try:
        with TotalProgress(sum(job.seconds for job in jobs), unit="runs") as bar:
            study.run(cells, jobs, bar)
    except Interrupted as stopped:
        raise Interrupted(f"{stopped}; finished runs are stored, run the same command to resume") from stopped
    finally:
        page = write()
    print(f"Results: {page}")
