"""What the vectorised engine asks of all agents of a chunk at once: losses, predictions, local training.

These are autograd Functions with a vmap rule of their own: inside the rule the tensors of all agents are at hand,
so only the pairs (e, m) that `only` keeps are worked on, in one batch.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from focusfl.core import Pull
from focusfl.core.train import Train
from focusfl.core.tree import take
from focusfl.engines.kernels.mlp import Mlp
from focusfl.engines.optimiser import Optimiser
from focusfl.engines.vectorised.chunk import Chunk
from focusfl.models.task import Task, Weights


class Predictions(torch.autograd.Function):
    """[C, M, n, classes] predictions, for each pair (e, m) that `only` keeps; 0 for the others."""

    @staticmethod
    def forward(*_: Any) -> Any:
        raise RuntimeError("only inside vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, in_dims: Any, task: Task, names: list[str], x: Tensor, only: Tensor, *w: Tensor) -> Any:
        only = _spread(only, in_dims[3], info.batch_size)
        models = Stack(names, w, in_dims[4:], info.batch_size)
        said: Tensor | None = None
        for m in range(only.shape[1]):
            kept = only[:, m].nonzero().flatten()
            if len(kept):
                p = task.predictions(models.outputs(task, m, x, kept))
                said = p.new_zeros(*only.shape, *p.shape[1:]) if said is None else said
                said[kept, m] = p
        return said, 0


class Losses(torch.autograd.Function):
    """[C, M, n] training losses."""

    @staticmethod
    def forward(*_: Any) -> Any:
        raise RuntimeError("only inside vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, in_dims: Any, task: Task, chunk: Chunk, names: list[str], slot: Tensor, *w: Tensor) -> Any:
        x, y, _ = chunk.everything()
        models, everyone = Stack(names, w, in_dims[4:], len(y)), torch.arange(len(y))
        with torch.no_grad():
            each = [models.outputs(task, m, x, everyone) for m in range(models.M)]
            return torch.stack([task.example_losses(out, y) for out in each], 1), 0


class Stack:
    """The models that C agents hold: the same for all of them, or each its own."""

    def __init__(self, names: list[str], w: tuple[Tensor, ...], dims: tuple[int | None, ...], C: int) -> None:
        self.shared = all(d is None for d in dims)
        spread = w if self.shared else [_spread(v, d, C) for v, d in zip(w, dims, strict=True)]
        self.w = dict(zip(names, spread, strict=True))  # [M, ...], or [C, M, ...]
        self.M = spread[0].shape[0 if self.shared else 1]

    def outputs(self, task: Task, m: int, x: Tensor, agents: Tensor) -> Tensor:
        """Of model m at these agents, [P, n, classes]: x is [C, n, ...]."""
        x = x if len(agents) == len(x) else x[agents]
        if not self.shared:
            out: Tensor = vmap(task.outputs)(take(self.w, (agents, m)), x)
            return out
        rows = x.flatten(0, 1)  # one large product
        return torch.unflatten(task.outputs(take(self.w, m), rows), 0, tuple(x.shape[:2]))


class Request(NamedTuple):
    """A call of `sgd`, without its tensors."""

    task: Task
    chunk: Chunk
    train: Train
    lr: float
    names: list[str]  # of the model's tensors
    extra: list[str]  # of the tensors beyond the model: weights, strength, to/...
    freeze: Collection[str]


class Sgd(torch.autograd.Function):
    """K local steps for each pair (e, m) that `only` keeps."""

    @staticmethod
    def forward(*_: Any) -> Any:
        raise RuntimeError("only inside vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, in_dims: Any, request: Request, slot: Tensor, only: Tensor, *rest: Tensor) -> Any:
        C, names = info.batch_size, request.names
        only, *own = [_spread(v, d, C) for v, d in zip((only, *rest), in_dims[2:], strict=True)]
        w = dict(zip(names, own, strict=False))  # [C, M, ...]
        extra = dict(zip(request.extra, own[len(names) :], strict=True))
        e, m = only.nonzero(as_tuple=True)  # the pairs to train, [P] each
        theta = {k: v.clone() for k, v in w.items()}
        if len(e):
            pairs = {k: v[e, m] for k, v in w.items()}  # [P, ...]
            pull = None
            if "strength" in extra:
                pull = Pull({k: extra[f"to/{k}"][e, m] for k in names}, extra["strength"][e])
            weights = extra["weights"][e, m] if "weights" in extra else None  # [P, n]
            _descend(request, pairs, e, pull, weights)
            for k in names:
                theta[k][e, m] = pairs[k]
        return tuple(theta.values()), (0,) * len(names)


def _descend(request: Request, model: Weights, e: Tensor, pull: Pull | None, weights: Tensor | None) -> None:
    """K local steps, in place, on P models at once: model [P, ...] on the data of agents e [P]. Eqs. 4-5."""
    kernel = Mlp.of(request.task, flat=request.chunk.source.x.dim() == 2)
    optimiser = Optimiser(request.train, request.lr)
    for (x, y, mask), rows in request.chunk.steps(e):
        size = mask.sum(1, keepdim=True)  # [P, 1] examples in this batch; 0: this agent has no such step
        share = mask / size.clamp_min(1)
        if weights is not None:
            share = share * (weights if rows is None else weights.gather(1, rows))
        if kernel is not None:
            grad = kernel.gradient(model, x, y, share, request.freeze)
        else:
            grad = _gradient(request.task, model, x, y, share, request.freeze)
        if pull is not None:
            grad = {k: g + _like(pull.strength, g) * (model[k] - pull.to[k]) for k, g in grad.items()}
        idle = (size[:, 0] == 0).nonzero().flatten()
        before = {k: model[k][idle] for k in grad} if len(idle) else {}
        optimiser.step(model, grad)
        for k, v in before.items():
            model[k][idle] = v


def _gradient(task: Task, w: Weights, x: Tensor, y: Tensor, share: Tensor, freeze: Collection[str]) -> Weights:
    """Of sum(share * loss) in each of P networks, whatever they are."""
    with torch.enable_grad():
        leaves = {k: w[k].detach().requires_grad_() for k in task.parameters if k not in freeze}
        out = vmap(partial(task.outputs, train=True))({**w, **leaves}, x)
        loss = (task.example_losses(out, y) * share).sum()
        grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)  # 0 where not used
        return dict(zip(leaves, grads, strict=True))


def _spread(v: Tensor, axis: int | None, C: int) -> Tensor:
    """With the agents' axis in front, whether or not v had one."""
    return v.expand(C, *v.shape) if axis is None else v.movedim(axis, 0)


def _like(v: Tensor | float, g: Tensor) -> Tensor:
    v = torch.as_tensor(v)
    return v.reshape(v.shape + (1,) * (g.dim() - v.dim()))
