"""Result: what a run gives: numbers per agent, predictions, labels for newcomers."""

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
MANY_AGENTS = 20  # from here on the 5th and 95th percentile leave some agents out


@dataclass(frozen=True)
class Result:
    """A finished run. Per-agent tensors are [E]."""

    setup: Setup
    server: State
    states: State
    scores: Scores
    pi: Tensor | None  # [E, M] the soft labels; None where the method has none
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
        """Excess loss of each test example: paired with a surrogate's loss on it, or less the known best loss."""
        at, best, losses = self.setup.fed.testing.offsets, self.best.examples, self.scores.examples
        if self.best.kind == "exact":
            best = self.best.loss.repeat_interleave(at.diff())
        return None if best is None or losses is None else Examples(losses - best, at)

    @cached_property
    def excess_se(self) -> Tensor | None:
        """The standard error of each agent's excess risk; None where there are too few test examples to say."""
        se = None if self.examples is None else standard_error(self.examples)
        return se if se is not None and torch.isfinite(se).all() else None

    @cached_property
    def faa_interval(self) -> Interval | None:
        """95 % of FAA over test examples, with the estimate that is corrected for their noise."""
        return None if self.excess_se is None else intervals.faa(self.scores.loss - self.best.loss, self.excess_se)

    @property
    def clusters(self) -> Tensor:
        """Who shares a model with whom."""
        return clusters_of(self.setup.algorithm, self.pi, self.setup.E)

    @property
    def ari(self) -> float | None:
        """Adjusted Rand index of the clusters found against the true ones."""
        true = self.setup.fed.clusters
        return None if true is None else metrics.adjusted_rand_index(self.clusters, true)

    def predict(self, agent: int, x: Any) -> Tensor:
        """Agent's prediction for x: class probabilities [n, C], or values [n] in regression."""
        if not 0 <= agent < self.setup.fed.E:
            raise InputError(f"agent = {agent}: there are agents 0 to {self.setup.fed.E - 1}")
        view = self.setup.algorithm.downlink(self.server, torch.tensor(agent))
        return self._predict(view, take(self.states, agent), x)

    def assign(self, x: Any, y: Any) -> Newcomer:
        """An agent that was never trained with: one E step on its data; the server does not change."""
        setup = self.setup
        tokens = not setup.fed.training.x.is_floating_point()
        data = as_data("the newcomer", (x, y), tokens)
        check_agents([setup.fed.train(0), data], setup.fed.classes, "training")
        data = Data(data.x.to(setup.device), data.y.to(setup.device))
        guest = LocalAgent(setup.task, data, setup.settings.local, 0.0, setup.settings.seed, 0, 0)
        return Newcomer(self, *setup.algorithm.assign(self.server, guest))

    def _predict(self, view: State, state: State, x: Any) -> Tensor:
        with torch.no_grad():
            known = self.setup.fed.training.x
            inputs = as_inputs("x", x).to(self.setup.device, known.dtype)
            if inputs.shape[1:] != known.shape[1:]:
                found, wanted = list(inputs.shape[1:]), list(known.shape[1:])
                raise InputError(f"x: an example has shape {found}; the model was trained on {wanted}")
            p = self.setup.algorithm.predict(view, state, predictor(self.setup.task, inputs))
        return p.squeeze(-1).cpu() if self.setup.task.classes is None else p.cpu()

    def row(self) -> Row:
        """The run as `results.json` has it."""
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
        """Per agent: loss, accuracy, excess risk, label; then the whole."""
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
        """In words: the groups, who is uncertain, who gained and who lost; warnings where another method will do.

        others  results of `ff.FedAvg()` and of `ff.Local()` on the same federation and seed
        """
        row, rows = self.row(), [self._beside(other) for other in others]
        told = compare_with_baselines([row], rows)
        missing = [name for name in BASELINES if name not in told and name != row["algorithm"]]
        asked = [name for name in BASELINES if name in missing or name in {one["algorithm"] for one in rows}]
        calls = ", ".join(f"ff.fit(ff.{_CALLS[name]}(), fed)" for name in asked)
        against = " and ".join(BASELINES[name] for name in missing)
        hint = f"Who gained and who lost against {against}: result.explain({calls}), with the options of this run."
        return "\n".join([*explain([row], rows), *[hint] * bool(missing)])

    def _beside(self, other: Result) -> Row:
        """The other's row, with the standard error of each agent's difference in loss."""
        mine, its, row = self.setup, other.setup, other.row()
        if row["algorithm"] not in BASELINES:
            raise InputError(f"explain: give it results of FedAvg and Local, not of {its.algorithm.name}")
        seed, same = mine.settings.seed, mine.fed is its.fed or mine.fed.fingerprint == its.fed.fingerprint
        if seed != its.settings.seed or not same:
            other_run = f"{its.algorithm.name} was fitted on {its.fed.name!r} with seed {its.settings.seed}"
            raise InputError(f"explain: {other_run}; fit it on this run's federation, with seed = {seed}")
        ours, theirs = self.scores.examples, other.scores.examples
        assert ours is not None and theirs is not None
        se = standard_error(Examples(ours - theirs, mine.fed.testing.offsets))
        if torch.isfinite(se).all():
            row["gap_se"] = {described(mine.algorithm)["algorithm"]: se.tolist()}
        return row

    def __repr__(self) -> str:
        return f"Result({self.setup.algorithm}, {self.setup.fed.name}, faa={self.faa:.4f})"


@dataclass(frozen=True)
class Newcomer:
    """An agent that joined after training."""

    result: Result
    view: State  # what it receives of the server
    state: State  # what it holds

    @property
    def pi(self) -> Tensor | None:
        """Its one-shot label, [M]."""
        return self.result.setup.algorithm.label(self.view, self.state)

    def predict(self, x: Any) -> Tensor:
        return self.result._predict(self.view, self.state, x)


def described(algorithm: Algorithm) -> dict[str, Any]:
    """Name and options."""
    return {"algorithm": type(algorithm).__name__.lower(), "params": asdict(algorithm)}  # type: ignore[call-overload]


def lasting(algorithm: Algorithm) -> dict[str, Any]:
    """Its options, to know a kept run by. Those that came later count where they are not at their default: older
    runs knew none."""
    every = fields(algorithm)  # type: ignore[arg-type]
    quiet = {f.name for f in every if f.metadata.get("later") and getattr(algorithm, f.name) == f.default}
    return {k: v for k, v in described(algorithm)["params"].items() if k not in quiet}


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
    """A row of `results.json`: the fairness of a run, and what it was computed from."""
    loss, acc, risk = scores.loss, scores.acc, metrics.excess_risk(scores.loss, best.loss)
    options = described(algorithm)
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
    """An interval as `results.json` has it."""
    return {"low": interval.low, "estimate": interval.estimate, "high": interval.high}


def clusters_of(algorithm: Algorithm, pi: Tensor | None, E: int) -> Tensor:
    """[E]: argmax of the label; without labels all in one cluster, or each alone where models are personal."""
    if pi is not None:
        return pi.argmax(1)
    return torch.arange(E) if algorithm.personal else torch.zeros(E, dtype=torch.long)


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
