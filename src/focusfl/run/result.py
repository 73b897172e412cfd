"""The result of a run: numbers per agent, predictions, and labels for new agents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from focusfl.core import Algorithm, Data, State
from focusfl.core.tree import take
from focusfl.data.check import as_data, as_inputs, check_agents
from focusfl.data.own.folder import FolderFederation
from focusfl.engines import Scores
from focusfl.engines.one_agent import LocalAgent, predictor
from focusfl.fairness import intervals, metrics
from focusfl.fairness.examples import Examples, standard_error
from focusfl.fairness.intervals import Interval
from focusfl.report.gains import BASELINES
from focusfl.report.rows import ROW_VERSION, IntervalRow, Row
from focusfl.report.sentences import compare_with_baselines, explain
from focusfl.run.best_loss import BestLoss
from focusfl.run.settings import Settings
from focusfl.run.setup import Setup
from focusfl.util.errors import InputError

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

    @property
    def loss(self) -> Tensor:
        return self.scores.loss

    @property
    def acc(self) -> Tensor | None:
        return self.scores.acc

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
        """The standard error of each agent's excess risk; None if there are too few test examples."""
        se = None if self.examples is None else standard_error(self.examples)
        return se if se is not None and torch.isfinite(se).all() else None

    @cached_property
    def faa_interval(self) -> Interval | None:
        """The 95 % interval of FAA over the test examples, with the estimate corrected for their noise."""
        return None if self.excess_se is None else intervals.faa(self.scores.loss - self.best.loss, self.excess_se)

    @property
    def clusters(self) -> Tensor:
        """The cluster of each agent, [E]; agents in one cluster share a model."""
        return clusters_of(self.setup.algorithm, self.pi, self.setup.E)

    @property
    def ari(self) -> float | None:
        """The adjusted Rand index of the clusters found and the true ones; None if the latter are not known."""
        true = self.setup.fed.clusters
        return None if true is None else metrics.adjusted_rand_index(self.clusters, true)

    def predict(self, agent: int, x: Any) -> Tensor:
        """Predict with the model of one agent.

        Args:
            agent: The agent's number.
            x: Examples, of the shape that the model was trained on.

        Returns:
            Class probabilities [n, C], or values [n] in regression.

        Raises:
            InputError: There is no such agent, or the examples have another shape.
        """
        if not 0 <= agent < self.setup.fed.E:
            raise InputError(f"agent = {agent}: there are agents 0 to {self.setup.fed.E - 1}")
        view = self.setup.algorithm.downlink(self.server, torch.tensor(agent))
        return self._predict(view, take(self.states, agent), x)

    def assign(self, x: Any, y: Any) -> Newcomer:
        """Label a new agent that did not train: one E step on its data. The server does not change.

        Args:
            x: The new agent's examples.
            y: Their labels.

        Raises:
            InputError: The data does not fit the federation's.
        """
        setup = self.setup
        tokens = not setup.fed.training.x.is_floating_point()
        data = as_data("the newcomer", (x, y), tokens)
        check_agents([setup.fed.train(0), data], setup.fed.classes, "training")
        data = Data(data.x.to(setup.device), data.y.to(setup.device))
        agent = LocalAgent(setup.task, data, setup.settings.local, 0.0, setup.settings.seed, 0, 0)
        return Newcomer(self, *setup.algorithm.assign(self.server, agent))

    def _predict(self, view: State, state: State, x: Any) -> Tensor:
        with torch.no_grad():
            trained_on = self.setup.fed.training.x
            inputs = as_inputs("x", x).to(self.setup.device, trained_on.dtype)
            if inputs.shape[1:] != trained_on.shape[1:]:
                shape, expected = list(inputs.shape[1:]), list(trained_on.shape[1:])
                raise InputError(f"x: an example has shape {shape}; the model was trained on {expected}")
            p = self.setup.algorithm.predict(view, state, predictor(self.setup.task, inputs))
        return p.squeeze(-1).cpu() if self.setup.task.classes is None else p.cpu()

    def row(self) -> Row:
        """Return the run as a row of `results.json`."""
        settings, fed = self.setup.settings, self.setup.fed
        measured = self.scores, self.best, self.pi, self.seconds
        row = row_of(self.setup.algorithm, settings, fed.name, self.setup.engine.name, *measured)
        row["n"] = fed.training.sizes.tolist()
        if fed.clusters is not None:
            row["true_clusters"] = fed.clusters.tolist()
            row["ari"] = metrics.adjusted_rand_index(torch.tensor(row["clusters"]), fed.clusters)
        if self.excess_se is not None and self.faa_interval is not None:
            row["excess_se"], row["faa_interval"] = (
                self.excess_se.tolist(),
                interval_row(self.faa_interval),
            )
            if len(self.scores.loss) >= MANY_AGENTS:
                row["faa90"] = intervals.middle(self.excess_risk)
                middle = intervals.middle_interval(self.excess_risk, self.excess_se)
                row["faa90_interval"] = interval_row(middle)
        if isinstance(fed, FolderFederation):
            row["names"] = list(fed.agents)
        if self.setup.bf16:
            row["precision"] = "bf16"
        return row

    def table(self) -> str:
        """Return a table with each agent's loss, accuracy, excess risk and label; the last line sums up."""
        pi, acc = self.pi, self.acc
        head = ["agent", "examples", "loss"] + ["accuracy"] * (acc is not None)
        head += ["excess risk", "cluster"] + ["label pi"] * (pi is not None)
        sizes, clusters = self.setup.fed.training.sizes, self.clusters
        rows = []
        for e in range(len(self.loss)):
            cells = [str(e), str(int(sizes[e])), f"{self.loss[e]:.4f}"]
            cells += [] if acc is None else [f"{acc[e]:.3f}"]
            cells += [f"{self.excess_risk[e]:+.4f}", str(int(clusters[e]))]
            cells += [] if pi is None else [" ".join(f"{p:.2f}" for p in pi[e].tolist())]
            rows.append(cells)
        mean = f"mean loss {metrics.average(self.loss):.4f}"
        mean += "" if acc is None else f", mean accuracy {metrics.average(acc):.3f}"
        worst = f"agnostic loss {metrics.agnostic_loss(self.loss):.4f}"
        i = self.faa_interval
        noise = "" if i is None else f" (95 % interval {i.low:.4f} to {i.high:.4f})"
        return "\n".join([*_align([head, *rows]), f"FAA {self.faa:.4f}{noise}, {mean}, {worst}"])

    def explain(self, *others: Result) -> str:
        """Summarise the result in sentences: the groups, which agents are uncertain, and which gained or lost.

        The last sentences are warnings, for example that FedAvg is sufficient.

        Args:
            *others: Results of `ff.FedAvg()` and of `ff.Local()` on the same federation with the same seed.

        Raises:
            InputError: Another result is of another method, federation or seed.
        """
        row, rows = self.row(), [self._baseline_row(other) for other in others]
        compared = compare_with_baselines([row], rows)
        missing = [name for name in BASELINES if name not in compared and name != row["algorithm"]]
        needed = [name for name in BASELINES if name in missing or name in {one["algorithm"] for one in rows}]
        calls = ", ".join(f"ff.fit(ff.{_CALLS[name]}(), fed)" for name in needed)
        against = " and ".join(BASELINES[name] for name in missing)
        hint = f"To see which agents gain over {against}: result.explain({calls}), with the options of this run."
        return "\n".join([*explain([row], rows), *[hint] * bool(missing)])

    def _baseline_row(self, other: Result) -> Row:
        """Return the other run's row, with the standard error of each agent's difference in loss."""
        mine, its, row = self.setup, other.setup, other.row()
        if row["algorithm"] not in BASELINES:
            raise InputError(f"explain: pass results of FedAvg or Local, not of {its.algorithm.name}")
        seed, same = mine.settings.seed, mine.fed is its.fed or mine.fed.fingerprint == its.fed.fingerprint
        if seed != its.settings.seed or not same:
            other_run = f"{its.algorithm.name} was fitted on {its.fed.name!r} with seed {its.settings.seed}"
            raise InputError(f"explain: {other_run}; fit it on this run's federation, with seed = {seed}")
        ours, theirs = self.scores.examples, other.scores.examples
        assert ours is not None and theirs is not None
        se = standard_error(Examples(ours - theirs, mine.fed.testing.offsets))
        if torch.isfinite(se).all():
            row["gap_se"] = {name_and_options(mine.algorithm)["algorithm"]: se.tolist()}
        return row

    def __repr__(self) -> str:
        return f"Result({self.setup.algorithm}, {self.setup.fed.name}, faa={self.faa:.4f})"


@dataclass(frozen=True)
class Newcomer:
    """A new agent that joined after training."""

    result: Result
    view: State  # what it receives from the server
    state: State  # its own state

    @property
    def pi(self) -> Tensor | None:
        """Its label after one E step, [M]."""
        return self.result.setup.algorithm.label(self.view, self.state)

    def predict(self, x: Any) -> Tensor:
        """Predict for x: class probabilities [n, C], or values [n] in regression."""
        return self.result._predict(self.view, self.state, x)


def name_and_options(algorithm: Algorithm) -> dict[str, Any]:
    """Return the method's key in ALGORITHMS and all its options."""
    return {"algorithm": type(algorithm).__name__.lower(), "params": asdict(algorithm)}  # type: ignore[call-overload]


def identifying_options(algorithm: Algorithm) -> dict[str, Any]:
    """Return the options by which a stored run is recognised.

    Options that a later release added are left out at their default, so that older runs are still recognised.
    """
    every = fields(algorithm)  # type: ignore[arg-type]
    omitted = {f.name for f in every if f.metadata.get("later") and getattr(algorithm, f.name) == f.default}
    return {k: v for k, v in name_and_options(algorithm)["params"].items() if k not in omitted}


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
    return {
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


def interval_row(interval: Interval) -> IntervalRow:
    """Return an interval as `results.json` stores it."""
    return {"low": interval.low, "estimate": interval.estimate, "high": interval.high}


def clusters_of(algorithm: Algorithm, pi: Tensor | None, E: int) -> Tensor:
    """Return each agent's cluster, [E]: that of its largest label; without labels one for all, or one per agent."""
    if pi is not None:
        return pi.argmax(1)
    return torch.arange(E) if algorithm.personal else torch.zeros(E, dtype=torch.long)


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
