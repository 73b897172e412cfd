"""The server's side of a round: ask, check every answer, sum. Over any of Flower's grids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from focusfl.core import State
from focusfl.core.tree import Total, flatten, put, take, tree_map
from focusfl.engines.base import Answers, Scores
from focusfl.engines.plan import Ints
from focusfl.flower.protocol.expected import expected
from focusfl.flower.protocol.roll import Roll, one_line, told
from focusfl.flower.protocol.wire import Refused, checked, to_arrays
from focusfl.models.task import Task

# of a score: differences, squares and sums of such are still finite in float32
LARGEST = torch.finfo(torch.float32).max ** 0.5

Own = dict[int, Array | None]  # id of a tensor of the server's state, which lives as long: its array, once made


class TooFew(RuntimeError):
    """Fewer agents answered than the run asks for."""


@dataclass
class Exchange:
    """One run's talk with its nodes. Each step is in two, messages out and replies in, so that another loop than
    ours can carry them (focusfl.flower.Strategy)."""

    roll: Roll
    task: Task
    minimum: int = 1  # answers without which a round does not count
    restore: tuple[set[int], State] = field(default_factory=lambda: (set(), {}))  # whom to give which states back

    def round(self, server: State, t: int, cohort: Ints, states: State | None = None) -> Answers:
        """`local` at each agent of the cohort; new states, where the nodes show them, are put into `states`."""
        asked = self.ask("train", server, t, cohort)
        return self.summed(server, t, cohort, asked, self._send(asked), states)

    def evaluate(self, server: State, t: int) -> tuple[Scores, Tensor | None, dict[int, str]]:
        """Loss and accuracy of every agent, NaN for who did not answer; labels, [E, M]; and why they did not."""
        asked = self.ask("evaluate", server, t, np.arange(self.roll.E))
        return self.scores(server, asked, self._send(asked))

    def best(self) -> Tensor:
        """The loss that each agent reaches alone, [E]; NaN for who did not answer."""
        long = self.roll.timeout * self.roll.rounds  # all rounds at once
        asked = {e: self.roll.message("query.best", node, 0) for e, node in self.roll.nodes.items()}
        for message in asked.values():
            message.metadata.ttl = long + 60
        alone = f"{len(asked)} agents now train alone, {self.roll.rounds} rounds each, for their best loss"
        self.roll.say(f"{alone}: waiting up to {long:g} s for the last (best = none does without)")
        replies = list(self.roll.grid.send_and_receive(list(asked.values()), timeout=long)) if asked else []
        found = torch.full((self.roll.E,), torch.nan)
        answers, dropped = self._sorted(np.arange(self.roll.E), asked, replies, long)
        for e, answer in answers.items():
            try:
                found[e] = _number(answer.metric_records.get("scores", MetricRecord()).get("loss"))
            except Refused as why:
                dropped[e] = one_line(str(why))
        self._tell("no best loss", dropped)
        return found

    def ask(self, kind: str, server: State, t: int, agents: Ints) -> dict[int, Message]:
        """A message to each of these agents that is there, with its view of the server's state."""
        algorithm = self.roll.algorithm
        own: Own = dict.fromkeys(map(id, flatten(server).values()))
        asked = {}
        for e in (e for e in agents.tolist() if e in self.roll.nodes):
            records: dict[str, Any] = {"view": _arrays(algorithm.downlink(server, torch.tensor(e)), own)}
            if e in self.restore[0]:
                records["state"] = to_arrays(take(self.restore[1], e))
            asked[e] = self.roll.message(kind, self.roll.nodes[e], t, records)
        self.restore[0].difference_update(asked)
        return asked

    def summed(
        self,
        server: State,
        t: int,
        cohort: Ints,
        asked: dict[int, Message],
        replies: Iterable[Message],
        states: State | None = None,
    ) -> Answers:
        """The uploads that fit, in the order of the agents. Of one that does not, nothing is used."""
        lr = self.roll.train.lr_at(t, self.roll.rounds)
        like_state, like = expected(self.roll.algorithm, server, self.task, lr)
        total, rows, answered = Total(), [], []
        answers, dropped = self._sorted(cohort, asked, replies)
        for e, answer in sorted(answers.items()):
            try:
                add, each = checked(answer, "add", like.add), checked(answer, "each", like.each)
                state = None if states is None else checked(answer, "state", like_state)
            except Refused as why:
                dropped[e] = one_line(str(why))
                continue
            total.add(add)
            rows.append(each)
            answered.append(e)
            if states is not None and state is not None:
                put(states, e, state)
        self._tell(f"round {t + 1}: left out", dropped)
        if len(answered) < self.minimum:
            raise TooFew(f"round {t + 1}: {len(answered)} of {len(cohort)} agents answered, {self.minimum} must")
        return Answers(total.result(), tree_map(lambda *vs: torch.stack(vs), *rows), np.array(answered), dropped)

    def scores(
        self, server: State, asked: dict[int, Message], replies: Iterable[Message]
    ) -> tuple[Scores, Tensor | None, dict[int, str]]:
        """What `evaluate` gives, from the replies."""
        algorithm, E, classes = self.roll.algorithm, self.roll.E, self.task.classes
        view = algorithm.downlink(server, torch.tensor(0))
        label = None if self.roll.secure else algorithm.label(view, algorithm.enroll(server))
        answers, dropped = self._sorted(np.arange(E), asked, replies)
        loss, acc = torch.full((2, E), torch.nan)
        pi = None if label is None else torch.full((E, len(label)), torch.nan)
        for e, answer in answers.items():
            found = answer.metric_records.get("scores", MetricRecord())
            try:
                numbers = [_number(found.get(name)) for name in ("loss", "acc")[: 1 if classes is None else 2]]
                own = [] if pi is None else _numbers(found.get("label"), pi.shape[1])
            except Refused as why:
                dropped[e] = one_line(str(why))
                continue
            loss[e], acc[e] = numbers[0], numbers[-1]
            if pi is not None:
                pi[e] = torch.tensor(own)
        self._tell("not evaluated", dropped)
        return Scores(loss, None if classes is None else acc), pi, dropped

    def _send(self, asked: dict[int, Message]) -> list[Message]:
        if not asked:
            return []
        return list(self.roll.grid.send_and_receive(list(asked.values()), timeout=self.roll.timeout))

    def _sorted(
        self, agents: Ints, asked: dict[int, Message], replies: Iterable[Message], waited: float | None = None
    ) -> tuple[dict[int, RecordDict], dict[int, str]]:
        """The answers, and why others gave none; each by agent."""
        good: dict[int, RecordDict] = {}
        bad = {e: "it is not connected" for e in agents.tolist() if e not in asked}
        for e, answer in told(asked, replies, waited or self.roll.timeout).items():
            if isinstance(answer, str):
                bad[e] = answer
            elif "lost" in answer.config_records:
                bad[e] = "it has lost its state and is enrolled again"
                self.roll.nodes.pop(e, None)
            else:
                good[e] = answer
        return good, bad

    def _tell(self, what: str, dropped: dict[int, str]) -> None:
        for e, reason in sorted(dropped.items()):
            self.roll.say(f"{what}: agent {e}: {reason}")


def _arrays(view: State, own: Own) -> ArrayRecord:
    """As `to_arrays`, but the server's own tensors become arrays once, for all messages."""
    flat = flatten(view)
    new = to_arrays({k: v for k, v in flat.items() if own.get(id(v)) is None})
    own.update({id(flat[k]): array for k, array in new.items() if id(flat[k]) in own})
    record = ArrayRecord()
    for k, v in flat.items():  # given to ArrayRecord at once, they would be hashed anew for each message
        record[k] = own.get(id(v)) or new[k]
    return record


def _number(value: object) -> float:
    if not isinstance(value, int | float) or not abs(value) <= LARGEST:  # a NaN is not
        raise Refused(f"its score is {str(value)[:40]!r}, not a finite number up to {LARGEST:.0e}")
    return float(value)


def _numbers(values: object, count: int) -> list[float]:
    if not isinstance(values, list) or len(values) != count:
        raise Refused(f"its label is not {count} numbers")
    return [_number(value) for value in values]
