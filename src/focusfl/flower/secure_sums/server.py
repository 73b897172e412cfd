"""The server's side of a secure sum; `node` has the nodes' side and an overview of both."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focusfl.flower.secure_sums import crypto, fixed_point, messages
from focusfl.flower.secure_sums.crypto import ENCRYPTED_SHARES_SIZE, KEY_SIZE
from focusfl.flower.secure_sums.fixed_point import Floats
from focusfl.flower.secure_sums.identity import Anyone, is_signed
from focusfl.flower.secure_sums.messages import (
    MAX_CREDENTIAL_SIZE,
    PUBLIC,
    SIGNATURE_SIZE,
    Record,
    SecureSumFailed,
    read_agents,
    read_byte_strings,
)
from focusfl.flower.secure_sums.node import SESSION_SIZE
from focusfl.util.errors import InputError


@dataclass
class SecureSum:
    """One attempt at a secure sum, as the server runs it.

    The `receive_...` methods raise InputError if an agent's reply is wrong or late: that agent drops out, the sum
    continues. The `..._request` methods and `result` raise SecureSumFailed if too few agents are left: the sum is
    lost, and the server may start a new one. The nodes do not rely on any check made here.

    Attributes:
        shapes: Shapes of the arrays to be summed, by name.
        minimum: Number of terms that the sum must have.
        about: What the nodes compute their numbers from, as bytes; nodes that have something else drop out.
        trusted: Whose keys the server accepts, so that an agent without a certificate does not stop the others.
        session: A random number that all keys of this sum depend on.
        stage: The current stage.
        advertised: What each agent advertised: "mask", "share", "seed", "credential", "signature"; and its key
            "signing".
        shares: Encrypted shares, by sender and receiver.
        commitments: Of each sender, to its two shares for each receiver.
        answered: The agents whose masked input is in the sum.
        signatures: Of the agents that signed the list `answered`.
        revealed: The shares that each agent revealed, by the agent they belong to.
        liars: Agents that revealed wrong shares, and of whom. Their shares are not used; their input is in the sum.
    """

    shapes: Mapping[str, tuple[int, ...]]
    minimum: int = 2
    about: bytes = b""
    trusted: Anyone = field(default_factory=Anyone)
    session: bytes = field(default_factory=lambda: os.urandom(SESSION_SIZE))
    stage: str = field(default="advertise keys", init=False)
    advertised: dict[int, dict[str, bytes]] = field(default_factory=dict, init=False)
    shares: dict[int, dict[int, bytes]] = field(default_factory=dict, init=False)
    commitments: dict[int, dict[int, list[bytes]]] = field(default_factory=dict, init=False)
    answered: list[int] = field(default_factory=list, init=False)
    signatures: dict[int, bytes] = field(default_factory=dict, init=False)
    revealed: dict[int, dict[int, bytes]] = field(default_factory=dict, init=False)
    liars: dict[int, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._total = {name: np.zeros(shape, "<u8") for name, shape in self.shapes.items()}

    @property
    def threshold(self) -> int:
        """How many of the agents that advertised keys must answer."""
        return crypto.min_threshold(len(self.advertised), self.minimum)

    @property
    def sum_(self) -> bytes:
        """The sum's hash, which masks and signatures depend on."""
        keys = {e: [sent[name] for name in (*PUBLIC, "signing")] for e, sent in self.advertised.items()}
        roster = messages.roster_digest(self.session, self.threshold, keys)
        return messages.sum_digest(roster, self.shares, self.about)

    def advertise_keys_request(self) -> Record:
        """Return the request of stage 1, for every agent."""
        return {"session": self.session}

    def receive_keys(self, e: int, reply: Mapping[str, Any]) -> None:
        """Receive what agent e advertises."""
        self._check_turn(e, "advertise keys", e not in self.advertised)
        keys = dict(zip(PUBLIC, read_byte_strings([reply.get(k) for k in PUBLIC], "keys", 3), strict=True))
        sizes = KEY_SIZE, MAX_CREDENTIAL_SIZE
        (keys["credential"],) = read_byte_strings([reply.get("credential")], "credential", 1, *sizes)
        (keys["signature"],) = read_byte_strings([reply.get("signature")], "signature", 1, SIGNATURE_SIZE)
        for name in ("mask", "share"):  # an invalid key would stop all other agents
            crypto.agree_key(crypto.new_private_key(), keys[name], "try", self.session, e, e)
        signing = self.trusted.signing_key(e, keys["credential"])
        if not is_signed(signing, keys["signature"], messages.advertised_text(self.session, e, keys)):
            raise InputError(f"agent {e} has not signed the keys that it sent")
        self.advertised[e] = keys | {"signing": signing.public_bytes_raw()}

    def share_keys_request(self) -> Record:
        """Return the request of stage 2, for every agent in `advertised`."""
        fixed_point.fraction_bits(max(1, len(self.advertised)))
        self._next_stage("advertise keys", "share keys", len(self.advertised), "sent keys")
        agents = sorted(self.advertised)
        names = (*PUBLIC, "credential", "signature")
        public: Record = {name: [self.advertised[e][name] for e in agents] for name in names}
        return {"session": self.session, **public, "agents": agents, "threshold": self.threshold}

    def receive_shares(self, e: int, reply: Mapping[str, Any]) -> None:
        """Receive the encrypted shares that agent e sends to the others, and its commitments to all shares."""
        self._check_turn(e, "share keys", e in self.advertised and e not in self.shares)
        receivers, agents = read_agents(reply, "to"), sorted(self.advertised)
        if receivers != [i for i in agents if i != e]:
            raise InputError(f"agent {e} did not send one share to each other agent")
        lengths = len(receivers), ENCRYPTED_SHARES_SIZE
        encrypted = read_byte_strings(reply.get("sealed"), "sealed", *lengths)
        promised = read_byte_strings(reply.get("commitments"), "commitments", 2 * len(agents))
        self.shares[e] = dict(zip(receivers, encrypted, strict=True))
        self.commitments[e] = {i: promised[2 * k : 2 * k + 2] for k, i in enumerate(agents)}

    def masked_input_request(self, e: int) -> Record:
        """Return the request of stage 3 for an agent e in `shares`: the shares that the others sent it."""
        self._next_stage("share keys", "masked input", len(self.shares), "sent shares")
        senders = sorted(set(self.shares) - {e})
        promised = [commitment for i in senders for commitment in self.commitments[i][e]]
        sealed = [self.shares[i][e] for i in senders]
        return {"session": self.session, "from": senders, "sealed": sealed, "commitments": promised}

    def receive_masked_input(self, e: int, masked: Mapping[str, NDArray[Any]]) -> None:
        """Add the masked arrays of agent e to the sum."""
        self._check_turn(e, "masked input", e in self.shares and e not in self.answered)
        expected = {name: (tuple(shape), np.dtype("<u8")) for name, shape in self.shapes.items()}
        if {name: (v.shape, v.dtype) for name, v in masked.items()} != expected:
            raise InputError(f"agent {e} sent arrays whose names, shapes or types differ from those of this sum")
        for name, v in masked.items():
            self._total[name] += v
        self.answered.append(e)

    def consistency_request(self) -> Record:
        """Return the request of stage 4, for every agent in `answered`."""
        self._next_stage("masked input", "consistency", len(self.answered), "answered")
        return {"session": self.session, "answered": sorted(self.answered)}

    def receive_consistency(self, e: int, reply: Mapping[str, Any]) -> None:
        """Receive the signature of agent e under the list of those who answered.

        Raises:
            InputError: If it is not a signature.
            SecureSumFailed: If it is one under something else: this agent's masks, and so the sum, are spoilt.
        """
        self._check_turn(e, "consistency", e in self.answered and e not in self.signatures)
        (signature,) = read_byte_strings([reply.get("signature")], "signature", 1, SIGNATURE_SIZE)
        key = self.trusted.signing_key(e, self.advertised[e]["credential"])
        if not is_signed(key, signature, messages.answered_text(self.sum_, self.answered)):
            why = f"agent {e} signed something else than this sum: its roster, models or options are others"
            raise SecureSumFailed(f"{why}, so its masks do not cancel", {e: why})
        self.signatures[e] = signature

    def unmasking_request(self) -> Record:
        """Return the request of stage 5, for every agent in `signatures`."""
        action = "signed the list of those who answered"
        self._next_stage("consistency", "unmasking", len(self.signatures), action)
        signers = sorted(self.signatures)
        return {"session": self.session, "signers": signers, "signatures": [self.signatures[e] for e in signers]}

    def receive_unmasking(self, e: int, reply: Mapping[str, Any]) -> None:
        """Receive the shares that agent e reveals. Shares of others that it did not get intact are missing."""
        self._check_turn(e, "unmasking", e in self.signatures and e not in self.revealed)
        owners = reply.get("of")
        if not isinstance(owners, list) or owners != [i for i in self._unmasked if i in owners]:
            raise InputError(f"agent {e} did not reveal the shares that the server requested")
        if len(owners) < self.threshold:  # with fewer it would not have uploaded
            raise InputError(f"agent {e} revealed {len(owners)} shares, but it has {self.threshold} or more")
        shares = read_byte_strings(reply.get("shares"), "shares", len(owners))
        revealed = dict(zip(owners, shares, strict=True))
        wrong = [i for i, share in revealed.items() if crypto.commitment(share) != self._promised(i, e)]
        if wrong:
            self.liars[e] = f"agent {e} revealed a wrong share of {_agents(wrong)}"
        self.revealed[e] = {i: share for i, share in revealed.items() if i not in wrong}

    def result(self) -> dict[str, Floats]:
        """Remove the masks that do not cancel and return the sum.

        Returns:
            The sum over the agents in `answered`, in double precision.

        Raises:
            SecureSumFailed: If too few agents revealed right shares. It names those who sent wrong ones.
        """
        self._next_stage("unmasking", "done", len(self.revealed), "revealed shares")
        secrets = {e: self._reconstruct(e) for e in self._unmasked}
        sum_ = self.sum_
        for e, secret in secrets.items():
            if e in self.answered:
                crypto.add_mask(self._total, crypto.derive_key(secret, "self", sum_, e), -1)
                continue
            for i in self.answered:  # remove the mask that i shares with e: e's input is not there to cancel it
                key = crypto.pair_mask_key(secret, self.advertised[i]["mask"], sum_, i, e)
                crypto.add_mask(self._total, key, -crypto.pair_mask_sign(i, e))
        return fixed_point.decode(self._total, len(self.advertised))

    @property
    def _unmasked(self) -> list[int]:
        """The agents whose shares are revealed: those who answered, then those who dropped out."""
        return sorted(self.answered) + sorted(set(self.shares) - set(self.answered))

    def _promised(self, owner: int, holder: int) -> bytes:
        """Return the commitment to the share that `holder` should reveal: of the owner's seed or mask key."""
        return self.commitments[owner][holder][0 if owner in self.answered else 1]

    def _reconstruct(self, e: int) -> bytes:
        """Return the secret of agent e: its seed if it answered, else its mask key."""
        index = {agent: i for i, agent in enumerate(sorted(self.advertised))}
        shares = {index[i]: revealed[e] for i, revealed in sorted(self.revealed.items()) if e in revealed}
        if len(shares) < self.threshold:
            without = [i for i in sorted(self.revealed) if e not in self.revealed[i] and i not in self.liars]
            culprits = self.liars | ({e: f"agent {e} sent {_agents(without)} wrong shares"} if without else {})
            raise SecureSumFailed(
                f"{len(shares)} agents revealed a right share of agent {e}, but {self.threshold} must: "
                + "; ".join(culprits.values()),
                culprits,
            )
        secret = crypto.combine_shares(dict(list(shares.items())[: self.threshold]))
        if e in self.answered:
            correct = self.advertised[e]["seed"] == crypto.commitment(secret)
        else:
            correct = self.advertised[e]["mask"] == crypto.public_key(secret)
        if not correct:
            why = f"agent {e} split something else than its secret into shares"
            raise SecureSumFailed(f"the shares of agent {e} do not give its secret: {why}", {e: why})
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


def _agents(agents: list[int]) -> str:
    return f"agent {agents[0]}" if len(agents) == 1 else f"agents {agents}"
