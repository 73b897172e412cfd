"""Sums that hide their terms: double masking after Bonawitz et al. 2017 (Practical Secure Aggregation, CCS).

docs/secure-sums.md has the protocol. A node and the server each do one thing per stage. What travels are plain
records and arrays; nodes speak to each other through the server alone.

    node                                    server, of one `Collector`
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
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focusfl.engines.flower import fixed, shamir
from focusfl.engines.flower.fixed import Floats, Masked
from focusfl.engines.flower.shamir import NOTE, SIZE, Kept
from focusfl.errors import InputError

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
    (session,) = _blobs([hello.get("session")], "session", 1, 16)
    own = {"mask": shamir.new_key(), "share": shamir.new_key(), "seed": os.urandom(SIZE)}
    advert: Record = {name: shamir.public(own[name]) for name in ("mask", "share")}
    return Kept(me, session, "advertise", own).pack(), advert | {"seed": hashlib.sha256(own["seed"]).digest()}


def share(state: bytes, roster: Mapping[str, Any], least: int = 2) -> tuple[bytes, Record]:
    """Stage 2: to each agent a share of the seed and one of the mask key, which that agent alone can read.

    least  this node's own word on how many terms a sum must have
    """
    kept = Kept.unpack(state, roster, "advertise")
    agents, t = _agents(roster, "agents"), roster.get("threshold")
    n = len(agents)
    public = [_blobs(roster.get(name), name, n) for name in ("mask", "share")]
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
    me, senders, held = kept.me, _agents(inbox, "from"), dict(kept.held)
    for e, sealed in zip(senders, _blobs(inbox.get("sealed"), "sealed", len(senders), NOTE), strict=True):
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
        fixed.stream(masked, _pair(kept.own["mask"], kept.keys[e][0], kept.session, me, e), _sign(me, e))
    return replace(kept, stage="mask", own={}, held=held).pack(), masked


def reveal(state: bytes, ask: Mapping[str, Any]) -> tuple[bytes, Record]:
    """Stage 4: of each agent the share of its seed (it answered) or of its mask key (it dropped), never both."""
    kept = Kept.unpack(state, ask, "mask", "reveal")
    answered, dropped = told = [_agents(ask, "answered"), _agents(ask, "dropped")]
    if sorted(answered + dropped) != sorted(kept.held) or kept.me not in answered:
        raise InputError(f"agent {kept.me} reveals where each it has a share of is named once, itself as answered")
    if len(answered) < kept.threshold:
        raise NoSum(f"{len(answered)} of {len(kept.keys)} agents answered, {kept.threshold} must: none is revealed")
    if kept.told and kept.told != told:
        raise InputError(f"agent {kept.me} was told otherwise before: both shares of one agent would expose it")
    shown = [kept.held[e][0] for e in answered] + [kept.held[e][1] for e in dropped]
    return replace(kept, stage="reveal", told=told).pack(), {"of": answered + dropped, "shares": shown}


@dataclass
class Collector:
    """The server's side of one sum.

    What takes an agent's answer raises InputError where it does not fit or comes too late: that agent is out, the
    sum goes on. What makes the next message, and `result`, raise NoSum where too few are left: the sum is lost.
    """

    shapes: Mapping[str, tuple[int, ...]]  # of the arrays to be summed
    least: int = 2  # terms a sum must have
    session: bytes = field(default_factory=lambda: os.urandom(16))
    stage: str = field(default="advertise", init=False)
    adverts: dict[int, dict[str, bytes]] = field(default_factory=dict, init=False)  # whose: "mask", "share", "seed"
    notes: dict[int, dict[int, bytes]] = field(default_factory=dict, init=False)  # from whom: to whom: sealed
    answered: list[int] = field(default_factory=list, init=False)  # whose arrays are in the sum
    shown: dict[int, list[bytes]] = field(default_factory=dict, init=False)  # by whom, in the order of `_asked`

    def __post_init__(self) -> None:
        self._total = fixed.zeros(self.shapes)

    def hello(self) -> Record:
        """To every agent."""
        return {"session": self.session}

    def advertised(self, e: int, advert: Mapping[str, Any]) -> None:
        self._in_turn(e, "advertise", e not in self.adverts)
        names = ("mask", "share", "seed")
        found = dict(zip(names, _blobs([advert.get(k) for k in names], "keys", 3), strict=True))
        for name in ("mask", "share"):  # a key that nobody could agree with would stop all the others
            shamir.agree(shamir.new_key(), found[name], "try", self.session, e, e)
        self.adverts[e] = found

    @property
    def threshold(self) -> int:
        """How many must answer, of those that advertised."""
        return majority(len(self.adverts), self.least)

    def roster(self) -> Record:
        """To all that advertised: `adverts`."""
        fixed.bits(max(1, len(self.adverts)))
        self._enough("advertise", "share", len(self.adverts), "sent keys")
        agents = sorted(self.adverts)
        public: Record = {name: [self.adverts[e][name] for e in agents] for name in ("mask", "share")}
        return self.hello() | public | {"agents": agents, "threshold": self.threshold}

    def shared(self, e: int, sealed: Mapping[str, Any]) -> None:
        self._in_turn(e, "share", e in self.adverts and e not in self.notes)
        to = _agents(sealed, "to")
        if to != sorted(set(self.adverts) - {e}):
            raise InputError(f"agent {e} has not sent one share to each other agent")
        self.notes[e] = dict(zip(to, _blobs(sealed.get("sealed"), "sealed", len(to), NOTE), strict=True))

    def inbox(self, e: int) -> Record:
        """To agent e, of those that shared: `notes`."""
        self._enough("share", "mask", len(self.notes), "sent shares")
        senders = sorted(set(self.notes) - {e})
        return self.hello() | {"from": senders, "sealed": [self.notes[i][e] for i in senders]}

    def uploaded(self, e: int, masked: Mapping[str, NDArray[Any]]) -> None:
        self._in_turn(e, "mask", e in self.notes and e not in self.answered)
        found = {name: (v.shape, v.dtype) for name, v in masked.items()}
        if found != {name: (tuple(shape), np.dtype("<u8")) for name, shape in self.shapes.items()}:
            raise InputError(f"agent {e} sent arrays of other names, shapes or types than this sum has")
        for name, v in masked.items():
            self._total[name] += v
        self.answered.append(e)

    def ask(self) -> Record:
        """To all that answered: `answered`."""
        self._enough("mask", "reveal", len(self.answered), "answered")
        answered = sorted(self.answered)
        return self.hello() | {"answered": answered, "dropped": sorted(set(self.notes) - set(answered))}

    def revealed(self, e: int, shown: Mapping[str, Any]) -> None:
        self._in_turn(e, "reveal", e in self.answered and e not in self.shown)
        if shown.get("of") != self._asked:
            raise InputError(f"agent {e} has not revealed the shares it was asked for")
        self.shown[e] = _blobs(shown.get("shares"), "shares", len(self._asked))

    def result(self) -> dict[str, Floats]:
        """The sum over `answered`, in double precision."""
        self._enough("reveal", "done", len(self.shown), "revealed shares")
        secrets = {e: self._rebuilt(k, e) for k, e in enumerate(self._asked)}
        for e, secret in secrets.items():
            if e in self.answered:
                fixed.stream(self._total, shamir.derive(secret, "self", self.session, e), -1)
                continue
            for i in self.answered:  # take out what i added for e, who is not there to cancel it
                key = _pair(secret, self.adverts[i]["mask"], self.session, i, e)
                fixed.stream(self._total, key, -_sign(i, e))
        return fixed.decode(self._total, len(self.adverts))

    @property
    def _asked(self) -> list[int]:
        return sorted(self.answered) + sorted(set(self.notes) - set(self.answered))

    def _rebuilt(self, k: int, e: int) -> bytes:
        """The secret of agent e, the k-th asked for: its seed if it answered, else its mask key."""
        place = {i: at for at, i in enumerate(sorted(self.adverts))}
        by = sorted(self.shown)[: self.threshold]
        secret = shamir.combine({place[i]: self.shown[i][k] for i in by})
        seed, key = hashlib.sha256(secret).digest(), shamir.public(secret)
        if self.adverts[e]["seed" if e in self.answered else "mask"] != (seed if e in self.answered else key):
            raise NoSum(f"the shares of agent {e} do not fit: it, or one of the agents {by}, sent false ones")
        return secret

    def _in_turn(self, e: int, stage: str, expected: bool) -> None:
        if self.stage != stage or not expected:
            raise InputError(f"agent {e} answers {stage!r} too late, twice, or without the stage before")

    def _enough(self, stage: str, following: str, n: int, did: str) -> None:
        """Go on to the next stage, or stay in it."""
        if n < self.threshold:
            raise NoSum(f"{n} of {len(self.adverts)} agents {did}, a secure sum needs {self.threshold}")
        if self.stage not in (stage, following) or self.stage == "done":
            raise NoSum(f"this sum is at {self.stage!r}, not at {stage!r}: begin a new one")
        self.stage = following


def _pair(private: bytes, public: bytes, session: bytes, a: int, b: int) -> bytes:
    """The key of the mask that a and b share."""
    return shamir.agree(private, public, "pair", session, min(a, b), max(a, b))


def _sign(me: int, other: int) -> int:
    """The lower number adds the mask of a pair, the higher one subtracts it."""
    return 1 if me < other else -1


def _agents(record: Mapping[str, Any], name: str) -> list[int]:
    """Agents' numbers, as a peer sent them: whole, rising."""
    found = record.get(name)
    if not isinstance(found, list) or not all(type(e) is int and e >= 0 for e in found):
        raise InputError(f"{name!r} of a secure sum's message is not a list of agents' numbers")
    if any(a >= b for a, b in pairwise(found)):
        raise InputError(f"{name!r} of a secure sum's message names an agent twice or out of order")
    return list(found)


def _blobs(found: object, name: str, count: int, size: int = SIZE) -> list[bytes]:
    """Byte strings, as a peer sent them: so many, each of that size."""
    blobs = [v for v in found if type(v) is bytes and len(v) == size] if isinstance(found, list) else []
    if not isinstance(found, list) or not len(found) == len(blobs) == count:
        raise InputError(f"{name!r} of a secure sum's message is not {count} byte strings of {size} bytes")
    return blobs
