"""Run an experiment: every method with every seed, in one folder. It can be resumed after it was killed.

DIR/experiment.json               the experiment that the folder belongs to
DIR/data.json                     fingerprint of the first seed's data; other data are refused
DIR/.lock                         held by the process that works in this folder
DIR/results.json                  one row per finished run
DIR/left-out.json                 with "all": the methods that cannot run, and why
DIR/runs/focus-seed0/             history.jsonl, two checkpoints, examples.safetensors, result.json
DIR/runs/focus-seed0/model/       the trained model (run/saved/store.py), for focusfl predict
DIR/tracking/mlflow/              with --track mlflow: what MLflow reads; so with tensorboard and wandb
DIR/surrogates/KEY.json           best losses, shared by the methods; KEY.safetensors: per test example
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from focusfl.algorithms import split_method
from focusfl.data.federation import Federation
from focusfl.data.own.folder import FolderFederation
from focusfl.fairness import examples
from focusfl.report.gains import needs_gap_se
from focusfl.report.names import agent_names
from focusfl.report.rows import Row
from focusfl.run import results
from focusfl.run.best_loss import Surrogates, resolve
from focusfl.run.callbacks import Callback, Callbacks
from focusfl.run.experiment import Experiment
from focusfl.run.fit import notes, train_and_judge
from focusfl.run.out_folder import require_empty, require_outside_data
from focusfl.run.result import Result
from focusfl.run.setup import Setup
from focusfl.util import files
from focusfl.util.errors import CannotRun, Diverged, InputError
from focusfl.util.interrupt import graceful_stop
from focusfl.util.progress import RunProgress

# What an experiment writes besides its marker, experiment.json, which --overwrite replaces last.
CONTENTS = ("results.json", "left-out.json", "runs", "tracking", "surrogates", "data.json")


def no_callbacks(method: str, seed: int) -> Sequence[Callback]:
    """The default `callbacks`."""
    return ()


def compare(
    experiment: Experiment,
    out: Path,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    note: Callable[[str], None] = print,
    models: bool = True,
    callbacks: Callable[[str, int], Sequence[Callback]] = no_callbacks,
) -> list[Row]:
    """Run an experiment; if the folder already holds all its results, only read them.

    Args:
        experiment: Methods, seeds, data and settings.
        out: Folder for the results.
        resume: Continue an unfinished experiment in that folder.
        overwrite: Delete the results in that folder and start over.
        progress: Show progress bars on stderr. Default: if stderr is a terminal.
        note: Called with every remark for the user.
        models: Save the trained model of every run.
        callbacks: Returns the callbacks of a run, given its method and its seed.

    Returns:
        The rows of results.json.

    Raises:
        InputError: If the input or the folder cannot be used.
        Diverged: If a method diverged; with "all", if every method did.
        Interrupted: If the user stopped it; the folder can be resumed.
    """
    setups = experiment.setups(experiment.seeds[0])  # fails on bad input before anything is written
    left_out = {method: str(reason) for method, reason in setups.items() if isinstance(reason, CannotRun)}
    runs = {method: setup for method, setup in setups.items() if isinstance(setup, Setup)}
    if not runs:
        raise InputError(f"no method can run: {next(iter(left_out.values()))}")
    fed = next(iter(runs.values())).fed
    resolve(experiment.settings.bayes, fed)
    require_outside_data(out, fed)
    if isinstance(fed, FolderFederation):
        note(agent_names(fed.agents))
    for line in dict.fromkeys([*fed.understood(), *(line for setup in runs.values() for line in notes(setup))]):
        note(line)
    for name in experiment.params.keys() - {split_method(method)[0] for method in experiment.methods}:
        note(f"options of {name} are set, but it is not one of the algorithms")
    with files.lock(files.make_folder(out) / ".lock", wait=0) as locked:
        if not locked:
            raise InputError(f"{out} is locked by another process: wait for it, or use another folder")
        files.remove_temporary_files(out)
        if not overwrite:
            left_out |= results.read_left_out(out)  # what diverged before would diverge again
        methods = [method for method in runs if method not in left_out]
        rows = _claim(experiment, fed, methods, out, resume, overwrite)
        if left_out:
            files.write_json(out / "left-out.json", left_out)
        if len(rows) == len(methods) * len(experiment.seeds):
            results.write_rows(out, rows)  # it may have been killed between the last run and this
            note(f"{out} already holds this experiment: nothing to do (--overwrite runs it again)")
        else:
            with graceful_stop() as stop, RunProgress(progress) as bars:
                rows = _run(experiment, out, left_out, bars, stop, models, callbacks)
    if not rows:
        raise Diverged(f"every method failed: {next(iter(left_out.values()))}")
    return rows


def _claim(
    experiment: Experiment, fed: Federation, methods: list[str], out: Path, resume: bool, overwrite: bool
) -> list[Row]:
    """Claim `out` for this experiment, or check that it belongs to it; return the rows of its finished runs."""
    description = experiment.model_dump(mode="json")
    del description["name"], description["description"]  # the same experiment may have another name
    clusters = None if fed.clusters is None else fed.clusters.tolist()
    data = {"fingerprint": fed.fingerprint, "clusters": clusters}
    marker, data_file = out / "experiment.json", out / "data.json"
    new = overwrite or not marker.exists()
    if not marker.exists():
        require_empty(out, "an experiment")
    elif overwrite:
        for path in (out / name for name in CONTENTS):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if new:
        files.write_json(marker, description)
    elif files.read_json(marker) != description:
        raise InputError(f"{out} holds another experiment: use another folder, or --overwrite to replace it")
    if not data_file.exists():  # a folder of an early version has none
        files.write_json(data_file, data)
    elif files.read_json(data_file) != data:
        raise InputError(f"{out}: the data has changed since it was started: use another folder, or --overwrite")
    folders = [results.run_folder(out, method, seed) for seed in experiment.seeds for method in methods]
    rows = [row for folder in folders if (row := results.read_row(folder)) is not None]
    if len(rows) < len(folders) and not resume and not new:
        raise InputError(f"{out} holds this experiment, unfinished: --resume continues it, --overwrite starts over")
    return rows


def _run(
    experiment: Experiment,
    out: Path,
    left_out: dict[str, str],
    bars: RunProgress,
    stop: Callable[[], bool],
    models: bool,
    callbacks: Callable[[str, int], Sequence[Callback]],
) -> list[Row]:
    """Compute every run that has not finished. With "all", leave out methods that diverge, with all their rows."""
    surrogates = Surrogates(out / "surrogates")
    rows: list[Row] = []
    for seed in experiment.seeds:
        for method, setup in experiment.setups(seed).items():
            if not isinstance(setup, Setup) or method in left_out:
                continue
            folder = results.run_folder(out, method, seed)
            row = results.read_row(folder)
            if row is None:
                watchers = Callbacks(callbacks(method, seed))
                try:
                    result = train_and_judge(
                        setup, bars, surrogates, files.make_folder(folder), stop=stop, callbacks=watchers
                    )
                except Diverged as reason:
                    if not experiment.leaves_out:
                        raise Diverged(f"{method}, seed {seed}: {reason}") from reason
                    left_out[method] = f"seed {seed}: {reason}"
                    files.write_json(out / "left-out.json", left_out)
                    rows = [other for other in rows if other["method"] != method]
                    results.write_rows(out, rows)
                    continue
                row = result.row() | {"method": method}
                _add_paired_noise(result, row, folder, [other for other in rows if other["seed"] == seed], out)
                if models:
                    result.save(folder / "model")
                row = results.write_row(folder, row)
            rows.append(row)
            results.write_rows(out, rows)
    return rows


def _add_paired_noise(result: Result, row: Row, folder: Path, others: list[Row], out: Path) -> None:
    """Add to the row how its noise correlates with that of other methods with the same seed.

    For that, and for later runs, the excess losses of the test examples are stored in the run's folder.
    """
    if result.examples is not None and result.excess_se is not None:
        examples.save(folder, result.examples)
        folders = {other["method"]: results.run_folder(out, other["method"], other["seed"]) for other in others}
        paired = [other["method"] for other in others if needs_gap_se(row, other)]
        row["faa_correlation"], row["gap_se"] = examples.compare_with(folder, folders, paired)
