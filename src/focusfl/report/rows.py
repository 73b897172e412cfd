"""One row of results.json: what one run found. Every table, sentence and plot is made from these rows.

`Row` says which keys there are; `read_row` and `read_rows` check what comes from a file. E agents, M clusters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,  # pydantic needs this TypedDict before Python 3.12
    TypeAlias,
    TypeVar,
    cast,
)

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from focusfl.algorithms import title
from focusfl.fairness.scores import BUILT_IN, LOWER_IS_BETTER
from focusfl.util import files
from focusfl.util.errors import InputError

ROW_VERSION = 1  # of the rows that this release writes
LARGEST = 3.5e38  # of a number: a run computes in float32
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**64)]
V = TypeVar("V")
Items = Annotated[list[V], Field(fail_fast=True)]  # the first wrong item ends the check


class IntervalRow(TypedDict):
    """A confidence interval (fairness.intervals.Interval)."""

    low: Number
    estimate: Number  # corrected for the bias that noise brings
    high: Number


class LabelHistory(TypedDict):
    """Soft labels in some of the rounds."""

    round: Items[Count]  # [rounds]
    pi: Items[
        Items[Items[Number]]
    ]  # [rounds][E][M]; E are all agents, also those that `agents` of the row leaves out


class RoundHistory(TypedDict):
    """Averages in the rounds that were evaluated (run.history.thin)."""

    round: Items[Count]  # [rounds], counted from 1, as in the lists below
    avg_loss: Items[Number]
    agnostic_loss: Items[Number]
    avg_acc: Items[Number] | None  # None in regression
    pi: LabelHistory | None  # None without labels, or with too many of them to keep


class Row(TypedDict):
    """One run: one method on one data set with one seed."""

    version: NotRequired[Count]  # of this format; rows of release 0.1 have none

    # What was run
    method: str  # as the user wrote it, with options: "qffl:q=0.1"
    algorithm: str  # its key in ALGORITHMS, "qffl", or "my_module:MyMethod"
    params: dict[str, Any]  # all options of the algorithm, by name
    data: str  # name of the federation
    seed: Count
    rounds: Count  # T; fewer if training stopped early
    best_round: NotRequired[Count]  # with early stopping, the round of these numbers
    loss_name: NotRequired[str]  # of the loss, if it is not the default
    engine: str  # serial | vectorised | flower
    train: dict[str, Any]  # options of local training (core.train.Train)
    precision: NotRequired[str]  # "bf16" if local training multiplied in bfloat16

    # Averages over the agents
    avg_acc: Number | None  # None in regression
    avg_loss: Number
    faa: Number  # the largest excess risk minus the least
    agnostic_loss: Number  # loss of the worst agent
    accuracy_parity: Number | None  # standard deviation of the agents' accuracies; None in regression
    worst_agent: Count  # place in `loss` of the largest loss
    validation_loss: NotRequired[Number]  # the mean over the agents that have validation data
    constant_acc: NotRequired[Number]  # if each agent always predicts its most frequent training class
    target: NotRequired[str]  # name of the label column, in regression
    seconds: Number  # of training
    rounds_to: NotRequired[
        dict[str, Count | None] | None
    ]  # first round with each accuracy: {"0.7": 12, "0.8": None}

    # One entry per agent, [E]
    agents: NotRequired[Items[Count]]  # their numbers, if some sent no result; otherwise 0 ... E - 1
    names: NotRequired[Items[str]]  # their names, if the data comes from a folder
    n: NotRequired[Items[Count]]  # training examples
    loss: Items[Number]  # on the agent's test data
    acc: Items[Number] | None  # None in regression
    n_test: NotRequired[Items[Count]]  # test examples
    metrics: NotRequired[dict[str, Items[Number | None]]]  # by name, the one that decides first; None: not defined
    adaptation: NotRequired[dict[str, Items[Number]]]  # shares of its prediction: shared, intercept, weights, alone
    excess_risk: Items[Number]  # loss minus best loss
    bayes: Items[Number]  # best loss
    bayes_kind: str  # where the best losses come from: exact | true | validated | learned | agent
    bayes_from: NotRequired[Items[str]]  # if validated: the model whose loss it is
    bayes_low: NotRequired[Items[Number]]  # if validated: the 95 % interval of the best loss, ...
    bayes_estimate: NotRequired[Items[Number]]  # ... with the error of estimation taken off, ...
    bayes_high: NotRequired[Items[Number]]  # ... and its upper limit
    alone: NotRequired[Items[Number]]  # if validated: the loss of a network that the agent trained alone
    alone_se: NotRequired[Items[Number | None]]  # standard error of `loss` minus that; None: not known
    pi: Items[Items[Number]] | None  # [E][M] soft labels; None for methods without
    clusters: Items[Count]  # agents with the same number share a model
    true_clusters: Items[Count] | None  # None if they are not known
    ari: Number | None  # adjusted Rand index of `clusters` and `true_clusters`

    # Noise of the test examples; None for an agent with too few of them, which the intervals leave out
    excess_se: NotRequired[Items[Number | None]]  # [E] standard error of each excess risk
    faa_interval: NotRequired[IntervalRow]
    faa90: NotRequired[Number]  # 95th minus 5th percentile of the excess risks, with many agents
    faa90_interval: NotRequired[IntervalRow]
    faa_correlation: NotRequired[dict[str, Number]]  # of the noise of two methods' FAA, by the other method
    gap_se: NotRequired[dict[str, Items[Number | None]]]  # [E] of differences in loss, by the other method

    # Only in the results of `focusfl sweep`
    point: NotRequired[dict[str, Any]]  # the values of the swept options

    # Only in the results of `focusfl reproduce` and on a page
    part: NotRequired[str]  # which of several settings it belongs to: "k = 1"; "" if there is one
    history: NotRequired[RoundHistory | None]  # None if no history was kept
    key: NotRequired[str]  # identifies the run's settings (research.paper.cells)
    made: NotRequired[dict[str, Any]]  # versions, machine and commit that computed it


Runs: TypeAlias = dict[str, list[Row]]  # the runs of several methods, by the method's title
Metric: TypeAlias = Literal["avg_acc", "avg_loss", "faa", "agnostic_loss"]
METRICS: dict[Metric, str] = {  # the columns of every table of results, with their headings
    "avg_acc": "accuracy",
    "avg_loss": "loss",
    "faa": "FAA",
    "agnostic_loss": "agnostic loss",
}
_ROW = TypeAdapter(Row)
PER_AGENT = (
    *("loss", "acc", "excess_risk", "bayes", "pi", "clusters", "true_clusters", "excess_se", "agents"),
    *("n", "n_test", "bayes_from", "bayes_low", "bayes_estimate", "bayes_high", "alone", "alone_se"),
)


def read_row(value: object, path: Path) -> Row:
    """Check that a value is a row.

    Args:
        value: What was read from the file. Keys that are not known are kept.
        path: The file, for messages.

    Returns:
        The same value; with control characters made visible, if a text has any.

    Raises:
        InputError: A key is missing or has a wrong type or length, or a newer release has written the row.
    """
    version = value.get("version") if isinstance(value, dict) else None
    if isinstance(version, int) and version > ROW_VERSION:
        newer = f"a newer focusfl wrote it (version = {version}, this one reads {ROW_VERSION} at most)"
        raise InputError(f"{path}: {newer}: update focusfl")
    try:
        _ROW.validate_python(value, strict=True)
        row = cast(Row, value)
        _check_lengths(row)
    except ValueError as error:
        advice = "This is not the result of a run: delete the file and run the command that wrote it again"
        raise InputError(f"{path}: {describe_error(error)}. {advice}") from error
    return cast(Row, _visible(row))


def describe_error(error: ValueError) -> str:
    """Return the first thing that is wrong in one line: the key, what was expected, and what was found."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    key = files.visible(".".join(map(str, first["loc"]))) or "row"
    found = repr(first["input"])
    return f"{key}: {first['msg']}, found {found if len(found) <= 40 else found[:37] + '...'}"


def _check_lengths(row: Row) -> None:
    """Raise a ValueError that names the key if what belongs together does not fit."""

    def require(key: str, ok: bool, expected: str) -> None:
        if not ok:
            raise ValueError(f"{key}: expected {expected}")

    E = len(row["loss"])
    lists: dict[str, Any] = {k: v for k, v in row.items() if k in PER_AGENT and v is not None}
    lists |= {f"gap_se.{method}": v for method, v in row.get("gap_se", {}).items()}
    lists |= {f"adaptation.{kind}": v for kind, v in row.get("adaptation", {}).items()}
    lists |= {f"metrics.{name}": v for name, v in row.get("metrics", {}).items()}
    for key, each in lists.items():
        require(key, len(each) == E > 0, f"one entry per agent ({E}), found {len(each)}")
    require("worst_agent", row["worst_agent"] < E, f"one of {E} agents")
    require("agents", len(set(agent_numbers(row))) == E, "every agent once")
    require("pi", row["pi"] is None or _same_length(row["pi"]), "as many labels for each agent")
    require("ari", (row["ari"] is None) == (row["true_clusters"] is None), "a number if true_clusters are known")
    missing = [row[key] is None for key in ("acc", "avg_acc", "accuracy_parity")]
    require("acc", len(set(missing)) == 1, "avg_acc, acc and accuracy_parity, or none of them")
    require("rounds_to", all(map(_is_share, row.get("rounds_to") or {})), "accuracies between 0 and 1")
    if (history := row.get("history")) is not None:
        check_history(history, max(agent_numbers(row)) + 1)


def check_history(history: RoundHistory, agents: int) -> None:
    """Raise a ValueError unless the lists of a history fit each other and have labels of that many agents."""
    rounds = history["round"]
    curves = (history["avg_loss"], history["agnostic_loss"], history["avg_acc"])
    if any(curve is not None and len(curve) != len(rounds) for curve in curves):
        raise ValueError(f"history: expected one entry per round ({len(rounds)})")
    if (labels := history["pi"]) is not None:
        fits = len(labels["pi"]) == len(labels["round"]) > 0
        if not fits or not all(len(each) >= agents and _same_length(each) for each in labels["pi"]):
            raise ValueError(f"history.pi: expected labels of {agents} agents per round")


def _same_length(lists: Sequence[Sequence[float]]) -> bool:
    return len({len(each) for each in lists}) == 1 and len(lists[0]) > 0


def _is_share(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False


def _visible(value: Any) -> Any:
    """Return a JSON value with control characters made visible; the same object if there are none."""
    if isinstance(value, str):
        return shown if (shown := files.visible(value)) != value else value
    if isinstance(value, dict):
        new = {_visible(k): _visible(v) for k, v in value.items()}
        same = all(a is b for a, b in zip([*value, *value.values()], [*new, *new.values()], strict=False))
        return value if same else new
    if isinstance(value, list) and any(not isinstance(each, float | int) for each in value):
        items = [_visible(each) for each in value]
        return value if all(a is b for a, b in zip(value, items, strict=True)) else items
    return value


def read_rows(path: Path) -> list[Row]:
    """Read results.json.

    Args:
        path: The file.

    Returns:
        Its rows.

    Raises:
        InputError: The file is not JSON, not a list, or one of its rows is not a row (see `read_row`).
    """
    values = files.read_json(path)
    if not isinstance(values, list):
        raise InputError(f"{path}: expected a list of rows; delete the file and run the experiment with --resume")
    rows = [read_row(value, path) for value in values]
    if len({(row["method"], row["seed"]) for row in rows}) < len(rows):
        raise InputError(f"{path}: two rows of the same method and seed; delete the file and run it with --resume")
    if len({row["avg_acc"] is None for row in rows}) > 1:
        raise InputError(f"{path}: avg_acc: only some rows have one; delete the file and run it with --resume")
    return rows


def by_method(rows: Sequence[Row]) -> Runs:
    """Group rows by the title of their method."""
    runs: Runs = {}
    for row in rows:
        runs.setdefault(title(row["method"]), []).append(row)
    return runs


def values(runs: Sequence[Row], metric: Metric) -> list[float]:
    """Return the metric of each run that has it: there is no accuracy in regression."""
    return [value for row in runs if (value := row[metric]) is not None]


@dataclass(frozen=True)
class Column:
    """A column of a table of results: a number per run.

    Attributes:
        key: Of the row; for a metric that the user asked for, its name in `metrics`.
        heading: What the table calls it.
        better: Which values are better; "" if that is not known, as of a function of the user's own.
        asked: Whether the user asked for it; its value is the mean over the agents for whom it is defined.
    """

    key: str
    heading: str
    better: Literal["higher", "lower", ""]
    asked: bool = False

    def values(self, runs: Sequence[Row]) -> list[float]:
        """Return the number of each run that has it."""
        if not self.asked:
            return values(runs, cast(Metric, self.key))
        each = [[v for v in row.get("metrics", {}).get(self.key, ()) if v is not None] for row in runs]
        return [mean(known) for known in each if known]

    def best(self, means: Iterable[float]) -> float | None:
        """Return the best of several means; None if there are none, or it is not known which is better."""
        found = list(means)
        if not found or not self.better:
            return None
        return max(found) if self.better == "higher" else min(found)


def columns(rows: Sequence[Row], also: Iterable[Metric] = ()) -> list[Column]:
    """Return the columns that a table of these rows has: the metrics asked for follow the loss.

    Args:
        rows: The rows.
        also: Metrics that are shown even if no row has them.
    """
    found: list[Column] = []
    for key, heading in METRICS.items():
        if key in also or any(row[key] is not None for row in rows):
            found.append(Column(key, heading, "higher" if key == "avg_acc" else "lower"))
        if key == "avg_loss":
            names = dict.fromkeys(name for row in rows for name in row.get("metrics", {}))
            found += [Column(name, name, direction(name), asked=True) for name in names]
    return found


def direction(name: str) -> Literal["higher", "lower", ""]:
    """Return which values of a metric are better; "" if that is not known."""
    if name not in BUILT_IN:
        return ""
    return "lower" if name in LOWER_IS_BETTER else "higher"


def meaningful_goals(rows: Iterable[Row]) -> list[str]:
    """Return the accuracies of `rounds_to` that a constant prediction does not have: others say nothing.

    >>> meaningful_goals([{"rounds_to": {"0.7": 1, "0.9": 4}, "constant_acc": 0.88}])
    ['0.9']
    """
    found = dict[str, None]()
    for row in rows:
        least = row.get("constant_acc", 0.0)
        found |= {goal: None for goal in row.get("rounds_to") or {} if float(goal) > least}
    return list(found)


def clusters_right(runs: Sequence[Row], unknown: str = "-") -> str:
    """Return in how many runs the clusters are the true ones, as "2 of 3"."""
    known = [row for row in runs if row["pi"] is not None and row["ari"] is not None]
    return f"{sum(row['ari'] == 1 for row in known)} of {len(known)}" if known else unknown


def agent_numbers(row: Row) -> list[int]:
    """Return the number of each agent of the row: across machines some may have sent no result."""
    return list(row.get("agents") or range(len(row["loss"])))


def shared_agents(runs: Runs) -> tuple[Runs, list[int]]:
    """Reduce runs to the agents that are in all of them, so that a place in one is the same agent in all.

    Args:
        runs: By method. Across machines, runs may have different agents.

    Returns:
        The reduced runs, and the numbers of the agents that only some of the runs have.
    """
    present = [set(agent_numbers(row)) for rows in runs.values() for row in rows]
    shared = sorted(set.intersection(*present))
    missing = sorted(set.union(*present).difference(shared))
    return {name: [_select_agents(row, shared) for row in rows] for name, rows in runs.items()}, missing


def _select_agents(row: Row, agents: list[int]) -> Row:
    """Keep these agents. A history has the labels of all agents: there a number is a place."""
    place = {e: i for i, e in enumerate(agent_numbers(row))}
    at, pi, true, history = [place[e] for e in agents], row["pi"], row["true_clusters"], row.get("history")
    row = row | {
        "agents": agents,
        "loss": [row["loss"][i] for i in at],
        "excess_risk": [row["excess_risk"][i] for i in at],
        "clusters": [row["clusters"][i] for i in at],
        "pi": None if pi is None else [pi[i] for i in at],
        "true_clusters": None if true is None else [true[i] for i in at],
    }
    if "metrics" in row:
        row["metrics"] = {name: [each[i] for i in at] for name, each in row["metrics"].items()}
    if history is not None and history["pi"] is not None:
        labels = [[labels[e] for e in agents] for labels in history["pi"]["pi"]]
        row["history"] = history | {"pi": history["pi"] | {"pi": labels}}
    return row
