"""Fully connected networks."""

from __future__ import annotations

import itertools

from torch import nn


def linear(inputs: int, outputs: int = 1, bias: bool = False) -> nn.Module:
    """w^T x: the paper's linear model."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs, bias=bias))


def mlp(*sizes: int) -> nn.Module:
    """Linear layers with ReLU in between; mlp(784, 200, 10) is the paper's MNIST network."""
    layers: list[nn.Module] = [nn.Flatten()]
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        layers += [nn.ReLU()] * (i > 0) + [nn.Linear(a, b)]
    return nn.Sequential(*layers)
