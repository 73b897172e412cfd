"""focusfl run and focusfl compare: train several methods on one data set and show the results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focusfl.util.errors import InputError, Interrupted

if TYPE_CHECKING:
    from focusfl.run.experiment import Experiment

Set = Annotated[
    list[str], typer.Option("--set", help="Set an option: focus.M=2, train.lr=0.05, data.r=0.1; may be repeated")
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the results (default: a folder in runs/)")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume an unfinished experiment in that folder")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Delete the results in that folder and start over")]
Json = Annotated[bool, typer.Option("--json", help="Print results.json instead of tables")]


def run(
    experiment: Annotated[str, typer.Argument(help="A TOML file or a name (see: focusfl list experiments)")],
    set_: Set = [],  # noqa: B006
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Run an experiment described in TOML."""
    from focusfl.run import experiment as experiments

    described = experiments.load(experiments.find(experiment), set_)
    _run_and_show(described, out or Path("runs") / described.name, resume, overwrite, json)


def compare(
    data: Annotated[str, typer.Option(help="Name of the data set (see: focusfl list data)")] = "rotated-digits",
    algorithms: Annotated[
        str,
        typer.Option(
            help="Comma-separated names, with options after a colon (qffl:q=0.1), or all; "
            "see: focusfl list algorithms"
        ),
    ] = "focus,fedavg",
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds; every method runs once per seed")] = "0,1,2",
    rounds: Annotated[int | None, typer.Option(help="Number of rounds (default: the data set's recipe)")] = None,
    engine: Annotated[str, typer.Option(help="auto, serial, vectorised or flower")] = "auto",
    set_: Set = [],  # noqa: B006
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Compare methods on one data set. Shows tables and writes results.json."""
    import re

    from focusfl.run import identity
    from focusfl.run.experiment import Experiment, apply_changes

    names = [name.strip() for name in re.split(r",(?![^\[]*\])", algorithms) if name.strip()]  # not within [...]
    raw: dict[str, Any] = {"data": {"name": data}, "algorithms": names, "engine": engine}
    try:
        raw["seeds"] = [int(part) for part in seeds.split(",") if part.strip()]
    except ValueError as error:
        raise InputError(f"--seeds {seeds}: expected comma-separated whole numbers, for example 0,1,2") from error
    if rounds is not None:
        raw["rounds"] = rounds
    experiment = Experiment.parse(apply_changes(raw, set_))
    try:
        described = experiment.model_dump_json()
    except ValueError:  # a path that is not UTF-8
        described = ascii(experiment.model_dump())
    name = f"{data}-{identity.text_digest(described)[:8]}"
    _run_and_show(experiment, out or Path("runs") / name, resume, overwrite, json)


def _run_and_show(experiment: Experiment, out: Path, resume: bool, overwrite: bool, as_json: bool) -> None:
    """Run the experiment and print its results; if it is interrupted, say how to resume it."""
    import json
    import shlex

    from rich.console import Console

    from focusfl.report.terminal import show
    from focusfl.run.compare import compare
    from focusfl.run.results import read_left_out
    from focusfl.util.files import visible

    if resume and overwrite:
        raise InputError("--resume continues with the existing results, --overwrite deletes them: use only one")
    try:
        rows = compare(
            experiment, out, resume, overwrite, note=lambda line: print(f"note: {visible(line)}", file=sys.stderr)
        )
    except Interrupted as stopped:
        words = [word for word in sys.argv[1:] if word not in ("--resume", "--overwrite")]
        command = shlex.join(["focusfl", *words, "--resume"])
        raise Interrupted(f"{stopped}. Nothing is lost. To resume: {command}") from stopped
    except KeyboardInterrupt as stopped:  # the second Ctrl-C
        raise Interrupted("stopped at once; --resume continues from the last checkpoint") from stopped
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    show(rows, read_left_out(out), Console(markup=False, emoji=False))
    print(f"Results: {out / 'results.json'}")
