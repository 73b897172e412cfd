"""The messages of a secure sum: their type, what is hashed and signed, checks on what a peer sent, errors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from focusfl.flower.secure_sums.crypto import KEY_SIZE
from focusfl.util.errors import InputError

Record = dict[str, int | bytes | list[int] | list[bytes]]
"""A message without its arrays. It fits Flower's ConfigRecord as it is."""


PUBLIC = ("mask", "share", "seed")
"""What an agent advertises besides its signing key: two public keys, and the hash of its seed."""

SIGNATURE_SIZE = 64
MAX_CREDENTIAL_SIZE = 4096


class SecureSumFailed(InputError):
    """This attempt at a sum failed: too few agents are left, or their secret shares are wrong.

    Attributes:
        culprits: The agents whose wrong shares are the reason, and what they did: a new sum can do without them.
    """

    def __init__(self, message: str, culprits: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.culprits = dict(culprits or {})


def advertised_text(session: bytes, e: int, public: Mapping[str, bytes]) -> bytes:
    """Return what agent e signs when it advertises keys."""
    return _digest("keys", session, [e], *(public[name] for name in PUBLIC))


def roster_digest(session: bytes, threshold: int, keys: Mapping[int, Sequence[bytes]]) -> bytes:
    """Return the hash of a roster: the sum's number, the threshold, and every agent with all its public keys."""
    return _digest("roster", session, [threshold, *sorted(keys)], *(key for e in sorted(keys) for key in keys[e]))


def sum_digest(roster: bytes, participants: Iterable[int], about: bytes) -> bytes:
    """Return the hash of all that the agents of a sum must agree on before they mask.

    Args:
        roster: The roster's hash.
        participants: The agents that sent shares.
        about: What the numbers were computed from, for example a hash of the models.
    """
    return _digest("sum", roster, sorted(participants), about)


def answered_text(sum_: bytes, answered: Iterable[int]) -> bytes:
    """Return what an agent signs when it is told which agents answered; `sum_` is the sum's hash."""
    return _digest("answered", sum_, sorted(answered))


def _digest(purpose: str, *parts: bytes | Sequence[int]) -> bytes:
    """Return a SHA-256. Every part is preceded by its length, so that no two lists of parts give the same text."""
    found = hashlib.sha256(b"focusfl secure sum, " + purpose.encode() + b"\0")
    for part in parts:
        text = part if isinstance(part, bytes) else b"".join(i.to_bytes(8, "big") for i in part)
        found.update(len(text).to_bytes(8, "big") + text)
    return found.digest()


def read_agents(record: Mapping[str, Any], name: str) -> list[int]:
    """Read a list of agents' numbers that a peer sent.

    Args:
        record: The peer's message.
        name: Key of the list in the message.

    Returns:
        The agents' numbers, in increasing order.

    Raises:
        InputError: If the list is missing, holds anything but agents' numbers, or is not strictly increasing.
    """
    agents = record.get(name)
    if not isinstance(agents, list) or not all(type(e) is int and e >= 0 for e in agents):
        raise InputError(f"secure sum: {name!r} in the message is not a list of agents' numbers")
    if any(a >= b for a, b in pairwise(agents)):
        raise InputError(f"secure sum: {name!r} in the message repeats an agent or is not in increasing order")
    return list(agents)


def read_byte_strings(
    value: object, name: str, count: int, size: int = KEY_SIZE, max_size: int | None = None
) -> list[bytes]:
    """Read a list of byte strings that a peer sent.

    Args:
        value: What the message contains.
        name: Key of the value in the message, for the error message.
        count: Number of byte strings expected.
        size: Number of bytes expected in each.
        max_size: If given, they may have from `size` to so many bytes.

    Returns:
        The byte strings.

    Raises:
        InputError: If the value is not a list of `count` byte strings of this size.
    """
    sizes = range(size, (max_size or size) + 1)
    strings = [v for v in value if type(v) is bytes and len(v) in sizes] if isinstance(value, list) else []
    if not isinstance(value, list) or not len(value) == len(strings) == count:
        raise InputError(f"secure sum: {name!r} in the message is not {count} byte strings of {size} bytes")
    return strings
