"""Federations: data shared out among agents."""

from collections.abc import Callable

from focusfl.data import shift
from focusfl.data.cifar import rotated_cifar
from focusfl.data.digits import rotated_digits
from focusfl.data.federation import Federation
from focusfl.data.folder import folder
from focusfl.data.mnist import rotated_mnist
from focusfl.data.reviews import yelp_imdb
from focusfl.data.synthetic import synthetic

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
