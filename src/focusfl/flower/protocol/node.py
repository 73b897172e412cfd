"""A node: it answers the server's messages, using its own data. Only what is in a reply leaves the node.

enroll     report which agent it is, and take its first state
train      take the K local steps of a round; in a secure run in five stages, with a masked upload
evaluate   send only numbers: loss, accuracy and label
best       send the loss that it reaches alone
"""

from __future__ import annotations

import logging
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from focusfl.algorithms.local import Local
from focusfl.core import Algorithm, Data, State, Upload
from focusfl.core.tree import tree_map
from focusfl.engines import Scores, audit
from focusfl.engines.base import score
from focusfl.engines.one_agent import LocalAgent, predictor
from focusfl.flower.protocol import secure_round
from focusfl.flower.protocol.memory import Memory
from focusfl.flower.protocol.roster import run_signature
from focusfl.flower.protocol.wire import Refused, to_arrays, to_tree
from focusfl.models.task import InitialWeights, Score, Task
from focusfl.run.settings import Settings
from focusfl.run.setup import Model
from focusfl.util.errors import InputError

LOGGER = logging.getLogger("focusfl")
STAGES = ("keys", "shares", "masked", "agree", "reveal")  # the stages of a secure sum
MAX_JOBS = 32  # per process: a worker of a simulation runs many nodes
_JOBS: OrderedDict[tuple[str, int, str], Job] = OrderedDict()  # by app, run and configuration


class LostState(Refused):
    """The agent's first state must come from the server again."""


@dataclass(frozen=True)
class Job:
    """What a node needs to know in addition to its messages. It is created once per run."""

    algorithm: Algorithm
    model: Model
    settings: Settings  # only the options of local training and `secure` are used
    training: Data
    testing: Data
    classes: int | None
    simulated: bool = False  # the node also sends its state and losses, and accepts a state: runs can resume
    columns: str = ""  # digest of a table's column names, which must be the same at all nodes
    tasks: dict[int, Task] = field(default_factory=dict)  # the network with its loss, by seed


def client(make_job: Callable[[Context], Job]) -> ClientApp:
    """Return the ClientApp. `make_job` is called once per run and process."""
    app, name = ClientApp(), uuid.uuid4().hex

    def node(message: Message, context: Context) -> Node:
        number(context)  # first of all, refuse a node without a number
        key = name, context.run_id, f"{sorted(context.node_config.items())} {sorted(context.run_config.items())}"
        if key not in _JOBS:
            _JOBS[key] = _make_job_privately(make_job, context)
            while len(_JOBS) > MAX_JOBS:
                _JOBS.popitem(last=False)
        return Node(_JOBS[key], message, context)

    @app.query("enroll")
    def _(message: Message, context: Context) -> Message:
        return Message(node(message, context).enroll(), reply_to=message)

    @app.train()
    def _(message: Message, context: Context) -> Message:
        return Message(node(message, context).train(), reply_to=message)

    for stage in STAGES:

        @app.train(stage)
        def _(message: Message, context: Context, stage: str = stage) -> Message:
            return Message(node(message, context).masked(stage, context), reply_to=message)

    @app.evaluate()
    def _(message: Message, context: Context) -> Message:
        return Message(node(message, context).evaluate(), reply_to=message)

    @app.query("best")
    def _(message: Message, context: Context) -> Message:
        return Message(node(message, context).best(), reply_to=message)

    return app


def _make_job_privately(make_job: Callable[[Context], Job], context: Context) -> Job:
    """Make the job; write errors to this node's log only.

    Flower sends the server what a ClientApp raises, and a message about data may quote a cell or a label.
    """
    try:
        return make_job(context)
    except Refused:  # its message contains no data
        raise
    except Exception:
        LOGGER.exception("this node's data cannot be used")
    raise Refused("this node's data cannot be used; its own log says why")


class Node:
    """A node that handles one message."""

    def __init__(self, job: Job, message: Message, context: Context) -> None:
        self.job, self.content, self.e = job, message.content, number(context)
        if context.node_config.get("secure", False) and not job.settings.secure:
            raise Refused("this node takes part in secure runs only (secure in its node configuration)")
        ask = self.content.config_records["ask"]
        self.t, self.rounds, self.seed = (int(str(ask[name])) for name in ("t", "rounds", "seed"))
        self.begin = bool(ask.get("begin", False))
        self.memory = Memory(context, str(ask["key"]))
        if self.seed not in job.tasks:
            job.tasks[self.seed] = Task(InitialWeights(job.model, self.seed).network(), job.classes)
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
            about = secure_round.round_digest(job.algorithm, job.settings, ask, view)
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
        """Send only numbers: loss and accuracy on this node's test data, and its label if the method has one."""
        view, job = to_tree(self.content, "view"), self.job
        state = self._state(view)
        h = predictor(self.task, job.testing.x)
        scores = score(job.algorithm, view, state, self.task, h, job.testing.y)
        label = None if job.settings.secure else job.algorithm.label(view, state)
        reply = self._reply(scores, label)
        if job.simulated:
            reply["examples"] = ArrayRecord(OrderedDict(loss=Array(scores.loss.numpy())))
        return reply

    def best(self) -> RecordDict:
        """Train alone on this node's data, and send the loss: the best loss for its excess risk."""
        alone = Local()
        state: State = alone.start(InitialWeights(self.job.model, self.seed), 1)
        for t in range(self.rounds):
            state, _ = alone.local({}, state, self._agent(t))
        h = predictor(self.task, self.job.testing.x)
        return self._reply(score(alone, {}, state, self.task, h, self.job.testing.y), None)

    def _agent(self, t: int) -> LocalAgent:
        train = self.job.settings.local
        lr = train.lr_at(t, self.rounds)
        return LocalAgent(self.task, self.job.training, train, lr, self.seed, t, self.e)

    def _state(self, view: State) -> State:
        """What it remembers; after a restart, a first state."""
        known = self.memory.recall(self.t)
        if known is not None:
            return known
        try:
            return self.job.algorithm.enroll(view)
        except KeyError as error:  # what agents receive is not enough to make the method's first state
            raise LostState("this node has lost its state and must be enrolled again") from error

    def _reply(self, found: Score, label: torch.Tensor | None) -> RecordDict:
        n = len(found.loss)
        means = Scores.of_examples(*found, torch.tensor([0, n]), self.job.classes)
        record: dict[str, Any] = {"loss": float(means.loss)}
        if means.acc is not None:
            record["acc"] = float(means.acc)
        if label is not None:
            record["label"] = [float(v) for v in label]
        return RecordDict({"scores": MetricRecord(record)})


def number(context: Context) -> int:
    """Return the agent's number: `agent` in the node's configuration, or the partition in a simulation."""
    for key in ("agent", "partition-id"):
        if key in context.node_config:
            return int(str(context.node_config[key]))
    raise InputError('this node has no number: start the SuperNode with --node-config "agent=0"')
