"""What is to be done in a round, as plain arrays in a file; and the network in torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import nn

Array = NDArray[Any]


@dataclass(frozen=True)
class Work:
    """E agents with n examples each; every one takes `steps` SGD steps of `batch` examples a round."""

    x: Array  # [E, n, d] float32
    y: Array  # [E, n] int64
    start: list[Array]  # first weights as torch lays them out: [h, d], [h], [c, h], [c]
    steps: int
    batch: int
    lr: float = 0.1

    @property
    def full(self) -> bool:
        return self.batch == self.x.shape[1]

    def write(self, path: Path) -> None:
        numbers = {"steps": self.steps, "batch": self.batch, "lr": self.lr}
        np.savez(path, x=self.x, y=self.y, **{f"w{i}": w for i, w in enumerate(self.start)}, **numbers)

    @staticmethod
    def read(path: str | Path) -> Work:
        with np.load(path) as file:
            start = [file[f"w{i}"] for i in range(4)]
            steps, batch, lr = int(file["steps"]), int(file["batch"]), float(file["lr"])
            return Work(file["x"], file["y"], start, steps, batch, lr)

    def by_epochs(self) -> tuple[Work, int]:
        """For libraries that count epochs: data of which so many epochs are the steps.

        An agent's rows come again until they fill `steps` batches: one epoch. Full batch: an epoch is a step.
        """
        if self.full:
            return self, self.steps
        rows = np.arange(self.steps * self.batch) % self.x.shape[1]
        return replace(self, x=self.x[:, rows], y=self.y[:, rows]), 1


def first_weights(rng: np.random.Generator, *sizes: int) -> list[Array]:
    """Of an MLP, drawn as torch does: uniform, as wide as one over the root of a layer's inputs."""
    layers = [(d, shape) for d, h in pairwise(sizes) for shape in ((h, d), (h,))]
    return [rng.uniform(-(d**-0.5), d**-0.5, shape).astype("float32") for d, shape in layers]


def mnist(tiny: bool) -> Work:
    """Rotated MNIST: 10 agents x 6000 examples, MLP 784-200-10, 10 full-batch steps."""
    import focusfl as ff

    rows = ff.data.rotated_mnist(n=60 if tiny else None, n_test=10).training
    n = len(rows.y) // 10
    x, y = rows.x.reshape(10, n, 784).numpy(), rows.y.reshape(10, n).numpy()
    return Work(x, y, first_weights(np.random.default_rng(0), 784, 200, 10), steps=10, batch=n)


def small(tiny: bool) -> Work:
    """Random numbers: 1000 agents x 60 examples of 64, MLP 64-32-10, 5 steps of 20."""
    rng, E = np.random.default_rng(0), 20 if tiny else 1000
    x, y = rng.normal(size=(E, 60, 64)).astype("float32"), rng.integers(0, 10, (E, 60))
    return Work(x, y, first_weights(rng, 64, 32, 10), steps=5, batch=20)


WORKS = {"mnist": mnist, "small": small}


def network(work: Work) -> nn.Module:
    """The network with the first weights."""
    import torch
    from torch import nn

    (h, d), (c, _) = work.start[0].shape, work.start[2].shape
    net = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, c))
    with torch.no_grad():
        for p, w in zip(net.parameters(), work.start, strict=True):
            p.copy_(torch.from_numpy(w))
    return net


def weights(net: nn.Module) -> list[Array]:
    return [p.detach().numpy().copy() for p in net.parameters()]
