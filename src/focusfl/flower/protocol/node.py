"""A node: it answers the server's messages, using its own data. Only what is in a reply leaves the node.

describe   with files of its own: add up what all nodes must know to encode them (own_node.py)
enroll     report which agent it is, and take its first state
train      take the K local steps of a round; in a secure run in five stages, with a masked upload
evaluate   send only numbers: loss, accuracy, metrics and label; keep this node's own predictor in its folder
best       send the loss that it reaches alone
"""

from __future__ import annotations

import logging
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
from focusfl.core.tree import repeat, tree_map
from focusfl.data.own.inputs import Inputs
from focusfl.engines import Scores, audit
from focusfl.engines.one_agent import LocalAgent, predictor
from focusfl.fairness import scores
from focusfl.flower.protocol import secure_round
from focusfl.flower.protocol.memory import Memory
from focusfl.flower.protocol.own_node import OwnJob, OwnNode, privately, require_secure, told_description
from focusfl.flower.protocol.roster import run_signature
from focusfl.flower.protocol.wire import Refused, to_arrays, to_tree
from focusfl.models import losses
from focusfl.models.task import InitialWeights, TargetScale, Task
from focusfl.run.saved.of_result import assembled
from focusfl.run.settings import Settings
from focusfl.run.setup import Model
from focusfl.util.errors import InputError

LOGGER = logging.getLogger("focusfl")
STAGES = ("keys", "shares", "masked", "agree", "reveal")  # the stages of a secure sum
MAX_JOBS = 32  # per process: a worker of a simulation runs many nodes
_JOBS: OrderedDict[tuple[object, ...], Job | OwnJob] = OrderedDict()  # by app, run and configuration


class LostState(Refused):
    """The agent's first state must come from the server again."""


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
    validation: Data | None = None
    columns: str = ""  # digest of a table's column names, which must be the same at all nodes
    inputs: Inputs | None = None  # the form of an example; by default an array of the training data's shape
    labels: tuple[str, ...] = ()  # the names of the classes, if they have names
    target: TargetScale | None = None  # of a regression
    description: str = ""  # how this node encodes its own data, if it was told
    tasks: dict[int, Task] = field(default_factory=dict)  # the network with its loss, by seed


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
        self.rate = float(str(ask["rate"])) if job.simulated and "rate" in ask else 1.0
        self.memory = Memory(context, str(ask["key"]))
        if self.seed not in job.tasks:
            loss = losses.resolve(job.settings.loss, job.classes, job.training.y.dim() == 2)
            job.tasks[self.seed] = Task(
                InitialWeights(job.model, self.seed).network(), job.classes, loss, job.target
            )
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
        starts_over = self.begin or self.memory.recall(self.t) is None
        if starts_over and job.settings.secure:
            self.memory.forget()
        elif starts_over:
            self.memory.keep(self.t - 1, {}, to_tree(self.content, "state"))
        hello: dict[str, Any] = {"agent": self.e, "n": len(job.training.y), "columns": job.columns}
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
        reply = RecordDict({"add": to_arrays(upload.add), "each": to_arrays(upload.each)})
        if self.job.simulated:
            reply["state"] = to_arrays(new)
        return reply

    def masked(self, stage: str, context: Context) -> RecordDict:
        """Take part in one stage of a secure sum; the third one includes the K local steps."""
        values, about = None, b""
        if stage == "masked":
            job, view, (_, upload) = self.job, to_tree(self.content, "view"), self._local()
            claims = job.algorithm.contribution(view, upload, torch.tensor(float(len(job.training.y))))
            sizes = audit.size_histogram(claims, tuple(self.task.parameters))
            values = {**upload.add, secure_round.SIZES: sizes}
            ask = self.memory.key, self.t, self.rounds, self.seed
            about = secure_round.round_digest(job.algorithm, job.settings, ask, view, job.description)
        return secure_round.reply(stage, self.e, self.content, context, values, about)

    def _local(self) -> tuple[State, Upload]:
        """Run `local` for this round and remember the new state."""
        last = self.memory.t
        if last is not None and last > self.t:
            raise Refused(f"this node has completed round {last + 1} and cannot return to round {self.t + 1}")
        view = to_tree(self.content, "view")
        state = self._state(view)
        new, upload = self.job.algorithm.local(view, state, self._agent(self.t))
        new = tree_map(lambda v: v.detach(), new)
        self.memory.keep(self.t, state, new)
        return new, upload

    def evaluate(self) -> RecordDict:
        """Send only numbers: how good predictions for this node's data are, and its label if the method has one."""
        view, job = to_tree(self.content, "view"), self.job
        state = self._state(view)
        data = job.validation if self.part == "validation" else job.testing
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
        state: State = alone.start(InitialWeights(self.job.model, self.seed), 1)
        for t in range(self.rounds):
            state, _ = alone.local({}, state, self._agent(t))
        predictions, y = self._predict(alone, {}, state, self.job.testing)
        means, _ = self._means(predictions, y)
        return RecordDict({"scores": MetricRecord({"loss": float(means.loss)})})

    @torch.no_grad()
    def _predict(self, algorithm: Algorithm, view: State, state: State, data: Data) -> tuple[Tensor, Tensor]:
        """Return the predictions for its own examples, and their labels."""
        return algorithm.predict(view, state, predictor(self.task, data.x)), data.y

    def _metrics(self, predictions: Tensor, y: Tensor) -> dict[str, float]:
        """Measure what the run asks for; errors are written to this node's log only, as they may quote a label."""
        wanted = scores.resolve(self.job.settings.metrics, self.job.classes)
        try:
            found = scores.measure(wanted, predictions, y, torch.tensor([0, len(y)]))
        except InputError:
            if self.job.simulated:
                raise
            LOGGER.exception("a metric cannot be measured")
            raise Refused("a metric cannot be measured at this node; its own log says why") from None
        return {name: float(value) for name, value in found.items()}

    def _agent(self, t: int) -> LocalAgent:
        train = self.job.settings.local
        lr = self.rate * train.lr_at(t, self.rounds)
        return LocalAgent(self.task, self.job.training, train, lr, self.seed, t, self.e, self.job.validation)

    def _state(self, view: State) -> State:
        """What it remembers; after a restart, a first state."""
        known = self.memory.recall(self.t)
        if known is not None:
            return known
        try:
            return self.job.algorithm.enroll(view)
        except KeyError as error:  # what agents receive is not enough to make the method's first state
            raise LostState("this node has lost its state and must be enrolled again") from error

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


def number(context: Context) -> int:
    """Return the agent's number: `agent` in the node's configuration, or the partition in a simulation."""
    for key in ("agent", "partition-id"):
        if key in context.node_config:
            return int(str(context.node_config[key]))
    raise InputError('this node has no number: start the SuperNode with --node-config "agent=0"')
