"""The gradient of P fully connected ReLU networks at once, by hand: equal to vmap of autograd, without its graph.

For 100 networks 64-32-10 with 20 examples each it takes half the time (benchmarks/kernels.py).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from focusfl.models.mlp import LAYERS, SkipMlp
from focusfl.models.task import Task, Weights

Layer = tuple[str, str | None]  # the names of a layer's weight and bias


@dataclass(frozen=True)
class Mlp:
    """The kernel of networks of the form Linear, ReLU, Linear, ..., also beside a linear model (`SkipMlp`).

    Args:
        layers: The names of each layer's weight and bias.
        classes: The number of classes, with cross-entropy as loss. None means squared error.
        skip: The name of the linear model's weight, if there is one.
    """

    layers: list[Layer]
    classes: int | None
    skip: str | None = None

    @staticmethod
    def of(task: Task, flat: bool) -> Mlp | None:
        """Return the kernel of a network, or None if the network or its loss has another form.

        Args:
            task: The network and its loss.
            flat: Whether an example is a vector already.
        """
        whole = task.network
        network = whole.layers if isinstance(whole, SkipMlp) else whole
        prefix, skip = ("layers.", "skip.weight") if isinstance(whole, SkipMlp) else ("", None)
        if (
            task.bf16
            or not task.loss.default
            or task.loss.labels == "multi-label"
            or task.has_forward_hooks
            or type(network) is not nn.Sequential
            or not all(p.requires_grad for p in whole.parameters())
        ):
            return None
        named = list(network.named_children())
        if len(named) != len(network):  # a layer that occurs twice is named once
            return None
        if named and type(named[0][1]) is nn.Flatten and (named[0][1].start_dim, named[0][1].end_dim) == (1, -1):
            flat, named = True, named[1:]
        kinds = [type(layer) for _, layer in named]
        if not flat or kinds != [nn.Linear if i % 2 == 0 else nn.ReLU for i in range(len(kinds))]:
            return None
        if not kinds or kinds[-1] is not nn.Linear:
            return None
        layers: list[Layer] = [
            (f"{prefix}{k}.weight", None if v.bias is None else f"{prefix}{k}.bias") for k, v in named[::2]
        ]
        if any(k is not None and k not in task.parameters for layer in layers for k in layer):  # shared weights
            return None
        return Mlp(layers, task.classes, skip)

    @torch.no_grad()
    def gradient(self, w: Weights, x: Tensor, y: Tensor, share: Tensor, freeze: Collection[str] = ()) -> Weights:
        """Return the gradient of sum(share * loss) in each network.

        Args:
            w: The weights of P networks, [P, ...].
            x: Inputs [P, B, ...].
            y: Labels [P, B].
            share: The weight of each example, [P, B].
            freeze: Names of tensors that get no gradient.
        """
        inputs = [x.flatten(2)]  # of each layer, [P, B, width]
        for weight, bias in self.layers:
            wT = w[weight].mT
            out = torch.bmm(inputs[-1], wT) if bias is None else torch.baddbmm(w[bias].unsqueeze(1), inputs[-1], wT)
            if weight != self.layers[-1][0]:
                inputs.append(out.clamp_min_(0))
        if self.skip is not None:
            out = torch.baddbmm(out, inputs[0], w[self.skip].mT, beta=LAYERS)
        share, y = share.unsqueeze(-1), y.unsqueeze(-1)
        if self.classes is None:  # d: the derivative of sum(share * loss) by the outputs, [P, B, C]
            d = (out - y).mul_(2 * share)
        else:
            d = out.softmax(-1).mul_(share).scatter_add_(-1, y, -share)
        grad: Weights = {}
        if self.skip is not None and self.skip not in freeze:
            grad[self.skip] = torch.bmm(d.mT, inputs[0])
        if self.skip is not None:
            d = d.mul_(LAYERS)
        for i, (weight, bias) in reversed(list(enumerate(self.layers))):
            if weight not in freeze:
                grad[weight] = torch.bmm(d.mT, inputs[i])
            if bias is not None and bias not in freeze:
                grad[bias] = d.sum(1)
            if i > 0:
                d = torch.bmm(d, w[weight]).mul_(inputs[i] > 0)
        return grad
