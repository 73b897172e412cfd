"""A sweep: every method with every combination of option values and every seed; validation data choose the best.

DIR/sweep.json                    what is swept
DIR/.lock                         held by the process that works in this folder
DIR/results.json                  one row per finished run, with its `point`: the values of the swept options
DIR/sweep.svg                     the validation loss for each value
DIR/runs/ditto-DIGEST-seed0/      history.jsonl, two checkpoints, result.json; diverged.txt: why it has no result
DIR/surrogates/                   best losses, shared by the runs
"""

from __future__ import annotations

import copy
import itertools
import queue as queues
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from focusfl.algorithms import ALGORITHMS, PRESETS, split_method, title
from focusfl.report.rows import Row
from focusfl.report.sweep import Point, plot
from focusfl.run import identity, results
from focusfl.run.best_loss import Surrogates, resolve
from focusfl.run.experiment import Experiment, Table, apply_changes, key_parts
from focusfl.run.fit import notes, train_and_judge
from focusfl.run.out_folder import require_empty, require_outside_data
from focusfl.run.setup import Setup
from focusfl.util import files
from focusfl.util.errors import CannotRun, Diverged, InputError, Interrupted
from focusfl.util.progress import RunProgress, TotalProgress
from focusfl.util.workers import run_in_processes

LISTS = ("metrics",)  # options that take several values at once: their commas do not separate points
MAY_HAVE_COMMAS = ("model", "loss")  # options whose text may have commas itself: mlp:64,32 and weighted:1,5
SHARE = 0.2  # of each agent's training examples that is held out for validation, unless the user sets it
CONTENTS = ("results.json", "sweep.svg", "runs", "surrogates")  # besides the marker, which is replaced last


@dataclass(frozen=True)
class SweptRun:
    """One method with one value for each swept option and one seed."""

    experiment: Experiment  # with these values; its only method and seed are those of the run
    point: Table  # swept options that apply to the method, and their values

    @property
    def method(self) -> str:
        return self.experiment.algorithms[0]

    @property
    def seed(self) -> int:
        return self.experiment.seeds[0]

    def __str__(self) -> str:
        return ", ".join([self.method, *(f"{k}={v}" for k, v in self.point.items()), f"seed {self.seed}"])

    def folder(self, out: Path) -> Path:
        """Return the folder of its run."""
        values = identity.digest([[key, value] for key, value in self.point.items()])[:8]
        return results.run_folder(out, f"{self.method}-{values}" if self.point else self.method, self.seed)

    def result(self, out: Path) -> Row | None:
        """Read its row; None if it has not finished or diverged."""
        return results.read_row(self.folder(out))

    def diverged(self, out: Path) -> str:
        """Return why it has no result, if it diverged; it would diverge again."""
        path = self.folder(out) / "diverged.txt"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def finished(self, out: Path) -> bool:
        """Say whether there is nothing left to compute."""
        return (self.folder(out) / "result.json").exists() or bool(self.diverged(out))


@dataclass(frozen=True)
class Sweep:
    """What is swept.

    Args:
        raw: An experiment, as in TOML, that the values change.
        grid: The values of each key, as text: {"train.lr": ["0.01", "0.1"]}. A key with one value is only set. An
            option of a method, such as ditto.lam, concerns the runs of that method alone.

    Raises:
        InputError: A key, a value or the experiment cannot be used.
    """

    raw: Table
    grid: dict[str, list[str]]
    base: Experiment = field(init=False)  # with the first value of each key
    runs: list[SweptRun] = field(init=False)

    def __post_init__(self) -> None:
        base = self._experiment({key: texts[0] for key, texts in self.grid.items()})
        methods = list(dict.fromkeys(split_method(method)[0] for method in base.methods))
        for key in self.swept:
            owner = key_parts(key)[0]
            if owner in {*ALGORITHMS, *PRESETS} - {*methods}:
                raise InputError(f"--set {key}: {owner} is not one of the algorithms")
            if owner in ("seeds", "algorithms", "validation"):
                raise InputError(f"--set {key}: give it one value; it is the same for the whole sweep")
        share = base.settings.validation
        if not (base.federation(base.seeds[0]).recipe.validation if share is None else share):
            raise InputError("validation = 0: the sweep chooses on validation data; set a share such as 0.2")
        runs = [
            SweptRun(experiment.model_copy(update={"algorithms": [method], "seeds": [seed]}), point)
            for method in base.methods
            for point, experiment in self._points(split_method(method)[0], methods)
            for seed in base.seeds
        ]
        runs.sort(key=lambda run: base.seeds.index(run.seed))  # the first seed of everything first
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "runs", runs)

    @property
    def swept(self) -> list[str]:
        """The keys with several values."""
        return [key for key, texts in self.grid.items() if len(texts) > 1]

    def description(self) -> Table:
        """Return what sweep.json says; a folder with another one belongs to another sweep."""
        described = self.base.model_dump(mode="json")
        del described["name"], described["description"]
        return {
            "experiment": described,
            "grid": {key: self.grid[key] for key in self.swept},
            "select": "validation",
        }

    def changes(self, point: Point) -> list[str]:
        """Return the `key=value` changes that give an experiment the values of a point, as the user wrote them."""
        others = {split_method(m)[0] for m in self.base.methods} - {split_method(point.method)[0]} | {"algorithms"}
        made = []
        for key, texts in self.grid.items():
            same = (text for text in texts if key not in point.options or _value(text) == point.options[key])
            made += [f"{key}={next(same)}"] if key_parts(key)[0] not in others else []
        return made if "validation" in self.grid else [*made, f"validation={self.base.settings.validation}"]

    def _points(self, method: str, methods: list[str]) -> list[tuple[Table, Experiment]]:
        """Return the points of a method: the product of the keys that are not options of another method."""
        keys = [key for key in self.swept if key_parts(key)[0] not in methods or key_parts(key)[0] == method]
        fixed = {key: texts[0] for key, texts in self.grid.items() if key not in keys}
        made = []
        for texts in itertools.product(*(self.grid[key] for key in keys)):
            point = {key: _value(text) for key, text in zip(keys, texts, strict=True)}
            made.append((point, self._experiment({**fixed, **dict(zip(keys, texts, strict=True))})))
        return made

    def _experiment(self, values: dict[str, str]) -> Experiment:
        raw = apply_changes(copy.deepcopy(self.raw), [f"{key}={text}" for key, text in values.items()])
        raw.setdefault("validation", SHARE)
        try:
            return Experiment.parse(raw)
        except InputError as error:
            for key in MAY_HAVE_COMMAS:
                if key in self.swept and str(error).startswith(key):
                    whole = ",".join(self.grid[key])
                    advice = f"Commas separate values; quote one that has commas: --set \"{key}='{whole}'\""
                    raise InputError(f"{error}. {advice}") from error
            raise


def _value(text: str) -> Any:
    """Return the value that a text stands for in `--set key=text`."""
    return apply_changes({}, [f"v={text}"])["v"]


def parse_grid(changes: Iterable[str]) -> dict[str, list[str]]:
    """Read `--set key=a,b,c`. A value in brackets or quotes may have commas; metrics=a,b is one value.

    Raises:
        InputError: A change is not of that form, or a key or a value is there twice.

    Example:
        >>> parse_grid(["train.lr=0.01,0.1", "data.sigma=[0.1,0.2],[0.3]", "model='mlp:64,32',linear"])
        {'train.lr': ['0.01', '0.1'], 'data.sigma': ['[0.1,0.2]', '[0.3]'], 'model': ["'mlp:64,32'", 'linear']}
    """
    grid: dict[str, list[str]] = {}
    for change in changes:
        key, equals, text = (part.strip() for part in change.partition("="))
        values = [v.strip() for v in re.findall(r"""(?:\[[^]]*\]|\{[^}]*\}|"[^"]*"|'[^']*'|[^,])+""", text)]
        values = [text] if key in LISTS and text else values
        if not equals or not key or not all(values) or not values:
            raise InputError(f"--set {change}: expected key=value,value, for example train.lr=0.01,0.1")
        if key in grid or len(set(values)) < len(values):
            raise InputError(f"--set {change}: name each key and each value once")
        grid[key] = values
    return grid


def sweep(
    wanted: Sweep,
    out: Path,
    jobs: int,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    note: Callable[[str], None] = print,
) -> list[Point]:
    """Compute what is missing of a sweep, in several processes.

    Args:
        wanted: What is swept.
        out: Folder for the results.
        jobs: How many runs to compute at the same time.
        resume: Continue an unfinished sweep in that folder.
        overwrite: Delete the results in that folder and start over.
        progress: Show a progress bar on stderr. Default: if stderr is a terminal.
        note: Called with every remark for the user.

    Returns:
        Every method with every combination of values, and its rows.

    Raises:
        InputError: If the input or the folder cannot be used, or a run failed.
        Interrupted: If the user stopped it; the folder can be resumed.
    """
    runs, fingerprint = _check(wanted, out, note)
    with files.lock(files.make_folder(out) / ".lock", wait=0) as locked:
        if not locked:
            raise InputError(f"{out} is locked by another process: wait for it, or use another folder")
        files.remove_temporary_files(out)
        _claim(wanted.description() | {"data": fingerprint}, out, overwrite)
        todo = [run for run in runs if not run.finished(out)]
        if not todo:
            note(f"{out} already holds this sweep: nothing to do (--overwrite runs it again)")
        elif any(run.folder(out).exists() for run in runs) and not resume:
            raise InputError(f"{out} holds this sweep, unfinished: --resume continues it, --overwrite starts over")
        try:
            _compute(todo, len(runs), out, min(jobs, len(todo)), progress)
        finally:
            points = _save(runs, out)
    failed = {str(run): path for run in todo if (path := run.folder(out) / "failed.txt").exists()}
    for name, path in failed.items():
        more = f", as did {len(failed) - 1} other runs" * (len(failed) > 1)
        raise InputError(f"{name} failed{more}: {path.read_text(encoding='utf-8')}; --resume tries again")
    return points


def _check(wanted: Sweep, out: Path, note: Callable[[str], None]) -> tuple[list[SweptRun], str]:
    """Fail on bad input before anything is written.

    Returns:
        The runs, with "all" those of the methods that can run; and the fingerprint of the first run's data.
    """
    ready: dict[str, Setup] = {}
    for run in {run.method: run for run in reversed(wanted.runs)}.values():
        try:
            setup = run.experiment.setups(run.seed)[run.method]
            assert isinstance(setup, Setup)
            ready[run.method] = setup
        except CannotRun as reason:
            if wanted.base.algorithms != ["all"]:
                raise
            note(f"{title(run.method)}: left out. {reason}")
    if not ready:
        raise InputError("no method can run on this data")
    fed = next(iter(ready.values())).fed
    for line in dict.fromkeys([*fed.understood(), *(line for setup in ready.values() for line in notes(setup))]):
        note(line)
    resolve(wanted.base.settings.bayes, fed)
    require_outside_data(out, fed)
    return [run for run in wanted.runs if run.method in ready], fed.fingerprint


def _claim(description: Table, out: Path, overwrite: bool) -> None:
    """Claim `out` for this sweep, or check that it belongs to it."""
    marker = out / "sweep.json"
    new = overwrite or not marker.exists()
    if not marker.exists():
        require_empty(out, "a sweep")
    elif overwrite:
        for path in (out / name for name in CONTENTS):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if new:
        files.write_json(marker, description)
    elif files.read_json(marker) != description:
        raise InputError(f"{out} holds another sweep, or its data changed: use another folder, or --overwrite")


def _compute(todo: list[SweptRun], total: int, out: Path, jobs: int, progress: bool | None) -> None:
    """Compute the runs in separate processes; this process shows how many have finished."""
    if not todo:
        return
    with TotalProgress(total, progress, "runs") as bar:

        def watch() -> None:
            done = total - sum(not run.finished(out) for run in todo)
            bar(done, done, total)

        run_in_processes(partial(run_all, out=out), todo, jobs, watch, "--resume continues it")


def run_all(queue: Any, out: Path, stop: Callable[[], bool]) -> None:
    """Compute the runs of a queue until it is empty.

    Args:
        queue: The runs.
        out: The folder of the sweep.
        stop: Asked after every round whether to stop.
    """
    while not stop():
        try:
            run = queue.get(timeout=1)
        except queues.Empty:
            return
        try:
            _compute_one(run, out, stop)
        except Interrupted:
            return


def _compute_one(run: SweptRun, out: Path, stop: Callable[[], bool]) -> None:
    """Compute one run, or resume it; if it fails, store why."""
    folder = files.make_folder(run.folder(out))
    with files.lock(folder / "lock"):  # a worker of a sweep that was killed may still finish its round
        if run.finished(out):
            return
        (folder / "failed.txt").unlink(missing_ok=True)
        try:
            setup = run.experiment.setups(run.seed)[run.method]
            assert isinstance(setup, Setup)  # the method was named: otherwise CannotRun was raised
            with RunProgress(False) as bars:
                result = train_and_judge(setup, bars, Surrogates(out / "surrogates"), folder, stop=stop)
            results.write_row(folder, result.row() | {"method": run.method, "point": run.point})
        except Diverged as error:
            files.write_text(folder / "diverged.txt", str(error))
        except (Interrupted, OSError):  # a full disk would meet every run
            raise
        except Exception as error:
            files.write_text(folder / "failed.txt", f"{type(error).__name__}: {error}")


def _save(runs: list[SweptRun], out: Path) -> list[Point]:
    """Write results.json and the plot; return the points with what has finished."""
    points: dict[str, Point] = {}
    rows: list[Row] = []
    for run in runs:
        row, why = run.result(out), run.diverged(out)
        rows += [] if row is None else [row]
        key = f"{run.method} {run.point}"
        old = points.get(key, Point(run.method, run.point, (), {}))
        found = old.rows if row is None else (*old.rows, row)
        points[key] = Point(run.method, run.point, found, old.diverged | ({run.seed: why} if why else {}))
    results.write_rows(out, rows)
    made = list(points.values())
    files.write_text(out / "sweep.svg", files.printable(plot(made)))
    return made
