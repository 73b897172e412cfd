"""Federations: data sets distributed among agents, your own data, and shifts that make agents differ."""

from focusfl.data import shift
from focusfl.data.federation import Federation
from focusfl.data.named import DATA, find_data
from focusfl.data.own.folder import folder
from focusfl.data.sets.cifar import rotated_cifar
from focusfl.data.sets.digits import rotated_digits
from focusfl.data.sets.mnist import rotated_mnist
from focusfl.data.sets.natural import exam, heart, landmine, parkinsons, vowel
from focusfl.data.sets.reviews import yelp_imdb
from focusfl.data.sets.synthetic import synthetic

__all__ = [
    "DATA",
    "Federation",
    "exam",
    "find_data",
    "folder",
    "heart",
    "landmine",
    "parkinsons",
    "rotated_cifar",
    "rotated_digits",
    "rotated_mnist",
    "shift",
    "synthetic",
    "vowel",
    "yelp_imdb",
]
