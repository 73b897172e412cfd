"""The result of a run: numbers per agent, predictions, and labels for new agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from focusfl.algorithms import Adapted, method_name
from focusfl.core import Algorithm, State
from focusfl.data.own.folder import FolderFederation
from focusfl.engines import Scores
from focusfl.fairness import intervals, metrics
from focusfl.fairness.examples import Examples, agent_means, standard_error
from focusfl.fairness.intervals import Interval
from focusfl.fairness.scores import defined, mean
from focusfl.report.comparison import Comparison
from focusfl.report.gains import BASELINES, compare_with_baselines
from focusfl.report.html.notebook import result_card
from focusfl.report.notes import notes
from focusfl.report.rows import ROW_VERSION, IntervalRow, Row
from focusfl.report.sentences import explain
from focusfl.run import adaptation, columns
from focusfl.run.best_loss import BestLoss
from focusfl.run.saved.of_result import trained_model
from focusfl.run.saved.trained import Newcomer, TrainedModel
from focusfl.run.settings import Settings
from focusfl.run.setup import Setup
from focusfl.util.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CALLS = {"fedavg": "FedAvg", "local": "Local"}
MANY_AGENTS = 20  # from this number on, the 5th and 95th percentiles leave some agents out


@dataclass(frozen=True)
class Result:
    """A finished run. Tensors with one value per agent are [E]."""

    setup: Setup
    server: State
    states: State
    scores: Scores
    pi: Tensor | None  # [E, M] the soft labels; None if the method has none
    best: BestLoss
    seconds: float  # of training
    validation: Scores | None = None  # on validation data, if there are any
    t: int = 0  # the round of this result, from 1
    rounds: int = 0  # rounds trained; more than t if training stopped early and returned to its best round
    log: Sequence[Mapping[str, Any]] = field(default=(), repr=False)  # the rounds (run.history.RoundRow)

    @property
    def loss(self) -> Tensor:
        return self.scores.loss

    @property
    def acc(self) -> Tensor | None:
        return self.scores.acc

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The metrics that were asked for, [E] by name; NaN where one is not defined."""
        return self.scores.metrics

    @property
    def validation_loss(self) -> float | None:
        """The mean loss on validation data, over the agents that have some."""
        return None if self.validation is None else mean(self.validation.loss)

    @property
    def history(self) -> dict[str, list[float]]:
        """One list per quantity, one entry per round: `pandas.DataFrame(result.history)`.

        Where a round was not evaluated, losses and metrics are NaN; `eval_every=1` evaluates every round.
        """
        return columns.by_round(self.log)

    @property
    def history_by_agent(self) -> dict[str, list[Any]]:
        """One list per quantity, one entry per evaluated round and agent, for `pandas.DataFrame`."""
        fed = self.setup.fed
        return columns.by_agent(self.log, getattr(fed, "agents", ()) or range(fed.E))

    @property
    def bayes(self) -> Tensor:
        return self.best.loss

    @property
    def excess_risk(self) -> Tensor:
        return metrics.excess_risk(self.loss, self.bayes)

    @property
    def faa(self) -> float:
        return metrics.faa(self.excess_risk)

    @cached_property
    def examples(self) -> Examples | None:
        """The loss on each test example, minus the surrogate's loss on it or the known best loss."""
        at, best, losses = self.setup.fed.testing.offsets, self.best.examples, self.scores.examples
        if self.best.kind == "exact":
            best = self.best.loss.repeat_interleave(at.diff())
        return None if best is None or losses is None else Examples(losses - best, at)

    @cached_property
    def excess_se(self) -> Tensor | None:
        """The standard error of each agent's excess risk: NaN with one test example, None if all are."""
        se = None if self.examples is None else standard_error(self.examples)
        return se if se is not None and torch.isfinite(se).any() else None

    @cached_property
    def faa_interval(self) -> Interval | None:
        """The 95 % interval of FAA over the test examples, with the estimate corrected for their noise.

        Agents whose noise is not known are left out; None if fewer than two remain.
        """
        if self.excess_se is None:
            return None
        known = torch.isfinite(self.excess_se)
        if int(known.sum()) < min(2, len(known)):
            return None
        return intervals.faa((self.scores.loss - self.best.loss)[known], self.excess_se[known])

    @property
    def clusters(self) -> Tensor:
        """The cluster of each agent, [E]; agents in one cluster share a model."""
        return clusters_of(self.setup.algorithm, self.pi, self.setup.E)

    @property
    def ari(self) -> float | None:
        """The adjusted Rand index of the clusters found and the true ones; None if the latter are not known."""
        true = self.setup.fed.clusters
        return None if true is None else metrics.adjusted_rand_index(self.clusters, true)

    @cached_property
    def model(self) -> TrainedModel:
        """What is left for use: predictors of all agents, newcomers, export; without anybody's data."""
        return trained_model(self)

    def predict(self, agent: int | str, x: Any) -> Tensor:
        """Predict with the model of one agent.

        Args:
            agent: The agent's number or name.
            x: Raw examples, as for `TrainedModel.predict`; they are scaled as the training data were.

        Returns:
            Class probabilities [n, C], or values [n] in regression.

        Raises:
            InputError: There is no such agent, or the examples have another shape.
        """
        return self.model.predict(agent, x)

    def assign(self, x: Any, y: Any = None) -> Newcomer:
        """Label a new agent that did not train: one E step on its data. The server does not change.

        Args:
            x: The new agent's raw examples.
            y: Their labels; None if there are none (see `TrainedModel.assign`).

        Raises:
            InputError: The data does not fit the federation's.
        """
        return self.model.assign(x, y)

    def save(self, path: str | Path) -> Path:
        """Save the trained model in a folder, from which `ff.load` reads it. Nobody's data is in it.

        Args:
            path: The folder; a model that it holds is replaced.

        Raises:
            InputError: The folder holds something else.
        """
        return self.model.save(path)

    def row(self) -> Row:
        """Return the run as a row of `results.json`."""
        settings, fed = self.setup.settings, self.setup.fed
        measured = self.scores, self.best, self.pi, self.seconds
        row = row_of(self.setup.algorithm, settings, fed.name, self.setup.engine.name, *measured)
        row["n"], row["n_test"] = fed.training.sizes.tolist(), fed.testing.sizes.tolist()
        constant = self.setup.engine.constant.acc
        if constant is not None:
            row["constant_acc"] = metrics.average(constant)
        elif isinstance(fed, FolderFederation) and fed.inputs is not None:
            row["target"] = fed.inputs.label
        if (shares := adaptation.shares(self.setup.algorithm, self.states)) is not None:
            row["adaptation"] = shares
        row["rounds"] = self.rounds or settings.T
        if settings.patience is not None:
            row["best_round"] = self.t
        if self.validation_loss is not None:
            row["validation_loss"] = self.validation_loss
        if not self.setup.task.loss.default:
            row["loss_name"] = self.setup.task.loss.name
        if fed.clusters is not None:
            row["true_clusters"] = fed.clusters.tolist()
            row["ari"] = metrics.adjusted_rand_index(torch.tensor(row["clusters"]), fed.clusters)
        if self.excess_se is not None and self.faa_interval is not None:
            row["excess_se"], row["faa_interval"] = defined(self.excess_se), interval_row(self.faa_interval)
            known = torch.isfinite(self.excess_se)
            if len(self.scores.loss) >= MANY_AGENTS:
                row["faa90"] = intervals.middle(self.excess_risk[known])
                middle = intervals.middle_interval(self.excess_risk[known], self.excess_se[known])
                row["faa90_interval"] = interval_row(middle)
        self._add_validated(row)
        if names := getattr(fed, "agents", ()):
            row["names"] = list(names)
        if self.setup.bf16:
            row["precision"] = "bf16"
        return row

    def _add_validated(self, row: Row) -> None:
        """Add where validated best losses come from, their intervals, and the losses of training alone."""
        best, losses, at = self.best, self.scores.examples, self.setup.fed.testing.offsets
        if best.chosen is None or best.alone is None or losses is None:
            return
        row["bayes_from"] = best.chosen
        row["alone"] = agent_means(Examples(best.alone, at)).tolist()
        se = standard_error(Examples(losses - best.alone, at))
        if torch.isfinite(se).any():
            row["alone_se"] = defined(se)
        if best.limits is not None:
            limits = (each.tolist() for each in best.limits)
            row["bayes_low"], row["bayes_estimate"], row["bayes_high"] = limits

    def table(self) -> str:
        """Return a table with each agent's loss, accuracy, excess risk and label; the last line sums up."""
        pi, acc = self.pi, self.acc
        head = ["agent", "examples", "loss"] + ["accuracy"] * (acc is not None) + list(self.metrics)
        head += ["excess risk", "cluster"] + ["label pi"] * (pi is not None)
        sizes, clusters = self.setup.fed.training.sizes, self.clusters
        rows = []
        for e in range(len(self.loss)):
            cells = [str(e), str(int(sizes[e])), f"{self.loss[e]:.4f}"]
            cells += [] if acc is None else [f"{acc[e]:.3f}"]
            measured = (float(values[e]) for values in self.metrics.values())
            cells += ["-" if isnan(value) else f"{value:.4f}" for value in measured]
            cells += [f"{self.excess_risk[e]:+.4f}", str(int(clusters[e]))]
            cells += [] if pi is None else [" ".join(f"{p:.2f}" for p in pi[e].tolist())]
            rows.append(cells)
        means = f"mean loss {metrics.average(self.loss):.4f}"
        means += "" if acc is None else f", mean accuracy {metrics.average(acc):.3f}"
        for name, values in self.metrics.items():
            means += "" if (one := mean(values)) is None else f", mean {name} {one:.4f}"
        worst = f"agnostic loss {metrics.agnostic_loss(self.loss):.4f}"
        i = self.faa_interval
        noise = "" if i is None else f" (95 % interval {i.low:.4f} to {i.high:.4f})"
        last = f"FAA {self.faa:.4f}{noise}, {means}, {worst}"
        return "\n".join([*_align([head, *rows]), last, *(f"Note: {line}" for line in notes([self.row()]))])

    def explain(self, *others: Result) -> str:
        """Summarise the result in sentences: the groups, which agents are uncertain, and which gained or lost.

        The last sentences are warnings, for example that FedAvg is sufficient.

        Args:
            *others: Results of `ff.FedAvg()` and of `ff.Local()` on the same federation with the same seed.

        Raises:
            InputError: Another result is of another method, federation or seed.
        """
        _require_results("explain", others)
        row, rows = self.row(), [self._baseline_row(other) for other in others]
        compared = compare_with_baselines([row], rows)
        missing = [name for name in BASELINES if name not in compared and name != row["algorithm"]]
        needed = [name for name in BASELINES if name in missing or name in {one["algorithm"] for one in rows}]
        calls = ", ".join(f"ff.fit(ff.{_CALLS[name]}(), fed)" for name in needed)
        against = " and ".join(BASELINES[name] for name in missing)
        hint = f"To see which agents gain over {against}: result.explain({calls}), with the options of this run."
        return "\n".join([*explain([row], rows), *[hint] * bool(missing)])

    def against(self, *others: Result) -> Comparison:
        """Compare this run with others: tables in a notebook, as text with `print`, and a figure with `plot()`.

        Args:
            *others: Results of other methods, or other options, on the same federation with the same seed. They may
                have other numbers of rounds; the comparison then says so.

        Raises:
            InputError: Another result is of another federation or seed, or of the same method and options.

        Example:
            >>> import focusfl as ff
            >>> fed = ff.data.synthetic()
            >>> focus, fedavg = (ff.fit(method, fed, rounds=5) for method in (ff.Focus(M=2), ff.FedAvg()))
            >>> len(focus.against(fedavg).rows)
            2
        """
        _require_results("against", others)
        return Comparison(rows_for_comparison([self, *others]), self.history)

    def plot(self, *others: Result) -> Figure:
        """Draw each agent's loss, the curves over the rounds if they were evaluated, and the clusters.

        Args:
            *others: Results to compare with, for example of `ff.FedAvg()` and `ff.Local()`, as in `against`.

        Returns:
            A matplotlib figure: a notebook shows it, and `savefig("run.png")` writes it.

        Raises:
            InputError: matplotlib is missing, or another result does not fit (see `against`).
        """
        return self.against(*others).plot()

    def _repr_html_(self) -> str:
        return result_card(self.row())

    def _baseline_row(self, other: Result) -> Row:
        """Return the other run's row, with the standard error of each agent's difference in loss."""
        row = other.row()
        if row["algorithm"] not in BASELINES:
            raise InputError(f"explain: pass results of FedAvg or Local, not of {other.setup.algorithm.name}")
        self._add_gap_se(other, row, name_and_options(self.setup.algorithm)["algorithm"], "explain")
        return row

    def _add_gap_se(self, other: Result, row: Row, method: str, caller: str) -> None:
        """Add to the other run's row the standard error of each agent's difference in loss to this one's."""
        mine, its = self.setup, other.setup
        seed, same = mine.settings.seed, mine.fed is its.fed or mine.fed.fingerprint == its.fed.fingerprint
        if seed != its.settings.seed or not same:
            other_run = f"{its.algorithm.name} was fitted on {its.fed.name!r} with seed {its.settings.seed}"
            raise InputError(f"{caller}: {other_run}; fit it on this run's federation, with seed = {seed}")
        ours, theirs = self.scores.examples, other.scores.examples
        assert ours is not None and theirs is not None
        se = standard_error(Examples(ours - theirs, mine.fed.testing.offsets))
        if torch.isfinite(se).any():
            row["gap_se"] = {method: defined(se)}

    def __repr__(self) -> str:
        return f"Result({self.setup.algorithm}, {self.setup.fed.name}, faa={self.faa:.4f})"


def name_and_options(algorithm: Algorithm) -> dict[str, Any]:
    """Return the name by which the method is found (algorithms.find_method) and all its options."""
    if isinstance(algorithm, Adapted):
        inner = name_and_options(algorithm.inner)
        return {**inner, "params": {**inner["params"], "adapt": True}}
    return {"algorithm": method_name(type(algorithm)), "params": asdict(algorithm)}  # type: ignore[call-overload]


def identifying_options(algorithm: Algorithm) -> dict[str, Any]:
    """Return the options by which a stored run is recognised.

    Options that a later release added are left out at their default, so that older runs are still recognised.
    """
    every = fields(algorithm)  # type: ignore[arg-type]
    omitted = {f.name for f in every if f.metadata.get("later") and getattr(algorithm, f.name) == f.default}
    return {k: v for k, v in name_and_options(algorithm)["params"].items() if k not in omitted}


def rows_for_comparison(results: Sequence[Result]) -> list[Row]:
    """Return the rows of runs on the same data with the same seed; the first is compared with the others.

    Raises:
        InputError: A run is of another federation or seed, or of the same method and options as another.
    """
    first, *others = results
    rows = [result.row() for result in results]
    for row, method in zip(rows, distinct_methods(rows), strict=True):
        row["method"] = method
    for other, row in zip(others, rows[1:], strict=True):
        first._add_gap_se(other, row, rows[0]["method"], "against")
    return rows


def distinct_methods(rows: Sequence[Row]) -> list[str]:
    """Return what each run is called: runs of one method by the options in which they differ, "focus:M=3".

    Raises:
        InputError: Two runs have the same method and options.
    """
    found = []
    for row in rows:
        same = [other["params"] for other in rows if other["method"] == row["method"]]
        differ = [k for k, v in row["params"].items() if any(other[k] != v for other in same)]
        options = ",".join(f"{k}={row['params'][k]}" for k in differ)
        found.append(":".join(filter(None, [row["method"], options])))
    if (twice := next((method for method in found if found.count(method) > 1), None)) is not None:
        raise InputError(f"against: two results of {twice} with the same options; pass each run once")
    return found


def row_of(
    algorithm: Algorithm,
    settings: Settings,
    data: str,
    engine: str,
    scores: Scores,
    best: BestLoss,
    pi: Tensor | None,
    seconds: float,
) -> Row:
    """Return the row of `results.json` for a run: its settings, its numbers and its fairness."""
    loss, acc, risk = scores.loss, scores.acc, metrics.excess_risk(scores.loss, best.loss)
    options = name_and_options(algorithm)
    row: Row = {
        "version": ROW_VERSION,
        "method": options["algorithm"],
        "algorithm": options["algorithm"],
        "params": options["params"],
        "data": data,
        "seed": settings.seed,
        "rounds": settings.T,
        "engine": engine,
        "avg_acc": None if acc is None else metrics.average(acc),
        "avg_loss": metrics.average(loss),
        "faa": metrics.faa(risk),
        "agnostic_loss": metrics.agnostic_loss(loss),
        "accuracy_parity": None if acc is None else metrics.accuracy_parity(acc),
        "worst_agent": metrics.worst_agent(loss),
        "loss": loss.tolist(),
        "acc": None if acc is None else acc.tolist(),
        "excess_risk": risk.tolist(),
        "bayes": best.loss.tolist(),
        "bayes_kind": best.kind,
        "pi": None if pi is None else pi.tolist(),
        "clusters": clusters_of(algorithm, pi, len(loss)).tolist(),
        "true_clusters": None,
        "ari": None,
        "train": asdict(settings.local),
        "seconds": seconds,
    }
    if scores.metrics:
        row["metrics"] = {name: defined(values) for name, values in scores.metrics.items()}
    return row


def interval_row(interval: Interval) -> IntervalRow:
    """Return an interval as `results.json` stores it."""
    return {"low": interval.low, "estimate": interval.estimate, "high": interval.high}


def clusters_of(algorithm: Algorithm, pi: Tensor | None, E: int) -> Tensor:
    """Return each agent's cluster, [E]: that of its largest label; without labels one for all, or one per agent."""
    if pi is not None:
        return pi.argmax(1)
    return torch.arange(E) if algorithm.personal else torch.zeros(E, dtype=torch.long)


def _require_results(caller: str, others: Sequence[object]) -> None:
    for other in others:
        if not isinstance(other, Result):
            raise InputError(f"{caller}: pass results of ff.fit, not {type(other).__name__}: {other!r:.40}")


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
