"""Vectorised: `vmap` of the same `local` over many agents at once, in chunks. For many agents, small networks."""

from __future__ import annotations

from typing import ClassVar, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from focusfl.core import Algorithm, Models, SgdOptions, State, Upload, one_hot
from focusfl.core.train import Train
from focusfl.core.tree import Total, put, take, tree_map
from focusfl.data.federation import Federation
from focusfl.engines import plan
from focusfl.engines.base import Engine, Replies, Scores
from focusfl.engines.vectorised.batched import Losses, Predictions, Request, Sgd
from focusfl.engines.vectorised.chunk import Chunk, chunk_size
from focusfl.models.task import Task
from focusfl.util.errors import InputError


class Vectorised(Engine):
    """All agents of a chunk at once."""

    name: ClassVar[str] = "vectorised"

    def __init__(self, task: Task, fed: Federation, train: Train, rounds: int, seed: int) -> None:
        refuse_moody(task)
        super().__init__(task, fed, train, rounds, seed)

    def round(self, algorithm: Algorithm, server: State, states: State, t: int, cohort: plan.Ints) -> Replies:
        total, rows = Total(), []
        lr = self.train.lr_at(t, self.rounds)
        for agents in np.array_split(cohort, -(-len(cohort) // self.size(algorithm, server))):
            chunk = Chunk.training(self.fed, agents, self.train, self.seed, t)

            def one(state: State, e: Tensor, slot: Tensor, n: Tensor, chunk: Chunk = chunk) -> tuple[State, Upload]:
                agent = VmapAgent(self.task, chunk, lr, self.train, slot, n)
                return algorithm.local(algorithm.downlink(server, e), state, agent)

            index = torch.from_numpy(agents)
            slots, n = torch.arange(len(agents)), chunk.n.float().to(self.fed.training.y.device)
            state, upload = vmap(one)(take(states, index), index, slots, n)
            put(states, index, state)
            total.add(upload.add, stacked=True)
            rows.append(upload.each)
        return Replies(total.result(), tree_map(lambda *vs: torch.cat(vs), *rows), cohort)

    @torch.no_grad()
    def evaluate(self, algorithm: Algorithm, server: State, states: State) -> Scores:
        losses, correct = [], []
        E = self.fed.E
        for agents in np.array_split(np.arange(E), -(-E // self.size(algorithm, server))):

            def one(state: State, e: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
                def h(w: Models, only: Tensor | None = None) -> Tensor:
                    only = torch.ones(len(next(iter(w.values()))), dtype=torch.bool) if only is None else only
                    out: Tensor = Predictions.apply(self.task, list(w), x, only, *w.values())  # type: ignore[no-untyped-call]
                    return out

                return self.task.score(algorithm.predict(algorithm.downlink(server, e), state, h), y)

            x, y, mask = Chunk.testing(self.fed, agents).everything()
            index = torch.from_numpy(agents)
            loss, right = vmap(one)(take(states, index), index, x, y)
            losses.append(loss[mask > 0])  # without the padding, agent after agent
            correct.append(right[mask > 0])
        offsets = self.fed.testing.offsets
        return Scores.of_examples(torch.cat(losses), torch.cat(correct), offsets, self.task.classes)

    @property
    def at_once(self) -> int:
        return self.fed.E

    def size(self, algorithm: Algorithm, server: State) -> int:
        """How many agents at once, so that memory stays bounded."""
        return chunk_size(self.task, self.fed, self.train, algorithm.downlink(server, torch.tensor(0)))


class VmapAgent:
    """core.Agent inside vmap: `slot` is the agent's place in its chunk."""

    def __init__(self, task: Task, chunk: Chunk, lr: float, train: Train, slot: Tensor, n: Tensor) -> None:
        self.task, self.chunk, self.lr, self.train, self.slot, self.n = task, chunk, lr, train, slot, n
        self.learnt = tuple(task.parameters)

    def losses(self, w: Models, rough: Tensor | None = None) -> Tensor:
        losses = self.example_losses(w)
        exact = self.mean(losses)
        if rough is None or int(self.chunk.n.max()) < plan.FEW:
            return exact
        few = self._own(self.chunk.few())  # 1 where an example counts
        return torch.where(rough, torch.where(few > 0, losses, 0).sum(-1) / few.sum(), exact)

    def example_losses(self, w: Models) -> Tensor:
        out: Tensor = Losses.apply(self.task, self.chunk, list(w), self.slot, *w.values())  # type: ignore[no-untyped-call]
        return out

    def mean(self, values: Tensor) -> Tensor:
        mask = self._own(self.chunk.everything()[2])
        return torch.where(mask > 0, values, 0).sum(-1) / self.n

    def class_counts(self) -> Tensor:
        _, y, mask = self.chunk.everything()
        assert self.task.classes is not None
        return self._own((one_hot(y, self.task.classes) * mask.unsqueeze(-1)).sum(1))

    def _own(self, v: Tensor) -> Tensor:
        """This agent's row of what the chunk holds."""
        return v.index_select(0, self.slot.reshape(1).to(v.device)).squeeze(0)

    def sgd(self, w: Models, **options: Unpack[SgdOptions]) -> Models:
        names, M = list(w), len(next(iter(w.values())))
        only, pull, weights = options.get("only"), options.get("pull"), options.get("weights")
        only = torch.ones(M, dtype=torch.bool) if only is None else only
        extra = {} if weights is None else {"weights": weights}
        if pull is not None:
            extra["strength"] = torch.as_tensor(pull.strength, device=self.n.device)
            extra |= {f"to/{k}": pull.to[k] for k in names}
        request = Request(self.task, self.chunk, self.train, self.lr, names, list(extra), options.get("freeze", ()))
        theta = Sgd.apply(request, self.slot, only, *w.values(), *extra.values())  # type: ignore[no-untyped-call]
        return dict(zip(names, theta, strict=True))


def refuse_moody(task: Task) -> None:
    """Batch norm, dropout and recurrent layers do not vmap; nor may statistics of a module of the user's own."""
    moody = task.stateful_layers or [k for k, b in task.network.named_buffers() if b.is_floating_point()]
    if moody:
        raise InputError(f"engine = vectorised cannot run {moody[0]}: use engine = serial (or auto)")
