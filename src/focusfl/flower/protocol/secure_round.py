"""A round in which the server sees only sums: the five stages of a secure sum, as messages. docs/secure-sums.md."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from torch import Tensor

from focusfl.core import Algorithm, State, Upload
from focusfl.core.tree import flatten, unflatten
from focusfl.engines import Replies, audit
from focusfl.engines.base import Part
from focusfl.engines.plan import Ints
from focusfl.flower.protocol.course import LATEST
from focusfl.flower.protocol.exchange import DIVERGED, VALIDATION, Exchange, FalseSum, TooFewReplies
from focusfl.flower.protocol.expected import expected
from focusfl.flower.protocol.roster import Roster, one_line, run_signature
from focusfl.flower.protocol.wire import Refused, checked_array, known_records
from focusfl.flower.secure_sums import node
from focusfl.flower.secure_sums.fixed_point import Floats
from focusfl.flower.secure_sums.identity import Anyone, Authority, NodeSetup
from focusfl.flower.secure_sums.messages import Record, SecureSumFailed
from focusfl.flower.secure_sums.server import SecureSum
from focusfl.models.task import Task
from focusfl.run.settings import Settings, majority
from focusfl.util.errors import InputError, require

LOGGER = logging.getLogger("focusfl")
T = TypeVar("T")
SIZES = "sizes"  # beside the sums: a histogram of the lengths of updates (engines/audit.py)
SECRET, SIGNING = "focusfl.secret", "focusfl.signing"
AUTHORITY = "FOCUSFL_AUTHORITY"  # at the server: path of the authority's certificate, set by start-superlink.sh
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
    views = [flatten(algorithm.downlink(server, torch.tensor(e))) for e in (0, 1)]
    if views[0].keys() != views[1].keys() or not all(torch.equal(v, views[1][k]) for k, v in views[0].items()):
        raise InputError(
            f"secure = true: {algorithm.name} sends agents different states; a node adds its numbers only to "
            "those of nodes that train from the same"
        )


def secure_round(exchange: Exchange, server: State, t: int, cohort: Ints) -> Replies:
    """Run `Exchange.round` with masked uploads."""
    settings = exchange.roster.settings
    _, like = expected(exchange.roster.algorithm, server, exchange.task, settings.local.lr_at(t, settings.T))
    sums = flatten(like.add) | {SIZES: torch.zeros(audit.BINS)}
    add, answered, noticed = _sum(exchange, server, Ask(f"round {t + 1}", t, "test", sums), cohort)
    _require_honest(exchange, server, t, add, answered)
    return Replies(unflatten(add), {}, np.array(answered), noticed)


def secure_validation(exchange: Exchange, server: State, agents: Ints) -> tuple[float | None, tuple[int, ...]]:
    """Run `Exchange.validate` with masked losses; return their mean, and who is in the sum."""
    add, answered, _ = _sum(exchange, server, Ask("validation", LATEST, "validation", VALIDATION), agents)
    total, count = float(add["loss"]), float(add["agents"])
    own_loss = not (exchange.roster.settings.loss is None or isinstance(exchange.roster.settings.loss, str))
    if abs(count - round(count)) > 1e-3 or not 0 <= round(count) <= len(answered):
        raise FalseSum(f"validation: the losses of agents {answered} count {count:g} times: one of them lies")
    if total < -ZERO_BELOW and not own_loss:
        raise FalseSum(f"validation: the losses of agents {answered} add up to {total:g}: one of them lies")
    return total / round(count) * exchange.task.loss_unit if round(count) else None, tuple(answered)


class Ask(NamedTuple):
    """What a secure sum is of.

    Attributes:
        what: Its name in messages.
        t: The round that nodes are told.
        part: "validation" for validation losses; "test" for a round of training.
        sums: Tensors like the sums, by name.
    """

    what: str
    t: int
    part: Part
    sums: Mapping[str, Tensor]


Sums = tuple[dict[str, Tensor], list[int], dict[int, str]]  # the sums, who is in them, and what was noticed of whom


def _sum(exchange: Exchange, server: State, ask: Ask, cohort: Ints) -> Sums:
    """Return the sums over the agents of the cohort.

    An agent that fails on the way is left out; with too few agents there is no sum. If agents' wrong shares are the
    reason, the sum is repeated without them.
    """
    return without_culprits(
        lambda excluded, dropped: _attempt(exchange, server, ask, cohort, excluded, dropped),
        ask.what,
        exchange.roster.log,
        exchange.divergence,
    )


def without_culprits(
    attempt: Callable[[dict[int, str], dict[int, str]], T],
    what: str,
    log: Callable[[str], None],
    divergence: Callable[[str, list[int]], Exception] | None = None,
) -> T:
    """Try a secure sum until no agent spoils it.

    Args:
        attempt: Is told which agents are excluded, and why; adds those that fail to its second argument.
        what: What is summed, for messages.
        log: Takes what happened.
        divergence: Makes the error if there is no sum because the training of these agents diverged.

    Raises:
        TooFewReplies: If there is no sum, and nobody new is to blame.
    """
    culprits: dict[int, str] = {}
    while True:
        dropped: dict[int, str] = {}
        try:
            return attempt(culprits, dropped)
        except SecureSumFailed as why:
            new = {e: one_line(reason) for e, reason in why.culprits.items() if e not in culprits}
            if not new:
                diverged = [e for e, reason in dropped.items() if reason == DIVERGED]
                if diverged and divergence is not None:
                    raise divergence(what, diverged) from why
                raise TooFewReplies(f"{what}: {why}") from why
            culprits |= new
            log(one_line(f"{what}: {why}; trying again without agents {sorted(new)}"))


def _attempt(
    exchange: Exchange,
    server: State,
    ask: Ask,
    cohort: Ints,
    excluded: dict[int, str],
    dropped: dict[int, str],
) -> Sums:
    """Run the five stages once, without the excluded agents; the dictionary says why they are.

    Those that fail are put into `dropped`, also if there is no sum.
    """
    roster, settings, t = exchange.roster, exchange.roster.settings, ask.t
    expected_sums = dict(ask.sums)
    view = roster.algorithm.downlink(server, torch.tensor(0))
    said = roster.key, t, settings.T, settings.seed, ask.part, *roster.course
    about = round_digest(roster.algorithm, settings, said, view, roster.description)
    shapes = {k: tuple(v.shape) for k, v in expected_sums.items()}
    sums = SecureSum(shapes, settings.minimum or majority(len(cohort)), about, server_trusts())
    dropped.update(excluded)
    total, noticed = masked_sum(
        roster,
        sums,
        cohort.tolist(),
        lambda agents: exchange.messages("train.masked", server, t, np.array(agents), ask.part),
        dropped,
        ask.what,
        t,
    )
    rounded = {k: v if v.ndim > 1 else np.where(np.abs(v) < ZERO_BELOW, 0, v) for k, v in total.items()}
    add = {k: torch.from_numpy(v).to(expected_sums[k].dtype) for k, v in rounded.items()}
    return add, sorted(sums.answered), noticed


def masked_sum(
    roster: Roster,
    sums: SecureSum,
    agents: list[int],
    messages_of: Callable[[list[int]], dict[int, Message]],
    dropped: dict[int, str],
    what: str,
    t: int = 0,
) -> tuple[dict[str, Floats], dict[int, str]]:
    """Run the five stages of a secure sum over Flower.

    Args:
        roster: The nodes.
        sums: The sum, at its first stage.
        agents: The agents that are asked.
        messages_of: Makes the messages that ask these agents for their masked numbers.
        dropped: Agents that are left out, and why; those that fail are added, also if there is no sum.
        what: What is summed, for the log.
        t: The round.

    Returns:
        The sum, and why agents were left out of it or were noticed.

    Raises:
        SecureSumFailed: If there is no sum.
    """
    dropped.update({e: "it is not connected" for e in agents if e not in roster.nodes and e not in dropped})

    def stage(
        kind: str,
        asked: Iterable[int],
        request: Callable[[int], Record],
        receive: Callable[[int, RecordDict], None],
    ) -> None:
        """Send the messages of one stage, and process the replies agent by agent."""
        receivers = sorted(asked)
        if kind == "masked":
            messages = messages_of(receivers)
        else:
            messages = {e: roster.message(f"train.{kind}", roster.nodes[e], t) for e in receivers}
        for e, message in messages.items():
            message.content["secure"] = ConfigRecord(dict(request(e)))
        for e, reply in roster.send(messages, roster.settings.timeout).items():
            try:
                if isinstance(reply, str):
                    raise InputError(reply)
                if "diverged" in reply.config_records:
                    dropped[e] = DIVERGED
                    continue
                receive(e, reply)
            except SecureSumFailed:
                raise
            except (InputError, Refused) as why:
                dropped.setdefault(e, one_line(f"{kind}: {why}"))

    try:
        connected = [e for e in agents if e not in dropped]
        keys, inbox = sums.advertise_keys_request(), sums.masked_input_request
        stage("keys", connected, lambda _: keys, lambda e, r: sums.receive_keys(e, _record(r)))
        shares = sums.share_keys_request()
        stage("shares", sums.advertised, lambda _: shares, lambda e, r: sums.receive_shares(e, _record(r)))
        stage("masked", sums.shares, inbox, lambda e, r: sums.receive_masked_input(e, _arrays(r, sums.shapes)))
        votes = sums.consistency_request()
        stage("agree", sums.answered, lambda _: votes, lambda e, r: sums.receive_consistency(e, _record(r)))
        opening = sums.unmasking_request()
        stage("reveal", sums.signatures, lambda _: opening, lambda e, r: sums.receive_unmasking(e, _record(r)))
        total = sums.result()
    finally:
        left_out = {e: why for e, why in sorted(dropped.items()) if e not in sums.answered}
        liars = {
            e: f"{one_line(why)}; others' shares were used, and its upload is in the sum"
            for e, why in sums.liars.items()
        }
        for about, agents_named in (("left out", left_out), ("noticed", liars)):
            for e, why in sorted(agents_named.items()):
                roster.log(f"{what}: {about}: agent {e}: {why}")
    return total, left_out | liars


def _require_honest(exchange: Exchange, server: State, t: int, add: dict[str, Tensor], agents: list[int]) -> None:
    """Check the sum of these agents' uploads, and take the histogram out of it.

    Raises:
        FalseSum: If the sum cannot be one of honest uploads.
    """
    roster, histogram, E = exchange.roster, add.pop(SIZES), len(agents)
    n = torch.tensor(float(sum(roster.examples[e] for e in agents)))
    claims = roster.algorithm.contribution(server, Upload(unflatten(add), {}), n, E)
    if lie := audit.false_sum(claims, histogram, E, tuple(exchange.task.parameters)):
        raise FalseSum(
            f"round {t + 1}: the sum over agents {agents} cannot be one of honest uploads: {lie}. One of them "
            "sends false numbers, and a secure sum hides which; secure = false would name it"
        )


def reply(
    stage: str, e: int, content: RecordDict, context: Context, values: State | None, about: bytes
) -> RecordDict:
    """Return a node's reply in a stage. Its state between two stages stays in its own records."""
    me, request = node_setup(e, context), dict(content.config_records["secure"])
    state = context.state.config_records.get(SECRET, ConfigRecord()).get("state", b"")
    if not isinstance(state, bytes):
        raise InputError("this node's part of the secure sum is lost: start a new one")
    if stage == "masked":
        numbers = {k: v.numpy() for k, v in flatten(values or {}).items()}
        state, masked = node.masked_input(me, state, request, numbers, about)
        content = RecordDict({"masked": ArrayRecord(OrderedDict((k, Array(v)) for k, v in masked.items()))})
    else:
        state, answer = _STEPS[stage](me, state, request)
        content = RecordDict({"secure": ConfigRecord(dict(answer))})
    context.state[SECRET] = ConfigRecord({"state": state})
    return content


_STEPS: dict[str, Callable[[NodeSetup, bytes, dict[str, Any]], tuple[bytes, Record]]] = {
    "keys": lambda me, _, request: node.advertise_keys(me, request),
    "shares": node.share_keys,
    "agree": node.consistency,
    "reveal": node.unmasking,
}


def node_setup(e: int, context: Context) -> NodeSetup:
    """Return what a node was installed with: `identity` and `minimum` in its node configuration.

    Without `identity`, the folder of its signing key, a node has a signing key for one run and no authority.
    """
    minimum, folder = context.node_config.get("minimum", 2), context.node_config.get("identity")
    require("minimum", minimum, type(minimum) is int and minimum >= 2, "in the node's configuration, 2 or more")
    if folder:
        return NodeSetup.load(e, Path(str(folder)).expanduser(), int(minimum))
    private = context.state.config_records.get(SIGNING, ConfigRecord()).get("key")
    if private is None:
        LOGGER.warning("this node has no certificate (identity): it believes the server about who the others are")
    me = NodeSetup.without_authority(e, int(minimum), private if isinstance(private, bytes) else None)
    context.state[SIGNING] = ConfigRecord({"key": me.key.private_bytes_raw()})
    return me


def round_digest(
    algorithm: Algorithm, settings: Settings, ask: tuple[Any, ...], view: State, description: str = ""
) -> bytes:
    """Return the hash of what an upload is computed from besides the data: method, options, round and models.

    It goes into the masks, so that a node's numbers add up only with those of nodes that were sent the same.
    `ask` is the run's key, the round, the number of rounds, the seed, the part and the course; `description` is how
    nodes encode files of their own.
    """
    told = (description,) if description else ()
    found = hashlib.sha256(repr((run_signature(algorithm, settings), *ask, *told)).encode())
    for name, tensor in sorted(flatten(view).items()):
        v = tensor.detach().cpu().contiguous()
        found.update(repr((name, str(v.dtype), tuple(v.shape))).encode() + b"\0")
        found.update(v.reshape(-1).view(torch.uint8).numpy().data)
    return found.digest()


def server_trusts() -> Anyone:
    path = os.environ.get(AUTHORITY)
    return Authority.load(Path(path)) if path else Anyone()


def _record(content: RecordDict) -> dict[str, Any]:
    known_records(content, "secure")
    return dict(content.config_records.get("secure", ConfigRecord()))


def _arrays(content: RecordDict, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    known_records(content, "masked")
    record = content.array_records.get("masked", ArrayRecord())
    if set(record) != set(shapes):
        raise InputError("its masked upload has other tensors than this round's")
    return {k: checked_array(k, record[k], shape, "uint64") for k, shape in shapes.items()}
