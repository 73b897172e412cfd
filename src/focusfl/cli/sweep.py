"""focusfl sweep: try several values of options, and choose the best of each method on validation data."""

from __future__ import annotations

import os
import shlex
from typing import Annotated

import typer

from focusfl.cli.compare import (
    Algorithms,
    Data,
    Engine,
    Out,
    Overwrite,
    Resume,
    Rounds,
    Seeds,
    default_folder,
    described,
    note,
    resumable,
)
from focusfl.util.errors import require_choice

Values = Annotated[
    list[str],
    typer.Option(
        "--set",
        help="Values of an option: train.lr=0.01,0.1; may be repeated. A value with commas goes into quotes. An "
        "option of a method, as in ditto.lam=0.1,1, concerns that method alone",
    ),
]


def sweep(
    data: Data = "rotated-digits",
    algorithms: Algorithms = "focus,fedavg",
    seeds: Seeds = "0,1,2",
    rounds: Rounds = None,
    engine: Engine = "auto",
    set_: Values = [],  # noqa: B006
    select: Annotated[
        str, typer.Option(help="What chooses the best values: only validation, never test")
    ] = "validation",
    jobs: Annotated[int, typer.Option(help="Number of runs at the same time (default: one per core)", min=0)] = 0,
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    json: Annotated[bool, typer.Option("--json", help="Print the rows of the chosen runs, as JSON")] = False,
) -> None:
    """Try every combination of option values; the best of each method is chosen on held-out validation data."""
    from json import dumps

    from rich.console import Console

    from focusfl.report.sweep import choose, table
    from focusfl.run import sweep as sweeps
    from focusfl.run.results import run_name

    require_choice("--select", select, ("validation",))
    wanted = sweeps.Sweep(described(data, algorithms, seeds, rounds, engine), sweeps.parse_grid(set_))
    folder = out or default_folder(f"sweep-{data}", dumps(wanted.description()))
    with resumable(resume, overwrite):
        points = sweeps.sweep(wanted, folder, jobs or os.cpu_count() or 1, resume, overwrite, note=note)
    if json:
        print(dumps([row for point in choose(points) for row in point.rows], indent=1))
        return
    Console(markup=False, emoji=False).print(table(points))
    print(f"Results: {folder / 'results.json'}, plot: {folder / 'sweep.svg'}")
    chosen = choose(points)
    if chosen:
        print("A sweep saves no models. To train and save those of the chosen values:")
    for point in chosen:
        words = ["focusfl", "compare", "--data", data, "--algorithms", point.method, "--seeds", seeds]
        words += [] if rounds is None else ["--rounds", str(rounds)]
        words += [] if engine == "auto" else ["--engine", engine]
        words += [word for change in wanted.changes(point) for word in ("--set", change)]
        print(f"  {shlex.join([*words, '--out', f'{folder}-{run_name(point.method)}'])}")
