"""Who is there: which of Flower's nodes is which agent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from focusfl.core import Algorithm, State
from focusfl.core.train import Train
from focusfl.flower.protocol.wire import Refused, to_arrays

FIRST = 120.0  # seconds at least, and `wait`, for the first answer: a node loads its libraries and data


class Later(Refused):
    """Not now: the cause may pass."""


def agreed(algorithm: Algorithm, train: Train, secure: bool) -> str:
    """What server and node must have in common; the server compares."""
    return f"{algorithm!r} {train!r}" + " secure" * secure


@dataclass
class Roll:
    """One run's nodes. A node that cannot belong to it is turned away until it has left."""

    grid: Grid
    algorithm: Algorithm
    train: Train
    classes: int | None
    E: int
    rounds: int
    seed: int
    key: str  # of the run: hex digits
    timeout: float = 3600.0  # seconds for one answer
    say: Callable[[str], None] = lambda _: None
    secure: bool = False
    nodes: dict[int, int] = field(default_factory=dict)  # agent: node id
    refused: dict[int, str] = field(default_factory=dict)  # node id: why it is not an agent
    columns: tuple[int, str] | None = None  # the first agent, and the digest of its columns' names

    def gather(self, t: int, first: State, begin: bool, wait: float = 60.0) -> None:
        """Call the nodes that are new; wait until all E agents are there, or `wait` seconds have passed."""
        until = time.monotonic() + wait
        while True:
            here = set(self.grid.get_node_ids())
            self.nodes = {e: node for e, node in self.nodes.items() if node in here}
            self.refused = {node: why for node, why in self.refused.items() if node in here}
            new = here - set(self.nodes.values()) - set(self.refused)
            if new:
                self._enroll(new, t, first, begin, max(FIRST, wait))
            if len(self.nodes) >= self.E or time.monotonic() > until:
                return
            time.sleep(0.5)

    def _enroll(self, new: set[int], t: int, first: State, begin: bool, long: float) -> None:
        """Send the first state to nodes not heard of yet, and learn which agents they are."""
        state = to_arrays(first)
        asked = {node: self.message("query.enroll", node, t, {"state": state}, begin) for node in sorted(new)}
        replies = self.grid.send_and_receive(list(asked.values()), timeout=long)
        for node, answer in told(asked, replies, long).items():
            try:
                e = self._hello(answer, t)
            except Later as why:  # asked again the next time
                self.say(f"node {node} is not taken in yet: {why}")
            except Refused as why:
                self.refused[node] = one_line(str(why))
                self.say(f"node {node} is not taken in: {self.refused[node]}")
            else:
                self.nodes[e] = node

    def _hello(self, answer: RecordDict | str, t: int) -> int:
        if isinstance(answer, str):
            raise Later(answer)
        hello = answer.config_records.get("hello", ConfigRecord())
        e, n, job = hello.get("agent"), hello.get("n"), hello.get("job")
        if not isinstance(e, int) or not 0 <= e < self.E:
            raise Refused(f"it says it is agent {e!r}; this run has agents 0 to {self.E - 1}")
        if e in self.nodes:
            raise Later(f"it says it is agent {e}, which node {self.nodes[e]} is already")
        said = agreed(self.algorithm, self.train, self.secure)
        if job != said:
            raise Refused(f"it would run {job!r}; this run is {said!r}")
        classes = -1 if self.classes is None else self.classes
        if hello.get("classes") != classes or not isinstance(n, int) or n < 1:
            raise Refused(f"it has {hello.get('classes')!r} classes and {n!r} examples; expected {classes} classes")
        columns = hello.get("columns")  # a digest: the names themselves do not travel
        first, wanted = self.columns or (e, columns)
        if not isinstance(columns, str) or columns != wanted:
            wish = "all nodes must have tables with the same column names, or none a table"
            raise Refused(f"its columns differ from those of agent {first}: {wish}")
        self.columns = first, columns
        if hello.get("anew") is True and t > 0:
            self.say(f"agent {e} comes late, or has lost its state: it begins anew")
        return e

    def message(
        self, kind: str, node: int, t: int, records: dict[str, Any] | None = None, begin: bool = False
    ) -> Message:
        """With what every message says: which run, which round."""
        ask: dict[str, Any] = {"key": self.key, "t": t, "rounds": self.rounds, "seed": self.seed, "begin": begin}
        content = RecordDict({**(records or {}), "ask": ConfigRecord(ask)})
        return Message(content, node, kind, ttl=max(self.timeout, FIRST) + 60)


def told(asked: dict[int, Message], replies: Iterable[Message], timeout: float) -> dict[int, RecordDict | str]:
    """By whom was asked, the answer or why there is none. A reply is known by the message it answers: Flower
    itself may reply for a node that has gone."""
    by_message = {reply.metadata.reply_to_message_id: reply for reply in replies}
    found: dict[int, RecordDict | str] = {}
    for who, message in asked.items():
        reply = by_message.get(message.metadata.message_id)
        if reply is None:
            found[who] = f"no answer within {timeout:g} s"
        elif reply.has_error():
            found[who] = one_line(f"error {reply.error.code}: {reply.error.reason}")
        else:
            found[who] = reply.content
    return found


def one_line(text: str, most: int = 400) -> str:
    """For a log: what a node sent may hold anything. Both ends are kept: a trace has its message at the end."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= most else f"{line[: most // 2]} ... {line[-most // 2 :]}"
