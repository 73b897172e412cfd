"""Run an experiment: every method, every seed, into one folder; killed at any time, it goes on where it was.

DIR/experiment.json               what the folder holds
DIR/results.json                  a row per finished run
DIR/runs/focus-seed0/             history.jsonl, checkpoint.safetensors, result.json
DIR/surrogates/KEY.json           best losses, shared by the methods
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from focusfl import files, history
from focusfl.bayes import Surrogates, resolve
from focusfl.errors import InputError
from focusfl.experiments import Experiment
from focusfl.fitting import notes, train_and_judge
from focusfl.interrupt import graceful
from focusfl.progress import Bars

Row = dict[str, Any]
OURS = ("results.json", "runs", "surrogates", "experiment.json")  # the marker last: it goes last too


def compare(
    experiment: Experiment,
    out: Path,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    note: Callable[[str], None] = print,
) -> list[Row]:
    """The rows of results.json. A folder that holds all of them already is only read."""
    setups = experiment.setups(experiment.seeds[0])  # fails on bad input before anything is written
    resolve(experiment.bayes, setups[0].fed)
    for line in dict.fromkeys(line for setup in setups for line in notes(setup)):
        note(line)
    rows = _claim(experiment, out, resume, overwrite)
    if len(rows) == len(experiment.algorithms) * len(experiment.seeds):
        files.write_json(out / "results.json", rows)  # a kill may have come between the last run and this
        note(f"{out} holds this experiment already: nothing to do (--overwrite runs it again)")
        return rows
    surrogates = Surrogates(out / "surrogates")
    rows = []
    with graceful() as stop, Bars(progress) as bars:
        for seed in experiment.seeds:
            for name, setup in zip(experiment.algorithms, experiment.setups(seed), strict=True):
                folder = out / "runs" / f"{name}-seed{seed}"
                done = folder / "result.json"
                if not done.exists():
                    result = train_and_judge(
                        setup,
                        bars,
                        surrogates,
                        bayes=experiment.bayes,
                        folder=files.make_folder(folder),
                        resume=True,
                        eval_every=experiment.eval_every,
                        checkpoint_every=experiment.checkpoint_every,
                        stop=stop,
                    )
                    row = result.row() | {"rounds_to": history.rounds_to(history.read(folder))}
                    files.write_json(done, row)
                rows.append(_row(done))
                files.write_json(out / "results.json", rows)
    return rows


def _claim(experiment: Experiment, out: Path, resume: bool, overwrite: bool) -> list[Row]:
    """Make `out` this experiment's folder; the rows of the runs that it has finished."""
    said = experiment.model_dump(mode="json", exclude={"name", "description"})
    marker = out / "experiment.json"
    if overwrite and marker.exists():
        for name in OURS:
            path = out / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if not marker.exists():
        files.make_folder(out)
        taken = [name for name in OURS if (out / name).exists()]
        if taken:
            raise InputError(f"{out} holds {taken[0]} of something else: use another folder")
        files.write_json(marker, said)
        return []
    if files.read_json(marker) != said:
        raise InputError(f"{out} holds another experiment: use another folder, or --overwrite to replace it")
    files.make_folder(out)
    found = [
        out / "runs" / f"{name}-seed{seed}" / "result.json" for seed in said["seeds"] for name in said["algorithms"]
    ]
    rows = [_row(path) for path in found if path.exists()]
    if len(rows) < len(found) and not resume:
        raise InputError(f"{out} holds this experiment, unfinished: --resume goes on, --overwrite starts anew")
    return rows


def _row(path: Path) -> Row:
    """A finished run's result, if it is one."""
    row = files.read_json(path)
    if not isinstance(row, dict) or not {"algorithm", "seed", "faa", "excess_risk"} <= row.keys():
        raise InputError(f"{path}: not the result of a run; delete it and --resume makes it again")
    return row
