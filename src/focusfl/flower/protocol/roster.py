"""The roster: which of Flower's nodes is which agent."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from focusfl.core import Algorithm, State
from focusfl.engines.base import Part
from focusfl.flower.protocol.course import STRAIGHT, Course
from focusfl.flower.protocol.wire import Refused, known_records, to_arrays
from focusfl.models import losses
from focusfl.run.settings import Settings

LOGGER = logging.getLogger("focusfl")
FIRST_REPLY_TIMEOUT = 120.0  # seconds at least for a node's first reply: it loads its libraries and data


class NotYet(Refused):
    """The node cannot take part now, but perhaps later."""


class Hello(NamedTuple):
    """What a node says when it enrolls."""

    agent: int
    columns: str  # a digest of its column names; before the data are described, the form of its files
    order: tuple[int, ...] = ()  # before the data are described: the order of its columns


def run_signature(algorithm: Algorithm, settings: Settings) -> str:
    """What server and node must have in common; the server compares."""
    loss = "" if settings.loss is None else f" loss {losses.describe(settings.loss)}"
    validation = f" validation {settings.validation:g}" if settings.validation else ""
    return f"{algorithm!r} {settings.train!r}{loss}{validation}" + " secure" * settings.secure


@dataclass
class Roster:
    """The nodes of one run. A node that does not belong to it is refused until it has left."""

    grid: Grid
    algorithm: Algorithm
    settings: Settings
    classes: int | None
    E: int
    key: str  # the run's key, in hex digits
    log: Callable[[str], None] = LOGGER.warning
    course: Course = STRAIGHT  # where the run is
    nodes: dict[int, int] = field(default_factory=dict)  # agent: node id
    refused: dict[int, str] = field(default_factory=dict)  # node id: why it is not an agent
    hellos: dict[int, Hello] = field(default_factory=dict)  # by node id, of nodes that fit but for their columns
    named_as_large: set[int] = field(default_factory=set)  # agents that say they have most of the examples
    examples: dict[int, int] = field(default_factory=dict)  # agent: the training examples it enrolled with
    description: str = ""  # how nodes encode data of their own, which they are told in every message

    def gather(self, t: int, first_state: State, begin: bool, wait: float = 60.0) -> None:
        """Enroll new nodes; return when all E agents are connected or `wait` seconds have passed."""
        deadline = time.monotonic() + wait
        while True:
            connected = set(self.grid.get_node_ids())
            self.nodes = {e: node for e, node in self.nodes.items() if node in connected}
            self.refused = {node: why for node, why in self.refused.items() if node in connected}
            self.hellos = {node: hello for node, hello in self.hellos.items() if node in connected}
            new = connected - set(self.nodes.values()) - set(self.refused)
            if new:
                self._enroll(new, t, first_state, begin, max(FIRST_REPLY_TIMEOUT, wait))
                self._require_equal_columns()
                self._warn_of_large_agents()
            if len(self.nodes) >= self.E or time.monotonic() > deadline:
                return
            time.sleep(0.5)

    def forget(self, e: int) -> None:
        """Enroll this agent's node again next time."""
        self.hellos.pop(self.nodes.pop(e, -1), None)

    def _enroll(self, new: set[int], t: int, first_state: State, begin: bool, timeout: float) -> None:
        """Send new nodes the first state, and register which agents they are."""
        state = to_arrays(first_state)
        messages = {node: self.message("query.enroll", node, t, {"state": state}, begin) for node in sorted(new)}
        for node, reply in self.send(messages, timeout).items():
            try:
                self._check_in(node, reply, t)
            except NotYet as why:  # it is asked again next time
                self.log(f"node {node} cannot join yet: {why}")
            except Refused as why:
                self._refuse(node, str(why))

    def _refuse(self, node: int, why: str) -> None:
        self.refused[node] = one_line(why)
        self.log(f"node {node} is refused: {self.refused[node]}")

    def _require_equal_columns(self) -> None:
        """Refuse the nodes whose columns are not those of the most nodes; after a tie, of those that came first.

        A node that was refused for its columns is accepted if others with the same columns outnumber the rest.
        """
        digests = [hello.columns for hello in self.hellos.values()]
        usual = max(digests, key=digests.count, default="")  # the first of several
        same = {node: hello for node, hello in self.hellos.items() if hello.columns == usual}
        self.nodes = {e: node for e, node in self.nodes.items() if node in same}
        self.nodes |= {hello.agent: node for node, hello in same.items()}
        self.refused = {node: why for node, why in self.refused.items() if node not in same}
        for node, hello in self.hellos.items():
            if node not in same and node not in self.refused:
                wish = "all nodes must have tables with the same column names, or none may have one"
                shared = f"those that {len(same)} of {len(digests)} nodes have"
                self._refuse(node, f"agent {hello.agent}: its columns differ from {shared}: {wish}")

    def _warn_of_large_agents(self) -> None:
        """Name an agent that says it has most of the examples: a server cannot know whether it has."""
        n = {e: self.examples[e] for e in self.nodes}
        for e in n:
            if len(n) > 2 and 2 * n[e] > sum(n.values()) and e not in self.named_as_large:
                share = f"{n[e] / sum(n.values()):.1%} of the training examples of those connected"
                self.log(f"agent {e} says it has {share}: methods that weigh agents by examples will follow it")
                self.named_as_large.add(e)

    def _check_in(self, node: int, reply: RecordDict | str, t: int) -> None:
        """Register which agent a node is; raise Refused if it does not fit this run."""
        if isinstance(reply, str):
            raise NotYet(reply)
        known_records(reply, "hello")
        hello = reply.config_records.get("hello", ConfigRecord())
        e, n, job = hello.get("agent"), hello.get("n"), hello.get("job")
        if not isinstance(e, int) or not 0 <= e < self.E:
            raise Refused(f"it claims to be agent {e!r}; this run has agents 0 to {self.E - 1}")
        if e in (same := {hello.agent: node for node, hello in self.hellos.items() if node not in self.refused}):
            raise NotYet(f"it says it is agent {e}, which node {same[e]} is already")
        wanted = run_signature(self.algorithm, self.settings)
        if job != wanted:
            raise Refused(f"it would run {job!r}; this run is {wanted!r}")
        classes = -1 if self.classes is None else self.classes
        if hello.get("classes") != classes or not isinstance(n, int) or n < 1:
            raise Refused(f"it has {hello.get('classes')!r} classes and {n!r} examples; expected {classes} classes")
        columns = hello.get("columns")  # a digest: the names themselves stay at the node
        if not isinstance(columns, str):
            raise Refused(f"its columns are {str(columns)[:40]!r}, not a digest of their names")
        if n != self.examples.get(e, n):
            self.log(f"agent {e} now has {n} training examples; it had {self.examples[e]}")
        order = hello.get("order")
        places = tuple(int(j) for j in order if isinstance(j, int)) if isinstance(order, list) else ()
        self.examples[e], self.hellos[node] = n, Hello(e, columns, places)
        if hello.get("starts_over") is True and t > 0:
            self.log(f"agent {e} joins late, or has lost its state: it starts over")

    def message(
        self,
        kind: str,
        node: int,
        t: int,
        records: dict[str, Any] | None = None,
        begin: bool = False,
        part: Part = "test",
    ) -> Message:
        """A message, with the fields that all have: which run, which round."""
        ask: dict[str, Any] = {"key": self.key, "t": t, "rounds": self.settings.T, "seed": self.settings.seed}
        ask |= {"begin": begin} | ({} if part == "test" else {"part": part})
        ask |= self.course.fields()
        content = RecordDict({**(records or {}), "ask": ConfigRecord(ask)})
        if self.description:
            content["description"] = ConfigRecord({"json": self.description})
        return Message(content, node, kind, ttl=max(self.settings.timeout, FIRST_REPLY_TIMEOUT) + 60)

    def send(self, messages: dict[int, Message], timeout: float) -> dict[int, RecordDict | str]:
        """Send the messages; return each reply, or the reason why there is none.

        A reply is matched by the message it answers: Flower itself may reply for a node that has gone.
        """
        replies: Iterable[Message] = []
        if messages:
            replies = self.grid.send_and_receive(list(messages.values()), timeout=timeout)
        by_message = {reply.metadata.reply_to_message_id: reply for reply in replies}
        outcomes: dict[int, RecordDict | str] = {}
        for who, message in messages.items():
            reply = by_message.get(message.metadata.message_id)
            if reply is None:
                outcomes[who] = f"no reply within {timeout:g} s"
            elif reply.has_error():
                outcomes[who] = one_line(f"error {reply.error.code}: {reply.error.reason}")
            else:
                outcomes[who] = reply.content
        return outcomes


def one_line(text: str, max_length: int = 400) -> str:
    """Return a text from a node as one printable line for the log.

    Both ends of a long text are kept, because a traceback ends with its message.
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= max_length else f"{line[: max_length // 2]} ... {line[-max_length // 2 :]}"
