"""A round in which the server sees only sums: the four stages of a secure sum, as messages. docs/secure-sums.md."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from torch import Tensor

from focusfl.core import Algorithm, State
from focusfl.core.tree import flatten, unflatten
from focusfl.engines import Replies
from focusfl.engines.plan import Ints
from focusfl.flower.protocol.exchange import Exchange, TooFewReplies
from focusfl.flower.protocol.expected import expected
from focusfl.flower.protocol.roster import one_line
from focusfl.flower.protocol.wire import Refused, checked_array, known_records
from focusfl.flower.secure_sums import node
from focusfl.flower.secure_sums.messages import Record, SecureSumFailed
from focusfl.flower.secure_sums.server import SecureSum
from focusfl.models.task import Task
from focusfl.util.errors import InputError

SECRET = "focusfl.secret"
# Smaller sums of single numbers are taken for 0: despite fixed-point noise, a cluster that nobody holds is empty.
ZERO_BELOW = 2.0**-20


def require_sums_only(algorithm: Algorithm, server: State, task: Task) -> None:
    """Refuse a method that shows the server something of each agent; `server` is its state before the first
    round."""
    _, like = expected(algorithm, server, task, 1.0)  # any learning rate but 0: q-FFL divides by it
    visible = sorted(flatten(like.each))
    if visible or not flatten(like.add):
        what = f"shows the server {visible[0].split('/')[0]!r} of each agent" if visible else "sends no sum"
        advice = ' (FOCUS does not with focus.init = "tied")' if "sketch" in visible else ""
        raise InputError(f"secure = true: {algorithm.name} {what}, not only sums{advice}")


def secure_round(exchange: Exchange, server: State, t: int, cohort: Ints) -> Replies:
    """Run `Exchange.round` with masked uploads.

    An agent that fails on the way is left out; with too few agents there is no sum.
    """
    roster, settings = exchange.roster, exchange.roster.settings
    _, like = expected(roster.algorithm, server, exchange.task, settings.local.lr_at(t, settings.T))
    expected_sums = flatten(like.add)
    sums = SecureSum({k: tuple(v.shape) for k, v in expected_sums.items()}, settings.minimum)
    dropped = {e: "it is not connected" for e in cohort.tolist() if e not in roster.nodes}

    def stage(
        kind: str,
        agents: Iterable[int],
        request: Callable[[int], Record],
        receive: Callable[[int, RecordDict], None],
    ) -> None:
        """Send the messages of one stage, and process the replies agent by agent."""
        receivers = sorted(agents)
        if kind == "masked":
            messages = exchange.messages("train.masked", server, t, np.array(receivers))
        else:
            messages = {e: roster.message(f"train.{kind}", roster.nodes[e], t) for e in receivers}
        for e, message in messages.items():
            message.content["secure"] = ConfigRecord(dict(request(e)))
        for e, reply in roster.send(messages, settings.timeout).items():
            try:
                if isinstance(reply, str):
                    raise InputError(reply)
                receive(e, reply)
            except SecureSumFailed:
                raise
            except (InputError, Refused) as why:
                dropped.setdefault(e, one_line(f"{kind}: {why}"))

    try:
        connected = [e for e in cohort.tolist() if e in roster.nodes]
        keys, inbox = sums.advertise_keys_request(), sums.masked_input_request
        stage("keys", connected, lambda _: keys, lambda e, r: sums.receive_keys(e, _record(r)))
        shares = sums.share_keys_request()
        stage("shares", sums.advertised, lambda _: shares, lambda e, r: sums.receive_shares(e, _record(r)))
        stage("masked", sums.shares, inbox, lambda e, r: sums.receive_masked_input(e, _arrays(r, expected_sums)))
        ask = sums.unmasking_request()
        stage("reveal", sums.answered, lambda _: ask, lambda e, r: sums.receive_unmasking(e, _record(r)))
        total = sums.result()
    except SecureSumFailed as why:
        raise TooFewReplies(f"round {t + 1}: {why}") from why
    finally:
        left_out = {e: why for e, why in sorted(dropped.items()) if e not in sums.answered}
        exchange.log(f"round {t + 1}: left out", left_out)
    rounded = {k: v if v.ndim > 1 else np.where(np.abs(v) < ZERO_BELOW, 0, v) for k, v in total.items()}
    add = {k: torch.from_numpy(v).to(expected_sums[k].dtype) for k, v in rounded.items()}
    return Replies(unflatten(add), {}, np.array(sorted(sums.answered)), left_out)


def reply(stage: str, e: int, content: RecordDict, context: Context, values: State | None) -> RecordDict:
    """Return a node's reply in a stage. Its state between two stages stays in its own records."""
    request = dict(content.config_records["secure"])
    state = context.state.config_records.get(SECRET, ConfigRecord()).get("state", b"")
    if not isinstance(state, bytes):
        raise InputError("this node's part of the secure sum is lost: start a new one")
    if stage == "masked":
        numbers = {k: v.numpy() for k, v in flatten(values or {}).items()}
        state, masked = node.masked_input(state, request, numbers)
        content = RecordDict({"masked": ArrayRecord(OrderedDict((k, Array(v)) for k, v in masked.items()))})
    else:
        state, answer = _STEPS[stage](e, state, request)
        content = RecordDict({"secure": ConfigRecord(dict(answer))})
    context.state[SECRET] = ConfigRecord({"state": state})
    return content


_STEPS: dict[str, Callable[[int, bytes, dict[str, Any]], tuple[bytes, Record]]] = {
    "keys": lambda e, _, request: node.advertise_keys(e, request),
    "shares": lambda _, state, request: node.share_keys(state, request),
    "reveal": lambda _, state, request: node.unmasking(state, request),
}


def _record(content: RecordDict) -> dict[str, Any]:
    known_records(content, "secure")
    return dict(content.config_records.get("secure", ConfigRecord()))


def _arrays(content: RecordDict, like: dict[str, Tensor]) -> dict[str, Any]:
    known_records(content, "masked")
    record = content.array_records.get("masked", ArrayRecord())
    if set(record) != set(like):
        raise InputError("its masked upload has other tensors than this round's")
    return {k: checked_array(k, record[k], tuple(v.shape), "uint64") for k, v in like.items()}
