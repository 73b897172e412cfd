"""A deployment: the server of a run whose agents are nodes on other machines.

The rounds are those of `run/loop.py`, with Flower's grid as the engine and a checkpoint after each.

OUT/experiment.json, results.json      as `focusfl compare` writes them: `focusfl report OUT` shows them
OUT/runs/NAME-seed0/                   history.jsonl (and who was left out, and why), checkpoint, result.json
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from flwr.serverapp import Grid
from torch import Tensor

from focusfl.core import Algorithm, State
from focusfl.core.train import Train
from focusfl.engines import Engine, Replies, Scores, plan
from focusfl.engines.plan import Ints
from focusfl.flower.protocol.exchange import Exchange, TooFewReplies
from focusfl.flower.protocol.roster import Roster
from focusfl.flower.protocol.secure_round import require_sums_only, secure_round
from focusfl.models.task import InitialWeights, Task
from focusfl.report.rows import Row
from focusfl.run import checkpoint, identity, results
from focusfl.run.best_loss import BestLoss
from focusfl.run.loop import Round, run
from focusfl.run.presence import EVERYBODY, Presence
from focusfl.run.result import described, row_of
from focusfl.run.settings import Settings
from focusfl.run.setup import Model
from focusfl.util import files
from focusfl.util.errors import InputError, require

LOGGER = logging.getLogger("focusfl")
Log = Callable[[str], None]
TRIES = 5  # at a round for which too few agents reply


@dataclass(frozen=True)
class Deployment:
    """What the server must know. The nodes have their data and, of this, algorithm, model and settings."""

    algorithm: Algorithm
    model: Model
    agents: int  # E
    classes: int | None  # None: regression
    settings: Settings
    out: Path | None = None  # folder of the results
    resume: bool = False
    name: str = "federation"  # of the data, in the report

    @staticmethod
    def of(
        algorithm: Algorithm,
        model: Model,
        agents: int,
        classes: int | None,
        *,
        settings: Settings | None = None,
        out: Path | None = None,
        resume: bool = False,
        name: str = "federation",
        **options: Any,
    ) -> Deployment:
        """A checked deployment.

        Args:
            algorithm: The method.
            model: A function that makes the network (called under the seed), or a torch.nn.Module.
            agents: Number of agents E.
            classes: Number of classes; None for regression.
            settings: All other options at once,
            out: Folder for results and checkpoints, at the server.
            resume: Continue the run in that folder.
            name: Of the data, in the report.
            **options: or one by one: the fields of Settings, for example ``rounds=20, minimum=3``.

        Raises:
            InputError: If an option cannot be used.
        """
        chosen = (settings or Settings()).updated(**options)
        chosen = replace(chosen, train=chosen.train or Train(), checkpoint_every=1)
        require("rounds", chosen.rounds, chosen.rounds is not None, "a number: the nodes' data have no recipe")
        if chosen.bayes not in ("auto", "agent", "none"):
            raise InputError(f"best = {chosen.bayes}: across machines use agent (each agent alone) or none")
        require("agents", agents, agents >= 2, "two or more, since fairness compares agents")
        cohort = len(plan.cohort(chosen.seed, 0, agents, chosen.fraction))  # of a round
        least = 2 if chosen.secure else 1
        within = f"from {least} to the {cohort} agents of a round"
        require("minimum", chosen.minimum, cohort >= least and chosen.minimum <= cohort, within)
        if resume and out is None:
            raise InputError("resume = true: there is nothing to resume without out, the folder of the results")
        return Deployment(algorithm, model, agents, classes, chosen, out, resume, name)

    @cached_property
    def networks(self) -> InitialWeights:
        return InitialWeights(self.model, self.settings.seed)

    @property
    def method(self) -> str:
        return str(described(self.algorithm)["algorithm"])

    @property
    def folder(self) -> Path | None:
        return None if self.out is None else results.run_folder(self.out, self.method, self.settings.seed)

    def key(self, nonce: str) -> str:
        """Of one run, told from others with the same settings by its nonce. Nodes keep their states under it."""
        s, network = self.settings, repr(self.networks.network())
        same = repr(self.algorithm), repr(s.local), network, self.classes, nonce
        return identity.digest(*same, self.agents, s.T, s.seed, s.fraction, s.secure)[:32]


class DeploymentEngine(Engine):
    """Flower's grid as an engine: the agents' states stay at the nodes."""

    name: ClassVar[str] = "flower"

    def __init__(self, deployment: Deployment, grid: Grid, key: str, log: Log = LOGGER.warning) -> None:
        self.deployment, self.task = deployment, Task(deployment.networks.network(), deployment.classes)
        about = deployment.algorithm, deployment.settings, deployment.classes, deployment.agents, key
        self.exchange = Exchange(Roster(grid, *about, log), self.task)
        self.log, self._waited = log, False
        self._labels: Tensor | None = None

    @contextmanager
    def threads(self) -> Iterator[None]:
        """The server itself trains nothing."""
        yield

    def gather(self, server: State, t: int, wait: float = 0.0) -> None:
        """Enroll the nodes that are new; at first, and when too few reply, wait for them."""
        roster, settings = self.exchange.roster, self.deployment.settings
        roster.gather(
            t, self.deployment.algorithm.enroll(server), begin=t == 0, wait=wait if self._waited else settings.wait
        )
        if not self._waited:
            here = f"{len(roster.nodes)} of {roster.E} agents are connected"
            self.log(f"{here}, {settings.T - t} rounds to go")
            self._waited = True

    def round(self, algorithm: Algorithm, server: State, states: State, t: int, cohort: Ints) -> Replies:
        """Where too few agents reply, wait for nodes and try again."""
        settings, wait = self.deployment.settings, 0.0
        for left in reversed(range(TRIES)):
            self.gather(server, t, wait)
            try:
                if settings.secure:
                    return secure_round(self.exchange, server, t, cohort)
                return self.exchange.round(server, t, cohort)
            except TooFewReplies as why:
                if not left:
                    advice = "Earlier rounds are saved: start the nodes and run again with resume"
                    raise TooFewReplies(f"{why}. {advice}") from why
                self.log(f"{why}; waiting for nodes, then trying again")
                wait = settings.wait
        raise AssertionError

    def evaluate(self, algorithm: Algorithm, server: State, states: State) -> Scores:
        if not self._waited:  # resumed, and there was nothing left to do
            self.gather(server, self.deployment.settings.T)
        scores, self._labels = self.exchange.evaluate(server, self.deployment.settings.T)
        return scores

    def labels(self, algorithm: Algorithm, server: State, states: State) -> Tensor | None:
        """Those that the nodes sent with their last scores."""
        return self._labels


@dataclass(frozen=True)
class DeployedRun:
    """A deployment with its nodes, as the loop takes it (loop.Runnable)."""

    deployment: Deployment
    engine: Engine
    fingerprint: str
    presence: Presence = EVERYBODY  # nodes come and go by themselves

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def algorithm(self) -> Algorithm:
        return self.deployment.algorithm

    @property
    def settings(self) -> Settings:
        return self.deployment.settings

    @property
    def E(self) -> int:
        return self.deployment.agents

    def start(self) -> tuple[State, State]:
        return self.algorithm.start(self.deployment.networks, self.E), {}

    def enrolled(self, server: State, count: int) -> State:
        return {}  # the nodes keep their own


def serve(grid: Grid, deployment: Deployment, log: Log = LOGGER.warning) -> Row:
    """Train over all rounds, then measure fairness.

    Args:
        grid: Flower's grid; a ServerApp of your own passes the one it is given.
        deployment: What to run.
        log: Called with every line of progress.

    Returns:
        The row of results.json.

    Raises:
        TooFewReplies: If too few agents reply, several times.
        Diverged: If a number is no longer finite.
    """
    if deployment.settings.secure:
        server = deployment.algorithm.start(deployment.networks, deployment.agents)
        require_sums_only(deployment.algorithm, server, Task(deployment.networks.network(), deployment.classes))
    key = _claim(deployment)
    engine = DeploymentEngine(deployment, grid, key, log)
    for last in run(DeployedRun(deployment, engine, key), deployment.folder, deployment.resume):
        log(_progress(last, deployment.settings.T))
    return _result(deployment, engine, last)


def _claim(deployment: Deployment) -> str:
    """The run's key: a new one, or that of the run in the folder, which is resumed."""
    nonce, place = secrets.token_hex(16), deployment.folder
    if place is None:
        return deployment.key(nonce)
    stored, known = place / checkpoint.NAME, place / "nonce.json"
    if stored.exists() and not deployment.resume:
        raise InputError(f"{place} holds this run: resume = true continues it, or name another folder as out")
    if stored.exists() and not known.exists():
        raise InputError(
            f"{place} has {stored.name} but no {known.name}, by which the nodes know this run: "
            "copy it from where the run was, or name another folder as out"
        )
    if stored.exists():
        return deployment.key(str(files.read_json(known)["nonce"]))
    files.make_folder(place)
    files.write_json(known, {"nonce": nonce})
    return deployment.key(nonce)


def _progress(done: Round, T: int) -> str:
    scores = done.scores
    said = "not evaluated" if scores is None else f"mean loss {scores.loss.nanmean():.4f}"
    if scores is not None and scores.acc is not None:
        said += f", accuracy {scores.acc.nanmean():.3f}"
    return f"round {done.t} of {T}: {said}, {done.replied} agents, {done.seconds:.1f} s"


def _result(deployment: Deployment, engine: DeploymentEngine, last: Round) -> Row:
    """FAA from numbers alone: each agent's loss, and the loss it would have alone."""
    measured, scores = deployment.settings.bayes != "none", last.scores
    assert scores is not None
    best = engine.exchange.best() if measured else torch.zeros(deployment.agents)
    answered = torch.isfinite(scores.loss) & torch.isfinite(best)
    if not answered.any():
        advice = "The rounds are saved: start the nodes and run again with resume"
        raise TooFewReplies(f"no agent sent its last scores. {advice}")
    if not answered.all():
        absent = (~answered).nonzero().flatten().tolist()
        engine.log(f"agents {absent} did not send their last scores: they are not in the result")
    seen = Scores(scores.loss[answered], None if scores.acc is None else scores.acc[answered])
    kind = BestLoss(best[answered], "agent" if measured else "none")
    pi = None if last.pi is None else last.pi[answered]
    numbers = seen, kind, pi, last.total_seconds
    row = row_of(deployment.algorithm, deployment.settings, deployment.name, engine.name, *numbers)
    row["agents"] = answered.nonzero().flatten().tolist()
    if deployment.out is not None and deployment.folder is not None:
        row = results.write_row(deployment.folder, row)
        results.add_row(deployment.out, row)
    summary = {"FAA": row["faa"], "mean loss": row["avg_loss"], "agnostic loss": row["agnostic_loss"]}
    engine.log(", ".join(f"{name} {value:.4f}" for name, value in summary.items()))
    return row
