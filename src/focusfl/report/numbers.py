"""How tables write numbers: with decimals, and compactly where they are large."""

from __future__ import annotations

LARGE = 1000  # from here on one decimal is enough
HUGE = 1_000_000  # from here on four digits are


def compact(value: float, digits: int = 4, sign: str = "") -> str:
    """Write a number.

    Args:
        value: The number.
        digits: Decimals of a number that is not large.
        sign: "+" to write the sign of positive numbers too.

    >>> compact(0.31627), compact(2368.921), compact(69544856.0), compact(0.5, 3, "+")
    ('0.3163', '2368.9', '6.954e+07', '+0.500')
    """
    if abs(value) >= HUGE:
        return f"{value:{sign}.4g}"
    return f"{value:{sign}.{1 if abs(value) >= LARGE else digits}f}"
