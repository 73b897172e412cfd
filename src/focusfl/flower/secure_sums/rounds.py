"""A round in which the server sees only sums: the stages of `node` and `server`. docs/secure-sums.md."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from torch import Tensor

from focusfl.algorithms.qffl import QFFL
from focusfl.core import Algorithm, State
from focusfl.core.tree import flatten, unflatten
from focusfl.engines.base import Answers
from focusfl.engines.plan import Ints
from focusfl.flower.protocol.exchange import Exchange, TooFew
from focusfl.flower.protocol.expected import expected
from focusfl.flower.protocol.roll import one_line, told
from focusfl.flower.protocol.wire import Refused, numbers
from focusfl.flower.secure_sums import node
from focusfl.flower.secure_sums.messages import Record, SecureSumFailed
from focusfl.flower.secure_sums.server import SecureSum
from focusfl.models.task import Task
from focusfl.util.errors import InputError

SECRET = "focusfl.secret"
LEAST = (
    2.0**-20
)  # a smaller sum is taken for 0: beside fixed-point noise, a cluster that nobody holds must be empty


def fits(algorithm: Algorithm, server: State, task: Task) -> None:
    """Refuse a method that shows the server each agent's upload."""
    _, like = expected(algorithm, server, task, 1.0)  # any learning rate but 0: q-FFL divides by it
    if algorithm.shows:
        raise InputError(
            f"secure = true: {algorithm!r} shows the server more of each agent than a sum, like a sketch; "
            'with focus.init = "tied" FOCUS does not'
        )
    if flatten(like.each) or not flatten(like.add):
        raise InputError(f"secure = true: {algorithm.name} tells the server more of each agent than a sum")


def secure_round(talk: Exchange, server: State, t: int, cohort: Ints) -> Answers:
    """`Exchange.round`, masked. Who falls out on the way is left out; below the threshold there is no sum."""
    _, like = expected(talk.roll.algorithm, server, talk.task, talk.roll.train.lr_at(t, talk.roll.rounds))
    wanted = flatten(like.add)
    sums = SecureSum({k: tuple(v.shape) for k, v in wanted.items()}, talk.minimum)
    dropped = {e: "it is not connected" for e in cohort.tolist() if e not in talk.roll.nodes}
    stages = _Stages(talk, server, t, dropped)
    try:
        there = [e for e in cohort.tolist() if e in talk.roll.nodes]
        stages("keys", there, lambda _: sums.advertise_keys_request(), lambda e, r: sums.receive_keys(e, _said(r)))
        roster = sums.share_keys_request()
        stages("shares", sums.advertised, lambda _: roster, lambda e, r: sums.receive_shares(e, _said(r)))
        stages(
            "masked",
            sums.shares,
            sums.masked_input_request,
            lambda e, r: sums.receive_masked_input(e, _numbers(r, wanted)),
        )
        ask = sums.unmasking_request()
        stages("reveal", sums.answered, lambda _: ask, lambda e, r: sums.receive_unmasking(e, _said(r)))
        found = sums.result()
    except SecureSumFailed as why:
        raise TooFew(f"round {t + 1}: {why}") from why
    finally:
        left_out = {e: why for e, why in sorted(dropped.items()) if e not in sums.answered}
        for e, reason in left_out.items():
            talk.roll.say(f"round {t + 1}: left out: agent {e}: {reason}")
    _check(talk.roll.algorithm, found, t)
    add = {k: torch.from_numpy(v if v.ndim > 1 else np.where(np.abs(v) < LEAST, 0, v)) for k, v in found.items()}
    exact = {k: v.to(wanted[k].dtype) for k, v in add.items()}
    return Answers(unflatten(exact), {}, np.array(sorted(sums.answered)), left_out)


def _check(algorithm: Algorithm, found: Mapping[str, Any], t: int) -> None:
    """q-FFL divides its one step by the sum of h: taken for 0, training would stand still and nobody would know."""
    if isinstance(algorithm, QFFL) and abs(found["h"]) < LEAST:
        raise InputError(
            f"round {t + 1}: the losses to the power of q = {algorithm.q:g} are too small for a secure sum "
            "(that of h is below 2^-20): use a smaller q or secure = false, and name another folder as out"
        )


class _Stages:
    """Sends one stage's messages and takes in what comes back, agent by agent."""

    def __init__(self, talk: Exchange, server: State, t: int, dropped: dict[int, str]) -> None:
        self.talk, self.server, self.t, self.dropped = talk, server, t, dropped

    def __call__(
        self,
        kind: str,
        agents: Iterable[int],
        tell: Callable[[int], Record],
        take: Callable[[int, RecordDict], None],
    ) -> None:
        roll = self.talk.roll
        whom = sorted(agents)
        if kind == "masked":
            asked = self.talk.ask("train.masked", self.server, self.t, np.array(whom))
        else:
            asked = {e: roll.message(f"train.{kind}", roll.nodes[e], self.t) for e in whom}
        for e, message in asked.items():
            message.content["secure"] = ConfigRecord(dict(tell(e)))
        replies = roll.grid.send_and_receive(list(asked.values()), timeout=roll.timeout)
        for e, answer in told(asked, replies, roll.timeout).items():
            try:
                if isinstance(answer, str):
                    raise InputError(answer)
                take(e, answer)
            except SecureSumFailed:
                raise
            except (InputError, Refused) as why:
                self.dropped.setdefault(e, one_line(f"{kind}: {why}"))


def answer(stage: str, e: int, content: RecordDict, context: Context, values: State | None) -> RecordDict:
    """A node's part of a stage. What it must remember between two of them stays in its own records."""
    asked = dict(content.config_records["secure"])
    state = context.state.config_records.get(SECRET, ConfigRecord()).get("state", b"")
    if not isinstance(state, bytes):
        raise InputError("this node's part of the secure sum is lost: begin a new one")
    if stage == "masked":
        numbers = {k: v.numpy() for k, v in flatten(values or {}).items()}
        state, hidden = node.masked_input(state, asked, numbers)
        reply = RecordDict({"masked": ArrayRecord(OrderedDict((k, Array(v)) for k, v in hidden.items()))})
    else:
        state, said = _STEPS[stage](e, state, asked)
        reply = RecordDict({"secure": ConfigRecord(dict(said))})
    context.state[SECRET] = ConfigRecord({"state": state})
    return reply


_STEPS: dict[str, Callable[[int, bytes, dict[str, Any]], tuple[bytes, Record]]] = {
    "keys": lambda e, _, asked: node.advertise_keys(e, asked),
    "shares": lambda _, state, asked: node.share_keys(state, asked),
    "reveal": lambda _, state, asked: node.unmasking(state, asked),
}


def _said(content: RecordDict) -> dict[str, Any]:
    return dict(content.config_records.get("secure", ConfigRecord()))


def _numbers(content: RecordDict, wanted: dict[str, Tensor]) -> dict[str, Any]:
    record = content.array_records.get("masked", ArrayRecord())
    if set(record) != set(wanted):
        raise InputError("its masked upload has other tensors than this round's")
    return {k: numbers(k, record[k], tuple(v.shape), "uint64") for k, v in wanted.items()}
