"""A chain of fully connected layers: what PFNM and FedMA can match, and how wide its hidden layers are."""

from __future__ import annotations

from itertools import zip_longest

import torch
from torch.nn.functional import pad

from focusfl.core import Models, Predictor
from focusfl.util.errors import CannotRun


def layers(w: Models) -> list[tuple[str, str]]:
    """The names of each layer's weight and bias."""
    return list(zip(list(w)[::2], list(w)[1::2], strict=True))


def resized(w: Models, widths: list[int]) -> Models:
    """Hidden layers cut to these widths, or padded with zeros, which changes no output."""
    out: Models = {}
    for i, (weight, bias) in enumerate(layers(w)):
        outputs = widths[i] if i < len(widths) else w[bias].shape[1]
        inputs = widths[i - 1] if i else w[weight].shape[2]
        out[weight] = pad(w[weight], (0, inputs - w[weight].shape[2], 0, outputs - w[weight].shape[1]))
        out[bias] = pad(w[bias], (0, outputs - w[bias].shape[1]))
    return out


def check(method: str, w: Models, classes: int | None, h: Predictor, most: float) -> None:
    """Refuse all but a classifier that is a chain of fully connected layers with biases, 1 to `most` hidden."""
    if found := misfit(w, classes, most) or ("" if widens(w, h) else "layers that are more than a chain"):
        need = "one hidden layer" if most == 1 else "one or more hidden layers"
        raise CannotRun(f"{method} needs a classifier of fully connected layers with biases, {need}: found {found}")


def misfit(w: Models, classes: int | None, most: float) -> str:
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
    return "" if 1 <= hidden <= most else f"{hidden or 'no'} hidden layers"


def widens(w: Models, h: Predictor) -> bool:
    """Does the network say the same with another, silent neuron in each hidden layer? Shapes alone cannot tell."""
    try:
        wide = h(resized(w, [w[bias].shape[1] + 1 for _, bias in layers(w)[:-1]]))
    except RuntimeError:
        return False
    return torch.allclose(wide, h(w), atol=1e-5)
