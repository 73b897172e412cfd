"""focusfl study. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from focusfl.errors import Interrupted

app = typer.Typer(help="Measure the methods themselves.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def study() -> None:
    """Measure the methods themselves."""


@app.command()
def start(
    only: Annotated[
        list[str],
        typer.Option("--only", help="Run these cases alone: synthetic, digits, mnist, auto, or a case by its name"),
    ] = [],  # noqa: B006
    seeds: Annotated[int, typer.Option(help="Runs of each case and start", min=1)] = 10,
    cells: Annotated[Path, typer.Option(help="Folder of the runs: one line each in start.jsonl")] = Path(
        "runs/study"
    ),
    results: Annotated[Path, typer.Option(help="Folder for start.md and start.json")] = Path("docs/results"),
) -> None:
    """How often each start of FOCUS finds the true clusters; killed at any time, the same command goes on."""
    from focusfl import files
    from focusfl.progress import Whole
    from focusfl.studies import cases, runs, table

    mine, every = cases.chosen(only), cases.cases()
    for folder in (cells, results):
        files.make_folder(folder)
    known = runs.read(cells, results, every)
    seconds = sum(case.seconds for case in mine for key in runs.wanted(case, seeds) if key not in known)
    try:
        with Whole(seconds, unit="runs") as bar:
            runs.missing(mine, seeds, known, cells, bar)
    except Interrupted as stopped:
        raise Interrupted(f"{stopped}; finished runs are kept, and the same command goes on") from stopped
    finally:  # also of what there is when it is stopped
        page = table.write(results, every, seeds, runs.read(cells, results, every))
    print(f"Results: {page}")
