"""The cryptography of a secure sum: key agreement, encryption, secret sharing, masks.

All primitives come from libraries: X25519, HKDF-SHA256, ChaCha20 and ChaCha20-Poly1305 from `cryptography`,
Shamir's secret sharing over GF(2^128) from `pycryptodome`. Every key, seed and share has `KEY_SIZE` bytes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from focusfl.flower.secure_sums.fixed_point import Integers
from focusfl.util.errors import InputError

KEY_SIZE = 32
NONCE_SIZE = 12
SHAMIR_BLOCK_SIZE = 16  # pycryptodome shares 16 bytes at a time
ENCRYPTED_SHARES_SIZE = NONCE_SIZE + 2 * KEY_SIZE + 16  # nonce, two shares, authentication tag
MASK_CHUNK_SIZE = 1 << 16  # bytes of a mask generated at once, so that they stay in the processor's cache


def new_private_key() -> bytes:
    """Return a new X25519 private key."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """Return the public key of an X25519 private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def derive_key(secret: bytes, purpose: str, about: bytes, *agents: int) -> bytes:
    """Derive a key for one purpose, one sum and these agents only.

    Args:
        secret: What the key is derived from.
        purpose: "self" or "pair" for masks, "note" for encrypted shares.
        about: A digest of all that both sides must agree on: `messages.roster_digest` or `messages.sum_digest`.
        *agents: The agents that the key is for; their order matters.

    Returns:
        A key of `KEY_SIZE` bytes.
    """
    info = b"\0".join([b"focusfl", purpose.encode(), about, *(str(e).encode() for e in agents)])
    return HKDF(SHA256(), KEY_SIZE, salt=None, info=info).derive(secret)


def agree_key(private: bytes, other_public: bytes, purpose: str, about: bytes, a: int, b: int) -> bytes:
    """Return the key that agents a and b both compute, each from its private key and the other's public key.

    Args:
        private: The private key of one of the two agents.
        other_public: The public key of the other agent.
        purpose: As for `derive_key`.
        about: As for `derive_key`.
        a: One agent.
        b: The other agent.

    Returns:
        A key of `KEY_SIZE` bytes.

    Raises:
        InputError: If the public key is a point of small order, for which the shared secret would be zero.
    """
    try:
        private_key = X25519PrivateKey.from_private_bytes(private)
        secret = private_key.exchange(X25519PublicKey.from_public_bytes(other_public))
    except ValueError as error:
        raise InputError(f"secure sum: a public key of agent {a} or {b} is not valid") from error
    return derive_key(secret, purpose, about, a, b)


def encrypt(key: bytes, text: bytes) -> bytes:
    """Encrypt and authenticate a text. The key determines sender, receiver and roster."""
    nonce = os.urandom(NONCE_SIZE)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, text, None)


def decrypt(key: bytes, encrypted: bytes) -> bytes | None:
    """Decrypt what `encrypt` returned.

    Returns:
        The text, or None if it was altered or encrypted for another pair of agents or another roster.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(encrypted[:NONCE_SIZE], encrypted[NONCE_SIZE:], None)
    except (InvalidTag, ValueError):
        return None


def min_threshold(n: int, minimum: int = 2) -> int:
    """Return how many of n agents must answer, at least.

    It is more than two thirds of them: any two groups of so many agents have more than a third of all agents in
    common. So they have an honest agent in common if fewer than a third collude with the server, and an honest
    agent signs one list of answers only.

    Args:
        n: Number of agents that advertised keys.
        minimum: Number of terms that a sum must have.

    Returns:
        The smallest number of agents that may reconstruct a secret.

    >>> min_threshold(2), min_threshold(3), min_threshold(10), min_threshold(10, 8)
    (2, 3, 7, 8)
    """
    return max(2, minimum, 2 * n // 3 + 1)


def split_secret(secret: bytes, threshold: int, n: int) -> list[bytes]:
    """Split a secret into n Shamir shares: any `threshold` of them give the secret, fewer reveal nothing.

    Args:
        secret: `KEY_SIZE` bytes.
        threshold: Number of shares that are needed to combine the secret.
        n: Number of shares.

    Returns:
        The shares. Share i is the value of the polynomial at i + 1.
    """
    starts = (0, SHAMIR_BLOCK_SIZE)
    halves = [Shamir.split(threshold, n, secret[k : k + SHAMIR_BLOCK_SIZE], False) for k in starts]
    return [first + second for (_, first), (_, second) in zip(*halves, strict=True)]


def combine_shares(shares: Mapping[int, bytes]) -> bytes:
    """Combine shares into the secret.

    Args:
        shares: Exactly as many shares as the threshold, by their index in the list that `split_secret` returned.

    Returns:
        The secret. Wrong shares give another secret, not an error.

    >>> shares = split_secret(b"a secret of thirty-two bytes ...", 2, 3)
    >>> combine_shares({0: shares[0], 2: shares[2]})
    b'a secret of thirty-two bytes ...'
    """
    starts = (0, SHAMIR_BLOCK_SIZE)
    points = [[(i + 1, share[k : k + SHAMIR_BLOCK_SIZE]) for i, share in shares.items()] for k in starts]
    return b"".join(Shamir.combine(half, False) for half in points)


def commitment(secret: bytes) -> bytes:
    """Return a hash that commits to a random secret or share and does not reveal it."""
    return hashlib.sha256(secret).digest()


def pair_mask_key(private: bytes, other_public: bytes, about: bytes, a: int, b: int) -> bytes:
    """Return the key of the mask that agents a and b share, in either order."""
    return agree_key(private, other_public, "pair", about, min(a, b), max(a, b))


def pair_mask_sign(e: int, other: int) -> int:
    """Return the sign of the mask that two agents share: the lower number adds it, the higher one subtracts it."""
    return 1 if e < other else -1


def add_mask(arrays: Mapping[str, Integers], key: bytes, sign: int) -> None:
    """Add the mask of a key to arrays, in place: ChaCha20's stream, read as 64-bit integers.

    A key is used for one mask only, so the nonce may be zero.

    Args:
        arrays: The arrays, which take the stream in the order of their names.
        key: The mask's key.
        sign: 1 to add the mask, -1 to subtract it.

    Raises:
        ValueError: If an array is not contiguous: the mask would be added to a copy.
    """
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    zeros, stream = memoryview(bytes(MASK_CHUNK_SIZE)), bytearray(MASK_CHUNK_SIZE)
    mask = np.frombuffer(stream, "<u8")
    apply = np.add if sign > 0 else np.subtract
    for name in sorted(arrays):
        if not arrays[name].flags.c_contiguous:
            raise ValueError(f"{name!r} is not contiguous: the mask would be added to a copy")
        flat = arrays[name].reshape(-1)
        for start in range(0, flat.size, len(mask)):
            part = flat[start : start + len(mask)]
            cipher.update_into(zeros[: 8 * len(part)], stream)
            apply(part, mask[: len(part)], out=part)
