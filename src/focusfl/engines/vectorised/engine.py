"""The vectorised engine: `vmap` of the same `local` over many agents at once, in chunks.

It is fast for many agents with small networks. Networks with batch norm, dropout or recurrent layers need the
serial engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from focusfl.core import AgentPart, Algorithm, Models, SgdOptions, State, Upload, row
from focusfl.core.train import PLAIN, Train
from focusfl.core.tree import RunningSum, flatten, put, take, tree_map
from focusfl.data.federation import Federation, Rows
from focusfl.engines import plan
from focusfl.engines.base import Engine, Part, Replies, Scores
from focusfl.engines.vectorised.batched import Losses, Predictions, Sgd, SgdRequest
from focusfl.engines.vectorised.chunk import Chunk
from focusfl.models.task import Task
from focusfl.util.errors import InputError

CHUNK_BYTES = 16 * 2**20  # larger chunks do not fit the cache; smaller ones spend more time on calls


class Vectorised(Engine):
    """Runs all agents of a chunk at once."""

    name: ClassVar[str] = "vectorised"

    def __init__(self, task: Task, fed: Federation, train: Train, rounds: int, seed: int) -> None:
        super().__init__(task, fed, train, rounds, seed)
        self.agents_at_once = fed.E
        # Batch norm, dropout and recurrent layers do not vmap; statistics of a custom module may not either.
        unsupported = task.stateful_layers or [k for k, b in task.network.named_buffers() if b.is_floating_point()]
        if unsupported:
            raise InputError(f"engine = vectorised cannot run {unsupported[0]}: use engine = serial (or auto)")

    def round(self, algorithm: Algorithm, server: State, states: State, t: int, cohort: plan.Ints) -> Replies:
        total, rows = RunningSum(), []
        lr = self.lr_at(t)
        for agents in self._chunks(algorithm, server, cohort):
            chunk = Chunk(self.fed.training, agents, self.train, self.seed, t)

            def one(state: State, e: Tensor, slot: Tensor, n: Tensor, chunk: Chunk = chunk) -> tuple[State, Upload]:
                names, log_loss = tuple(self.task.parameters), self.task.log_loss
                agent = VmapAgent(self.task, chunk, lr, self.train, slot, n, names, log_loss, self._rows)
                return algorithm.local(algorithm.downlink(server, e), state, agent)

            index = torch.from_numpy(agents)
            slots, n = torch.arange(len(agents)), chunk.n.float().to(self.fed.training.y.device)
            state, upload = vmap(one)(take(states, index), index, slots, n)
            put(states, index, state)
            total.add(upload.add, stacked=True)
            rows.append(upload.each)
        return Replies(total.result(), tree_map(lambda *vs: torch.cat(vs), *rows), cohort)

    def _rows(self, part: AgentPart) -> Rows:
        return self.fed.all_rows if part == "all" else self.fed.validation_rows

    @torch.no_grad()
    def evaluate(self, algorithm: Algorithm, server: State, states: State, part: Part = "test") -> Scores:
        rows, scored = self.examples(part), []
        for agents in self._chunks(algorithm, server, rows.sizes.nonzero().flatten().numpy()):

            def one(state: State, e: Tensor, x: Tensor) -> Tensor:
                def h(w: Models, only: Tensor | None = None) -> Tensor:
                    only = torch.ones(len(next(iter(w.values()))), dtype=torch.bool) if only is None else only
                    out: Tensor = Predictions.apply(self.task, list(w), x, only, *w.values())  # type: ignore[no-untyped-call]
                    return out

                return algorithm.predict(algorithm.downlink(server, e), state, h)

            x, y, mask = Chunk(rows, agents).all_examples()
            index = torch.from_numpy(agents)
            p = vmap(one)(take(states, index), index, x)
            loss, correct, kept = *self.task.score(p, y), mask > 0  # without the padding, agent after agent
            scored.append((loss[kept], correct[kept], p[kept]))
        return self.collect(scored, part)

    def _chunks(self, algorithm: Algorithm, server: State, agents: plan.Ints) -> list[plan.Ints]:
        """Split the agents into chunks of about CHUNK_BYTES, so that memory stays bounded.

        An agent needs memory for the models it receives (weights, gradient, momentum, result), for a batch of each
        model, and for its examples.
        """
        view = algorithm.downlink(server, torch.tensor(0))
        models = sum(v.numel() for v in flatten(view).values())
        M = max([1, *(len(v) for v in flatten(view.get("w", {})).values())])
        longest = int(max(self.fed.training.sizes.max(), self.fed.testing.sizes.max()))
        rows = longest if self.train.batch is None else min(longest, self.train.batch)
        activations = sum(p.shape[0] for p in self.task.network.parameters() if p.dim() > 1)  # per example, about
        example = self.fed.training.x[0].numel() + 3 * activations
        per_agent = 4 * (4 * models + M * rows * example + longest * example)
        return np.array_split(agents, -(-len(agents) // max(1, CHUNK_BYTES // per_agent)))


@dataclass
class VmapAgent:
    """Implements core.Agent inside vmap; `slot` is the agent's position in its chunk."""

    task: Task
    chunk: Chunk
    lr: float
    train: Train
    slot: Tensor
    n: Tensor
    trainable: tuple[str, ...]
    log_loss: bool
    rows: Callable[[AgentPart], Rows]

    def on(self, part: AgentPart) -> VmapAgent:
        chunk = self.chunk.on(self.rows(part))
        n = row(chunk.n.to(self.n.device).to(self.n.dtype), self.slot)
        return replace(self, chunk=chunk, n=n)

    @cached_property
    def plain(self) -> VmapAgent:
        if self.train.optimiser == "sgd":
            return self
        return replace(self, chunk=self.chunk.with_train(PLAIN), train=PLAIN, lr=PLAIN.lr_at(0, 1))

    def losses(self, w: Models, estimate: Tensor | None = None) -> Tensor:
        losses = self.example_losses(w)
        exact = self.mean(losses)
        if estimate is None or int(self.chunk.n.max()) < plan.MIN_EXAMPLES_TO_ESTIMATE:
            return exact
        sample = row(self.chunk.estimate_mask(), self.slot)
        return torch.where(estimate, torch.where(sample > 0, losses, 0).sum(-1) / sample.sum(), exact)

    def example_losses(self, w: Models) -> Tensor:
        out: Tensor = Losses.apply(self.task, self.chunk, list(w), self.slot, *w.values())  # type: ignore[no-untyped-call]
        return out

    def mean(self, values: Tensor) -> Tensor:
        mask = row(self.chunk.all_examples()[2], self.slot)
        return torch.where(mask > 0, values, 0).sum(-1) / self.n

    def class_counts(self) -> Tensor:
        _, y, mask = self.chunk.all_examples()
        return row((self.task.class_indicators(y) * mask.unsqueeze(-1)).sum(1), self.slot)

    def sgd(self, w: Models, **options: Unpack[SgdOptions]) -> Models:
        names, M = list(w), len(next(iter(w.values())))
        only, pull, weights = options.get("only"), options.get("pull"), options.get("weights")
        only = torch.ones(M, dtype=torch.bool) if only is None else only
        extra = {} if weights is None else {"weights": weights}
        if pull is not None:
            extra["strength"] = torch.as_tensor(pull.strength, device=self.n.device)
            extra |= {f"to/{k}": pull.to[k] for k in names}
        freeze = options.get("freeze", ())
        chunk = self.chunk.with_steps(options.get("steps"))
        lr = self.lr * options.get("rate", 1.0)
        request = SgdRequest(self.task, chunk, self.train, lr, names, list(extra), freeze)
        theta = Sgd.apply(request, self.slot, only, *w.values(), *extra.values())  # type: ignore[no-untyped-call]
        return dict(zip(names, theta, strict=True))
