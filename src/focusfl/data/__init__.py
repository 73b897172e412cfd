"""Federations: data shared out among agents."""

from collections.abc import Callable

from focusfl.data.digits import rotated_digits
from focusfl.data.federation import Federation
from focusfl.data.synthetic import synthetic

DATA: dict[str, Callable[..., Federation]] = {"synthetic": synthetic, "rotated-digits": rotated_digits}

__all__ = ["DATA", "Federation", "rotated_digits", "synthetic"]
