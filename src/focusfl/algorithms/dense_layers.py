"""Chains of fully connected layers: the networks that PFNM and FedMA can match."""

from __future__ import annotations

from itertools import zip_longest

import torch
from torch.nn.functional import pad

from focusfl.core import Models, Predictor
from focusfl.util.errors import CannotRun, InputError


def layer_names(w: Models) -> list[tuple[str, str]]:
    """Return the names of each layer's weight and bias."""
    return list(zip(list(w)[::2], list(w)[1::2], strict=True))


def resize(w: Models, widths: list[int]) -> Models:
    """Return the network with hidden layers cut to these widths, or padded with zeros, which changes no output."""
    out: Models = {}
    for i, (weight, bias) in enumerate(layer_names(w)):
        outputs = widths[i] if i < len(widths) else w[bias].shape[1]
        inputs = widths[i - 1] if i else w[weight].shape[2]
        out[weight] = pad(w[weight], (0, inputs - w[weight].shape[2], 0, outputs - w[weight].shape[1]))
        out[bias] = pad(w[bias], (0, outputs - w[bias].shape[1]))
    return out


def cut(w: Models, widths: list[int]) -> Models:
    """Return the network with padded hidden layers cut to the widths that are in use.

    Raises:
        InputError: A width is not one that the layers have, as in a file that was tampered with.
    """
    stored = [w[bias].shape[1] for _, bias in layer_names(w)[:-1]]
    if len(widths) != len(stored) or not all(1 <= L <= G for L, G in zip(widths, stored, strict=True)):
        raise InputError(f"hidden layers of {widths} neurons in a network of {stored}")
    return resize(w, widths)


def require_dense_classifier(method: str, w: Models, classes: int | None, h: Predictor, max_hidden: float) -> None:
    """Check that a network is a classifier of fully connected layers with biases.

    Args:
        method: The name of the method that needs this, for the message.
        w: The network, as a stack of one.
        classes: The number of classes; None for regression.
        h: Returns its predictions for two examples.
        max_hidden: The largest number of hidden layers; there must be at least one.

    Raises:
        CannotRun: It is another kind of network.
    """
    if problem := _mismatch(w, classes, max_hidden) or ("" if _can_widen(w, h) else "layers that are not a chain"):
        hidden = "one hidden layer" if max_hidden == 1 else "one or more hidden layers"
        needed = f"a classifier of fully connected layers with biases and {hidden}"
        raise CannotRun(f'{method} needs {needed}, such as model = "mlp:64": found {problem}')


def _mismatch(w: Models, classes: int | None, max_hidden: float) -> str:
    """Return what is wrong with the names and shapes, or an empty string."""
    if classes is None:
        return "regression"
    names, width = list(w), 0
    for weight, bias in zip_longest(names[::2], names[1::2]):
        shape = list(w[weight].shape[1:])
        if len(shape) != 2 or (width and shape[1] != width):
            return f"{weight} of shape {shape}"
        if bias != weight.removesuffix("weight") + "bias":
            return f"{weight} without a bias"
        width = shape[0]
    hidden = len(names) // 2 - 1
    return "" if 1 <= hidden <= max_hidden else f"{hidden or 'no'} hidden layers"


def _can_widen(w: Models, h: Predictor) -> bool:
    """Return whether an additional neuron of zeros in each hidden layer leaves the predictions unchanged.

    The shapes alone do not show this.
    """
    try:
        wide = h(resize(w, [w[bias].shape[1] + 1 for _, bias in layer_names(w)[:-1]]))
    except RuntimeError:
        return False
    return torch.allclose(wide, h(w), atol=1e-5)
