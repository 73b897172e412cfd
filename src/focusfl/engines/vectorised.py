"""Vectorised: `vmap` of the same `local` over many agents at once, in chunks. For many agents, small networks.

`losses` and `sgd` are autograd Functions with a vmap rule of their own: inside the rule the tensors of all
agents of the chunk are at hand, so only the (e, m) pairs that `only` keeps are trained, in one batch.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from focusfl.core import Algorithm, Models, Pull, State, Upload, one_hot
from focusfl.data.federation import Federation
from focusfl.engines import plan
from focusfl.engines.base import Answers, Engine, Scores
from focusfl.engines.chunk import Chunk, chunk_size
from focusfl.engines.optimiser import Optimiser
from focusfl.errors import InputError
from focusfl.task import Task, Weights
from focusfl.train import Train
from focusfl.tree import Total, put, take, tree_map


class Vectorised(Engine):
    """All agents of a chunk at once."""

    name: ClassVar[str] = "vectorised"

    def __init__(self, task: Task, fed: Federation, train: Train, rounds: int, seed: int) -> None:
        refuse_moody(task)
        super().__init__(task, fed, train, rounds, seed)

    def round(self, algorithm: Algorithm, server: State, states: State, t: int, cohort: plan.Ints) -> Answers:
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
        return Answers(total.result(), tree_map(lambda *vs: torch.cat(vs), *rows), cohort)

    @torch.no_grad()
    def evaluate(self, algorithm: Algorithm, server: State, states: State) -> Scores:
        loss, right = [], []
        E = self.fed.E
        for agents in np.array_split(np.arange(E), -(-E // self.size(algorithm, server))):
            chunk = Chunk.testing(self.fed, agents)

            def one(state: State, e: Tensor, x: Tensor, y: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
                def h(w: Models) -> Tensor:
                    return vmap(lambda model: self.task.predictions(self.task.outputs(model, x)))(w)

                score = self.task.score(algorithm.predict(algorithm.downlink(server, e), state, h), y)
                return (score.loss * mask).sum() / mask.sum(), (score.right * mask).sum() / mask.sum()

            x, y, mask = chunk.everything()
            index = torch.from_numpy(agents)
            a, b = vmap(one)(take(states, index), index, x, y, mask)
            loss.append(a)
            right.append(b)
        return Scores(torch.cat(loss), None if self.task.classes is None else torch.cat(right))

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

    def losses(self, w: Models) -> Tensor:
        return self.mean(self.example_losses(w))

    def example_losses(self, w: Models) -> Tensor:
        out: Tensor = _Losses.apply(self, list(w), self.slot, *w.values())  # type: ignore[no-untyped-call]
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

    def sgd(
        self,
        w: Models,
        pull: Pull | None = None,
        only: Tensor | None = None,
        weights: Tensor | None = None,
        freeze: Collection[str] = (),
    ) -> Models:
        names, M = list(w), len(next(iter(w.values())))
        only = torch.ones(M, dtype=torch.bool) if only is None else only
        extra = {} if weights is None else {"weights": weights}
        if pull is not None:
            extra["strength"] = torch.as_tensor(pull.strength, device=self.n.device)
            extra |= {f"to/{k}": pull.to[k] for k in names}
        ask = _Ask(self, names, list(extra), freeze)
        theta = _Sgd.apply(ask, self.slot, only, *w.values(), *extra.values())  # type: ignore[no-untyped-call]
        return dict(zip(names, theta, strict=True))


class _Losses(torch.autograd.Function):
    """[C, M, n] training losses."""

    @staticmethod
    def forward(*_: Any) -> Any:
        raise RuntimeError("only inside vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, in_dims: Any, agent: VmapAgent, names: list[str], slot: Tensor, *w: Tensor) -> Any:
        x, y, _ = agent.chunk.everything()
        C, n = y.shape
        models = dict(zip(names, w, strict=True))
        M = _spread(w[0], in_dims[3], C).shape[1]
        with torch.no_grad():
            if all(d is None for d in in_dims[3:]):  # broadcast models: one large product each
                rows = x.flatten(0, 1)
                each = [agent.task.outputs(take(models, m), rows).unflatten(0, (C, n)) for m in range(M)]
            else:
                own = {k: _spread(v, d, C) for (k, v), d in zip(models.items(), in_dims[3:], strict=True)}
                each = [vmap(agent.task.outputs)(take(own, (slice(None), m)), x) for m in range(M)]
            return torch.stack([agent.task.example_losses(out, y) for out in each], 1), 0


class _Ask(NamedTuple):
    """What `sgd` was asked for, but for the tensors."""

    agent: VmapAgent
    names: list[str]  # of the model's tensors
    extra: list[str]  # of the tensors beyond the model: weights, strength, to/...
    freeze: Collection[str]


class _Sgd(torch.autograd.Function):
    """K local steps for each pair (e, m) that `only` keeps."""

    @staticmethod
    def forward(*_: Any) -> Any:
        raise RuntimeError("only inside vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, in_dims: Any, ask: _Ask, slot: Tensor, only: Tensor, *rest: Tensor) -> Any:
        C, names = info.batch_size, ask.names
        only, *own = [_spread(v, d, C) for v, d in zip((only, *rest), in_dims[2:], strict=True)]
        w = dict(zip(names, own, strict=False))  # [C, M, ...]
        extra = dict(zip(ask.extra, own[len(names) :], strict=True))
        e, m = only.nonzero(as_tuple=True)  # the pairs to train, [P] each
        theta = {k: v.clone() for k, v in w.items()}
        if len(e):
            pairs = {k: v[e, m] for k, v in w.items()}  # [P, ...]
            pull = None
            if "strength" in extra:
                pull = Pull({k: extra[f"to/{k}"][e, m] for k in names}, extra["strength"][e])
            weights = extra["weights"][e, m] if "weights" in extra else None  # [P, n]
            _descend(ask, pairs, e, pull, weights)
            for k in names:
                theta[k][e, m] = pairs[k]
        return tuple(theta.values()), (0,) * len(names)


def _descend(ask: _Ask, model: Weights, e: Tensor, pull: Pull | None, weights: Tensor | None) -> None:
    """K local steps, in place, on P models at once: model [P, ...] on the data of agents e [P]. Eqs. 4-5."""
    agent, task = ask.agent, ask.agent.task
    trained = [k for k in task.parameters if k not in ask.freeze]
    optimiser = Optimiser(agent.train, agent.lr)
    for (x, y, mask), rows in agent.chunk.steps(e):
        size = mask.sum(1)  # [P] examples in this batch; 0: this agent has no such step
        if weights is not None:
            mask = mask * (weights if rows is None else weights.gather(1, rows))
        with torch.enable_grad():
            leaves = {k: model[k].detach().requires_grad_() for k in trained}
            out = vmap(partial(task.outputs, train=True))({**model, **leaves}, x)
            losses = (task.example_losses(out, y) * mask).sum(1) / size.clamp_min(1)
            grads = torch.autograd.grad(losses.sum(), list(leaves.values()))
        grad = dict(zip(trained, grads, strict=True))
        if pull is not None:
            grad = {k: g + _like(pull.strength, g) * (model[k] - pull.to[k]) for k, g in grad.items()}
        idle = (size == 0).nonzero().flatten()
        before = {k: model[k][idle] for k in trained} if len(idle) else {}
        optimiser.step(model, grad)
        for k, v in before.items():
            model[k][idle] = v


def _spread(v: Tensor, axis: int | None, C: int) -> Tensor:
    """With the agents' axis in front, whether or not v had one."""
    return v.expand(C, *v.shape) if axis is None else v.movedim(axis, 0)


def _like(v: Tensor | float, g: Tensor) -> Tensor:
    v = torch.as_tensor(v)
    return v.reshape(v.shape + (1,) * (g.dim() - v.dim()))


def refuse_moody(task: Task) -> None:
    """Batch norm, dropout and recurrent layers do not vmap; nor may statistics of a module of the user's own."""
    moody = task.moody or [k for k, b in task.network.named_buffers() if b.is_floating_point()]
    if moody:
        raise InputError(f"engine = vectorised cannot run {moody[0]}: use engine = serial (or auto)")
