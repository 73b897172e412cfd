"""The messages of a secure sum: their type, checks on what a peer sent, and the error that ends a sum."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from focusfl.flower.secure_sums.crypto import KEY_SIZE
from focusfl.util.errors import InputError

Record = dict[str, int | bytes | list[int] | list[bytes]]
"""A message without its arrays. It fits Flower's ConfigRecord as it is."""


class SecureSumFailed(InputError):
    """This attempt at a sum failed: too few agents are left, or their secret shares are wrong."""


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


def read_byte_strings(value: object, name: str, count: int, size: int = KEY_SIZE) -> list[bytes]:
    """Read a list of byte strings that a peer sent.

    Args:
        value: What the message contains.
        name: Key of the value in the message, for the error message.
        count: Number of byte strings expected.
        size: Number of bytes expected in each.

    Returns:
        The byte strings.

    Raises:
        InputError: If the value is not a list of `count` byte strings of `size` bytes each.
    """
    strings = [v for v in value if type(v) is bytes and len(v) == size] if isinstance(value, list) else []
    if not isinstance(value, list) or not len(value) == len(strings) == count:
        raise InputError(f"secure sum: {name!r} in the message is not {count} byte strings of {size} bytes")
    return strings
