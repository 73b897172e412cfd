"""The node's side of a secure sum: double masking as in Bonawitz et al. 2017 (Practical Secure Aggregation, CCS).

docs/secure-sums.md describes the protocol. Nodes and server exchange plain records and arrays; nodes talk to each
other only through the server. Each of the four stages is one request of the server and one reply of every node:

    server (`server.SecureSum`)       node                                        server
    advertise_keys_request()          state, keys = advertise_keys(e, request)    receive_keys(e, keys)
    share_keys_request()              state, shares = share_keys(state, request)  receive_shares(e, shares)
    masked_input_request(e)           state, y = masked_input(state, request, x)  receive_masked_input(e, y)
    unmasking_request()               state, shares = unmasking(state, request)   receive_unmasking(e, shares)
                                                                                  result()

The node's state is bytes, so that a new process may answer each request. It contains secrets and stays at the node.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from focusfl.flower.secure_sums import crypto, fixed_point
from focusfl.flower.secure_sums.crypto import ENCRYPTED_SHARES_SIZE, KEY_SIZE
from focusfl.flower.secure_sums.fixed_point import Integers
from focusfl.flower.secure_sums.messages import Record, SecureSumFailed, read_agents, read_byte_strings
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
        public_keys: Of every agent that advertised keys: [mask, share].
        shares: Of every agent whose shares arrived: [share of its seed, share of its private mask key].
        threshold: Number of agents that must answer.
        unmasked: The lists [answered, dropped] that this node has revealed shares for; empty before.
    """

    e: int
    session: bytes
    stage: str
    secrets: dict[str, bytes]
    public_keys: dict[int, list[bytes]] = field(default_factory=dict)
    shares: dict[int, list[bytes]] = field(default_factory=dict)
    threshold: int = 0
    unmasked: list[list[int]] = field(default_factory=list)

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
        values = json.loads(state)
        for name in ("public_keys", "shares"):
            values[name] = {int(e): [bytes.fromhex(v) for v in pair] for e, pair in values[name].items()}
        values["secrets"] = {name: bytes.fromhex(v) for name, v in values["secrets"].items()}
        node = NodeState(**values | {"session": bytes.fromhex(values["session"])})
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
        return crypto.agree_key(private, public, "note", self.session, sender, receiver)


def advertise_keys(e: int, request: Mapping[str, Any]) -> tuple[bytes, Record]:
    """Stage 1: create the keys of this sum and advertise the public ones.

    Args:
        e: This node's agent.
        request: What `SecureSum.advertise_keys_request` returned.

    Returns:
        The node's state, and the public keys "mask" and "share" with a hash of the "seed". The hash lets the server
        check the seed that it reconstructs later.
    """
    (session,) = read_byte_strings([request.get("session")], "session", 1, SESSION_SIZE)
    secrets = {"mask": crypto.new_private_key(), "share": crypto.new_private_key(), "seed": os.urandom(KEY_SIZE)}
    keys: Record = {name: crypto.public_key(secrets[name]) for name in ("mask", "share")}
    state = NodeState(e, session, "advertise keys", secrets).to_bytes()
    return state, keys | {"seed": hashlib.sha256(secrets["seed"]).digest()}


def share_keys(state: bytes, request: Mapping[str, Any], minimum: int = 2) -> tuple[bytes, Record]:
    """Stage 2: split the seed and the private mask key into shares; encrypt one of each for every other agent.

    Args:
        state: The node's state.
        request: What `SecureSum.share_keys_request` returned.
        minimum: Number of terms that a sum must have, for this node to participate.

    Returns:
        The node's state, and the encrypted shares.

    Raises:
        InputError: If the server's list lacks this node's keys, or so few agents must answer that a minority could
            expose this node.
    """
    node = NodeState.from_bytes(state, request, "advertise keys")
    agents, threshold = read_agents(request, "agents"), request.get("threshold")
    n = len(agents)
    lists = [read_byte_strings(request.get(name), name, n) for name in ("mask", "share")]
    public_keys = {e: [mask, share] for e, mask, share in zip(agents, *lists, strict=True)}
    if public_keys.get(node.e) != [crypto.public_key(node.secrets[name]) for name in ("mask", "share")]:
        raise InputError(
            f"the server's list of keys does not contain the keys that agent {node.e} sent: start a new secure sum"
        )
    most = fixed_point.MAX_AGENTS
    if not isinstance(threshold, int) or not crypto.min_threshold(n, minimum) <= threshold <= n <= most:
        raise InputError(
            f"agent {node.e} does not participate: the threshold is {threshold} of {n} agents, but it must be more "
            f"than half of them and at least {max(2, minimum)}, of at most {most}; let more agents participate"
        )
    seed_shares, key_shares = (crypto.split_secret(node.secrets[name], threshold, n) for name in ("seed", "mask"))
    shares = {e: [a, b] for e, a, b in zip(agents, seed_shares, key_shares, strict=True)}
    node = replace(
        node, stage="share keys", public_keys=public_keys, shares={node.e: shares[node.e]}, threshold=threshold
    )
    others = [e for e in agents if e != node.e]
    encrypted = [crypto.encrypt(node.encryption_key(node.e, e), b"".join(shares[e])) for e in others]
    return node.to_bytes(), {"to": others, "sealed": encrypted}


def masked_input(
    state: bytes, request: Mapping[str, Any], values: Mapping[str, NDArray[Any]]
) -> tuple[bytes, dict[str, Integers]]:
    """Stage 3: decrypt the others' shares; mask this node's numbers with one mask per other agent and a self mask.

    The private keys and the seed are deleted here, so a node masks once only: two inputs under the same masks would
    reveal their difference.

    Args:
        state: The node's state.
        request: What `SecureSum.masked_input_request` returned.
        values: The arrays that this node contributes to the sum.

    Returns:
        The node's state, and the masked arrays.

    Raises:
        InputError: If an agent's shares were altered, or the values cannot be encoded.
        SecureSumFailed: If fewer agents than the threshold sent shares.
    """
    node = NodeState.from_bytes(state, request, "share keys")
    senders, shares = read_agents(request, "from"), dict(node.shares)
    lengths = len(senders), ENCRYPTED_SHARES_SIZE
    for e, encrypted in zip(senders, read_byte_strings(request.get("sealed"), "sealed", *lengths), strict=True):
        is_peer = e in node.public_keys and e != node.e
        text = crypto.decrypt(node.encryption_key(e, node.e), encrypted) if is_peer else None
        if text is None:
            raise InputError(f"the shares from agent {e} to agent {node.e} were altered or belong to another sum")
        shares[e] = [text[:KEY_SIZE], text[KEY_SIZE:]]
    n = len(node.public_keys)
    if len(shares) < node.threshold:
        raise SecureSumFailed(f"{len(shares)} of {n} agents sent shares, but {node.threshold} are needed")
    masked = fixed_point.encode(values, n)
    crypto.add_mask(masked, crypto.derive_key(node.secrets["seed"], "self", node.session, node.e), 1)
    for e in senders:
        key = crypto.pair_mask_key(node.secrets["mask"], node.public_keys[e][0], node.session, node.e, e)
        crypto.add_mask(masked, key, crypto.pair_mask_sign(node.e, e))
    return replace(node, stage="masked input", secrets={}, shares=shares).to_bytes(), masked


def unmasking(state: bytes, request: Mapping[str, Any]) -> tuple[bytes, Record]:
    """Stage 4: reveal a share of each agent's seed if it answered, of its mask key if it dropped out; never both.

    Asked again for the same agents, the node gives the same reply.

    Args:
        state: The node's state.
        request: What `SecureSum.unmasking_request` returned.

    Returns:
        The node's state, and the shares.

    Raises:
        InputError: If the request does not name each agent exactly once, names this node as dropped out, or differs
            from an earlier request.
        SecureSumFailed: If fewer agents than the threshold answered.
    """
    node = NodeState.from_bytes(state, request, "masked input", "unmasking")
    answered, dropped = unmasked = [read_agents(request, "answered"), read_agents(request, "dropped")]
    if sorted(answered + dropped) != sorted(node.shares) or node.e not in answered:
        raise InputError(
            f"agent {node.e} reveals no shares: the request must name every agent that sent shares once, and "
            f"agent {node.e} as answered"
        )
    if len(answered) < node.threshold:
        n = len(node.public_keys)
        raise SecureSumFailed(f"{len(answered)} of {n} agents answered, but {node.threshold} are needed")
    if node.unmasked and node.unmasked != unmasked:
        raise InputError(
            f"agent {node.e} reveals no shares: an earlier request named other agents as answered, and both shares "
            "of one agent would expose its input"
        )
    shares = [node.shares[e][0] for e in answered] + [node.shares[e][1] for e in dropped]
    reply: Record = {"of": answered + dropped, "shares": shares}
    return replace(node, stage="unmasking", unmasked=unmasked).to_bytes(), reply
