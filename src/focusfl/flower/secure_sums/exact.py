"""Doubles of any size as small whole numbers, so that a secure sum of them is exact.

A secure sum takes numbers up to 2^20 with about 40 binary places (fixed_point). Sums over a node's examples may be
far larger, or need far smaller places: a column in 1e6 has squares of 1e12. So a double is written in digits of
base 2^10, from 2^-400 to 2^400, and the digits are added up.

The digits of the sum are those of each term added up, without carrying; what would be carried depends on single
terms. So each node moves a random number of units from each digit to the next, which leaves its number unchanged.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from focusfl.flower.secure_sums.fixed_point import MAX_VALUE, Floats
from focusfl.util.errors import InputError

BASE_BITS = 10
LOWEST = -400  # the exponent of the last digit's unit
DIGITS = 80
MOVES = 2**9  # a digit moves from -MOVES to MOVES - 1 units to the next
assert 2**BASE_BITS * (MOVES + 1) + MOVES < MAX_VALUE


def to_digits(values: Floats) -> Floats:
    """Return the digits of doubles [...], [..., DIGITS]; another node's moves, other digits.

    Raises:
        InputError: A number is not finite or 2^400 or more.
    """
    values = np.asarray(values, float)
    if not (np.abs(values) < 2.0 ** (LOWEST + BASE_BITS * DIGITS)).all():  # also false for NaN
        raise InputError("a number of a secure sum is not finite or too large")
    digits = np.array([_digits(value) for value in values.reshape(-1).tolist()], np.int64).reshape(-1, DIGITS)
    moved = _random_moves(len(digits))
    digits[:, :-1] += moved << BASE_BITS
    digits[:, 1:] -= moved
    return digits.reshape(*values.shape, DIGITS).astype(float)


def from_digits(digits: Floats) -> Floats:
    """Return the numbers whose digits, or sums of digits, these are; each is rounded once.

    >>> from_digits(to_digits(np.array([1e15, 0.1])) + to_digits(np.array([0.5, -0.1]))).tolist()
    [1000000000000000.5, 0.0]
    """
    rows = np.rint(digits).astype(np.int64).reshape(-1, DIGITS).tolist()
    found = [sum(digit << (BASE_BITS * k) for k, digit in enumerate(row)) / (1 << -LOWEST) for row in rows]
    return np.array(found, float).reshape(digits.shape[:-1])


def _digits(value: float) -> list[int]:
    """Return the digits of a double, the last one first; what is below 2^-400 is left out."""
    numerator, denominator = value.as_integer_ratio()
    units, sign = (abs(numerator) << -LOWEST) // denominator, -1 if numerator < 0 else 1
    return [sign * (units >> (BASE_BITS * k) & (2**BASE_BITS - 1)) for k in range(DIGITS)]


def _random_moves(rows: int) -> NDArray[np.int64]:
    random = np.frombuffer(os.urandom(2 * rows * (DIGITS - 1)), "<u2").astype(np.int64)
    return (random % (2 * MOVES) - MOVES).reshape(rows, DIGITS - 1)
