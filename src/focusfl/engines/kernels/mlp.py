"""The gradient of P fully connected ReLU networks at once, by hand: what vmap of autograd gives, without its graph.

On 100 networks 64-32-10 with 20 examples each it takes half the time (benchmarks/kernels.py).
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

import torch
from torch import Tensor, nn

from focusfl.models.task import Task, Weights

Layer = tuple[str, str | None]  # the names of a layer's weight and bias


class Mlp:
    """Linear, ReLU, Linear, ..., with cross-entropy, or squared error where `classes` is None."""

    def __init__(self, layers: list[Layer], classes: int | None) -> None:
        self.layers, self.classes = layers, classes

    @staticmethod
    def of(task: Task, flat: bool) -> Mlp | None:
        """The kernel of that network, None where it is another kind. flat: an example is a vector already."""
        network = task.network
        if (
            task.bf16
            or task.has_forward_hooks
            or type(network) is not nn.Sequential
            or not all(p.requires_grad for p in network.parameters())
        ):
            return None
        named = list(network.named_children())
        if len(named) != len(network):  # a layer that comes twice is named once
            return None
        if named and type(named[0][1]) is nn.Flatten and (named[0][1].start_dim, named[0][1].end_dim) == (1, -1):
            flat, named = True, named[1:]
        kinds = [type(layer) for _, layer in named]
        if not flat or kinds != [nn.Linear if i % 2 == 0 else nn.ReLU for i in range(len(kinds))]:
            return None
        if not kinds or kinds[-1] is not nn.Linear:
            return None
        layers: list[Layer] = [(f"{k}.weight", None if v.bias is None else f"{k}.bias") for k, v in named[::2]]
        if any(k is not None and k not in task.parameters for layer in layers for k in layer):  # tied to another
            return None
        return Mlp(layers, task.classes)

    @torch.no_grad()
    def gradient(self, w: Weights, x: Tensor, y: Tensor, share: Tensor, freeze: Collection[str] = ()) -> Weights:
        """Of sum(share * loss) in each network: w [P, ...], x [P, B, ...], y and share [P, B]."""
        inputs = [x.flatten(2)]  # of each layer
        for layer, _ in pairwise(self.layers):
            inputs.append(_affine(inputs[-1], w, layer).clamp_min_(0))
        d = self._at_the_output(_affine(inputs[-1], w, self.layers[-1]), y, share.unsqueeze(-1))
        grad: Weights = {}
        for i, (weight, bias) in reversed(list(enumerate(self.layers))):
            if weight not in freeze:
                grad[weight] = torch.bmm(d.mT, inputs[i])
            if bias is not None and bias not in freeze:
                grad[bias] = d.sum(1)
            if i > 0:
                d = torch.bmm(d, w[weight]).mul_(inputs[i] > 0)
        return grad

    def _at_the_output(self, out: Tensor, y: Tensor, share: Tensor) -> Tensor:
        """d sum(share * loss) / d out, [P, B, C]."""
        if self.classes is None:
            return (out - y.unsqueeze(-1)).mul_(2 * share)
        p = out.softmax(-1).mul_(share)
        return p.scatter_add_(-1, y.unsqueeze(-1), -share)


def _affine(x: Tensor, w: Weights, layer: Layer) -> Tensor:
    weight, bias = w[layer[0]].mT, layer[1]
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(w[bias].unsqueeze(1), x, weight)
