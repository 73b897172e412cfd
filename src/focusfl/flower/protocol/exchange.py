"""The server's side of a round, over any of Flower's grids: send messages, check every reply, sum the uploads."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from focusfl.core import State, Upload
from focusfl.core.tree import RunningSum, flatten, put, take, tree_map
from focusfl.engines import Replies, Scores, audit
from focusfl.engines.base import Part
from focusfl.engines.plan import Ints
from focusfl.fairness import scores as named_scores
from focusfl.flower.protocol.course import LATEST
from focusfl.flower.protocol.expected import expected
from focusfl.flower.protocol.roster import Roster, one_line
from focusfl.flower.protocol.wire import Refused, checked, known_records, to_arrays
from focusfl.models.task import Task
from focusfl.run.settings import majority
from focusfl.util.errors import Diverged

# differences and squares of such numbers are still finite in float32
LARGEST_LOSS = torch.finfo(torch.float32).max ** 0.5
VALIDATION = {"loss": torch.tensor(0.0), "agents": torch.tensor(0.0)}  # what agents send to be averaged
DIVERGED = "its training diverged: a number is NaN or infinite"


class RoundFailed(RuntimeError):
    """A round has no result; it may succeed if it is tried again."""


class TooFewReplies(RoundFailed):
    """Fewer agents replied than the run asks for."""


class FalseSum(RoundFailed):
    """A secure sum cannot be one of honest uploads."""


@dataclass
class Exchange:
    """The messages between the server of one run and its nodes."""

    roster: Roster
    task: Task
    simulated: bool = False  # the nodes are simulated and send the loss of each test example
    # the agents to which the next message restores their state, and the states of all agents
    restore: tuple[set[int], State] = field(default_factory=lambda: (set(), {}))

    def round(self, server: State, t: int, cohort: Ints, states: State | None = None) -> Replies:
        """Run `local` at each agent of the cohort, and sum the valid uploads in the order of the agents.

        An upload that does not fit is ignored as a whole. New states, where nodes show them, are put into `states`.
        """
        settings = self.roster.settings
        lr = settings.local.lr_at(t, settings.T)
        state_template, template = expected(self.roster.algorithm, server, self.task, lr)
        contents, dropped = self.send(self.messages("train", server, t, cohort), cohort, settings.timeout)
        uploads, new_states = dict[int, Upload](), dict[int, State]()
        for e, content in sorted(contents.items()):
            try:
                known_records(content, "add", "each", *["state"] * (states is not None))
                upload = Upload(checked(content, "add", template.add), checked(content, "each", template.each))
                if states is not None:
                    new_states[e] = checked(content, "state", state_template)
            except Refused as why:
                dropped[e] = one_line(str(why))
            else:
                uploads[e] = upload
        suspects = self._suspects(server, uploads)
        dropped |= suspects
        answered = [e for e in uploads if e not in dropped]
        self.log(f"round {t + 1}: left out", dropped)
        self.require_replies(f"round {t + 1}", answered, cohort, dropped, suspects)
        total = RunningSum()
        for e in answered:
            total.add(uploads[e].add)
            if states is not None:
                put(states, e, new_states[e])
        each = tree_map(lambda *vs: torch.stack(vs), *(uploads[e].each for e in answered))
        return Replies(total.result(), each, np.array(answered), dropped)

    def validate(self, server: State, agents: Ints) -> tuple[float | None, tuple[int, ...]]:
        """Return the mean validation loss over these agents, and those that it is the mean of.

        None if no agent has validation data. Losses that no honest agent could send are left out, by name.
        """
        settings = self.roster.settings
        messages = self.messages("evaluate.validation", server, LATEST, agents, "validation")
        contents, dropped = self.send(messages, agents, settings.timeout)
        found: dict[int, float | None] = {}
        for e, content in sorted(contents.items()):
            try:
                known_records(content, "add")
                found[e] = self._validation_loss(checked(content, "add", VALIDATION))
            except Refused as why:
                dropped[e] = one_line(str(why))
        losses = {e: loss for e, loss in found.items() if loss is not None}
        dropped |= audit.larger_than_usual("validation loss", losses)
        self.log("not validated", dropped)
        self.require_replies("validation", [e for e in found if e not in dropped], agents, dropped)
        judges = tuple(e for e in losses if e not in dropped)
        return sum(losses[e] for e in judges) / len(judges) if judges else None, judges

    def _validation_loss(self, said: State) -> float | None:
        """Return one agent's validation loss; None if it says that it has no validation data."""
        agents, loss = float(said["agents"]), self._loss(float(said["loss"]))
        if agents not in (0, 1) or (agents == 0 and loss != 0):
            raise Refused(f"its validation loss {loss:g} counts {agents:g} times, not 0 or 1 times")
        return loss if agents else None

    def require_replies(
        self,
        what: str,
        answered: Collection[int],
        cohort: Ints,
        dropped: Mapping[int, str],
        suspects: Collection[int] = (),
    ) -> None:
        """Raise TooFewReplies if fewer agents answered than must, and Diverged if that is since they diverged.

        Training has diverged, too, if it has at most of those that replied. Otherwise the agents whose training
        diverged are left out: a single one must not be able to end the run. With train.lr = "auto", uploads that
        are refused count as diverged where too few are left: so many agents do not lie.
        """
        minimum = self.roster.settings.minimum or majority(len(cohort))
        diverged = [e for e, why in dropped.items() if why == DIVERGED]
        enough = len(answered) >= minimum
        if not enough and self.roster.settings.local.lr == "auto":
            diverged += suspects
        most = 2 * len(diverged) > len(answered) + len(diverged)
        if diverged and (self.simulated or most or (not enough and len(answered) + len(diverged) >= minimum)):
            raise self.divergence(what, diverged)
        if not enough:
            missing = f"{len(answered)} of {len(cohort)} agents replied, at least {minimum} must"
            raise TooFewReplies(f"{what}: {missing}")

    def divergence(self, what: str, diverged: Sequence[int]) -> Diverged:
        """Return the error that names the agents whose training diverged."""
        lr = self.roster.settings.local.lr
        advice = f"try a smaller learning rate than train.lr = {lr}"
        return Diverged(
            f"training diverged in {what} (numbers of agents {list(diverged[:20])} are too large): {advice}"
        )

    def _suspects(self, server: State, uploads: Mapping[int, Upload]) -> dict[int, str]:
        """Return the agents whose uploads cannot be honest, and why."""
        roster = self.roster

        def view(e: int) -> State:
            return roster.algorithm.downlink(server, torch.tensor(e))

        return audit.suspects(roster.algorithm, uploads, view, roster.examples, tuple(self.task.parameters))

    def evaluate(
        self, server: State, t: int, part: Part = "test", agents: Ints | None = None
    ) -> tuple[Scores, Tensor | None]:
        """Return the scores of every agent, NaN for those that sent none; and the labels, [E, M].

        Args:
            server: The server's state.
            t: The round.
            part: Which of their examples the agents evaluate.
            agents: Those that have such examples; None for all.
        """
        roster, E, classes = self.roster, self.roster.E, self.task.classes
        view = roster.algorithm.downlink(server, torch.tensor(0))
        label = None if roster.settings.secure else roster.algorithm.label(view, roster.algorithm.enroll(server))
        everyone = np.arange(E) if agents is None else agents
        messages = self.messages("evaluate", server, t, everyone, part)
        contents, dropped = self.send(messages, everyone, roster.settings.timeout)
        loss, acc = torch.full((2, E), torch.nan)
        asked = roster.settings.metrics, classes, bool(roster.description)
        wanted = named_scores.resolve(*asked) if part == "test" else {}
        metrics = {name: torch.full((E,), torch.nan, dtype=torch.double) for name in wanted}
        pi = None if label is None else torch.full((E, len(label)), torch.nan)
        for e, content in contents.items():
            record = content.metric_records.get("scores", MetricRecord())
            try:
                known_records(content, "scores", *["examples"] * self.simulated)
                numbers = (
                    self._test_loss(record.get("loss")),
                    0.0 if classes is None else _accuracy(record.get("acc")),
                )
                measured = {name: _metric(name, record.get(f"metric {name}")) for name in metrics}
                if pi is not None:
                    pi[e] = _label(record.get("label"), pi.shape[1])
            except Refused as why:
                dropped[e] = one_line(str(why))
            else:
                loss[e], acc[e] = numbers
                for name in metrics:
                    metrics[name][e] = measured[name]
        self.log("not evaluated", dropped)
        examples = None
        if self.simulated and not dropped:
            each = [content.array_records["examples"]["loss"].numpy() for _, content in sorted(contents.items())]
            examples = torch.from_numpy(np.concatenate(each))
        return Scores(loss, None if classes is None else acc, examples, dropped, metrics), pi

    def best(self) -> Tensor:
        """Return the loss that each agent reaches alone, [E]; NaN for those that sent none."""
        roster = self.roster
        timeout = roster.settings.timeout * roster.settings.T  # all rounds at once
        messages = {e: roster.message("query.best", node, 0) for e, node in roster.nodes.items()}
        for message in messages.values():
            message.metadata.ttl = timeout + 60
        now = f"{len(messages)} agents now train alone, {roster.settings.T} rounds each, for their best loss"
        roster.log(f"{now}: waiting up to {timeout:g} s for the last (bayes = none skips this)")
        best, everyone = torch.full((roster.E,), torch.nan), np.arange(roster.E)
        contents, dropped = self.send(messages, everyone, timeout)
        for e, content in contents.items():
            try:
                known_records(content, "scores")
                best[e] = self._loss(content.metric_records.get("scores", MetricRecord()).get("loss"))
            except Refused as why:
                dropped[e] = one_line(str(why))
        self.log("no best loss", dropped)
        return best

    def messages(self, kind: str, server: State, t: int, agents: Ints, part: Part = "test") -> dict[int, Message]:
        """A message to each of these agents that is there, with its view of the server's state."""
        # The server's own tensors are serialised once, for all messages; ids identify them while `server` lives.
        arrays: dict[int, Array | None] = dict.fromkeys(map(id, flatten(server).values()))
        messages = {}
        for e in (e for e in agents.tolist() if e in self.roster.nodes):
            view = flatten(self.roster.algorithm.downlink(server, torch.tensor(e)))
            new = to_arrays({k: v for k, v in view.items() if arrays.get(id(v)) is None})
            arrays.update({id(view[k]): array for k, array in new.items() if id(view[k]) in arrays})
            record = ArrayRecord()
            for k, v in view.items():  # one at a time: ArrayRecord(view) would hash them again for each message
                record[k] = arrays.get(id(v)) or new[k]
            records: dict[str, Any] = {"view": record}
            if e in self.restore[0]:
                records["state"] = to_arrays(take(self.restore[1], e))
            messages[e] = self.roster.message(kind, self.roster.nodes[e], t, records, part=part)
        self.restore[0].difference_update(messages)
        return messages

    def send(
        self, messages: dict[int, Message], agents: Ints, timeout: float
    ) -> tuple[dict[int, RecordDict], dict[int, str]]:
        """Send the messages; return the replies, and why other agents sent none, by agent."""
        contents: dict[int, RecordDict] = {}
        dropped = {e: "it is not connected" for e in agents.tolist() if e not in messages}
        for e, reply in self.roster.send(messages, timeout).items():
            if isinstance(reply, str):
                dropped[e] = reply
            elif "lost" in reply.config_records:
                dropped[e] = "it has lost its state and will be enrolled again"
                self.roster.forget(e)
            elif "diverged" in reply.config_records:
                dropped[e] = DIVERGED
            else:
                contents[e] = reply
        return contents, dropped

    def _test_loss(self, value: object) -> float:
        """Return a loss; simulated nodes are believed, and a loss that is not finite ends their run."""
        return value if self.simulated and isinstance(value, float) else self._loss(value)

    def _loss(self, value: object) -> float:
        """Return a loss; only one of the user's own can be negative."""
        loss = self.roster.settings.loss
        return _between("loss", value, 0 if loss is None or isinstance(loss, str) else -LARGEST_LOSS, LARGEST_LOSS)

    def log(self, what: str, dropped: dict[int, str]) -> None:
        for e, reason in sorted(dropped.items()):
            self.roster.log(f"{what}: agent {e}: {reason}")


def _metric(name: str, value: object) -> float:
    """Return a metric; NaN is a value that is not defined at this agent."""
    if isinstance(value, float) and math.isnan(value):
        return value
    return _between(f"metric {name}", value, -LARGEST_LOSS, LARGEST_LOSS)


def _accuracy(value: object) -> float:
    return _between("accuracy", value, 0, 1)


def _label(values: object, M: int) -> Tensor:
    if not isinstance(values, list) or len(values) != M:
        raise Refused(f"its label is not {M} numbers")
    pi = torch.tensor([_between("label", value, 0, 1) for value in values])
    if abs(float(pi.sum()) - 1) > audit.TOLERANCE:
        raise Refused(f"its labels add up to {float(pi.sum()):.4g}, not to 1")
    return pi


def _between(what: str, value: object, low: float, high: float) -> float:
    if not isinstance(value, int | float) or not low <= value <= high:  # NaN fails this comparison
        raise Refused(f"its {what} is {str(value)[:40]!r}, not a number from {low:g} to {high:.0e}")
    return float(value)
