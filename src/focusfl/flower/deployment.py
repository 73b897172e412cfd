"""A deployment: the server of a run whose agents are nodes on other machines.

The rounds are those of `run/loop.py`, with Flower's grid as the engine and a checkpoint after each.

OUT/experiment.json, results.json      as `focusfl compare` writes them: `focusfl report OUT` shows them
OUT/runs/NAME-seed0/                   history.jsonl (with the agents left out, and why), checkpoint, result.json
OUT/runs/NAME-seed0/model/             the models that the server holds, for newcomers: focusfl assign
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from flwr.serverapp import Grid
from torch import Tensor

from focusfl.algorithms import Adapted, adapted, decide_weights
from focusfl.core import Algorithm, State
from focusfl.core.train import Train
from focusfl.data.own.description import Description, Reading
from focusfl.data.own.inputs import Inputs
from focusfl.engines import Engine, Replies, Scores, plan
from focusfl.engines.base import Part
from focusfl.engines.plan import Ints
from focusfl.flower.described import described, target_scale
from focusfl.flower.protocol.course import LATEST, Course
from focusfl.flower.protocol.description import from_text
from focusfl.flower.protocol.exchange import Exchange, FalseSum, RoundFailed, TooFewReplies
from focusfl.flower.protocol.roster import Roster
from focusfl.flower.protocol.secure_round import require_sums_only, secure_round, secure_validation
from focusfl.models import losses
from focusfl.models.task import InitialWeights, Task
from focusfl.report.rows import Row
from focusfl.run import checkpoint, identity, results
from focusfl.run.best_loss import BestLoss
from focusfl.run.loop import Round, run
from focusfl.run.presence import EVERYBODY, Presence
from focusfl.run.result import name_and_options, row_of
from focusfl.run.saved.of_result import assembled
from focusfl.run.settings import Settings, majority
from focusfl.run.setup import Model
from focusfl.util import files
from focusfl.util.errors import Diverged, InputError, require

LOGGER = logging.getLogger("focusfl")
Log = Callable[[str], None]
TRIES = 5  # attempts at a round to which too few agents reply


@dataclass(frozen=True)
class Deployment:
    """What the server needs to know. The nodes have their data, and the same algorithm, model and settings."""

    algorithm: Algorithm
    model: Model | None  # None: the default for the nodes' own files
    agents: int  # E
    classes: int | None  # None: regression, or found from the nodes' own files
    settings: Settings
    out: Path | None = None  # folder of the results
    resume: bool = False
    name: str = "federation"  # name of the data in the report
    labels: tuple[str, ...] = ()  # names of the classes
    label: str = "label"  # name of the nodes' label column
    reading: Reading | None = None  # how nodes read files of their own
    hidden: int | None = None  # hidden units of the default network
    description: str = ""  # how nodes encode their files, once it is known

    @staticmethod
    def of(
        algorithm: Algorithm,
        model: Model | None,
        agents: int,
        classes: int | None,
        *,
        reading: Reading | None = None,
        hidden: int | None = None,
        settings: Settings | None = None,
        out: Path | None = None,
        resume: bool = False,
        name: str = "federation",
        labels: tuple[str, ...] = (),
        label: str = "label",
        **options: Any,
    ) -> Deployment:
        """Check a deployment and return it.

        Args:
            algorithm: The method.
            model: A function that makes the network (called under the seed), or a torch.nn.Module; None: the
                default for the nodes' own files.
            agents: Number of agents E.
            classes: Number of classes; None for regression.
            reading: How nodes read files of their own; None if they load arrays.
            hidden: Hidden units of the default network; by default 32.
            settings: All other options, as one object.
            out: Folder for results and checkpoints, at the server.
            resume: Continue the run in that folder.
            name: Name of the data in the report.
            labels: The names of the classes, for the saved model.
            label: The name of the nodes' label column, for the saved model.
            **options: Fields of Settings, for example ``rounds=20, minimum=3``; they override those in `settings`.

        Raises:
            InputError: If an option cannot be used.
        """
        chosen = (settings or Settings()).updated(**options)
        chosen = replace(chosen, train=chosen.train or Train(), checkpoint_every=1)
        require("rounds", chosen.rounds, chosen.rounds is not None, "a number: the nodes' data has no default")
        if chosen.bayes not in ("auto", "agent", "none"):
            raise InputError(f"bayes = {chosen.bayes}: across machines use agent (each agent alone) or none")
        require("agents", agents, agents >= 2, "two or more, since fairness compares agents")
        cohort = len(plan.cohort(chosen.seed, 0, agents, chosen.fraction))  # of a round
        least = 2 if chosen.secure else 1
        minimum = max(chosen.minimum or majority(cohort), least)
        chosen = replace(chosen, minimum=minimum)
        within = f"from {least} to the {cohort} agents of a round"
        require("minimum", minimum, minimum <= cohort, within)
        chosen = replace(chosen, patience=chosen.patience or None)
        algorithm = decide_weights(algorithm, by_n=False)  # the nodes have data of their own
        algorithm = adapted(algorithm, by_default=False)
        for name, asked in {"patience": chosen.patience, "adapt": isinstance(algorithm, Adapted)}.items():
            if asked and not chosen.validation:
                raise InputError(f"{name}: the nodes decide on validation data; set validation, such as 0.2")
        if resume and out is None:
            raise InputError("resume = true: set out, the folder with the results of the run to resume")
        own = reading, hidden
        return Deployment(algorithm, model, agents, classes, chosen, out, resume, name, labels, label, *own)

    @cached_property
    def networks(self) -> InitialWeights:
        if self.model is None:
            raise InputError("model: name the network; only for files of the nodes' own there is a default")
        return InitialWeights(self.model, self.settings.seed)

    @property
    def data(self) -> Description | None:
        """How nodes encode their own files, if it is known."""
        return from_text(self.description) if self.description else None

    @property
    def returns(self) -> bool:
        """Whether the run may return to an earlier round, so that the nodes keep their states of that round."""
        s = self.settings
        return s.patience is not None or s.local.lr == "auto" or isinstance(self.algorithm, Adapted)

    @property
    def method(self) -> str:
        return str(name_and_options(self.algorithm)["algorithm"])

    @property
    def folder(self) -> Path | None:
        return None if self.out is None else results.run_folder(self.out, self.method, self.settings.seed)

    def key(self, nonce: str) -> str:
        """Return the key under which nodes store their states; the nonce distinguishes runs with equal settings."""
        s, network = self.settings, repr(self.networks.network())
        same: list[object] = [repr(self.algorithm), repr(s.local), network, self.classes, nonce]
        same += [self.agents, s.T, s.seed, s.fraction, s.secure]
        same += [s.validation, s.patience] if s.validation else []
        same += [self.description] if self.description else []
        return identity.digest(*same, *[] if s.loss is None else [losses.describe(s.loss)])[:32]


class DeploymentEngine(Engine):
    """Flower's grid as an engine: the agents' states stay at the nodes."""

    name: ClassVar[str] = "flower"

    def __init__(self, deployment: Deployment, grid: Grid, key: str, log: Log = LOGGER.warning) -> None:
        target = target_scale(deployment.data, deployment.settings.loss)
        self.deployment = deployment
        self.task = Task(deployment.networks.network(), deployment.classes, target=target)
        run_options = deployment.algorithm, deployment.settings, deployment.classes, deployment.agents, key
        self.exchange = Exchange(Roster(grid, *run_options, log, description=deployment.description), self.task)
        self.log, self._waited = log, False
        self._labels: Tensor | None = None
        self._last = -1  # the last round after training, once there was one

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Leave the number of threads as it is: the server does not train."""
        yield

    def gather(self, server: State, t: int, wait: float = 0.0) -> None:
        """Enroll new nodes. At the start, and when too few have replied, wait for them."""
        roster, settings = self.exchange.roster, self.deployment.settings
        roster.gather(
            t, self.deployment.algorithm.enroll(server), begin=t == 0, wait=wait if self._waited else settings.wait
        )
        if not self._waited:
            connected = f"{len(roster.nodes)} of {roster.E} agents are connected"
            self.log(f"{connected}, {settings.T - t} rounds to go")
            self._waited = True

    def round(self, algorithm: Algorithm, server: State, states: State, t: int, cohort: Ints) -> Replies:
        """Run a round; if too few agents reply or a sum is false, wait for nodes and try again."""
        settings = self.deployment.settings
        wait = settings.wait if t == settings.T else 0.0  # everybody should adapt
        self.exchange.roster.course = self.course
        for tries_left in reversed(range(TRIES)):
            self.gather(server, t, wait)
            try:
                run_round = secure_round if settings.secure else Exchange.round
                replies = run_round(self.exchange, server, t, cohort)
                self._last = t if t >= settings.T else -1
                return replies
            except RoundFailed as why:
                if not tries_left and settings.local.lr == "auto" and isinstance(why, FalseSum):
                    raise Diverged(str(why)) from why  # honest agents whose training explodes look like that, too
                if not tries_left:
                    advice = "Earlier rounds are saved: start the nodes and run again with resume"
                    raise type(why)(f"{why}. {advice}") from why
                self.log(f"{why}; waiting for nodes, then trying again")
                wait = settings.wait
        raise AssertionError

    def evaluate(self, algorithm: Algorithm, server: State, states: State, part: Part = "test") -> Scores:
        self.exchange.roster.course = self.course
        if not self._waited:  # resumed, and there was nothing left to do
            self.gather(server, self.deployment.settings.T)
        if part == "validation":
            mean, self.judges = self._validate(server, np.arange(self.deployment.agents))
            return Scores(torch.tensor([math.nan if mean is None else mean], dtype=torch.double), None)
        scores, self._labels = self.exchange.evaluate(server, LATEST)
        return scores

    @property
    def course(self) -> Course:
        """Where the run is, as the nodes are told."""
        return Course(self.rate, self.best if self.deployment.returns else None, self.returns, self._last)

    def returned_to(self, t: int) -> None:
        self.returns = (*self.returns, t)

    def adapting_from(self, t: int) -> None:
        self.best, self._last = t, -1
        self.returned_to(t)  # also where the nodes are there: those of a run that was killed later are not

    def judge_again(self, algorithm: Algorithm, server: State, judges: tuple[int, ...]) -> float | None:
        self.exchange.roster.course = self.course._replace(returns=(*self.returns, self.best))  # as if it returned
        mean, answered = self._validate(server, np.array(judges))
        return mean if answered == judges else None

    def _validate(self, server: State, agents: Ints) -> tuple[float | None, tuple[int, ...]]:
        """Return the mean validation loss of these agents, None if too few of them answer; and those who did."""
        try:
            secure = self.deployment.settings.secure
            return (secure_validation if secure else Exchange.validate)(self.exchange, server, agents)
        except RoundFailed as why:
            self.log(f"the round is not compared with the best one: {why}")
            return None, ()

    def labels(self, algorithm: Algorithm, server: State, states: State) -> Tensor | None:
        """Return the labels that the nodes sent with their last scores."""
        return self._labels


@dataclass(frozen=True)
class DeployedRun:
    """A deployment with its nodes, in the form that the loop needs (loop.Runnable)."""

    deployment: Deployment
    engine: Engine
    fingerprint: str
    presence: Presence = EVERYBODY  # nodes connect and disconnect by themselves

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

    @property
    def validates(self) -> bool:
        return bool(self.settings.validation)

    def start(self) -> tuple[State, State]:
        return self.algorithm.start(self.deployment.networks, self.E), {}

    def enrolled(self, server: State, count: int) -> State:
        return {}  # the nodes store their own states


def serve(grid: Grid, deployment: Deployment, log: Log = LOGGER.warning) -> Row:
    """Train over all rounds, then measure fairness.

    Args:
        grid: Flower's grid; your own ServerApp passes on the one it receives.
        deployment: What to run.
        log: Called with every line of progress.

    Returns:
        The row of results.json.

    Raises:
        TooFewReplies: If too few agents reply, several times.
        FalseSum: If secure sums cannot be those of honest agents, several times.
        Diverged: If a number is no longer finite.
    """
    _require_free(deployment)
    if deployment.out is not None:  # before any node is waited for
        files.make_folder(Path(deployment.out))
    deployment = described(deployment, grid, log)
    if deployment.settings.secure:
        server = deployment.algorithm.start(deployment.networks, deployment.agents)
        require_sums_only(deployment.algorithm, server, Task(deployment.networks.network(), deployment.classes))
    key = _claim(deployment)
    engine = DeploymentEngine(deployment, grid, key, log)
    for last in run(DeployedRun(deployment, engine, key), deployment.folder, deployment.resume):
        log(_progress(last, deployment.settings.T))
    return _result(deployment, engine, last)


def _require_free(deployment: Deployment) -> None:
    folder = deployment.folder
    if folder is not None and checkpoint.exists(folder) and not deployment.resume:
        raise InputError(f"{folder} holds this run: set resume = true to continue it, or out to another folder")


def _claim(deployment: Deployment) -> str:
    """Return the key of a new run, or that of the run in the folder, which is resumed."""
    nonce, folder = secrets.token_hex(16), deployment.folder
    if folder is None:
        return deployment.key(nonce)
    stored, nonce_file = checkpoint.exists(folder), folder / "nonce.json"
    if stored and not nonce_file.exists():
        raise InputError(
            f"{folder} has {checkpoint.NAME} but no {nonce_file.name}, by which the nodes recognise this run: "
            "copy it from the original folder of the run, or set out to another folder"
        )
    if stored:
        return deployment.key(str(files.read_json(nonce_file)["nonce"]))
    files.make_folder(folder)
    files.write_json(nonce_file, {"nonce": nonce})
    return deployment.key(nonce)


def _progress(done: Round, T: int) -> str:
    scores = done.scores
    outcome = "not evaluated" if scores is None else f"mean loss {scores.loss.nanmean():.4f}"
    if scores is not None and scores.acc is not None:
        outcome += f", accuracy {scores.acc.nanmean():.3f}"
    return f"round {done.t} of {T}: {outcome}, {done.replied} agents, {done.seconds:.1f} s"


def _result(deployment: Deployment, engine: DeploymentEngine, last: Round) -> Row:
    """Measure FAA from each agent's loss and the loss that it reaches alone; write the results."""
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
    final_scores = Scores(
        scores.loss[answered],
        None if scores.acc is None else scores.acc[answered],
        metrics={name: values[answered] for name, values in scores.metrics.items()},
    )
    best_loss = BestLoss(best[answered], "agent" if measured else "none")
    pi = None if last.pi is None else last.pi[answered]
    numbers = final_scores, best_loss, pi, last.total_seconds
    row = row_of(deployment.algorithm, deployment.settings, deployment.name, engine.name, *numbers)
    row["agents"] = answered.nonzero().flatten().tolist()
    if deployment.out is not None and deployment.folder is not None:
        _save_model(deployment, engine, last.server, row, deployment.folder / "model")
        row = results.write_row(deployment.folder, row)
        results.add_row(deployment.out, row)
    summary = {"FAA": row["faa"], "mean loss": row["avg_loss"], "agnostic loss": row["agnostic_loss"]}
    engine.log(", ".join(f"{name} {value:.4f}" for name, value in summary.items()))
    return row


def _save_model(deployment: Deployment, engine: DeploymentEngine, server: State, row: Row, folder: Path) -> None:
    """Write the models that the server holds, with the card; the agents' own part stays at the nodes."""
    inputs = Inputs("arrays", (), label=deployment.label)
    model = assembled(
        deployment.algorithm,
        engine.task,
        deployment.networks.model,
        deployment.settings,
        server,
        {},
        agents=(),
        inputs=inputs if deployment.data is None else deployment.data.inputs,
        labels=deployment.labels,
        data=deployment.name,
        results=row,
    )
    model.save(folder)
