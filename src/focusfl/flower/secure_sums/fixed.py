"""Numbers mod 2^64: floats as fixed-point integers that add up without wrapping, and key streams that hide them.

n agents add numbers of at most 2^20 with `bits(n)` binary digits after the point: the sum is at most
n 2^20 2^bits < 2^63, so as a signed 64-bit integer it cannot wrap. With 1024 agents that leaves 32 bits, with 10
agents 38. Rounding to the nearest costs each agent 2^-(bits + 1), hence the sum at most n 2^-33.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from focusfl.util.errors import InputError

Floats = NDArray[np.float64]
Masked = NDArray[np.uint64]

LARGEST = 2.0**20
MOST = 2**10  # agents in one sum
CHUNK = 1 << 16  # bytes of key stream made at once: they stay in the cache


def bits(n: int) -> int:
    """Binary digits after the point when n agents add up.

    >>> bits(2), bits(10), bits(1024)
    (41, 38, 32)
    """
    if not 1 <= n <= MOST:
        raise InputError(f"a secure sum takes from 1 to {MOST} agents, not {n}: ask fewer of them in a round")
    return 42 - (n - 1).bit_length()


def encode(values: Mapping[str, NDArray[Any]], n: int) -> dict[str, Masked]:
    """Each number times 2^bits, rounded, mod 2^64. New arrays, [...] as given, in little-endian order."""
    scale = 2.0 ** bits(n)
    return {name: _encode(name, np.asarray(v), scale) for name, v in values.items()}


def _encode(name: str, v: NDArray[Any], scale: float) -> Masked:
    if v.dtype.kind not in "fiu":
        raise InputError(f"{name!r} holds {v.dtype}: a secure sum takes real numbers")
    wide = v.astype(np.float64, order="C")
    if not bool(np.all(np.abs(wide) <= LARGEST)):  # a NaN is not; the value itself is nobody's business
        raise InputError(
            f"{name!r} is not finite or holds a number beyond 2^20 = {LARGEST:.0f}: no secure sum can take it; "
            "lower the learning rate, scale the data, or run with secure = false"
        )
    wide *= scale
    return np.rint(wide, out=wide).astype("<i8").view("<u8")


def decode(total: Mapping[str, Masked], n: int) -> dict[str, Floats]:
    """The sum over n agents, back as floats.

    >>> total = encode({"w": np.array([1.5, -0.25])}, 2)["w"] * np.uint64(2)
    >>> decode({"w": total}, 2)["w"].tolist()
    [3.0, -0.5]
    """
    found = {name: v.view("<i8").astype(np.float64) for name, v in total.items()}
    for v in found.values():
        v *= 2.0 ** -bits(n)
    return found


def zeros(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Masked]:
    """Where a sum begins."""
    return {name: np.zeros(shape, "<u8") for name, shape in shapes.items()}


def stream(arrays: Mapping[str, Masked], key: bytes, sign: int) -> None:
    """Add (sign 1) or subtract (-1) a key's ChaCha20 stream, read as 64-bit integers; in place, names in order.

    A key is used for one stream alone, so its nonce may be zero.
    """
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    nothing, made = memoryview(bytes(CHUNK)), bytearray(CHUNK)
    mask = np.frombuffer(made, "<u8")
    apply = np.add if sign > 0 else np.subtract
    for name in sorted(arrays):
        if not arrays[name].flags.c_contiguous:
            raise ValueError(f"{name!r} is not contiguous: a copy would get the mask")
        flat = arrays[name].reshape(-1)
        for at in range(0, flat.size, len(mask)):
            part = flat[at : at + len(mask)]
            cipher.update_into(nothing[: 8 * len(part)], made)
            apply(part, mask[: len(part)], out=part)
