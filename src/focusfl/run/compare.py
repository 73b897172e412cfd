"""Run an experiment: every method, every seed, into one folder; killed at any time, it goes on where it was.

DIR/experiment.json               what the folder holds
DIR/data.json                     the fingerprint of the data, of the first seed; other data are refused
DIR/.lock                         held by the process that is at work here
DIR/results.json                  a row per finished run
DIR/left-out.json                 of "all", the methods that cannot run here, and why
DIR/runs/focus-seed0/             history.jsonl, checkpoint.safetensors, examples.safetensors, result.json
DIR/surrogates/KEY.json           best losses, shared by the methods; KEY.safetensors: of each test example
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from focusfl.data.federation import Federation
from focusfl.data.own.folder import FolderFederation
from focusfl.fairness import examples
from focusfl.report.gains import needs_gap_se
from focusfl.report.rows import Row
from focusfl.report.sentences import agent_names
from focusfl.run import results
from focusfl.run.best_loss import Surrogates, resolve
from focusfl.run.experiment import Experiment
from focusfl.run.fit import notes, train_and_judge
from focusfl.run.result import Result
from focusfl.run.setup import Setup
from focusfl.util import files
from focusfl.util.errors import CannotRun, Diverged, InputError
from focusfl.util.interrupt import graceful_stop
from focusfl.util.progress import RunProgress

OURS = (
    "results.json",
    "left-out.json",
    "runs",
    "surrogates",
    "data.json",
    "experiment.json",
)  # the marker last: it goes last too


def compare(
    experiment: Experiment,
    out: Path,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    note: Callable[[str], None] = print,
) -> list[Row]:
    """The rows of results.json. A folder that holds all of them already is only read."""
    made = experiment.setups(experiment.seeds[0])  # fails on bad input before anything is written
    setups = {method: setup for method, setup in made.items() if isinstance(setup, Setup)}
    left_out = {method: str(why) for method, why in made.items() if isinstance(why, CannotRun)}
    if not setups:
        raise InputError(f"none of the methods can run: {next(iter(left_out.values()))}")
    fed = next(iter(setups.values())).fed
    resolve(experiment.settings.bayes, fed)
    if isinstance(fed, FolderFederation):
        _apart(experiment, out)
        note(agent_names(fed.agents))
    for line in dict.fromkeys(line for setup in setups.values() for line in notes(setup)):
        note(line)
    for name in experiment.params.keys() - {method.split(":")[0] for method in experiment.methods}:
        note(f"options of {name} are set, but it is not among the algorithms")
    with files.lock(files.make_folder(out) / ".lock", wait=0) as held:
        if not held:
            raise InputError(f"{out} is locked by another process: wait for it, or use another folder")
        if not overwrite:
            left_out |= read_left_out(out)  # what diverged before would do so again
        methods = [method for method in setups if method not in left_out]
        rows = _claim(experiment, fed, methods, out, resume, overwrite)
        if left_out:
            files.write_json(out / "left-out.json", left_out)
        if len(rows) == len(methods) * len(experiment.seeds):
            results.write_rows(out, rows)  # a kill may have come between the last run and this
            note(f"{out} holds this experiment already: nothing to do (--overwrite runs it again)")
            return _some(rows, left_out)
        with graceful_stop() as stop, RunProgress(progress) as bars:
            return _run(experiment, out, left_out, bars, stop)


def _apart(experiment: Experiment, out: Path) -> None:
    """Results within the user's data would be taken for an agent."""
    data = Path(experiment.data["path"]).expanduser().resolve()
    if out.resolve() == data or data in out.resolve().parents:
        raise InputError(f"{out}: results cannot lie in the folder of the data; name another with --out")


def _run(
    experiment: Experiment, out: Path, left_out: dict[str, str], bars: RunProgress, stop: Callable[[], bool]
) -> list[Row]:
    """Every method, every seed, but for those that are finished; of "all", one that diverges is left out."""
    surrogates = Surrogates(out / "surrogates")
    rows: list[Row] = []
    for seed in experiment.seeds:
        for method, setup in experiment.setups(seed).items():
            if not isinstance(setup, Setup) or method in left_out:
                continue
            folder = results.run_folder(out, method, seed)
            row = results.read_row(folder)
            if row is None:
                try:
                    result = train_and_judge(setup, bars, surrogates, files.make_folder(folder), stop=stop)
                except Diverged as why:
                    if experiment.algorithms != ["all"]:
                        raise Diverged(f"{method}, seed {seed}: {why}") from why
                    left_out[method] = f"seed {seed}: {why}"
                    files.write_json(out / "left-out.json", left_out)
                    rows = [other for other in rows if other["method"] != method]
                    results.write_rows(out, rows)
                    continue
                row = result.row() | {"method": method}
                _compare_noise(result, row, folder, [other for other in rows if other["seed"] == seed], out)
                row = results.write_row(folder, row)
            rows.append(row)
            results.write_rows(out, rows)
    return _some(rows, left_out)


def _compare_noise(result: Result, row: Row, folder: Path, others: list[Row], out: Path) -> None:
    """Store the run's examples, and add to its row how its noise goes along with that of the other methods."""
    if result.examples is not None and result.excess_se is not None:
        examples.save(folder, result.examples)
        folders = {other["method"]: results.run_folder(out, other["method"], other["seed"]) for other in others}
        paired = [other["method"] for other in others if needs_gap_se(row, other)]
        row["faa_correlation"], row["gap_se"] = examples.compare_with(folder, folders, paired)


def _some(rows: list[Row], left_out: dict[str, str]) -> list[Row]:
    if not rows:
        raise Diverged(f"every method failed: {next(iter(left_out.values()))}")
    return rows


def read_left_out(out: Path) -> dict[str, str]:
    """Of "all": the methods that could not run, and why."""
    path = out / "left-out.json"
    return dict(files.read_json(path)) if path.exists() else {}


def _claim(
    experiment: Experiment, fed: Federation, methods: list[str], out: Path, resume: bool, overwrite: bool
) -> list[Row]:
    """Make `out` this experiment's folder; the rows of the runs that it has finished."""
    said = experiment.model_dump(mode="json", exclude={"name", "description"})
    marker = out / "experiment.json"
    if overwrite and marker.exists():
        for name in OURS:
            path = out / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if not marker.exists():
        taken = [name for name in OURS if (out / name).exists()]
        if taken:
            raise InputError(f"{out} holds {taken[0]} of something else: use another folder")
        files.write_json(marker, said)
        _same_data(out / "data.json", fed)
        return []
    if files.read_json(marker) != said:
        raise InputError(f"{out} holds another experiment: use another folder, or --overwrite to replace it")
    _same_data(out / "data.json", fed)
    folders = [results.run_folder(out, method, seed) for seed in experiment.seeds for method in methods]
    rows = [row for each in folders if (row := results.read_row(each)) is not None]
    if len(rows) < len(folders) and not resume:
        raise InputError(f"{out} holds this experiment, unfinished: --resume continues it, --overwrite starts over")
    return rows


def _same_data(path: Path, fed: Federation) -> None:
    """Refuse data that have changed since; a folder of an older version has no such file, so it gets one."""
    clusters = None if fed.clusters is None else fed.clusters.tolist()
    found = {"fingerprint": fed.fingerprint, "clusters": clusters}
    if not path.exists():
        files.write_json(path, found)
    elif files.read_json(path) != found:
        raise InputError(f"{path.parent}: the data has changed since: use another folder, or --overwrite")
