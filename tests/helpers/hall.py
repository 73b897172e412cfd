"""Nodes in this process: the real apps, called one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict

from focusfl.algorithms import decide_weights
from focusfl.core import Algorithm
from focusfl.flower import Deployment, serve
from focusfl.flower.protocol.node import Job, client, number
from focusfl.run.loop import run
from focusfl.run.settings import Settings
from focusfl.run.setup import Setup
from helpers.flower_people import SIZES, TRAIN, model, people

Call = tuple[str, int, int]  # kind of message, agent, round


class FakeIdentity:
    """Messages need a sender; in a process of Flower's own it is set."""

    run_id = node_id = task_id = 1


class Hall:
    """Nodes in this process: Flower's Grid with nothing in between."""

    def __init__(
        self,
        algorithm: Algorithm,
        keep: Path | None = None,
        secure: bool = False,
        sizes: Sequence[int] = SIZES,
        **options: Any,
    ) -> None:
        fed = people(sizes)

        self.loads: list[int] = []  # the agents whose job was made

        def job(context: Context) -> Job:
            e = number(context)
            self.loads.append(e)
            settings = Settings(**{"train": TRAIN, "secure": secure} | options)
            return Job(decide_weights(algorithm, by_n=False), model, settings, fed.train(e), fed.test(e), 3)

        self.app, self.keep, self.calls = client(job), keep, list[Call]()
        self.here = set(range(100, 104))
        self.lost: Callable[[Call], bool] = lambda _: False  # answers that never come
        self.before: Callable[[Call, Message], None] = lambda *_: None
        self.after: Callable[[Call, Message], None] = lambda *_: None
        self.rules: dict[str, Any] = {}  # the nodes' own, in their configuration
        self.restart()

    def restart(self, *agents: int) -> None:
        """Nodes that start forget what is in their context."""
        self.contexts = getattr(self, "contexts", {})
        for e in agents or range(4):
            config: dict[str, Any] = {"agent": e} | ({"keep": str(self.keep / str(e))} if self.keep else {})
            config |= self.rules
            self.contexts[100 + e] = Context(1, 100 + e, config, RecordDict(), {})

    def get_node_ids(self) -> Iterable[int]:
        return list(self.here)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        for i, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = f"{len(self.calls)}-{i}"
            node = message.metadata.dst_node_id
            call = (message.metadata.message_type, node - 100, message.content["ask"]["t"])
            self.calls.append(call)
            self.before(call, message)
            try:
                reply = self.app(message, self.contexts[node])
            except Exception as error:
                reply = Message(Error(code=1, reason=repr(error)), reply_to=message)
            self.after(call, reply)
            if not self.lost(call):
                replies.append(reply)
        return replies

    def count(self, kind: str, e: int) -> int:
        return sum(call[:2] == (kind, e) for call in self.calls)


def quiet(_: str) -> None: ...


def go(hall: Hall, algorithm: Algorithm, rounds: int = 4, **more: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"train": TRAIN, "wait": 0, "bayes": "none"} | more
    return serve(hall, Deployment.of(algorithm, model, 4, 3, rounds=rounds, **options), quiet)  # type: ignore[arg-type]


def serial(algorithm: Algorithm, rounds: int = 4, sizes: Sequence[int] = SIZES, **more: Any) -> list[float]:
    options: dict[str, Any] = {"train": TRAIN} | more
    *_, last = run(Setup.of(algorithm, people(sizes), rounds, engine="serial", **options))
    assert last.scores is not None
    return last.scores.loss.tolist()
