"""Agents with few and unequal examples, for the tests on Flower."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import focusfl as ff

SIZES = [7, 12, 5, 9]
TRAIN = ff.Train(lr=0.2, batch=4, epochs=2)


def model() -> torch.nn.Module:
    return ff.models.mlp(6, 5, 3)


def people(sizes: Sequence[int]) -> ff.Federation:
    draws = torch.Generator().manual_seed(0)

    def agent(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(n, 6, generator=draws)
        return x, (x[:, 0] > 0).long() + (x[:, 1] > 1).long()

    training, testing = ([agent(n) for n in sizes] for _ in range(2))
    return ff.Federation.from_agents(training, test=testing, classes=3, model=model)
