"""Chunk: the examples of some agents side by side, padded to the longest, with a mask over the padding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from focusfl.core import State
from focusfl.core.train import Train
from focusfl.core.tree import flatten
from focusfl.data.federation import Federation, Rows
from focusfl.engines import plan
from focusfl.models.task import Task

BUDGET = 16 * 2**20  # bytes: beyond, products run out of the cache; below, the calls around them cost more

Batch = tuple[Tensor, Tensor, Tensor]  # x [C, B, ...], y [C, B], mask [C, B] in 0.0 and 1.0
Step = tuple[Batch, Tensor | None]  # and which rows of the agent they are, [C, B]; None: all


class Chunk:
    """C agents of a federation, and their plan for one round."""

    def __init__(self, rows: Rows, agents: plan.Ints, train: Train | None, seed: int = 0, t: int = 0) -> None:
        index = torch.from_numpy(agents)
        self.source, self.train, self.t = rows, train, t
        self.first = rows.offsets[index]  # [C]
        self.n = rows.sizes[index]  # [C]
        self._all: Batch | None = None
        self._plan: plan.Plan | None = None
        if train is not None and not plan.full(train, self.n.numpy()):
            self._plan = plan.batches(seed, t, agents, self.n.numpy(), train)

    @classmethod
    def training(cls, fed: Federation, agents: plan.Ints, train: Train, seed: int, t: int) -> Chunk:
        return cls(fed.training, agents, train, seed, t)

    @classmethod
    def testing(cls, fed: Federation, agents: plan.Ints) -> Chunk:
        return cls(fed.testing, agents, None)

    def everything(self) -> Batch:
        """All examples of each agent."""
        if self._all is None:
            longest = torch.arange(int(self.n.max()))
            self._all = self._gather(torch.minimum(longest, self.n[:, None] - 1), self.n)
        return self._all

    def few(self) -> Tensor:
        """1.0 at the examples that will do for a rough loss, [C, n]."""
        _, _, mask = self.everything()
        counts = (torch.arange(mask.shape[1]) % plan.ROUGH == self.t % plan.ROUGH) | (self.n[:, None] < plan.FEW)
        return mask * counts.to(mask.device)

    def steps(self, e: Tensor) -> Iterator[Step]:
        """The batch of every local step, for the agents in slots e, [P]."""
        if self._plan is None:
            assert self.train is not None
            batch = self.everything()
            if not torch.equal(e.cpu(), torch.arange(len(self.n))):
                batch = (batch[0][e], batch[1][e], batch[2][e])
            for _ in range(plan.steps(self.train, int(self.n.max()))):
                yield batch, None
            return
        e = e.cpu()
        rows, size = (torch.from_numpy(np.ascontiguousarray(v)) for v in self._plan)
        for k in range(rows.shape[1]):
            yield self._gather(rows[e, k], size[e, k], e), rows[e, k].to(self.source.y.device)

    def _gather(self, rows: Tensor, size: Tensor, e: Tensor | None = None) -> Batch:
        """rows [P, B] counted within the agent -> the examples, and a mask over the first `size` of them."""
        first = self.first if e is None else self.first[e]
        device = self.source.x.device
        at = (first[:, None] + rows).to(device).flatten()
        mask = (torch.arange(rows.shape[1]) < size[:, None]).float().to(device)
        x, y = (v.index_select(0, at).unflatten(0, tuple(rows.shape)) for v in (self.source.x, self.source.y))
        return x, y, mask


def chunk_size(task: Task, fed: Federation, train: Train, view: State) -> int:
    """Agents per chunk, from what one of them receives: models (weights, gradient, velocity, result) and a batch
    for each of M pairs."""
    models = sum(v.numel() for v in flatten(view).values())
    M = max([1, *(len(v) for v in flatten(view.get("w", {})).values())])
    longest = int(max(fed.training.sizes.max(), fed.testing.sizes.max()))
    rows = longest if train.batch is None else min(longest, train.batch)
    width = sum(p.shape[0] for p in task.network.parameters() if p.dim() > 1)  # activations of an example, about
    example = fed.training.x[0].numel() + 3 * width
    per_agent = 4 * (4 * models + M * rows * example + longest * example)
    return max(1, BUDGET // per_agent)
