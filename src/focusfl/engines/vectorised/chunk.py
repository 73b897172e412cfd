"""Chunk: the examples of some agents side by side, padded to the longest, with a mask over the padding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from focusfl.core.train import Train
from focusfl.data.federation import Rows
from focusfl.engines import plan

Batch = tuple[Tensor, Tensor, Tensor]  # x [C, B, ...], y [C, B], mask [C, B] in 0.0 and 1.0
Step = tuple[Batch, Tensor | None]  # and which rows of the agent they are, [C, B]; None: all


class Chunk:
    """C agents of a federation, and their batches in one round.

    Args:
        rows: The examples of all agents of the federation.
        agents: The agents of this chunk, [C].
        train: The options of local training; None if the chunk is only evaluated.
        seed: The seed that batches are drawn with.
        t: The round.
    """

    def __init__(
        self, rows: Rows, agents: plan.Ints, train: Train | None = None, seed: int = 0, t: int = 0
    ) -> None:
        index = torch.from_numpy(agents)
        self.source, self.train, self.t = rows, train, t
        self.agents, self.seed = agents, seed
        self.first = rows.offsets[index]  # [C]
        self.n = rows.sizes[index]  # [C]
        self._all: Batch | None = None
        self._plan: plan.Plan | None = None  # None: every batch has all examples
        if train is not None and train.batch is not None and train.batch < int(self.n.max()):
            self._plan = plan.batches(seed, t, agents, self.n.numpy(), train)

    def on(self, rows: Rows) -> Chunk:
        """Return the same agents with other examples."""
        return Chunk(rows, self.agents, self.train, self.seed, self.t)

    def with_steps(self, steps: int | None) -> Chunk:
        """Return the same agents with another number of local steps; None leaves it as it is."""
        return self if steps is None or self.train is None else self.with_train(self.train.with_steps(steps))

    def with_train(self, train: Train) -> Chunk:
        """Return the same agents with other options of local training."""
        other = Chunk(self.source, self.agents, train, self.seed, self.t)
        other._all = self._all
        return other

    def all_examples(self) -> Batch:
        """Return all examples of each agent."""
        if self._all is None:
            longest = torch.arange(int(self.n.max()))
            self._all = self._gather(torch.minimum(longest, (self.n[:, None] - 1).clamp_min(0)), self.n)
        return self._all

    def estimate_mask(self) -> Tensor:
        """Return 1.0 at the examples that estimated losses take in this round, [C, n]; see `plan.estimate_rows`."""
        _, _, mask = self.all_examples()
        tenth = torch.arange(mask.shape[1]) % plan.ESTIMATE_EVERY == self.t % plan.ESTIMATE_EVERY
        return mask * (tenth | (self.n[:, None] < plan.MIN_EXAMPLES_TO_ESTIMATE)).to(mask.device)

    def steps(self, e: Tensor) -> Iterator[Step]:
        """Yield the batch of every local step for the agents at positions e of the chunk, [P]."""
        if self._plan is None:
            assert self.train is not None
            batch = self.all_examples()
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
        """Return the examples at rows [P, B], counted within the agent, with a mask over the first `size` ones."""
        first = self.first if e is None else self.first[e]
        device = self.source.x.device
        at = (first[:, None] + rows).clamp_max(len(self.source.y) - 1)  # an agent without examples: any row
        at = at.to(device).flatten()
        mask = (torch.arange(rows.shape[1]) < size[:, None]).float().to(device)
        x, y = (v.index_select(0, at).unflatten(0, tuple(rows.shape)) for v in (self.source.x, self.source.y))
        return x, y, mask
