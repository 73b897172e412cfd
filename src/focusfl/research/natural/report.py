"""natural.json and natural.md: the tables of the benchmark on natural federations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, cast

from focusfl import __version__
from focusfl.algorithms import title
from focusfl.data.sets.natural import NATURAL
from focusfl.report.gains import compare_losses
from focusfl.report.markdown import code, grid, plain
from focusfl.report.rows import Row
from focusfl.report.sentences import WITH_NOISE
from focusfl.research.natural.baselines import BASELINES
from focusfl.research.natural.benchmark import Findings, Score
from focusfl.run.experiment import Experiment
from focusfl.util import files

FLAMBY = {"fedavg": 0.685, "linear:pooled": 0.735, "linear:own": 0.730}
"""Accuracies on heart that are quoted for FLamby, means over the hospitals, by our nearest method."""
FLAMBY_NOTE = (
    "FLamby trains a linear model, and scales the features of each centre by themselves: "
    "`--set data.scale_by=agent --set data.hidden=0` does so here. Its numbers are quoted, and differ between "
    "versions of its result files."
)


def write(out: Path, described: Mapping[str, Experiment], found: Mapping[str, Findings]) -> Path:
    """Write natural.json and natural.md; return the latter."""
    left_out = {
        name: {method: reason._asdict() for method, reason in each.left_out.items()} for name, each in found.items()
    }
    settings = {name: described[name].model_dump(mode="json") for name in found}
    head: dict[str, Any] = {"version": 1, "left_out": left_out, "experiments": settings}
    files.write_rows(out / "natural.json", head, [score for each in found.values() for score in each.scores])
    page = out / "natural.md"
    files.write_text(page, markdown(described, found))
    return page


def markdown(described: Mapping[str, Experiment], found: Mapping[str, Findings]) -> str:
    """Return the page."""
    seeds = next(iter(described.values())).seeds
    parts = ["# Natural federations", tables(found)]
    left_out = [
        f"- {name}, {plain(_title(method))}: {reason.outcome}. {plain(reason.why)}"
        for name, each in found.items()
        for method, reason in each.left_out.items()
    ]
    parts += ["Left out:", "\n".join(left_out)] if left_out else []
    missing = [name for name in described if name not in found]
    parts += [f"Not finished yet: {', '.join(missing)}."] if missing else []
    lines = [f"- {name}: {code(_settings(each))}" for name, each in described.items()]
    lines += [f"- seeds: {', '.join(map(str, seeds))}; focusfl {__version__}"]
    return "\n\n".join([*parts, "Settings:", "\n".join(lines)]) + "\n"


def tables(found: Mapping[str, Findings]) -> str:
    """Return the tables as Markdown: losses, agents worse than alone and than FedAvg, and heart beside FLamby."""
    seeds = {score["seed"] for each in found.values() for score in each.scores}
    about = f"Mean test loss over the agents ({_loss_name(found)})"
    spread = f" ± standard error over {len(seeds)} seeds" if len(seeds) > 1 else ", one seed"
    parts = [f"{about}{spread}. The lowest of each column is bold.", losses(found)]
    if "heart" in found:
        parts += ["heart has a fixed split: there the seeds differ only in training."]
    for baseline, words in (("local", "alone (Local)"), ("fedavg", "under FedAvg")):
        table = worse_than(found, baseline)
        parts += [f"Agents that are worse off than {words}, beyond noise:", table] if table else []
    parts += [f"({WITH_NOISE})"]
    if "heart" in found:
        parts += [f"heart, mean accuracy over the hospitals, beside FLamby's. {FLAMBY_NOTE}", accuracies(found)]
    return "\n\n".join(parts)


def losses(found: Mapping[str, Findings]) -> str:
    """One line per method, one column per data set."""
    means = {
        (name, method): fmean(values)
        for name, each in found.items()
        for method in _methods(found)
        if (values := [score["avg_loss"] for score in _runs(each, method)])
    }
    lowest = {name: min(v for (data, _), v in means.items() if data == name) for name in found}
    lines = []
    for method in _methods(found):
        cells = []
        for name, each in found.items():
            cell = mean_and_error([score["avg_loss"] for score in _runs(each, method)])
            best = means.get((name, method)) == lowest[name]
            cells.append(f"**{cell}**" if best else cell or _absent(each, method))
        lines.append([plain(_title(method)), *cells])
    return grid(["method", *found], lines)


def worse_than(found: Mapping[str, Findings], baseline: str) -> str:
    """One line per method, one column per data set: how many agents lose; empty without runs of the baseline."""
    if not any(_runs(each, baseline) for each in found.values()):
        return ""
    lines = []
    for method in _methods(found):
        if method != baseline:
            cells = [_lost(each, method, baseline) for each in found.values()]
            lines.append([plain(_title(method)), *cells])
    return grid(["method", *found], lines)


def accuracies(found: Mapping[str, Findings]) -> str:
    """The accuracies on heart, with the published ones beside."""
    lines = []
    for method in _methods(found):
        each = [score["avg_acc"] for score in _runs(found["heart"], method)]
        cell = mean_and_error([acc for acc in each if acc is not None]) or _absent(found["heart"], method)
        lines.append([plain(_title(method)), cell, f"{FLAMBY[method]:.3f}" if method in FLAMBY else ""])
    return grid(["method", "here", "FLamby"], lines)


def mean_and_error(values: Sequence[float]) -> str:
    """Return the mean and, of two or more values, its standard error; nothing without values.

    >>> mean_and_error([1.0, 2.0, 3.0]), mean_and_error([0.25]), mean_and_error([])
    ('2.000 ± 0.577', '0.2500', '')
    """
    if not values:
        return ""
    mean = fmean(values)
    digits = 4 if abs(mean) < 1 else 3 if abs(mean) < 100 else 1
    error = f" ± {stdev(values) / sqrt(len(values)):.{digits}f}" if len(values) > 1 else ""
    return f"{mean:.{digits}f}{error}"


def _lost(each: Findings, method: str, baseline: str) -> str:
    runs, others = ([cast(Row, score) for score in _runs(each, name)] for name in (method, baseline))
    gains = compare_losses(runs, others)
    return _absent(each, method) if gains is None else f"{len(gains.lost)} of {len(gains.pairs)}"


def _absent(each: Findings, method: str) -> str:
    reason = each.left_out.get(method)
    return "-" if reason is None else reason.outcome


def _runs(each: Findings, method: str) -> list[Score]:
    return [score for score in each.scores if score["method"] == method]


def _methods(found: Mapping[str, Findings]) -> list[str]:
    """Return all methods in the order in which they were given, the linear models last."""
    named: Iterable[str] = (
        method for each in found.values() for method in [*(s["method"] for s in each.scores), *each.left_out]
    )
    return [method for method in dict.fromkeys(named) if method not in BASELINES] + list(BASELINES)


def _title(method: str) -> str:
    return BASELINES[method][0] if method in BASELINES else title(method)


def _loss_name(names: Iterable[str]) -> str:
    """Say which loss it is.

    >>> _loss_name(["heart"]), _loss_name(["heart", "exam"])
    ('log loss', 'log loss; of exam squared error')
    """
    kinds = {name: NATURAL[name].values == "regression" for name in names}
    if len(set(kinds.values())) == 1:
        return "squared error" if all(kinds.values()) else "log loss"
    return f"log loss; of {' and '.join(name for name in kinds if kinds[name])} squared error"


def _settings(experiment: Experiment) -> dict[str, Any]:
    """The settings that are not the defaults of every experiment."""
    default = Experiment.parse({"data": {"name": "synthetic"}, "algorithms": ["all"]}).model_dump(mode="json")
    written = experiment.model_dump(mode="json")
    skipped = ("name", "description", "seeds", "leave_out_failing")
    return {k: v for k, v in written.items() if k not in skipped and v != default.get(k)}
