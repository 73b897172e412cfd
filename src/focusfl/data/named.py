"""Data sets by name: those of this package, entry points of installed packages, and "my_module:make_federation"."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from focusfl.data.federation import Federation
from focusfl.data.own.folder import folder
from focusfl.data.sets.cifar import rotated_cifar
from focusfl.data.sets.digits import rotated_digits
from focusfl.data.sets.mnist import rotated_mnist
from focusfl.data.sets.natural import exam, heart, landmine, parkinsons, vowel
from focusfl.data.sets.reviews import yelp_imdb
from focusfl.data.sets.synthetic import synthetic
from focusfl.util import plugins
from focusfl.util.errors import InputError, nearest

DATA: dict[str, Callable[..., Federation]] = {
    "synthetic": synthetic,
    "rotated-digits": rotated_digits,
    "rotated-mnist": rotated_mnist,
    "rotated-cifar": rotated_cifar,
    "yelp-imdb": yelp_imdb,
    "heart": heart,
    "landmine": landmine,
    "vowel": vowel,
    "exam": exam,
    "parkinsons": parkinsons,
    "folder": folder,
}


def find_data(name: str) -> Callable[..., Federation]:
    """Return the function that makes a data set; one of the user's own is imported.

    Args:
        name: A key of DATA, an entry point of `focusfl.data`, or "my_module:make_federation".

    Raises:
        InputError: There is no such data set, or what was found is not a function.
    """
    if name in DATA:
        return DATA[name]
    if plugins.is_reference(name):
        make = plugins.load_object(name)
    elif name in (points := plugins.entry_points("focusfl.data")):
        make = plugins.entry_point("focusfl.data", name)
    else:
        raise InputError(f"unknown data set {name!r}: {nearest(name, [*DATA, *points])}")
    if not callable(make):
        raise InputError(f"data = {name!r}: expected a function that returns a Federation")

    @wraps(make)
    def checked(**options: Any) -> Federation:
        fed = make(**options)
        if not isinstance(fed, Federation):
            what = f"it returned {type(fed).__name__}, not a Federation"
            raise InputError(f"data = {name!r}: {what}; focusfl.Federation.from_agents makes one")
        return fed

    return checked
