"""The secrets of one round: what two agents agree on, notes only one of them can read, Shamir's shares, and how a
node keeps them between messages.

Nothing here is of our making: X25519, HKDF-SHA256 and ChaCha20-Poly1305 are those of `cryptography`, Shamir's
sharing over GF(2^128) is that of `pycryptodome`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from focusfl.util.errors import InputError

SIZE = 32  # bytes of every key, seed and share
HALF = 16  # bytes that pycryptodome shares at once
NOTE = 12 + 2 * SIZE + 16  # bytes of a sealed note: nonce, two shares, tag


def new_key() -> bytes:
    """A private key of X25519."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public(private: bytes) -> bytes:
    """The public key that belongs to it."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def derive(secret: bytes, purpose: str, session: bytes, *agents: int) -> bytes:
    """A key for one purpose, one round and these agents alone."""
    info = b"\0".join([b"focusfl", purpose.encode(), session, *(str(e).encode() for e in agents)])
    return HKDF(SHA256(), SIZE, salt=None, info=info).derive(secret)


def agree(private: bytes, other: bytes, purpose: str, session: bytes, a: int, b: int) -> bytes:
    """The key that a and b both reach, each from its own private key and the other's public one."""
    try:
        secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:  # a point of small order: the secret would be zero
        raise InputError(f"a public key of agent {a} or {b} is not valid: no key can be agreed on") from error
    return derive(secret, purpose, session, a, b)


def seal(key: bytes, text: bytes) -> bytes:
    """Encrypted and authenticated; the key says who to whom, and in which round."""
    nonce = os.urandom(12)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, text, None)


def unseal(key: bytes, sealed: bytes) -> bytes | None:
    """The way back; None where it was altered, or meant for another pair or round."""
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:12], sealed[12:], None)
    except (InvalidTag, ValueError):
        return None


def split(secret: bytes, threshold: int, n: int) -> list[bytes]:
    """n shares, any `threshold` of which give the secret and fewer say nothing. Share i is the point i + 1."""
    halves = [Shamir.split(threshold, n, secret[at : at + HALF], False) for at in (0, HALF)]
    return [first + second for (_, first), (_, second) in zip(*halves, strict=True)]


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret from exactly as many shares as its threshold, by place (from 0). Wrong ones give another secret.

    >>> shares = split(b"a secret of thirty-two bytes ...", 2, 3)
    >>> combine({0: shares[0], 2: shares[2]})
    b'a secret of thirty-two bytes ...'
    """
    points = [[(i + 1, share[at : at + HALF]) for i, share in shares.items()] for at in (0, HALF)]
    return b"".join(Shamir.combine(half, False) for half in points)


@dataclass(frozen=True)
class Kept:
    """What a node keeps of a round. Agents are known by their numbers e."""

    me: int
    session: bytes
    stage: str  # the last one done
    own: dict[str, bytes]  # "mask", "share": private keys; "seed": of the self mask. Empty after the upload
    keys: dict[int, list[bytes]] = field(default_factory=dict)  # public, of all in the roster: [mask, share]
    held: dict[int, list[bytes]] = field(default_factory=dict)  # shares, by whose they are: [of seed, of mask key]
    threshold: int = 0
    told: list[list[int]] = field(default_factory=list)  # [answered, dropped], once it has revealed

    def pack(self) -> bytes:
        """As bytes. They hold secrets."""
        return json.dumps(asdict(self), default=bytes.hex).encode()

    @staticmethod
    def unpack(state: bytes, record: Mapping[str, Any], *stages: str) -> Kept:
        """Read it back, and make sure that the server's message is of this sum and comes in turn."""
        found = json.loads(state)
        for name in ("keys", "held"):
            found[name] = {int(e): [bytes.fromhex(v) for v in pair] for e, pair in found[name].items()}
        found["own"] = {name: bytes.fromhex(v) for name, v in found["own"].items()}
        kept = Kept(**found | {"session": bytes.fromhex(found["session"])})
        if record.get("session") != kept.session:
            raise InputError(f"agent {kept.me} knows nothing of this secure sum: begin it with a first message")
        if kept.stage not in stages:
            raise InputError(f"agent {kept.me} has done {kept.stage!r}, which this cannot follow: begin a new sum")
        return kept

    def note_key(self, keys: Mapping[int, list[bytes]], sender: int, receiver: int) -> bytes:
        """Of a sealed note; this node is one of the two."""
        other = receiver if sender == self.me else sender
        return agree(self.own["share"], keys[other][1], "note", self.session, sender, receiver)
