"""Run the methods and the linear baselines on each natural federation.

OUT/NAME/          an ordinary experiment (run/compare.py): it can be resumed, and `focusfl report` makes its page
OUT/natural.json   one row per data set, method and seed, and which methods were left out
OUT/natural.md     the tables (report.py)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

from focusfl.data.sets import natural
from focusfl.report.rows import Row
from focusfl.research.natural.baselines import BASELINES
from focusfl.run.compare import compare
from focusfl.run.experiment import Experiment, apply_changes
from focusfl.run.results import read_left_out
from focusfl.util.errors import CannotRun, Diverged, InputError, nearest

NAME = "natural"
DESCRIPTION = "Every method, and linear models, on heart, landmine, vowel, exam and parkinsons: real agents."
SEEDS = (0, 1, 2, 3, 4)
Note = Callable[[str], None]
RunOne = Callable[[Experiment, Path], Sequence[Row]]
Outcome = Literal["diverged", "cannot run"]


class Score(TypedDict):
    """One run, or one baseline, on one data set with one seed. Its keys are those of `report.rows.Row`."""

    data: str
    method: str
    seed: int
    avg_loss: float
    avg_acc: float | None
    loss: list[float]  # [E]
    acc: list[float] | None
    names: NotRequired[list[str]]
    excess_se: NotRequired[list[float]]  # of a baseline: the standard error of its losses
    gap_se: NotRequired[dict[str, list[float]]]
    seconds: NotRequired[float]


class LeftOut(NamedTuple):
    """A method that has no numbers on a data set."""

    outcome: Outcome
    why: str


class Findings(NamedTuple):
    """The results on one data set.

    Attributes:
        scores: One per method and seed.
        left_out: By method.
    """

    scores: list[Score]
    left_out: dict[str, LeftOut]


def experiments(
    names: Sequence[str],
    algorithms: Sequence[str],
    seeds: Sequence[int],
    rounds: int | None = None,
    changes: Sequence[str] = (),
) -> dict[str, Experiment]:
    """Describe the experiment of each data set.

    Args:
        names: Data sets; keys of NATURAL.
        algorithms: Methods, or ["all"].
        seeds: Every method runs once per seed.
        rounds: The number of rounds; None is that of the recipe.
        changes: Options as in `--set`.

    Raises:
        InputError: A name or an option is unknown, or the data is not there.
    """
    described = {}
    for name in names:
        if name not in natural.NATURAL:
            raise InputError(f"--data {name}: {nearest(name, natural.NATURAL)}")
        raw: dict[str, Any] = {"name": f"{NAME}-{name}", "data": {"name": name}, "leave_out_failing": True}
        raw |= {"algorithms": list(algorithms), "seeds": list(seeds)} | ({"rounds": rounds} if rounds else {})
        experiment = Experiment.parse(apply_changes(raw, changes))
        if experiment.data["name"] != name:
            raise InputError("--set data.name: the data sets of the benchmark are chosen with --data")
        if experiment.settings.loss is not None:
            raise InputError("loss: the benchmark compares log losses and squared errors, leave it as it is")
        natural.find(name, experiment.data.get("path"))
        described[name] = experiment
    return described


def run(
    described: Mapping[str, Experiment],
    out: Path,
    run_one: RunOne = compare,
    note: Note = print,
    finished: Callable[[Mapping[str, Findings]], None] = lambda found: None,
) -> dict[str, Findings]:
    """Run the experiments and the baselines, one data set after the other.

    Args:
        described: The experiments, by data set.
        out: Folder for the results; each data set gets a folder in it.
        run_one: Runs one experiment in a folder and returns its rows.
        note: Called with remarks for the user.
        finished: Called after each data set with all findings so far.

    Returns:
        The findings, by data set.
    """
    found: dict[str, Findings] = {}
    for i, (name, experiment) in enumerate(described.items(), 1):
        note(f"{name}: data set {i} of {len(described)}")
        found[name] = _methods(experiment, out / name, run_one)
        for seed in experiment.seeds:
            found[name].scores.extend(_baselines(experiment, name, seed))
        finished(found)
    return found


def _methods(experiment: Experiment, out: Path, run_one: RunOne) -> Findings:
    setups = experiment.setups(experiment.seeds[0])
    unable = {method: str(why) for method, why in setups.items() if isinstance(why, CannotRun)}
    rows: Sequence[Row] = []
    reasons = unable
    if len(unable) < len(setups):
        try:
            rows = run_one(experiment, out)
        except Diverged:  # every method
            if not read_left_out(out):
                raise
        reasons = unable | read_left_out(out)
    left_out = {m: LeftOut("cannot run" if m in unable else "diverged", why) for m, why in reasons.items()}
    return Findings([_score(experiment.data["name"], row) for row in rows], left_out)


def _score(name: str, row: Row) -> Score:
    every: dict[str, Any] = dict(row)
    return {key: every[key] for key in Score.__annotations__ if key in every} | {"data": name}  # type: ignore[return-value]


def _baselines(experiment: Experiment, name: str, seed: int) -> list[Score]:
    fed = experiment.federation(seed).with_validation(experiment.settings.validation, seed)
    scores: list[Score] = []
    for method, (_, measure) in BASELINES.items():
        loss, acc, loss_se = measure(fed)
        scores.append(
            Score(
                data=name,
                method=method,
                seed=seed,
                avg_loss=fmean(loss),
                avg_acc=None if acc is None else fmean(acc),
                loss=loss,
                acc=acc,
                excess_se=loss_se,
            )
        )
    return scores
