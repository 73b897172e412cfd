"""Floats as fixed-point integers mod 2^64, so that the sum over all agents is exact and cannot overflow.

n agents add numbers of at most 2^20 with `fraction_bits(n)` binary digits after the point. The sum is at most
n 2^20 2^bits < 2^63, so it fits a signed 64-bit integer. 1024 agents have 32 fraction bits, 10 agents have 38.
Rounding to the nearest integer costs each agent at most 2^-(bits + 1), hence the sum at most n 2^-33.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focusfl.util.errors import InputError

Floats = NDArray[np.float64]
Integers = NDArray[np.uint64]

MAX_VALUE = 2.0**20
MAX_AGENTS = 2**10  # in one sum


def fraction_bits(n: int) -> int:
    """Return the number of binary digits after the point when n agents add up.

    Args:
        n: Number of agents in the sum.

    Returns:
        The number of fraction bits: the more agents, the fewer bits.

    Raises:
        InputError: If n is not between 1 and `MAX_AGENTS`.

    >>> fraction_bits(2), fraction_bits(10), fraction_bits(1024)
    (41, 38, 32)
    """
    if not 1 <= n <= MAX_AGENTS:
        raise InputError(
            f"a secure sum takes from 1 to {MAX_AGENTS} agents, not {n}: let fewer agents participate in a round"
        )
    return 42 - (n - 1).bit_length()


def encode(values: Mapping[str, NDArray[Any]], n: int) -> dict[str, Integers]:
    """Encode real numbers as fixed-point integers mod 2^64.

    Args:
        values: Arrays of real numbers, of any shape.
        n: Number of agents in the sum.

    Returns:
        New little-endian arrays of the same shapes: each number times 2^fraction_bits(n), rounded, mod 2^64.

    Raises:
        InputError: If an array does not hold real numbers, or if a number is not finite or its size exceeds
            `MAX_VALUE`. The message names the array but not the number, because the number is private.
    """
    scale = 2.0 ** fraction_bits(n)
    return {name: _encode(name, np.asarray(v), scale) for name, v in values.items()}


def _encode(name: str, v: NDArray[Any], scale: float) -> Integers:
    if v.dtype.kind not in "fiu":
        raise InputError(f"{name!r} has type {v.dtype}: a secure sum takes real numbers only")
    wide = v.astype(np.float64, order="C")
    if not bool(np.all(np.abs(wide) <= MAX_VALUE)):  # also false for NaN
        raise InputError(
            f"{name!r} contains a number that is not finite or exceeds 2^20 = {MAX_VALUE:.0f}, the limit of a "
            "secure sum; lower the learning rate, scale the data, or run with secure = false"
        )
    wide *= scale
    return np.rint(wide, out=wide).astype("<i8").view("<u8")


def decode(total: Mapping[str, Integers], n: int) -> dict[str, Floats]:
    """Decode the sum over n agents.

    Args:
        total: The sum, mod 2^64, of what `encode` returned for each agent.
        n: Number of agents that `encode` was called with.

    Returns:
        The sum in double precision.

    >>> total = encode({"w": np.array([1.5, -0.25])}, 2)["w"] * np.uint64(2)
    >>> decode({"w": total}, 2)["w"].tolist()
    [3.0, -0.5]
    """
    floats = {name: v.view("<i8").astype(np.float64) for name, v in total.items()}
    for v in floats.values():
        v *= 2.0 ** -fraction_bits(n)
    return floats
