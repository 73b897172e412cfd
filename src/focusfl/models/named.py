"""Networks by name: "mlp:64,32", "linear", "resnet18:16", or a function of the user's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn

from focusfl.models.mlp import SkipMlp, linear, mlp
from focusfl.models.resnet import resnet18
from focusfl.util import plugins
from focusfl.util.errors import InputError, nearest

NAMES = {
    "mlp": "mlp:64,32",
    "skip-mlp": "skip-mlp:32",
    "linear": "linear",
    "resnet18": "resnet18:16",
}  # with an example of each


def named_network(text: str, shape: Sequence[int], outputs: int) -> Callable[[], nn.Module]:
    """Return the function that makes a network; inputs and outputs come from the data.

    Args:
        text: "mlp:64,32" (units of the hidden layers), "skip-mlp:32" (with a linear model beside them), "linear"
            (with a constant), "resnet18:16" (width; without a
            colon 64), or "my_module:make_network", a function that is called without arguments.
        shape: The shape of one example.
        outputs: The number of classes; 1 for regression.

    Raises:
        InputError: There is no such network, its sizes are not sizes, or it does not fit the data.

    Example:
        >>> named_network("mlp:64,32", [8, 8], 10).args
        (64, 64, 32, 10)
        >>> named_network("mpl:64", [8, 8], 10)
        Traceback (most recent call last):
        focusfl.util.errors.InputError: model = 'mpl:64': did you mean 'mlp'? Known: linear, mlp, resnet18, skip-mlp
    """
    name, colon, rest = text.partition(":")
    if name not in NAMES and plugins.is_reference(text):
        return _own(text)
    if name not in NAMES:
        raise InputError(f"model = {text!r}: {nearest(name, NAMES)}")
    sizes = _sizes(rest) if colon else []
    allowed = {
        "mlp": len(sizes) > 0,
        "skip-mlp": len(sizes) > 0,
        "linear": not colon,
        "resnet18": len(sizes) == bool(colon),
    }
    if not allowed[name] or min(sizes, default=1) < 1:
        what = "its sizes as whole numbers, 1 or more, " if name != "linear" else ""
        raise InputError(f"model = {text!r}: expected {what}as in {NAMES[name]}")
    inputs = math.prod(shape)
    if name in ("mlp", "skip-mlp"):
        return partial(mlp if name == "mlp" else SkipMlp, inputs, *sizes, outputs)
    if name == "linear":
        return partial(linear, inputs, outputs, bias=True)
    if len(shape) != 3:
        raise InputError(f"model = {text!r}: it needs images [channels, height, width], not {list(shape)}")
    return partial(resnet18, outputs, sizes[0] if sizes else 64, shape[0])


def _sizes(text: str) -> list[int]:
    """Return the sizes after a colon; none if one of them is not a whole number."""
    parts = text.split(",")
    return [int(part) for part in parts] if all(part.strip().isdecimal() for part in parts) else []


def _own(text: str) -> Callable[[], nn.Module]:
    """Return the function that the user named; what it makes is checked."""
    make = plugins.load_object(text)
    if isinstance(make, nn.Module) or not callable(make):
        raise InputError(f"model = {text!r}: expected a function or a class that makes a torch.nn.Module")
    return partial(own_network, text, make)


def own_network(text: str, make: Callable[[], Any]) -> nn.Module:
    """Make a network of the user's own.

    Args:
        text: Its name, "my_module:make_network".
        make: The function.

    Raises:
        InputError: What the function returns is not a network.
    """
    network = make()
    if not isinstance(network, nn.Module):
        raise InputError(f"model = {text!r}: it returned {type(network).__name__}, not a torch.nn.Module")
    return network
