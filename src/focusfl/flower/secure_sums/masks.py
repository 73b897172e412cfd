"""Sums that hide their terms: double masking after Bonawitz et al. 2017 (Practical Secure Aggregation, CCS).

docs/secure-sums.md has the protocol. A node and the server each do one thing per stage. What travels are plain
records and arrays; nodes speak to each other through the server alone.

    node                                    server, of one `collector.Collector`
                                            hello()
    state, advert = advertise(e, hello)     advertised(e, advert)    roster()
    state, sealed = share(state, roster)    shared(e, sealed)        inbox(e)
    state, masked = mask(state, inbox, x)   uploaded(e, masked)      ask()
    state, shown = reveal(state, ask)       revealed(e, shown)       result()

A node's state is bytes, so that each message may be answered by a process of its own. It stays at the node.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from numpy.typing import NDArray

from focusfl.flower.secure_sums import fixed, shamir
from focusfl.flower.secure_sums.fixed import Masked
from focusfl.flower.secure_sums.shamir import NOTE, SIZE, Kept
from focusfl.util.errors import InputError

Record = dict[str, int | bytes | list[int] | list[bytes]]
"""What travels besides arrays. It fits Flower's ConfigRecord as it is."""


class NoSum(InputError):
    """The sum of this round cannot be had: too few agents, or shares that do not fit."""


def majority(n: int, least: int = 2) -> int:
    """How many of n must answer: more than half, so that no agent's two secrets can both be rebuilt.

    >>> majority(2), majority(3), majority(10), majority(10, 8)
    (2, 2, 6, 8)
    """
    return max(2, least, n // 2 + 1)


def advertise(me: int, hello: Mapping[str, Any]) -> tuple[bytes, Record]:
    """Stage 1: keys for this sum alone, and a hash that tells the server later whether it rebuilt the seed."""
    (session,) = blobs_in([hello.get("session")], "session", 1, 16)
    own = {"mask": shamir.new_key(), "share": shamir.new_key(), "seed": os.urandom(SIZE)}
    advert: Record = {name: shamir.public(own[name]) for name in ("mask", "share")}
    return Kept(me, session, "advertise", own).pack(), advert | {"seed": hashlib.sha256(own["seed"]).digest()}


def share(state: bytes, roster: Mapping[str, Any], least: int = 2) -> tuple[bytes, Record]:
    """Stage 2: to each agent a share of the seed and one of the mask key, which that agent alone can read.

    least  this node's own word on how many terms a sum must have
    """
    kept = Kept.unpack(state, roster, "advertise")
    agents, t = agents_in(roster, "agents"), roster.get("threshold")
    n = len(agents)
    public = [blobs_in(roster.get(name), name, n) for name in ("mask", "share")]
    keys = {e: [m, s] for e, m, s in zip(agents, *public, strict=True)}
    if keys.get(kept.me) != [shamir.public(kept.own[name]) for name in ("mask", "share")]:
        raise InputError(f"the roster has not the keys that agent {kept.me} sent: begin a new sum")
    if not isinstance(t, int) or not majority(n, least) <= t <= n <= fixed.MOST:
        raise InputError(
            f"{n} agents, of whom {t} must answer: agent {kept.me} takes part only where more than half, and at "
            f"least {max(2, least)}, of at most {fixed.MOST} must; ask other agents or change the node's minimum"
        )
    of_seed, of_key = (shamir.split(kept.own[name], t, n) for name in ("seed", "mask"))
    shares = {e: [a, b] for e, a, b in zip(agents, of_seed, of_key, strict=True)}
    others = [e for e in agents if e != kept.me]
    sealed = [shamir.seal(kept.note_key(keys, kept.me, e), b"".join(shares[e])) for e in others]
    kept = replace(kept, stage="share", keys=keys, held={kept.me: shares[kept.me]}, threshold=t)
    return kept.pack(), {"to": others, "sealed": sealed}


def mask(
    state: bytes, inbox: Mapping[str, Any], values: Mapping[str, NDArray[Any]]
) -> tuple[bytes, dict[str, Masked]]:
    """Stage 3: keep the shares of the others; upload the numbers under a mask with each of them and one of its own.

    Once only: two uploads under the same masks would show their difference. The keys are forgotten here.
    """
    kept = Kept.unpack(state, inbox, "share")
    me, senders, held = kept.me, agents_in(inbox, "from"), dict(kept.held)
    for e, sealed in zip(senders, blobs_in(inbox.get("sealed"), "sealed", len(senders), NOTE), strict=True):
        known = e in kept.keys and e != me
        note = shamir.unseal(kept.note_key(kept.keys, e, me), sealed) if known else None
        if note is None:
            raise InputError(f"the note of agent {e} to agent {me} was altered on its way or is not for this sum")
        held[e] = [note[:SIZE], note[SIZE:]]
    if len(held) < kept.threshold:
        raise NoSum(f"{len(held)} of {len(kept.keys)} agents sent shares, {kept.threshold} must: no upload")
    masked = fixed.encode(values, len(kept.keys))
    fixed.stream(masked, shamir.derive(kept.own["seed"], "self", kept.session, me), 1)
    for e in senders:
        fixed.stream(masked, pair_key(kept.own["mask"], kept.keys[e][0], kept.session, me, e), sign(me, e))
    return replace(kept, stage="mask", own={}, held=held).pack(), masked


def reveal(state: bytes, ask: Mapping[str, Any]) -> tuple[bytes, Record]:
    """Stage 4: of each agent the share of its seed (it answered) or of its mask key (it dropped), never both."""
    kept = Kept.unpack(state, ask, "mask", "reveal")
    answered, dropped = told = [agents_in(ask, "answered"), agents_in(ask, "dropped")]
    if sorted(answered + dropped) != sorted(kept.held) or kept.me not in answered:
        raise InputError(f"agent {kept.me} reveals where each it has a share of is named once, itself as answered")
    if len(answered) < kept.threshold:
        raise NoSum(f"{len(answered)} of {len(kept.keys)} agents answered, {kept.threshold} must: none is revealed")
    if kept.told and kept.told != told:
        raise InputError(f"agent {kept.me} was told otherwise before: both shares of one agent would expose it")
    shown = [kept.held[e][0] for e in answered] + [kept.held[e][1] for e in dropped]
    return replace(kept, stage="reveal", told=told).pack(), {"of": answered + dropped, "shares": shown}


def pair_key(private: bytes, public: bytes, session: bytes, a: int, b: int) -> bytes:
    """The key of the mask that a and b share."""
    return shamir.agree(private, public, "pair", session, min(a, b), max(a, b))


def sign(me: int, other: int) -> int:
    """The lower number adds the mask of a pair, the higher one subtracts it."""
    return 1 if me < other else -1


def agents_in(record: Mapping[str, Any], name: str) -> list[int]:
    """Agents' numbers, as a peer sent them: whole, rising."""
    found = record.get(name)
    if not isinstance(found, list) or not all(type(e) is int and e >= 0 for e in found):
        raise InputError(f"{name!r} of a secure sum's message is not a list of agents' numbers")
    if any(a >= b for a, b in pairwise(found)):
        raise InputError(f"{name!r} of a secure sum's message names an agent twice or out of order")
    return list(found)


def blobs_in(found: object, name: str, count: int, size: int = SIZE) -> list[bytes]:
    """Byte strings, as a peer sent them: so many, each of that size."""
    blobs = [v for v in found if type(v) is bytes and len(v) == size] if isinstance(found, list) else []
    if not isinstance(found, list) or not len(found) == len(blobs) == count:
        raise InputError(f"{name!r} of a secure sum's message is not {count} byte strings of {size} bytes")
    return blobs
