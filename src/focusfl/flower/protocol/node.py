"""A node: it answers the server's messages, using its own data. Only what is in a reply leaves the node.

describe   with files of its own: add up what all nodes must know to encode them (own_node.py)
enroll     report which agent it is, and take its first state
train      take the K local steps of a round; in a secure run in five stages, with a masked upload
evaluate   send only numbers: loss, accuracy, metrics and label; keep this node's own predictor in its folder
validate   send the loss on validation data, which the server averages over the nodes
best       send the loss that it reaches alone
"""

from __future__ import annotations

import logging
import math
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from focusfl.algorithms.local import Local
from focusfl.core import Algorithm, Data, State, Upload
from focusfl.core.tree import flatten, repeat, tree_map
from focusfl.data.federation import split_validation
from focusfl.data.own.inputs import Inputs
from focusfl.engines import Scores, audit
from focusfl.engines.one_agent import LocalAgent, predictor
from focusfl.fairness import scores
from focusfl.fairness.constant import constant_scores
from focusfl.flower.protocol import secure_round
from focusfl.flower.protocol.course import Course
from focusfl.flower.protocol.memory import Memory
from focusfl.flower.protocol.own_node import OwnJob, OwnNode, privately, require_secure, told_description
from focusfl.flower.protocol.roster import run_signature
from focusfl.flower.protocol.wire import Refused, to_arrays, to_tree
from focusfl.flower.secure_sums import fixed_point
from focusfl.models import losses
from focusfl.models.task import InitialWeights, TargetScale, Task
from focusfl.run.early_stopping import MAX_EXPLOSIONS
from focusfl.run.saved.of_result import assembled
from focusfl.run.settings import Settings
from focusfl.run.setup import Model
from focusfl.util.errors import InputError

LOGGER = logging.getLogger("focusfl")
STAGES = ("keys", "shares", "masked", "agree", "reveal")  # the stages of a secure sum
MIN_RATE = 4.0**-MAX_EXPLOSIONS
MAX_JOBS = 32  # per process: a worker of a simulation runs many nodes
_JOBS: OrderedDict[tuple[object, ...], Job | OwnJob] = OrderedDict()  # by app, run and configuration


class LostState(Refused):
    """The agent's first state must come from the server again."""


class OwnTrainingDiverged(Exception):
    """A number of this node is not finite."""


@dataclass(frozen=True)
class Job:
    """What a node needs to know in addition to its messages. It is created once per run."""

    algorithm: Algorithm
    model: Model
    settings: Settings  # only the options of local training, `loss`, `metrics` and `secure` are used
    training: Data
    testing: Data
    classes: int | None
    simulated: bool = False  # the node also sends its state and losses, and accepts a state: runs can resume
    validation: Data | None = None  # by default the share `settings.validation` of the training examples
    target: TargetScale | None = None  # in regression: the network learns scaled targets
    columns: str = ""  # digest of a table's column names, which must be the same at all nodes
    inputs: Inputs | None = None  # the form of an example; by default an array of the training data's shape
    labels: tuple[str, ...] = ()  # the names of the classes, if they have names
    description: str = ""  # how this node encodes its own data, if it was told
    tasks: dict[int, Task] = field(default_factory=dict)  # the network with its loss, by seed
    splits: dict[int, tuple[Data, Data | None]] = field(default_factory=dict)  # training and validation, by seed

    def split(self, seed: int, e: int) -> tuple[Data, Data | None]:
        """Return the examples for training and for validation, as `Federation.with_validation` splits them."""
        if seed not in self.splits:
            share, whole = self.settings.validation, (self.training, self.validation)
            given = self.validation is not None or not share
            self.splits[seed] = whole if given else split_validation(self.training, float(share or 0), seed, e)
        return self.splits[seed]


def client(make_job: Callable[[Context], Job | OwnJob]) -> ClientApp:
    """Return the ClientApp. `make_job` is called once per run and process."""
    app, name = ClientApp(), uuid.uuid4().hex

    def any_node(message: Message, context: Context) -> Node | OwnNode:
        e = number(context)  # first of all, refuse a node without a number
        key = name, context.run_id, f"{sorted(context.node_config.items())} {sorted(context.run_config.items())}"
        job = _stored(key, lambda: make_job(context))
        if isinstance(job, OwnJob):
            own, text = job, told_description(message.content)
            if text is None:
                return OwnNode(own, e, message, context)
            job = _stored((*key, text), lambda: own.job(text))
            assert isinstance(job, Job)
        return Node(job, message, context)

    def node(message: Message, context: Context) -> Node:
        found = any_node(message, context)
        if not isinstance(found, Node):
            raise Refused("this node was not told how to encode its data")
        return found

    @app.query("enroll")
    def _(message: Message, context: Context) -> Message:
        return Message(any_node(message, context).enroll(), reply_to=message)

    @app.query("describe")
    def _(message: Message, context: Context) -> Message:
        found = any_node(message, context)
        if not isinstance(found, OwnNode):
            raise Refused("this node's data are not tables or files that it reads itself")
        return Message(found.describe(), reply_to=message)

    @app.train()
    def _(message: Message, context: Context) -> Message:
        return Message(node(message, context).train(), reply_to=message)

    for stage in STAGES:

        @app.train(stage)
        def _(message: Message, context: Context, stage: str = stage) -> Message:
            return Message(any_node(message, context).masked(stage, context), reply_to=message)

    @app.evaluate()
    def _(message: Message, context: Context) -> Message:
        return Message(node(message, context).evaluate(), reply_to=message)

    @app.evaluate("validation")
    def _(message: Message, context: Context) -> Message:
        return Message(node(message, context).validate(), reply_to=message)

    @app.query("best")
    def _(message: Message, context: Context) -> Message:
        return Message(node(message, context).best(), reply_to=message)

    return app


def _stored(key: tuple[object, ...], make: Callable[[], Job | OwnJob]) -> Job | OwnJob:
    """Return the job of this key, which is made the first time."""
    if key not in _JOBS:
        _JOBS[key] = privately(make)
        while len(_JOBS) > MAX_JOBS:
            _JOBS.popitem(last=False)
    return _JOBS[key]


class Node:
    """A node that handles one message."""

    def __init__(self, job: Job, message: Message, context: Context) -> None:
        self.job, self.content, self.e = job, message.content, number(context)
        require_secure(context, job.settings)
        ask = self.content.config_records["ask"]
        self.t, self.rounds, self.seed = (int(str(ask[name])) for name in ("t", "rounds", "seed"))
        self.begin = bool(ask.get("begin", False))
        self.part = str(ask.get("part", "test"))
        self.course = Course.read(ask, job.settings.local.lr == "auto")
        self.training, self.validation = job.split(self.seed, self.e)
        self.memory = Memory(context, str(ask["key"]))
        if self.seed not in job.tasks:
            loss = losses.resolve(job.settings.loss, job.classes, job.training.y.dim() == 2)
            network = InitialWeights(job.model, self.seed).network()
            job.tasks[self.seed] = Task(network, job.classes, loss, job.target)
        self.task = job.tasks[self.seed]
        if job.simulated and "state" in self.content:
            self.memory.keep(-1, {}, to_tree(self.content, "state"))

    def enroll(self) -> RecordDict:
        """Take the first state, unless this node already has one for this run; report which agent this is.

        In a secure run the node makes its first state itself, from the models that its first masks depend on: by
        first states of its choice the server could reduce the others' terms to zero.
        """
        job = self.job
        self.task.check(job.training.x)  # torch's own error, which Flower sends to the server, would quote a label
        starts_over = self.begin or self.memory.recall(self.t, self.course) is None
        if starts_over and job.settings.secure:
            self.memory.forget()
        elif starts_over:
            self.memory.keep(self.t - 1, {}, to_tree(self.content, "state"), self.course)
        hello: dict[str, Any] = {"agent": self.e, "n": len(self.training.y), "columns": job.columns}
        hello |= {"job": run_signature(job.algorithm, job.settings), "starts_over": starts_over}
        return RecordDict({"hello": ConfigRecord(hello | {"classes": -1 if job.classes is None else job.classes})})

    def train(self) -> RecordDict:
        """Take the K local steps of round t and send the upload unmasked."""
        if self.job.settings.secure:
            raise Refused("this node takes part in a secure run and sends its upload only masked")
        try:
            new, upload = self._local()
        except LostState:
            return RecordDict({"lost": ConfigRecord()})  # the server will enroll it again
        except OwnTrainingDiverged:
            return RecordDict({"diverged": ConfigRecord()})
        reply = RecordDict({"add": to_arrays(upload.add), "each": to_arrays(upload.each)})
        if self.job.simulated:
            reply["state"] = to_arrays(new)
        return reply

    def masked(self, stage: str, context: Context) -> RecordDict:
        """Take part in one stage of a secure sum; the third one includes the K local steps, or the validation."""
        values, about = None, b""
        if stage == "masked":
            job, view = self.job, to_tree(self.content, "view")
            try:
                values = self._validation_loss() if self.part == "validation" else self._summands(view)
                _require_moderate(values, fixed_point.MAX_VALUE)
            except OwnTrainingDiverged:
                return RecordDict({"diverged": ConfigRecord()})
            ask = self.memory.key, self.t, self.rounds, self.seed, self.part, *self.course
            about = secure_round.round_digest(job.algorithm, job.settings, ask, view, job.description)
        return secure_round.reply(stage, self.e, self.content, context, values, about)

    def _summands(self, view: State) -> State:
        """Take the K local steps; return the upload, with a histogram of its size."""
        _, upload = self._local()
        claims = self.job.algorithm.contribution(view, upload, torch.tensor(float(len(self.training.y))))
        return {**upload.add, secure_round.SIZES: audit.size_histogram(claims, tuple(self.task.parameters))}

    def validate(self) -> RecordDict:
        """Send the loss on this node's validation data."""
        if self.job.settings.secure:
            raise Refused("this node takes part in a secure run and sends its validation loss only masked")
        try:
            return RecordDict({"add": to_arrays(self._validation_loss())})
        except OwnTrainingDiverged:
            return RecordDict({"diverged": ConfigRecord()})

    def _validation_loss(self) -> State:
        """Return the loss on the node's validation data, and 1 as it has some, to be summed over the nodes."""
        found = {"loss": torch.tensor(0.0), "agents": torch.tensor(0.0)}
        if self.validation is not None and len(self.validation.y):
            view = to_tree(self.content, "view")
            means, _ = self._means(*self._predict(self.job.algorithm, view, self._state(view), self.validation))
            unit = self.task.loss_unit if self.job.settings.secure else 1.0  # a masked number must not be large
            found = {"loss": means.loss[0] / unit, "agents": torch.tensor(1.0)}
        _require_moderate(found)
        return found

    def _local(self) -> tuple[State, Upload]:
        """Run `local` for this round and remember the new state.

        Raises:
            OwnTrainingDiverged: If a number is not finite; the state before stays the latest.
        """
        last = self.memory.t
        if last is not None and last > self.t and self.memory.recall(self.t, self.course) is None:
            raise Refused(f"this node has completed round {last + 1} and cannot return to round {self.t + 1}")
        view = to_tree(self.content, "view")
        state = self._state(view)
        new, upload = self.job.algorithm.local(view, state, self._agent(self.t))
        new = tree_map(lambda v: v.detach(), new)
        _require_moderate({"state": new, "add": upload.add, "each": upload.each})
        self.memory.keep(self.t, state, new, self.course)
        return new, upload

    def evaluate(self) -> RecordDict:
        """Send only numbers: how good predictions for this node's data are, and its label if the method has one."""
        view, job = to_tree(self.content, "view"), self.job
        state = self._final_state(view)
        data = self.validation if self.part == "validation" else job.testing
        if data is None:
            raise Refused("this node has no validation data")
        label = None if job.settings.secure else job.algorithm.label(view, state)
        if self.memory.folder is not None and self.part != "validation" and not job.simulated:
            self._keep_predictor(view, state, self.memory.folder / "model")
        return self._reply(*self._predict(job.algorithm, view, state, data), label)

    def _keep_predictor(self, view: State, state: State, folder: Path) -> None:
        """Write this node's own predictor: what it received, its state, the form of its examples."""
        job, x = self.job, self.job.training.x
        inputs = job.inputs or Inputs("arrays", tuple(x.shape[1:]), tokens=not x.is_floating_point())
        model = assembled(
            job.algorithm,
            self.task,
            job.model,
            replace(job.settings, rounds=self.rounds, seed=self.seed),
            view,
            repeat(state, 1),
            agents=(f"agent-{self.e}",),
            inputs=inputs,
            labels=job.labels,
            data="federation",
            received=True,
        )
        try:
            model.save(folder)
        except (OSError, InputError) as error:  # training goes on without it
            LOGGER.warning(f"this node's predictor could not be saved: {error}")

    def best(self) -> RecordDict:
        """Train alone on this node's data, and send the loss: the best loss for its excess risk."""
        alone = Local()
        start: State = alone.start(InitialWeights(self.job.model, self.seed), 1)
        state, t, rate = start, 0, 1.0
        while t < self.rounds:
            new, _ = alone.local({}, state, self._agent(t, rate))
            if _is_moderate(new) or self.job.settings.local.lr != "auto" or rate < MIN_RATE:
                state, t = new, t + 1
            else:  # as the loop of every run does where there is no best round
                state, rate = start, rate / 4
        predictions, y = self._predict(alone, {}, state, self.job.testing)
        means, _ = self._means(predictions, y)
        return RecordDict({"scores": MetricRecord({"loss": float(means.loss)})})

    @torch.no_grad()
    def _predict(self, algorithm: Algorithm, view: State, state: State, data: Data) -> tuple[Tensor, Tensor]:
        """Return the predictions for its own examples, and their labels."""
        return algorithm.predict(view, state, predictor(self.task, data.x)), data.y

    def _metrics(self, predictions: Tensor, y: Tensor) -> dict[str, float]:
        """Measure what the run asks for; errors are written to this node's log only, as they may quote a label."""
        wanted = scores.resolve(self.job.settings.metrics, self.job.classes, bool(self.job.description))
        try:
            ends = torch.tensor([0, len(y)])
            found = scores.measure(wanted, predictions, y, ends, lambda: self._skill(predictions, y))
        except InputError:
            if self.job.simulated:
                raise
            LOGGER.exception("a metric cannot be measured")
            raise Refused("a metric cannot be measured at this node; its own log says why") from None
        return {name: float(value) for name, value in found.items()}

    def _skill(self, predictions: Tensor, y: Tensor) -> Tensor:
        """Compare the loss with that of a constant prediction, made of this node's training labels."""
        labels = [data.y for data in (self.job.training, self.job.validation) if data is not None]
        known = torch.cat(labels), torch.tensor([0, sum(map(len, labels))])
        constant = constant_scores(self.task, known, (y, torch.tensor([0, len(y)])))
        shaped = predictions.unsqueeze(-1) if self.job.classes is None else predictions
        return constant.skill(self._means(shaped, y)[0].loss)

    def _agent(self, t: int, rate: float | None = None) -> LocalAgent:
        train = self.job.settings.local
        lr = (self.course.rate if rate is None else rate) * train.lr_at(t, self.rounds)
        return LocalAgent(self.task, self.training, train, lr, self.seed, t, self.e, self.validation)

    def _state(self, view: State) -> State:
        """What it remembers; after a restart, a first state."""
        known = self.memory.recall(self.t, self.course)
        if known is not None:
            return known
        try:
            return self.job.algorithm.enroll(view)
        except KeyError as error:  # what agents receive is not enough to make the method's first state
            raise LostState("this node has lost its state and must be enrolled again") from error

    def _final_state(self, view: State) -> State:
        """The state to predict with: if it missed the last round after training, that from before these rounds."""
        missed = self.course.last >= 0 and self.memory.t != self.course.last
        before = self.memory.recall_best(self.course) if missed else None
        return self._state(view) if before is None else before

    def _means(self, predictions: Tensor, y: Tensor) -> tuple[Scores, Tensor]:
        """Return the mean loss and accuracy, and the loss of each example."""
        loss, correct = self.task.score(predictions, y)
        return Scores.of_examples(loss, correct, torch.tensor([0, len(loss)]), self.job.classes), loss

    def _reply(self, predictions: Tensor, y: Tensor, label: Tensor | None) -> RecordDict:
        means, losses = self._means(predictions, y)
        record: dict[str, Any] = {"loss": float(means.loss)}
        if means.acc is not None:
            record["acc"] = float(means.acc)
        if label is not None:
            record["label"] = [float(v) for v in label]
        if self.part == "test":
            values = predictions.squeeze(-1) if self.job.classes is None else predictions
            record |= {f"metric {name}": value for name, value in self._metrics(values, y).items()}
        reply = RecordDict({"scores": MetricRecord(record)})
        if self.job.simulated:
            reply["examples"] = ArrayRecord(OrderedDict(loss=Array(losses.numpy())))
        return reply


def _require_moderate(tree: State, most: float = math.inf) -> None:
    """Raise OwnTrainingDiverged if a number is not finite, or larger than `most`."""
    if not _is_moderate(tree, most):
        raise OwnTrainingDiverged


def _is_moderate(tree: State, most: float = math.inf) -> bool:
    numbers = (v for v in flatten(tree).values() if v.is_floating_point())
    return all(bool((torch.isfinite(v) & (v.abs() <= most)).all()) for v in numbers)


def number(context: Context) -> int:
    """Return the agent's number: `agent` in the node's configuration, or the partition in a simulation."""
    for key in ("agent", "partition-id"):
        if key in context.node_config:
            return int(str(context.node_config[key]))
    raise InputError('this node has no number: start the SuperNode with --node-config "agent=0"')
