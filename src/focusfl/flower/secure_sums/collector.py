"""The server's part of a sum that hides its terms (`masks` has the nodes'): one per attempt at a round."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focusfl.flower.secure_sums import fixed, shamir
from focusfl.flower.secure_sums.fixed import Floats
from focusfl.flower.secure_sums.masks import NoSum, Record, agents_in, blobs_in, majority, pair_key, sign
from focusfl.flower.secure_sums.shamir import NOTE
from focusfl.util.errors import InputError


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
        found = dict(zip(names, blobs_in([advert.get(k) for k in names], "keys", 3), strict=True))
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
        to = agents_in(sealed, "to")
        if to != sorted(set(self.adverts) - {e}):
            raise InputError(f"agent {e} has not sent one share to each other agent")
        self.notes[e] = dict(zip(to, blobs_in(sealed.get("sealed"), "sealed", len(to), NOTE), strict=True))

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
        self.shown[e] = blobs_in(shown.get("shares"), "shares", len(self._asked))

    def result(self) -> dict[str, Floats]:
        """The sum over `answered`, in double precision."""
        self._enough("reveal", "done", len(self.shown), "revealed shares")
        secrets = {e: self._rebuilt(k, e) for k, e in enumerate(self._asked)}
        for e, secret in secrets.items():
            if e in self.answered:
                fixed.stream(self._total, shamir.derive(secret, "self", self.session, e), -1)
                continue
            for i in self.answered:  # take out what i added for e, who is not there to cancel it
                key = pair_key(secret, self.adverts[i]["mask"], self.session, i, e)
                fixed.stream(self._total, key, -sign(i, e))
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
