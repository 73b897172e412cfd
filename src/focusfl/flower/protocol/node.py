"""A node's side: one agent, its own data, its own state. Only what `local` and `evaluate` answer leaves it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from focusfl.algorithms.local import Local
from focusfl.core import Algorithm, Data, State, Upload
from focusfl.core.train import Train
from focusfl.core.tree import tree_map
from focusfl.engines.serial import SerialAgent, predictor
from focusfl.flower.protocol.memory import Memory
from focusfl.flower.protocol.roll import agreed
from focusfl.flower.protocol.wire import Refused, to_arrays, to_tree
from focusfl.flower.secure_sums import rounds as secure
from focusfl.models.task import InitialWeights, Task
from focusfl.util.errors import InputError

SAY = logging.getLogger("focusfl")
STAGES = ("keys", "shares", "masked", "reveal")  # of a secure sum


class Lost(Refused):
    """The method's first state must come from the server again."""


@dataclass(frozen=True)
class Job:
    """What a node needs to know besides its messages."""

    algorithm: Algorithm
    model: nn.Module | Callable[[], nn.Module]
    train: Train
    training: Data
    testing: Data
    classes: int | None
    open: bool = False  # in a simulation: shows its state and takes it back, so that a run can be resumed
    secure: bool = False  # its upload goes out masked or not at all, and its label stays here
    columns: str = ""  # digest of the names of a table's columns, which all nodes must have in common


def client(job_of: Callable[[Context], Job]) -> ClientApp:
    """The ClientApp. `job_of` is called for every message."""
    app = ClientApp()

    def node(message: Message, context: Context) -> Node:
        number(context)  # first, so that a node without one is told so
        return Node(_quietly(job_of, context), message, context)

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


def _quietly(job_of: Callable[[Context], Job], context: Context) -> Job:
    """Flower sends the server what a ClientApp raises, and a message about data may quote a cell or a label: it
    stays in this node's log."""
    try:
        return job_of(context)
    except Refused:  # our own words
        raise
    except Exception:
        SAY.exception("this node's data cannot be used")
    raise Refused("this node's data cannot be used; its own log says why")


class Node:
    """One message at one node."""

    def __init__(self, job: Job, message: Message, context: Context) -> None:
        self.job, self.content = job, message.content
        ask = self.content.config_records["ask"]
        self.key, self.t, self.rounds, self.seed = (
            str(ask["key"]),
            int(str(ask["t"])),
            int(str(ask["rounds"])),
            int(str(ask["seed"])),
        )
        self.begin = bool(ask.get("begin", False))
        self.e = number(context)
        self.memory = Memory(context, self.key)
        self.task = Task(InitialWeights(job.model, self.seed).network(), job.classes)
        if job.open and "state" in self.content:
            self.memory.keep(-1, {}, to_tree(self.content, "state"))

    def enroll(self) -> RecordDict:
        """Take the first state, unless this run is remembered here; say who this is."""
        self.task.check(self.job.training.x)  # else training fails on a label, and torch's message says which
        known = self.memory.recall(self.t)
        if self.begin or known is None:
            self.memory.keep(self.t - 1, {}, to_tree(self.content, "state"))
        job = self.job
        said: dict[str, Any] = {"agent": self.e, "n": len(job.training.y)}
        said |= {"job": agreed(job.algorithm, job.train, job.secure), "columns": job.columns}
        said |= {"classes": -1 if job.classes is None else job.classes, "anew": self.begin or known is None}
        return RecordDict({"hello": ConfigRecord(said)})

    def train(self) -> RecordDict:
        """The K local steps of round t, in the open."""
        if self.job.secure:
            raise Refused("this node's run is secure: its upload goes out masked or not at all")
        try:
            new, upload = self._local()
        except Lost:
            return RecordDict({"lost": ConfigRecord()})  # the server will enrol it again
        reply = RecordDict({"add": to_arrays(upload.add), "each": to_arrays(upload.each)})
        if self.job.open:
            reply["state"] = to_arrays(new)
        return reply

    def masked(self, stage: str, context: Context) -> RecordDict:
        """A stage of a secure sum; the K local steps belong to the third."""
        upload = self._local()[1] if stage == "masked" else None
        return secure.answer(stage, self.e, self.content, context, None if upload is None else upload.add)

    def _local(self) -> tuple[State, Upload]:
        """Eqs. 4-5, 8."""
        last = self.memory.t
        if last is not None and last > self.t:
            raise Refused(f"this node has done round {last + 1} and does not go back to {self.t + 1}")
        view, job = to_tree(self.content, "view"), self.job
        state = self._state(view)
        new, upload = job.algorithm.local(view, state, self._agent())
        new = tree_map(lambda v: v.detach(), new)
        self.memory.keep(self.t, state, new)
        return new, upload

    @torch.no_grad()
    def evaluate(self) -> RecordDict:
        """Numbers alone: loss and accuracy on this node's test data, and its label where the method has one."""
        view, job = to_tree(self.content, "view"), self.job
        state = self._state(view)
        p = job.algorithm.predict(view, state, predictor(self.task, job.testing.x))
        return self._scores(p, None if job.secure else job.algorithm.label(view, state))

    @torch.no_grad()
    def best(self) -> RecordDict:
        """The loss that this node alone would reach with its own data: what its excess risk is measured against."""
        alone = Local()
        state: State = alone.start(InitialWeights(self.job.model, self.seed), 1)
        for t in range(self.rounds):
            state, _ = alone.local({}, state, self._agent(t))
        return self._scores(alone.predict({}, state, predictor(self.task, self.job.testing.x)), None)

    def _agent(self, t: int | None = None) -> SerialAgent:
        t, train = self.t if t is None else t, self.job.train
        lr = train.lr_at(t, self.rounds)
        return SerialAgent(self.task, self.job.training, train, lr, self.seed, t, self.e)

    def _state(self, view: State) -> State:
        """What it remembers. After a restart: a first state; FOCUS labels it from its own data at once."""
        known = self.memory.recall(self.t)
        if known is not None:
            return known
        try:
            return self.job.algorithm.enroll(view)
        except KeyError as error:  # the method's first state is not in what agents receive
            raise Lost("this node has lost its state and must be enrolled again") from error

    def _scores(self, p: torch.Tensor, label: torch.Tensor | None) -> RecordDict:
        score = self.task.score(p, self.job.testing.y)
        found: dict[str, Any] = {"loss": float(score.loss.mean()), "n": len(self.job.testing.y)}
        if self.job.classes is not None:
            found["acc"] = float(score.correct.mean())
        if label is not None:
            found["label"] = [float(v) for v in label]
        return RecordDict({"scores": MetricRecord(found)})


def number(context: Context) -> int:
    """Which agent this is: `agent` of the node's configuration, or the partition of a simulation."""
    for key in ("agent", "partition-id"):
        if key in context.node_config:
            return int(str(context.node_config[key]))
    raise InputError('this node has no number: start the SuperNode with --node-config "agent=0"')
