"""Fully connected networks."""

from __future__ import annotations

import itertools

from torch import Tensor, nn

LAYERS = 0.3  # the share of the layers' output in that of a SkipMlp


def linear(inputs: int, outputs: int = 1, bias: bool = False) -> nn.Module:
    """Make the paper's linear model, w^T x.

    Args:
        inputs: The number of features.
        outputs: The number of outputs; 1 for regression.
        bias: Whether to add a constant.

    Returns:
        A network from [n, ...] to [n, outputs]; inputs are flattened.

    Example:
        >>> linear(10)
        Sequential(
          (0): Flatten(start_dim=1, end_dim=-1)
          (1): Linear(in_features=10, out_features=1, bias=False)
        )
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs, bias=bias))


def mlp(*sizes: int) -> nn.Module:
    """Make a multi-layer perceptron: linear layers with ReLU in between.

    Args:
        *sizes: The number of inputs, of units in each hidden layer, and of outputs.

    Returns:
        A network from [n, ...] to [n, outputs]; inputs are flattened.

    Example:
        The paper's MNIST network:

        >>> sum(p.numel() for p in mlp(784, 200, 10).parameters())
        159010
    """
    layers: list[nn.Module] = [nn.Flatten()]
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        layers += [nn.ReLU()] * (i > 0) + [nn.Linear(a, b)]
    return nn.Sequential(*layers)


class SkipMlp(nn.Module):
    """A linear model plus LAYERS times a multi-layer perceptron of the same inputs, trained as one.

    On tables a linear model is often nearly right; the layers learn what it misses, and more slowly. The weights of
    the outputs start at 0, so the first prediction is the same for every example, and random weights add no noise.

    Args:
        *sizes: The number of inputs, of units in each hidden layer, and of outputs.

    Example:
        >>> [tuple(p.shape) for p in SkipMlp(5, 32, 2).parameters()]
        [(2, 5), (32, 5), (32,), (2, 32), (2,)]
    """

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.skip = nn.Linear(sizes[0], sizes[-1], bias=False)
        self.layers = mlp(*sizes)
        for p in (*self.skip.parameters(), *list(self.layers.children())[-1].parameters()):
            nn.init.zeros_(p)

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, outputs] for x [n, ...]; inputs are flattened."""
        out: Tensor = self.skip(x.flatten(1)) + LAYERS * self.layers(x)
        return out
