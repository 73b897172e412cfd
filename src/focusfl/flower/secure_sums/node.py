"""The node's side of a secure sum: the active-adversary variant of Bonawitz et al. 2017 (Practical Secure
Aggregation, CCS).

docs/secure-sums.md describes the protocol. Nodes and server exchange plain records and arrays; nodes talk to each
other only through the server, which may lie. Each of the five stages is one request of the server and one reply of
every node; `me` is what the node was installed with:

    server (`server.SecureSum`)       node                                            server
    advertise_keys_request()          state, keys = advertise_keys(me, request)       receive_keys(e, keys)
    share_keys_request()              state, shares = share_keys(me, state, request)  receive_shares(e, shares)
    masked_input_request(e)           state, y = masked_input(me, state, request, x)  receive_masked_input(e, y)
    consistency_request()             state, vote = consistency(me, state, request)   receive_consistency(e, vote)
    unmasking_request()               state, shares = unmasking(me, state, request)   receive_unmasking(e, shares)
                                                                                      result()

The node's state is bytes, so that a new process may answer each request. It contains secrets and stays at the node.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from numpy.typing import NDArray

from focusfl.flower.secure_sums import crypto, fixed_point, messages
from focusfl.flower.secure_sums.crypto import ENCRYPTED_SHARES_SIZE, KEY_SIZE
from focusfl.flower.secure_sums.fixed_point import Integers
from focusfl.flower.secure_sums.identity import NodeSetup, is_signed
from focusfl.flower.secure_sums.messages import (
    MAX_CREDENTIAL_SIZE,
    PUBLIC,
    SIGNATURE_SIZE,
    Record,
    SecureSumFailed,
    read_agents,
    read_byte_strings,
)
from focusfl.util.errors import InputError

SESSION_SIZE = 16


@dataclass(frozen=True)
class NodeState:
    """What a node remembers between the stages of one sum. Agents are known by their numbers.

    Attributes:
        e: This node's agent.
        session: The random number of this sum.
        stage: The last stage that this node completed.
        secrets: The private keys "mask" and "share", and the "seed" of the self mask; empty after the upload.
        public_keys: Of every agent in the roster: [mask, share, hash of the seed, signing key].
        shares: Of every agent whose shares arrived intact: [share of its seed, share of its private mask key].
        threshold: Number of agents that must answer.
        roster: The roster's hash.
        participants: The agents that, as the server says, sent shares.
        sum_: The sum's hash: of roster, participants and what the numbers were computed from.
        answered: The agents that, as the server says, answered: the one list that this node has signed.
    """

    e: int
    session: bytes
    stage: str
    secrets: dict[str, bytes]
    public_keys: dict[int, list[bytes]] = field(default_factory=dict)
    shares: dict[int, list[bytes]] = field(default_factory=dict)
    threshold: int = 0
    roster: bytes = b""
    participants: list[int] = field(default_factory=list)
    sum_: bytes = b""
    answered: list[int] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        """Return the state as bytes. They contain secrets."""
        return json.dumps(asdict(self), default=bytes.hex).encode()

    @staticmethod
    def from_bytes(state: bytes, request: Mapping[str, Any], *stages: str) -> NodeState:
        """Read the state back and check that a request belongs to this sum and may come now.

        Args:
            state: What `to_bytes` returned.
            request: The server's request.
            *stages: The stages that this request may follow.

        Returns:
            The state.

        Raises:
            InputError: If the request belongs to another sum or comes out of order.
        """
        if not state:
            raise InputError("this node's part of the secure sum is lost: the server must start a new sum")
        values = json.loads(state)
        for name in ("public_keys", "shares"):
            values[name] = {int(e): [bytes.fromhex(v) for v in items] for e, items in values[name].items()}
        values["secrets"] = {name: bytes.fromhex(v) for name, v in values["secrets"].items()}
        values |= {name: bytes.fromhex(values[name]) for name in ("session", "roster", "sum_")}
        node = NodeState(**values)
        if request.get("session") != node.session:
            raise InputError(f"agent {node.e} has no keys for this secure sum: the server must start a new sum")
        if node.stage not in stages:
            raise InputError(
                f"agent {node.e} last completed {node.stage!r}, but this request must follow "
                f"{' or '.join(map(repr, stages))}: the server must start a new secure sum"
            )
        return node

    def encryption_key(self, sender: int, receiver: int) -> bytes:
        """Return the key of the shares that `sender` sends to `receiver`; this node is one of the two."""
        other = receiver if sender == self.e else sender
        private, public = self.secrets["share"], self.public_keys[other][1]
        return crypto.agree_key(private, public, "note", self.roster, sender, receiver)

    def require(self, me: NodeSetup, n: int, action: str) -> None:
        """Refuse to go on if n agents have taken an action and more are needed, for the sum or for this node."""
        if n < max(self.threshold, me.minimum):
            needed = f"{self.threshold} are needed, and agent {self.e} asks for at least {me.minimum}"
            raise SecureSumFailed(f"{n} of {len(self.public_keys)} agents {action}, but {needed}")


def advertise_keys(me: NodeSetup, request: Mapping[str, Any]) -> tuple[bytes, Record]:
    """Stage 1: create the keys of this sum and advertise the public ones, signed.

    Args:
        me: What this node was installed with.
        request: What `SecureSum.advertise_keys_request` returned.

    Returns:
        The node's state, and the public keys "mask" and "share" with a hash of the "seed", all signed. The hash
        lets the server check the seed that it reconstructs later.
    """
    (session,) = read_byte_strings([request.get("session")], "session", 1, SESSION_SIZE)
    secrets = {"mask": crypto.new_private_key(), "share": crypto.new_private_key(), "seed": os.urandom(KEY_SIZE)}
    public = {name: crypto.public_key(secrets[name]) for name in ("mask", "share")}
    public["seed"] = crypto.commitment(secrets["seed"])
    signature = me.key.sign(messages.advertised_text(session, me.e, public))
    state = NodeState(me.e, session, "advertise keys", secrets).to_bytes()
    return state, {**public, "credential": me.credential, "signature": signature}


def share_keys(me: NodeSetup, state: bytes, request: Mapping[str, Any]) -> tuple[bytes, Record]:
    """Stage 2: split the seed and the private mask key into shares; encrypt one of each for every other agent.

    Args:
        me: What this node was installed with.
        state: The node's state.
        request: What `SecureSum.share_keys_request` returned.

    Returns:
        The node's state, the encrypted shares, and a commitment to each share.

    Raises:
        InputError: If the server's list lacks this node's keys or contains keys that their agent has not signed, or
            if so few agents must answer that some of them could expose this node.
    """
    node = NodeState.from_bytes(state, request, "advertise keys")
    public_keys, threshold = _read_roster(me, node, request), request.get("threshold")
    n, most = len(public_keys), fixed_point.MAX_AGENTS
    if type(threshold) is not int or not crypto.min_threshold(n) <= threshold <= n <= most or n < me.minimum:
        raise InputError(
            f"agent {me.e} does not participate: the threshold is {threshold} of {n} agents, but it must be more "
            f"than two thirds of them, of {max(2, me.minimum)} to {most} agents; let more of them participate"
        )
    agents = sorted(public_keys)
    seed_shares, key_shares = (crypto.split_secret(node.secrets[name], threshold, n) for name in ("seed", "mask"))
    shares = {e: [a, b] for e, a, b in zip(agents, seed_shares, key_shares, strict=True)}
    node = replace(
        node,
        stage="share keys",
        public_keys=public_keys,
        shares={me.e: shares[me.e]},
        threshold=threshold,
        roster=messages.roster_digest(node.session, threshold, public_keys),
    )
    others = [e for e in agents if e != me.e]
    encrypted = [crypto.encrypt(node.encryption_key(me.e, e), b"".join(shares[e])) for e in others]
    commitments = [crypto.commitment(share) for e in agents for share in shares[e]]
    return node.to_bytes(), {"to": others, "sealed": encrypted, "commitments": commitments}


def _read_roster(me: NodeSetup, node: NodeState, request: Mapping[str, Any]) -> dict[int, list[bytes]]:
    """Return the public keys of every agent in the server's list, each checked against its agent's signature."""
    agents = read_agents(request, "agents")
    lists = [read_byte_strings(request.get(name), name, len(agents)) for name in PUBLIC]
    sizes = KEY_SIZE, MAX_CREDENTIAL_SIZE
    credentials = read_byte_strings(request.get("credential"), "credential", len(agents), *sizes)
    signatures = read_byte_strings(request.get("signature"), "signature", len(agents), SIGNATURE_SIZE)
    keys = {}
    for e, credential, signature, *values in zip(agents, credentials, signatures, *lists, strict=True):
        signing, text = me.trusted.signing_key(e, credential), dict(zip(PUBLIC, values, strict=True))
        if not is_signed(signing, signature, messages.advertised_text(node.session, e, text)):
            raise InputError(f"agent {me.e} does not participate: agent {e} has not signed the keys in its name")
        keys[e] = [*values, signing.public_bytes_raw()]
    own = [crypto.public_key(node.secrets["mask"]), crypto.public_key(node.secrets["share"])]
    own += [crypto.commitment(node.secrets["seed"]), me.key.public_key().public_bytes_raw()]
    if keys.get(me.e) != own:
        raise InputError(
            f"the server's list of keys does not contain the keys that agent {me.e} sent: start a new secure sum"
        )
    return keys


def masked_input(
    me: NodeSetup, state: bytes, request: Mapping[str, Any], values: Mapping[str, NDArray[Any]], about: bytes = b""
) -> tuple[bytes, dict[str, Integers]]:
    """Stage 3: decrypt the others' shares; mask this node's numbers with one mask per other agent and a self mask.

    The private keys and the seed are deleted here, so a node masks once only: two inputs under the same masks would
    reveal their difference. An agent whose shares were altered, or who sent wrong ones, is masked as all others:
    this node has no share of its secrets to reveal, and the others' shares must do.

    Args:
        me: What this node was installed with.
        state: The node's state.
        request: What `SecureSum.masked_input_request` returned.
        values: The arrays that this node contributes to the sum.
        about: What they were computed from, as bytes. Masks cancel only between nodes that have the same.

    Returns:
        The node's state, and the masked arrays.

    Raises:
        InputError: If the values cannot be encoded, or the server's list has an unknown agent.
        SecureSumFailed: If fewer agents than the threshold, or than this node's minimum, sent shares.
    """
    node = NodeState.from_bytes(state, request, "share keys")
    senders, shares = read_agents(request, "from"), dict(node.shares)
    sealed = read_byte_strings(request.get("sealed"), "sealed", len(senders), ENCRYPTED_SHARES_SIZE)
    promised = read_byte_strings(request.get("commitments"), "commitments", 2 * len(senders))
    if not set(senders) <= set(node.public_keys) - {me.e}:
        raise InputError(f"agent {me.e} sends nothing: the server's list has agents that are not in its roster")
    for k, e in enumerate(senders):
        text = crypto.decrypt(node.encryption_key(e, me.e), sealed[k])
        pair = [] if text is None else [text[:KEY_SIZE], text[KEY_SIZE:]]
        if [crypto.commitment(share) for share in pair] == promised[2 * k : 2 * k + 2]:
            shares[e] = pair
    participants = sorted([*senders, me.e])
    node.require(me, len(participants), "sent shares")
    node.require(me, len(shares), f"sent agent {me.e} shares that it can decrypt")
    sum_ = messages.sum_digest(node.roster, participants, about)
    masked = fixed_point.encode(values, len(node.public_keys))
    crypto.add_mask(masked, crypto.derive_key(node.secrets["seed"], "self", sum_, me.e), 1)
    for e in senders:
        key = crypto.pair_mask_key(node.secrets["mask"], node.public_keys[e][0], sum_, me.e, e)
        crypto.add_mask(masked, key, crypto.pair_mask_sign(me.e, e))
    node = replace(node, stage="masked input", secrets={}, shares=shares, participants=participants, sum_=sum_)
    return node.to_bytes(), masked


def consistency(me: NodeSetup, state: bytes, request: Mapping[str, Any]) -> tuple[bytes, Record]:
    """Stage 4: sign the list of the agents that answered. A node signs one list in a sum and no other.

    Args:
        me: What this node was installed with.
        state: The node's state.
        request: What `SecureSum.consistency_request` returned.

    Returns:
        The node's state, and the signature.

    Raises:
        InputError: If the list lacks this node or names agents that sent no shares, or if it signed another.
        SecureSumFailed: If fewer agents than the threshold, or than this node's minimum, answered.
    """
    node = NodeState.from_bytes(state, request, "masked input", "consistency")
    answered = read_agents(request, "answered")
    if me.e not in answered or not set(answered) <= set(node.participants):
        raise InputError(
            f"agent {me.e} signs nothing: the list of those who answered must name agent {me.e}, and only agents "
            "that sent shares"
        )
    node.require(me, len(answered), "answered")
    if node.answered and node.answered != answered:
        raise InputError(
            f"agent {me.e} signs nothing: it has signed another list of those who answered, and both shares of one "
            "agent would expose its input"
        )
    signature = me.key.sign(messages.answered_text(node.sum_, answered))
    return replace(node, stage="consistency", answered=answered).to_bytes(), {"signature": signature}


def unmasking(me: NodeSetup, state: bytes, request: Mapping[str, Any]) -> tuple[bytes, Record]:
    """Stage 5: reveal a share of each agent's seed if it answered, of its mask key if it dropped out; never both.

    Which agents answered is the list that this node signed. It reveals only if enough agents have signed the same.
    Asked again, it gives the same reply.

    Args:
        me: What this node was installed with.
        state: The node's state.
        request: What `SecureSum.unmasking_request` returned.

    Returns:
        The node's state, and the shares that it has.

    Raises:
        SecureSumFailed: If fewer agents than the threshold, or than this node's minimum, have signed the same list.
    """
    node = NodeState.from_bytes(state, request, "consistency", "unmasking")
    signers = read_agents(request, "signers")
    signatures = read_byte_strings(request.get("signatures"), "signatures", len(signers), SIGNATURE_SIZE)
    text, valid = messages.answered_text(node.sum_, node.answered), 0
    for e, signature in zip(signers, signatures, strict=True):
        if e in node.answered:
            valid += is_signed(Ed25519PublicKey.from_public_bytes(node.public_keys[e][3]), signature, text)
    node.require(me, valid, f"signed the list that agent {me.e} signed")
    dropped = [e for e in node.participants if e not in node.answered]
    held = [e for e in node.answered + dropped if e in node.shares]
    shares = [node.shares[e][0 if e in node.answered else 1] for e in held]
    return replace(node, stage="unmasking").to_bytes(), {"of": held, "shares": shares}
