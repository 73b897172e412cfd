"""The best loss of each agent as the loss of the candidate that has the least validated loss for it.

shared      one network, trained on the examples of all agents together
alone       a network per agent, trained on its own examples
adapted     the shared network, trained further on the agent's own examples
grouped     the shared network, trained further on the examples of the agent's group
and for tables those of tables.py: linear models and gradient boosting

Every network is a candidate after 1, 2, 4, 8, ... rounds, so one that overfits was stopped early. Each candidate is
trained without each of K folds of every agent's training and validation examples, and judged on that fold; then on
all of them, and measured on the test examples. Test examples choose nothing, and no method that is compared takes
part. Groups are found by how the shared network changes in its first round on each agent's examples.

FOLDER/alone/       a run (run/loop.py), and t.safetensors: the losses after round t
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from focusfl.algorithms.local import Local
from focusfl.core import State
from focusfl.core.tree import flatten, take, tree_map, unflatten
from focusfl.engines.base import step_work
from focusfl.engines.serial import Serial
from focusfl.fairness import best_loss
from focusfl.fairness.best_loss import Limits
from focusfl.fairness.examples import Examples, agent_means
from focusfl.run import tables
from focusfl.run.folds import FOLDS, Job, folds_of
from focusfl.run.loop import Round, Stop, never, run
from focusfl.run.setup import Setup
from focusfl.util import files, sealed
from focusfl.util.errors import Diverged

Watch = Callable[[Round], None]
MIN_ROUNDS = 20  # of a candidate, where a run has fewer: best losses should not depend on how long methods train
MAX_WORK = 3e11  # multiply-adds of training, above which there is one split instead of folds: about a minute
STEP_WORK = {True: 2.5e6, False: 1e5}  # the cost of a step besides its multiply-adds; True: on the serial engine
ADAPTATION = 4  # adapted networks take so many times fewer steps in a round
MIN_AGENTS_TO_GROUP, MAX_GROUPS = 4, 8
MAX_GROUPING = 1e8  # agents x parameters
SEED = 1_000_003  # candidates have other first weights and batches than the methods that are compared


class Validated(NamedTuple):
    """The best losses, measured on the test examples.

    Attributes:
        loss: Of each agent, [E].
        examples: Of each test example, [N].
        alone: The loss of each test example under the network that the agent trained alone, [N].
        chosen: Which candidate each agent has.
        limits: The interval of each agent's best loss; None with a single split, and with one test example.
    """

    loss: Tensor
    examples: Tensor
    alone: Tensor
    chosen: list[str]
    limits: Limits | None


@dataclass(frozen=True)
class Continued(Setup):
    """A run whose agents start with given states."""

    states: State = field(default_factory=dict)

    def start(self) -> tuple[State, State]:
        return super().start()[0], tree_map(lambda v: v.to(self.device).clone(), self.states)


class Plan(NamedTuple):
    """How the candidates are trained.

    Attributes:
        setup: Training alone, with the options of all candidates.
        single: Whether one split replaces the folds.
    """

    setup: Setup
    single: bool

    @staticmethod
    def of(setup: Setup) -> Plan:
        """Return the plan for the data and the options of a run."""
        s = setup.settings
        train = replace(s.local, schedule="cosine") if s.local.lr == "auto" else s.local
        engine = "auto" if s.engine == "flower" else s.engine  # a candidate belongs to no node
        options: dict[str, Any] = {"fraction": 1.0, "joins": {}, "leaves": {}, "metrics": (), "patience": None}
        options |= {"engine": engine, "train": train, "rounds": max(s.T, MIN_ROUNDS), "seed": s.seed + SEED}
        alone = setup.changed(Local(), **options)
        if not is_expensive(alone):
            return Plan(alone, single=False)
        return Plan(alone.changed(rounds=s.T), single=True)

    @property
    def identity(self) -> str:
        """Identifies the best losses, with the data and the options of training."""
        return f"validated {FOLDS * (not self.single)} {self.setup.fingerprint}"


def is_expensive(alone: Setup) -> bool:
    """Say whether training alone, with all folds, would take more than MAX_WORK multiply-adds."""
    train, fed, serial = alone.settings.local, alone.fed, isinstance(alone.engine, Serial)
    steps, n = train.steps, int(fed.training.sizes.max())
    if train.epochs is not None:
        steps = train.epochs * math.ceil(n / (train.batch or n))
    each = step_work(alone.task, fed, train) + STEP_WORK[serial]
    return (FOLDS + 1) * fed.E * alone.settings.T * steps * each > MAX_WORK


class Candidates:
    """Trains the candidates of one run and chooses among them.

    Args:
        plan: How they are trained.
        folder: Where checkpoints and losses go; a run that was killed continues there. None: nothing is written.
        watch: Called after every round, with rounds that count up to those of the plan over all candidates.
        stop: See `loop.run`.
    """

    def __init__(
        self, plan: Plan, folder: Path | None = None, watch: Watch = lambda _: None, stop: Stop = never
    ) -> None:
        self.setup, self.folder, self.watch, self.stop = plan.setup, folder, watch, stop
        fed = plan.setup.fed
        self.folds = folds_of(fed, plan.setup.settings.seed, plan.single)
        self.everyone = torch.arange(fed.E)
        parameters = sum(p.numel() for p in plan.setup.task.network.parameters())
        self.groups = MIN_AGENTS_TO_GROUP <= fed.E and fed.E * parameters <= MAX_GROUPING
        self.done, self.stages = 0, 3 + self.groups

    def best(self) -> Validated:
        """Train all candidates, and measure the best of each agent on its test examples."""
        losses = dict(self._networks())
        if tables.apply(self.folds, self.setup.task):
            losses |= tables.losses(self.folds, self.setup.task)
        names, table = list(losses), torch.stack(list(losses.values()))  # [C, models, N]
        validated, n = self._validated(table)
        chosen = best_loss.choose(validated, n)
        own = [i for i, name in enumerate(names) if name.startswith("alone")]
        alone = self._on_test(table, torch.tensor(own)[best_loss.choose(validated[own], n)])
        best, at, limits = self._on_test(table, chosen), self.setup.fed.testing.offsets, None
        final = Examples(best[-1], at)
        if self.folds.count > 1:
            error = best_loss.estimation_error(Examples(alone[-1], at), alone[:-1])
            limits = best_loss.limits(final, best[:-1], error)
        return Validated(agent_means(final).float(), best[-1], alone[-1], [names[i] for i in chosen], limits)

    def _validated(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss of each candidate on the agents' examples that it was not trained on, [C, E]; n [E]."""
        rows = self.folds.held_out.nonzero().flatten()
        each = table[:, self.folds.fold[rows], rows].double()
        agent, E = self.folds.agent[rows], len(self.everyone)
        n = torch.bincount(agent, minlength=E)
        sums = torch.zeros(len(table), E, dtype=torch.double).index_add_(1, agent, each)
        return (sums / n.clamp_min(1)).nan_to_num(torch.inf).clamp_max(1e30), n

    def _on_test(self, table: Tensor, chosen: Tensor) -> Tensor:
        """The loss of each test example under the models of the candidate that its agent chose, [models, N]."""
        rows = self.folds.test.nonzero().flatten()
        return table[chosen[self.folds.agent[rows]], :, rows].T.contiguous()

    def _networks(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the losses of every network after some of its rounds."""
        models = range(self.folds.models)
        together, alone = (
            [(k, self.everyone) for k in models],
            [(k, e[None]) for k in models for e in self.everyone],
        )
        training = self._train("shared", together, self.setup)
        yield from self._named(training)
        shared = training.states[self._best_round(training.losses)]
        yield from self._named(self._train("alone", alone, self.setup))
        train = self.setup.settings.local
        slower = self.setup.changed(train=train.with_steps(None if train.epochs else -(-train.steps // ADAPTATION)))
        start = take(shared, torch.arange(self.folds.models).repeat_interleave(len(self.everyone)))
        yield from self._named(self._train("adapted", alone, slower, start))
        if self.groups:
            jobs = list(self._groups(alone, slower, start))
            start = take(shared, torch.tensor([k for k, _ in jobs]))
            yield from self._named(self._train("grouped", jobs, slower, start))

    def _best_round(self, losses: Mapping[int, Tensor]) -> int:
        """Return after how many rounds the validated loss is least, over the examples of all agents."""
        validated, n = self._validated(torch.stack(list(losses.values())))
        return list(losses)[int((validated * n).sum(1).argmin())]

    def _groups(
        self, alone: Sequence[tuple[int, Tensor]], setup: Setup, start: State
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield the agents of each group of each fold: by the change of the shared network in one round."""
        probe = Continued(Local(), self.folds.federation(alone)[0], setup.model, setup.settings, states=start)
        first = next(iter(run(probe, eval_every=0)))
        moved = [(first.states["w"][k].cpu() - v).flatten(1) for k, v in start["w"].items()]
        moves = torch.cat(moved, 1).view(self.folds.models, len(self.everyone), -1)
        for k, each in enumerate(moves):
            groups = similar(each)
            yield from ((k, self.everyone[groups == g]) for g in groups.unique())

    def _train(self, name: str, jobs: Sequence[Job], setup: Setup, start: State | None = None) -> Training:
        """Train one model per job."""
        fed, judged = self.folds.federation(jobs)
        setup = setup.changed(fed=fed)
        if start is not None:
            setup = Continued(Local(), fed, setup.model, setup.settings, states=start)
        folder = None if self.folder is None else files.make_folder(self.folder / name)
        shape = self.folds.models, len(self.folds.fold)
        training = Training(name, setup, jobs, judged, shape, folder, keep_states=name == "shared")
        training.run(self._watched, self.stop)
        self.done += 1
        return training

    @staticmethod
    def _named(training: Training) -> list[tuple[str, Tensor]]:
        return [(f"{training.name}, {t} rounds", losses) for t, losses in sorted(training.losses.items())]

    def _watched(self, done: Round) -> None:
        T = self.setup.settings.T
        self.watch(replace(done, t=(self.done * T + done.t) // self.stages))


class Training:
    """One run in which the models of one kind are trained, and evaluated after 1, 2, 4, 8, ... rounds.

    Args:
        name: Of the kind.
        setup: The run, with one agent per model.
        jobs: The fold and the agents of each model.
        judged: The places of each model's test examples in the rows of the folds.
        shape: Of the losses, [models per set of agents, N].
        folder: Where losses and checkpoints are written.
        keep_states: Keep the models, too.

    Attributes:
        losses: After a number of rounds, the loss of each example under the model of each fold; NaN where a model
            is not judged on an example.
        states: After a number of rounds, the agents' states, if they are kept.
    """

    def __init__(
        self,
        name: str,
        setup: Setup,
        jobs: Sequence[Job],
        judged: Sequence[Tensor],
        shape: tuple[int, int],
        folder: Path | None,
        keep_states: bool,
    ) -> None:
        self.name, self.setup, self.jobs, self.judged, self.shape = name, setup, jobs, judged, shape
        self.folder, self.keep_states, T = folder, keep_states, setup.settings.T
        self.rounds = {2**i for i in range(T.bit_length()) if 2**i < T} | {T}
        self.losses: dict[int, Tensor] = {}
        self.states: dict[int, State] = {}

    def run(self, watch: Watch, stop: Stop) -> None:
        """Train. A run that was killed before it wrote its losses starts over."""
        if self.folder is not None:
            for t in self.rounds:
                self._read(self._file(t), t)
        if not self._continue(watch, stop, resume=self.folder is not None):
            self.losses.clear()
            self._continue(watch, stop, resume=False)

    def _continue(self, watch: Watch, stop: Stop, resume: bool) -> bool:
        """Train; return False at once if losses of earlier rounds are missing."""
        for done in run(self.setup, self.folder, resume, eval_every=0, stop=stop):
            if any(t < done.t and t not in self.losses for t in self.rounds):
                return False
            if done.t in self.rounds and done.t not in self.losses:
                self._keep(done)
            watch(done)
        return True

    def _keep(self, done: Round) -> None:
        self.losses[done.t] = self._evaluated(done)
        if self.keep_states:
            self.states[done.t] = tree_map(lambda v: v.clone().cpu(), done.states)
        if self.folder is not None:
            kept = flatten(self.states.get(done.t, {}), "states/")
            sealed.write_tensors(self._file(done.t), {"loss": self.losses[done.t], **kept})

    def _read(self, path: Path, t: int) -> None:
        if path.exists():
            tree = unflatten(sealed.read_tensors(path)[0])
            self.losses[t] = tree["loss"]
            self.states[t] = tree.get("states", {})

    def _evaluated(self, done: Round) -> Tensor:
        with self.setup.engine.threads():
            scores = self.setup.engine.evaluate(self.setup.algorithm, done.server, done.states)
        assert scores.examples is not None
        losses = torch.full(self.shape, torch.nan)
        each = scores.examples.split([len(places) for places in self.judged])
        for (k, _), places, values in zip(self.jobs, self.judged, each, strict=True):
            losses[k, places] = values
        return losses

    def _file(self, t: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{t}.safetensors"


def similar(moves: Tensor) -> Tensor:
    """Group agents whose models move in similar directions (Ward), as many groups as stand out most.

    Args:
        moves: [E, P].

    Returns:
        The group of each agent, [E].

    >>> similar(torch.tensor([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.1], [-1.0, -0.1]])).tolist()
    [1, 1, 2, 2]
    """
    from scipy.cluster.hierarchy import fcluster, linkage  # takes a moment to import

    E = len(moves)
    joined = linkage(torch.nn.functional.normalize(moves.double()).numpy(), "ward")
    heights = joined[:, 2]  # of the E - 1 steps, ascending; before step E - g there are g groups left to join
    ratios = {g: heights[E - g] / max(heights[E - g - 1], 1e-12) for g in range(2, min(MAX_GROUPS, E // 2) + 1)}
    return torch.from_numpy(fcluster(joined, max(ratios, key=lambda g: ratios[g]), "maxclust").astype(np.int64))


def validated(plan: Plan, folder: Path | None, watch: Watch = lambda _: None, stop: Stop = never) -> Validated:
    """Return the validated best losses; where training diverges, with a learning rate that is found.

    Raises:
        Diverged: Training diverges with every rate.
    """
    try:
        return Candidates(plan, folder, watch, stop).best()
    except Diverged:
        if plan.setup.settings.local.lr == "auto":
            raise
        train = replace(plan.setup.settings.local, lr="auto", schedule="cosine")
        slower = Plan(plan.setup.changed(train=train), plan.single)
        return Candidates(slower, None if folder is None else folder / "auto", watch, stop).best()
