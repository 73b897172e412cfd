"""The server's side of a secure sum; `node` has the nodes' side and an overview of both."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focusfl.flower.secure_sums import crypto, fixed_point
from focusfl.flower.secure_sums.crypto import ENCRYPTED_SHARES_SIZE
from focusfl.flower.secure_sums.fixed_point import Floats
from focusfl.flower.secure_sums.messages import Record, SecureSumFailed, read_agents, read_byte_strings
from focusfl.flower.secure_sums.node import SESSION_SIZE
from focusfl.util.errors import InputError


@dataclass
class SecureSum:
    """One attempt at a secure sum, as the server runs it.

    The `receive_...` methods raise InputError if an agent's reply is wrong or late: that agent drops out, the sum
    continues. The `..._request` methods and `result` raise SecureSumFailed if too few agents are left: the sum is
    lost, and the server may start a new one.

    Attributes:
        shapes: Shapes of the arrays to be summed, by name.
        minimum: Number of terms that the sum must have.
        session: A random number that all keys of this sum depend on.
        stage: The current stage.
        advertised: What each agent advertised: public keys "mask" and "share", hash of its "seed".
        shares: Encrypted shares, by sender and receiver.
        answered: The agents whose masked input is in the sum.
        revealed: The shares that each agent revealed, in the order of the request.
    """

    shapes: Mapping[str, tuple[int, ...]]
    minimum: int = 2
    session: bytes = field(default_factory=lambda: os.urandom(SESSION_SIZE))
    stage: str = field(default="advertise keys", init=False)
    advertised: dict[int, dict[str, bytes]] = field(default_factory=dict, init=False)
    shares: dict[int, dict[int, bytes]] = field(default_factory=dict, init=False)
    answered: list[int] = field(default_factory=list, init=False)
    revealed: dict[int, list[bytes]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._total = {name: np.zeros(shape, "<u8") for name, shape in self.shapes.items()}

    @property
    def threshold(self) -> int:
        """How many of the agents that advertised keys must answer."""
        return crypto.min_threshold(len(self.advertised), self.minimum)

    def advertise_keys_request(self) -> Record:
        """Return the request of stage 1, for every agent."""
        return {"session": self.session}

    def receive_keys(self, e: int, reply: Mapping[str, Any]) -> None:
        """Receive what agent e advertises."""
        self._check_turn(e, "advertise keys", e not in self.advertised)
        names = ("mask", "share", "seed")
        keys = dict(zip(names, read_byte_strings([reply.get(k) for k in names], "keys", 3), strict=True))
        for name in ("mask", "share"):  # an invalid key would stop all other agents
            crypto.agree_key(crypto.new_private_key(), keys[name], "try", self.session, e, e)
        self.advertised[e] = keys

    def share_keys_request(self) -> Record:
        """Return the request of stage 2, for every agent in `advertised`."""
        fixed_point.fraction_bits(max(1, len(self.advertised)))
        self._next_stage("advertise keys", "share keys", len(self.advertised), "sent keys")
        agents = sorted(self.advertised)
        public: Record = {name: [self.advertised[e][name] for e in agents] for name in ("mask", "share")}
        return {"session": self.session, **public, "agents": agents, "threshold": self.threshold}

    def receive_shares(self, e: int, reply: Mapping[str, Any]) -> None:
        """Receive the encrypted shares that agent e sends to the others."""
        self._check_turn(e, "share keys", e in self.advertised and e not in self.shares)
        receivers = read_agents(reply, "to")
        if receivers != sorted(set(self.advertised) - {e}):
            raise InputError(f"agent {e} did not send one share to each other agent")
        lengths = len(receivers), ENCRYPTED_SHARES_SIZE
        encrypted = read_byte_strings(reply.get("sealed"), "sealed", *lengths)
        self.shares[e] = dict(zip(receivers, encrypted, strict=True))

    def masked_input_request(self, e: int) -> Record:
        """Return the request of stage 3 for an agent e in `shares`: the shares that the others sent it."""
        self._next_stage("share keys", "masked input", len(self.shares), "sent shares")
        senders = sorted(set(self.shares) - {e})
        return {"session": self.session, "from": senders, "sealed": [self.shares[i][e] for i in senders]}

    def receive_masked_input(self, e: int, masked: Mapping[str, NDArray[Any]]) -> None:
        """Add the masked arrays of agent e to the sum."""
        self._check_turn(e, "masked input", e in self.shares and e not in self.answered)
        expected = {name: (tuple(shape), np.dtype("<u8")) for name, shape in self.shapes.items()}
        if {name: (v.shape, v.dtype) for name, v in masked.items()} != expected:
            raise InputError(f"agent {e} sent arrays whose names, shapes or types differ from those of this sum")
        for name, v in masked.items():
            self._total[name] += v
        self.answered.append(e)

    def unmasking_request(self) -> Record:
        """Return the request of stage 4, for every agent in `answered`."""
        self._next_stage("masked input", "unmasking", len(self.answered), "answered")
        answered = sorted(self.answered)
        dropped = sorted(set(self.shares) - set(answered))
        return {"session": self.session, "answered": answered, "dropped": dropped}

    def receive_unmasking(self, e: int, reply: Mapping[str, Any]) -> None:
        """Receive the shares that agent e reveals."""
        self._check_turn(e, "unmasking", e in self.answered and e not in self.revealed)
        if reply.get("of") != self._unmasked:
            raise InputError(f"agent {e} did not reveal the shares that the server requested")
        self.revealed[e] = read_byte_strings(reply.get("shares"), "shares", len(self._unmasked))

    def result(self) -> dict[str, Floats]:
        """Remove the masks that do not cancel and return the sum.

        Returns:
            The sum over the agents in `answered`, in double precision.

        Raises:
            SecureSumFailed: If too few agents revealed shares, or revealed wrong ones.
        """
        self._next_stage("unmasking", "done", len(self.revealed), "revealed shares")
        secrets = {e: self._reconstruct(k, e) for k, e in enumerate(self._unmasked)}
        for e, secret in secrets.items():
            if e in self.answered:
                crypto.add_mask(self._total, crypto.derive_key(secret, "self", self.session, e), -1)
                continue
            for i in self.answered:  # remove the mask that i shares with e: e's input is not there to cancel it
                key = crypto.pair_mask_key(secret, self.advertised[i]["mask"], self.session, i, e)
                crypto.add_mask(self._total, key, -crypto.pair_mask_sign(i, e))
        return fixed_point.decode(self._total, len(self.advertised))

    @property
    def _unmasked(self) -> list[int]:
        """The agents whose shares are revealed, in the order of the request."""
        return sorted(self.answered) + sorted(set(self.shares) - set(self.answered))

    def _reconstruct(self, k: int, e: int) -> bytes:
        """Return the secret of agent e, the k-th in `_unmasked`: its seed if it answered, else its mask key."""
        index = {agent: i for i, agent in enumerate(sorted(self.advertised))}
        senders = sorted(self.revealed)[: self.threshold]
        secret = crypto.combine_shares({index[i]: self.revealed[i][k] for i in senders})
        if e in self.answered:
            correct = self.advertised[e]["seed"] == hashlib.sha256(secret).digest()
        else:
            correct = self.advertised[e]["mask"] == crypto.public_key(secret)
        if not correct:
            raise SecureSumFailed(
                f"the shares of agent {e} do not give its secret: agent {e}, or one of the agents {senders}, sent "
                "wrong shares"
            )
        return secret

    def _check_turn(self, e: int, stage: str, expected: bool) -> None:
        if self.stage != stage or not expected:
            raise InputError(f"agent {e} replied to {stage!r} too late, twice, or without the stage before it")

    def _next_stage(self, stage: str, following: str, n: int, action: str) -> None:
        """Enter the following stage, or stay in it; n agents have taken this stage's action."""
        if n < self.threshold:
            total = len(self.advertised)
            raise SecureSumFailed(f"{n} of {total} agents {action}, but a secure sum needs {self.threshold}")
        if self.stage not in (stage, following) or self.stage == "done":
            raise SecureSumFailed(f"this sum is at {self.stage!r}, not at {stage!r}: start a new one")
        self.stage = following
