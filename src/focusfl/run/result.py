"""Result: what a run gives: numbers per agent, predictions, labels for newcomers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from focusfl.core import Algorithm, Data, State
from focusfl.core.tree import take
from focusfl.data.check import as_data, as_inputs, check_agents
from focusfl.data.own.folder import Folder
from focusfl.engines import Scores
from focusfl.engines.serial import SerialAgent, predictor
from focusfl.fairness import intervals, metrics
from focusfl.fairness.examples import Examples, standard_error
from focusfl.fairness.intervals import Interval
from focusfl.report.gains import BASELINES
from focusfl.report.rows import Row
from focusfl.report.sentences import compare_with_baselines, explain
from focusfl.run.best_loss import Bayes
from focusfl.run.training import Setup, example_losses, labels
from focusfl.util.errors import InputError

_CALLS = {"fedavg": "FedAvg", "local": "Local"}
MANY = 20  # agents from which on the 5th and 95th percentile leave some out


@dataclass(frozen=True)
class Result:
    """A finished run. Per-agent tensors are [E]."""

    setup: Setup
    server: State
    states: State
    scores: Scores
    best: Bayes
    seconds: float

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
        at = self.setup.fed.testing.at
        best = self.best.examples
        if self.best.kind == "exact":
            best = self.bayes.repeat_interleave(at.diff())
        if best is None:
            return None
        return Examples(self._example_losses - best, at)

    @cached_property
    def _example_losses(self) -> Tensor:
        return example_losses(self.setup, self.server, self.states)

    @cached_property
    def excess_se(self) -> Tensor | None:
        """The standard error of each agent's excess risk; None where there are too few test examples to say."""
        se = None if self.examples is None else standard_error(self.examples)
        return se if se is not None and torch.isfinite(se).all() else None

    @cached_property
    def faa_interval(self) -> Interval | None:
        """95 % of FAA over test examples, with the estimate that is corrected for their noise."""
        return None if self.excess_se is None else intervals.faa(self.excess_risk, self.excess_se)

    @property
    def pi(self) -> Tensor | None:
        """The soft labels, [E, M]; None where the method has none."""
        return labels(self.setup.algorithm, self.server, self.states, self.setup.fed.E)

    @property
    def clusters(self) -> Tensor:
        """Who shares a model with whom."""
        return found_clusters(self.setup, self.server, self.states)

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
        data = Data(data.x.to(setup.place), data.y.to(setup.place))
        guest = SerialAgent(setup.task, data, setup.train, 0.0, setup.seed, 0, 0)
        return Newcomer(self, *setup.algorithm.assign(self.server, guest))

    def _predict(self, view: State, state: State, x: Any) -> Tensor:
        with torch.no_grad():
            known = self.setup.fed.training.x
            inputs = as_inputs("x", x).to(self.setup.place, known.dtype)
            if inputs.shape[1:] != known.shape[1:]:
                found, wanted = list(inputs.shape[1:]), list(known.shape[1:])
                raise InputError(f"x: an example has shape {found}; the model was trained on {wanted}")
            p = self.setup.algorithm.predict(view, state, predictor(self.setup.task, inputs))
        return p.squeeze(-1).cpu() if self.setup.task.classes is None else p.cpu()

    def row(self) -> Row:
        """The run as `results.json` has it."""
        setup, fed = self.setup, self.setup.fed
        about = {"data": fed.name, "seed": setup.seed, "rounds": setup.rounds, "engine": setup.runner.name}
        found = scored(self.scores, self.best, self.pi, self.clusters, fed.clusters) | self._noise()
        found |= {"n": fed.training.sizes.tolist(), "train": asdict(setup.train), "seconds": self.seconds}
        found |= {"names": list(fed.agents)} if isinstance(fed, Folder) else {}
        found |= {"precision": "bf16"} if setup.bf16 else {}
        options = described(setup.algorithm)
        return cast(Row, {"method": options["algorithm"]} | options | about | found)

    def _noise(self) -> dict[str, Any]:
        """Standard errors and intervals; `faa90` is for many agents."""
        if self.excess_se is None or self.faa_interval is None:
            return {}
        found: dict[str, Any] = {"excess_se": self.excess_se.tolist(), "faa_interval": self.faa_interval._asdict()}
        if len(self.loss) >= MANY:
            found["faa90"] = intervals.middle(self.excess_risk)
            found["faa90_interval"] = intervals.middle_interval(self.excess_risk, self.excess_se)._asdict()
        return found

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
        if mine.seed != its.seed or (mine.fed is not its.fed and mine.fed.fingerprint != its.fed.fingerprint):
            said = f"{its.algorithm.name} was fitted on {its.fed.name!r} with seed {its.seed}"
            raise InputError(f"explain: {said}; fit it on this run's federation, with seed = {mine.seed}")
        at = mine.fed.testing.at
        se = standard_error(Examples(self._example_losses - other._example_losses, at))
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


def scored(scores: Scores, best: Bayes, pi: Tensor | None, clusters: Tensor, true: Tensor | None) -> dict[str, Any]:
    """The fairness of a run, and what it was computed from, as `results.json` has it."""
    loss, acc, risk = scores.loss, scores.acc, metrics.excess_risk(scores.loss, best.loss)
    return {
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
        "clusters": clusters.tolist(),
        "true_clusters": None if true is None else true.tolist(),
        "ari": None if true is None else metrics.adjusted_rand_index(clusters, true),
    }


def found_clusters(setup: Setup, server: State, states: State) -> Tensor:
    """[E]: argmax of the label; without labels all in one cluster, or each alone where models are personal."""
    return clustered(setup.algorithm, labels(setup.algorithm, server, states, setup.fed.E), setup.fed.E)


def clustered(algorithm: Algorithm, pi: Tensor | None, E: int) -> Tensor:
    """The same from the labels, [E, M], where there are any."""
    if pi is not None:
        return pi.argmax(1)
    return torch.arange(E) if algorithm.personal else torch.zeros(E, dtype=torch.long)


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
