"""focusfl run and focusfl compare: train several methods on one data set and show the results."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focusfl.util.errors import InputError, Interrupted

if TYPE_CHECKING:
    from focusfl.run.callbacks import Callback
    from focusfl.run.experiment import Experiment

Data = Annotated[str, typer.Option(help="Name of the data set (see: focusfl list data), or my_module:my_function")]
Algorithms = Annotated[
    str,
    typer.Option(
        help="Comma-separated names, with options after a colon (qffl:q=0.1), my_module:MyMethod, or all; "
        "see: focusfl list algorithms"
    ),
]
Seeds = Annotated[str, typer.Option(help="Comma-separated seeds; every method runs once per seed")]
Rounds = Annotated[int | None, typer.Option(help="Number of rounds (default: the data set's recipe)")]
Engine = Annotated[str, typer.Option(help="auto, serial, vectorised or flower")]
Set = Annotated[
    list[str], typer.Option("--set", help="Set an option: focus.M=2, train.lr=0.05, data.r=0.1; may be repeated")
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the results (default: a folder in runs/)")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume an unfinished experiment in that folder")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Delete the results in that folder and start over")]
Models = Annotated[bool, typer.Option("--models/--no-models", help="Save the trained model of every run")]
Track = Annotated[
    list[str],
    typer.Option("--track", help="Write every run for tensorboard, mlflow or wandb to OUT/tracking; repeatable"),
]
Json = Annotated[bool, typer.Option("--json", help="Print results.json instead of tables")]


def run(
    experiment: Annotated[str, typer.Argument(help="A TOML file or a name (see: focusfl list experiments)")],
    data: Annotated[
        str, typer.Option(help="Of natural: comma-separated data sets (default: all five)", show_default=False)
    ] = "",
    algorithms: Annotated[
        str, typer.Option(help="Run these methods instead; as in focusfl compare", show_default=False)
    ] = "",
    seeds: Annotated[str, typer.Option(help="Use these seeds instead", show_default=False)] = "",
    rounds: Annotated[int | None, typer.Option(help="Run so many rounds instead")] = None,
    set_: Set = [],  # noqa: B006
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    models: Models = True,
    track: Track = [],  # noqa: B006
    json: Json = False,
) -> None:
    """Run an experiment described in TOML, or the benchmark natural."""
    from focusfl.cli import natural
    from focusfl.research.natural.benchmark import NAME
    from focusfl.run import experiment as experiments

    if experiment == NAME and experiment not in experiments.catalogue():
        folder = out or Path("runs") / experiment
        natural.run(data, algorithms, seeds, rounds, set_, folder, resume, overwrite, models, track, json)
        return
    if data:
        raise InputError(f"--data {data}: only {NAME} has several data sets; use --set data.name={data}")
    changes = [*_replaced(algorithms, seeds, rounds), *set_]
    described = experiments.load(experiments.find(experiment), changes)
    _run_and_show(described, out or Path("runs") / described.name, resume, overwrite, models, track, json)


def _replaced(algorithms: str, seeds: str, rounds: int | None) -> list[str]:
    """Return the options that replace those of a TOML file, as for --set."""
    from json import dumps

    from focusfl.run.experiment import split_list

    changes = [f"algorithms={dumps(split_list(algorithms))}"] * bool(algorithms)
    changes += [f"seeds={parse_seeds(seeds)}"] * bool(seeds)
    return changes if rounds is None else [*changes, f"rounds={rounds}"]


def compare(
    data: Data = "rotated-digits",
    algorithms: Algorithms = "focus,fedavg",
    seeds: Seeds = "0,1,2",
    rounds: Rounds = None,
    engine: Engine = "auto",
    set_: Set = [],  # noqa: B006
    out: Out = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    models: Models = True,
    track: Track = [],  # noqa: B006
    json: Json = False,
) -> None:
    """Compare methods on one data set. Shows tables and writes results.json."""
    from focusfl.run.experiment import Experiment, apply_changes

    raw = described(data, algorithms, seeds, rounds, engine)
    experiment = Experiment.parse(apply_changes(raw, set_))
    try:
        text = experiment.model_dump_json()
    except ValueError:  # a path that is not UTF-8
        text = ascii(experiment.model_dump())
    _run_and_show(experiment, out or default_folder(data, text), resume, overwrite, models, track, json)


def described(data: str, algorithms: str, seeds: str, rounds: int | None, engine: str) -> dict[str, Any]:
    """Return an experiment that the options describe, as in TOML.

    Raises:
        InputError: The seeds are not numbers.
    """
    from focusfl.run.experiment import split_list

    names = split_list(algorithms)
    raw: dict[str, Any] = {"data": {"name": data}, "algorithms": names, "engine": engine}
    raw["seeds"] = parse_seeds(seeds)
    return raw if rounds is None else {**raw, "rounds": rounds}


def parse_seeds(seeds: str) -> list[int]:
    """Return comma-separated seeds as numbers.

    Raises:
        InputError: They are not numbers.
    """
    try:
        return [int(part) for part in seeds.split(",") if part.strip()]
    except ValueError as error:
        raise InputError(f"--seeds {seeds}: expected comma-separated whole numbers, for example 0,1,2") from error


def default_folder(name: str, experiment: str) -> Path:
    """Return runs/NAME-DIGEST.

    Args:
        name: A name, for example that of the data.
        experiment: What the digest is that of.
    """
    from focusfl.run import identity

    return Path("runs") / f"{name.replace(':', '-')}-{identity.text_digest(experiment)[:8]}"


def note(line: str) -> None:
    """Print a remark for the user."""
    from focusfl.util.files import visible

    print(f"note: {visible(line)}", file=sys.stderr)


@contextlib.contextmanager
def resumable(resume: bool, overwrite: bool) -> Iterator[None]:
    """If what is run in this block is interrupted, say how to resume it."""
    import shlex

    if resume and overwrite:
        raise InputError("--resume continues with the existing results, --overwrite deletes them: use only one")
    try:
        yield
    except Interrupted as stopped:
        words = [word for word in sys.argv[1:] if word not in ("--resume", "--overwrite")]
        command = shlex.join(["focusfl", *words, "--resume"])
        raise Interrupted(f"{stopped}. Nothing is lost. To resume: {command}") from stopped
    except KeyboardInterrupt as stopped:  # the second Ctrl-C
        raise Interrupted("stopped at once; --resume continues from the last checkpoint") from stopped


def _run_and_show(
    experiment: Experiment,
    out: Path,
    resume: bool,
    overwrite: bool,
    models: bool,
    track: list[str],
    as_json: bool,
) -> None:
    """Run the experiment and print its results; if it is interrupted, say how to resume it."""
    import json

    from rich.console import Console

    from focusfl.report.terminal import show
    from focusfl.run.compare import compare
    from focusfl.run.results import read_left_out, run_folder
    from focusfl.run.tracking import check_tools, for_experiment

    tracked: set[tuple[str, int]] = set()

    def trackers(method: str, seed: int) -> Sequence[Callback]:
        tracked.add((method, seed))
        return for_experiment(track, out, method, seed)

    with resumable(resume, overwrite):
        check_tools(track)
        rows = compare(
            experiment,
            out,
            resume,
            overwrite,
            note=note,
            models=models,
            callbacks=trackers,
        )
    if track and (before := len({(row["method"], row["seed"]) for row in rows} - tracked)):
        what = f"{before} of {len(rows)} runs had finished before and were not tracked"
        note(f"--track: {what}; --overwrite runs them again")
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    show(rows, read_left_out(out), Console(markup=False, emoji=False))
    print(f"Results: {out / 'results.json'}")
    if models:
        print(f"Trained models: {run_folder(out, rows[0]['method'], rows[0]['seed']) / 'model'} and beside it")
