"""Federations: data sets distributed among agents, your own data, and shifts that make agents differ."""

from collections.abc import Callable

from focusfl.data import shift
from focusfl.data.federation import Federation
from focusfl.data.own.folder import folder
from focusfl.data.sets.cifar import rotated_cifar
from focusfl.data.sets.digits import rotated_digits
from focusfl.data.sets.mnist import rotated_mnist
from focusfl.data.sets.reviews import yelp_imdb
from focusfl.data.sets.synthetic import synthetic

DATA: dict[str, Callable[..., Federation]] = {
    "synthetic": synthetic,
    "rotated-digits": rotated_digits,
    "rotated-mnist": rotated_mnist,
    "rotated-cifar": rotated_cifar,
    "yelp-imdb": yelp_imdb,
    "folder": folder,
}

__all__ = [
    "DATA",
    "Federation",
    "folder",
    "rotated_cifar",
    "rotated_digits",
    "rotated_mnist",
    "shift",
    "synthetic",
    "yelp_imdb",
]
