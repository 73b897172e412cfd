"""Losses of training and evaluation: by name, or any torch loss. Each gives one value per example.

What the labels are decides how a network's outputs become predictions: classes by a softmax, several labels per
example by sigmoids, numbers as they are. A loss only says how outputs are compared with labels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from focusfl.util.errors import InputError, nearest

Labels = Literal["classes", "multi-label", "numbers"]
LossOption = str | Callable[..., Any] | None
"""A name with options such as "huber:delta=0.5", a torch loss or function, or None for the default."""
Losses = Callable[
    [Tensor, Tensor], Tensor
]  # outputs [n, C] (numbers: [n]), labels [n] (multi-label: [n, C]) -> [n]

DEFAULTS: dict[Labels, str] = {"classes": "cross-entropy", "multi-label": "multi-label", "numbers": "squared-error"}


@dataclass(frozen=True)
class Loss:
    """A loss that fits the labels.

    Attributes:
        labels: What the labels are.
        name: The name with its options, or the user's own class or function.
        each: The loss of each example.
        default: Whether it is the default loss of such labels.
        option: What the user gave; `resolve` makes the same loss from it.
    """

    labels: Labels
    name: str
    each: Losses
    default: bool = False
    option: LossOption = None

    def to(self, device: torch.device) -> Loss:
        """Return the same with the loss's own tensors, such as class weights, on `device`."""
        if isinstance(self.each, _Own) and isinstance(self.each.function, nn.Module):
            self.each.function.to(device)
        return self

    def signature(self, outputs: int) -> list[object]:
        """Return what identifies it: its name, and if it is the user's own, rounded values on fixed outputs."""
        if not isinstance(self.each, _Own):
            return [self.name]
        out, y = _fixed_examples(self.labels, outputs)
        with torch.no_grad():
            return [self.name, *(f"{float(v):.3g}" for v in self.each(out, y))]


def cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    """Return -log p_y of each example, where p is the softmax of the outputs."""
    return -torch.log_softmax(out, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1)


def squared_error(out: Tensor, y: Tensor) -> Tensor:
    """Return (out - y)^2 of each example."""
    return (out - y).square()


def focal(out: Tensor, y: Tensor, gamma: float) -> Tensor:
    """Return -(1 - p_y)^gamma log p_y (Lin et al. 2017): examples that are easy count less.

    >>> focal(torch.zeros(1, 2), torch.tensor([0]), gamma=2.0) / cross_entropy(torch.zeros(1, 2), torch.tensor([0]))
    tensor([0.2500])
    """
    loss = cross_entropy(out, y)
    return (-torch.expm1(-loss)).clamp_min(1e-12) ** gamma * loss  # 1e-12: the gradient of 0 ** gamma can be NaN


def weighted(out: Tensor, y: Tensor, weights: tuple[float, ...]) -> Tensor:
    """Return the cross-entropy of each example times the weight of its class; the mean is over the examples."""
    return out.new_tensor(weights)[y] * cross_entropy(out, y)


def multi_label(out: Tensor, y: Tensor) -> Tensor:
    """Return the binary cross-entropy of the sigmoids, averaged over the labels of each example."""
    return F.binary_cross_entropy_with_logits(out, y, reduction="none").mean(-1)


def absolute_error(out: Tensor, y: Tensor) -> Tensor:
    """Return |out - y| of each example."""
    return (out - y).abs()


def huber(out: Tensor, y: Tensor, delta: float) -> Tensor:
    """Return Huber's loss of each example: (out - y)^2 / 2 up to delta, linear beyond."""
    return F.huber_loss(out, y, reduction="none", delta=delta)


NAMES: dict[str, Labels] = {
    "cross-entropy": "classes",
    "focal": "classes",
    "weighted": "classes",
    "multi-label": "multi-label",
    "squared-error": "numbers",
    "absolute-error": "numbers",
    "huber": "numbers",
}
_PLAIN: dict[str, Losses] = {
    "cross-entropy": cross_entropy,
    "multi-label": multi_label,
    "squared-error": squared_error,
    "absolute-error": absolute_error,
}


def check_option(loss: LossOption) -> None:
    """Check what can be checked before the data are known.

    Raises:
        InputError: There is no such loss, or its options cannot be used.
    """
    if isinstance(loss, str):
        _named(loss)
    elif loss is not None and not callable(loss):
        raise InputError(f"loss = {loss!r}: expected a name such as huber, or a torch loss")


def resolve(loss: LossOption, classes: int | None, several: bool = False) -> Loss:
    """Return the loss for such labels.

    Args:
        loss: A name, a torch loss or function of (outputs, labels), or None for the default.
        classes: The number of classes, or of labels per example; None if labels are numbers.
        several: Whether an example has several labels, each 0 or 1.

    Raises:
        InputError: The loss does not fit the labels, or does not give one value per example.

    Example:
        >>> resolve(None, classes=3).name
        'cross-entropy'
        >>> resolve("huber:delta=2", classes=None).each(torch.tensor([5.0]), torch.tensor([0.0]))
        tensor([8.])
    """
    labels: Labels = "numbers" if classes is None else "multi-label" if several else "classes"
    if loss is None or loss == DEFAULTS[labels]:
        return Loss(labels, DEFAULTS[labels], _PLAIN[DEFAULTS[labels]], default=True)
    if isinstance(loss, str):
        name, each = _named(loss)
        if NAMES[name] != labels:
            fitting = ", ".join(known for known, kind in NAMES.items() if kind == labels)
            raise InputError(f"loss = {loss}: it is for {NAMES[name]}, but the labels are {labels}: use {fitting}")
        if name == "weighted" and len(_weights(loss)) != classes:
            raise InputError(f"loss = {loss}: {len(_weights(loss))} weights for {classes} classes; give one each")
        return Loss(labels, loss, each, option=loss)
    own = Loss(labels, describe(loss), _Own(_per_example(loss)), option=loss)
    _check_values(own, classes or 1)
    return own


@dataclass(frozen=True)
class _Own:
    """The user's own loss: values with further axes, such as one per label, are averaged over them."""

    function: Callable[..., Any]

    def __call__(self, out: Tensor, y: Tensor) -> Tensor:
        values: Tensor = self.function(out, y)
        if not isinstance(values, Tensor) or values.shape[:1] != y.shape[:1]:
            found = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise InputError(
                f"loss = {describe(self.function)}: expected one value per example, [{len(y)}], found {found}; "
                'a torch loss needs reduction = "none"'
            )
        return values.flatten(1).mean(1) if values.dim() > 1 else values


def _per_example(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a torch loss that does not average over the examples; functions are returned as they are."""
    if not isinstance(loss, nn.Module):
        return loss
    if any(p.requires_grad for p in loss.parameters()):
        raise InputError(f"loss = {describe(loss)}: it has parameters to train; only the network's are trained")
    each = copy.deepcopy(loss)
    if hasattr(each, "reduction"):
        vars(each)["reduction"] = "none"
    return each


def _check_values(loss: Loss, outputs: int) -> None:
    out, y = _fixed_examples(loss.labels, outputs)
    try:
        values = loss.each(out.requires_grad_(), y)
    except InputError:
        raise
    except Exception as error:
        shapes = f"outputs {list(out.shape)} and labels {list(y.shape)}"
        raise InputError(f"loss = {loss.name}: it cannot take {shapes}: {error}") from error
    if not values.requires_grad:
        raise InputError(f"loss = {loss.name}: it has no gradient with respect to the outputs")


def _fixed_examples(labels: Labels, outputs: int) -> tuple[Tensor, Tensor]:
    """Return outputs and labels of six examples, always the same ones."""
    n = 6
    out = torch.linspace(-2, 2, n * outputs).reshape(n, outputs)
    if labels == "numbers":
        return out.squeeze(-1), torch.linspace(1, -1, n)
    classes = torch.arange(n) % outputs
    return out, F.one_hot(classes, outputs).float() if labels == "multi-label" else classes


def _named(text: str) -> tuple[str, Losses]:
    """Return the name and the function of a loss such as "focal:gamma=2"."""
    name, _, options = text.partition(":")
    if name not in NAMES:
        raise InputError(f"loss = {text!r}: {nearest(name, NAMES)}")
    if name == "weighted":
        return name, partial(weighted, weights=_weights(text))
    if name == "focal":
        return name, partial(focal, gamma=_number(text, options, "gamma", 2.0))
    if name == "huber":
        delta = _number(text, options, "delta", 1.0)
        if delta <= 0:
            raise InputError(f"loss = {text}: expected delta above 0")
        return name, partial(huber, delta=delta)
    if options:
        raise InputError(f"loss = {text}: {name} has no options")
    return name, _PLAIN[name]


def _number(text: str, options: str, name: str, default: float) -> float:
    """Read the only option of a loss: "gamma=2", or nothing."""
    key, _, value = options.partition("=")
    if not options:
        return default
    try:
        number = float(value)
        if key != name or not 0 <= number < float("inf"):
            raise ValueError
    except ValueError as error:
        raise InputError(f"loss = {text}: expected {name}=NUMBER, 0 or more, after the colon") from error
    return number


def _weights(text: str) -> tuple[float, ...]:
    try:
        weights = tuple(float(word) for word in text.partition(":")[2].split(","))
        if not all(0 <= weight < float("inf") for weight in weights) or not any(weights):
            raise ValueError
    except ValueError as error:
        raise InputError(f"loss = {text}: expected one weight per class, as in weighted:1,5") from error
    return weights


def describe(loss: str | Callable[..., Any]) -> str:
    """Return the name of a loss as the user gave it; of a torch loss or function, where it is defined."""
    if isinstance(loss, str):
        return loss
    named = loss if hasattr(loss, "__qualname__") else type(loss)
    return f"{named.__module__}.{named.__qualname__}"
