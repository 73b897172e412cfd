"""Losses, predictions and local training of all agents of a chunk at once.

These are autograd Functions with a vmap rule of their own. Inside the rule the tensors of all agents are
available, so only the pairs (e, m) that `only` selects are computed, in one batch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from focusfl.core import Pull, broadcast
from focusfl.core.train import Train
from focusfl.core.tree import take
from focusfl.engines.kernels.mlp import Mlp
from focusfl.engines.optimiser import LocalOptimiser
from focusfl.engines.vectorised.chunk import Chunk
from focusfl.models.task import Task, Weights


class VmapFunction(torch.autograd.Function):
    """A function that has only a vmap rule: a subclass defines `vmap`."""

    @staticmethod
    def forward(*_: Any) -> Any:
        raise RuntimeError("only inside vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...


class Predictions(VmapFunction):
    """[C, M, n, classes] predictions for each pair (e, m) that `only` selects; 0 for the others."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, task: Task, names: list[str], x: Tensor, only: Tensor, *w: Tensor) -> Any:
        only = _agents_first(only, in_dims[3], info.batch_size)
        predictions: Tensor | None = None
        for m in range(only.shape[1]):
            agents = only[:, m].nonzero().flatten()
            if not only.any():  # the shape is that of any prediction
                one = torch.arange(1, device=only.device)
                p = task.predictions(_outputs(task, dict(zip(names, w, strict=True)), in_dims[4:], m, x, one))
                return p.new_zeros(*only.shape, *p.shape[1:]), 0
            if len(agents):
                p = task.predictions(_outputs(task, dict(zip(names, w, strict=True)), in_dims[4:], m, x, agents))
                predictions = p.new_zeros(*only.shape, *p.shape[1:]) if predictions is None else predictions
                predictions[agents, m] = p
        return predictions, 0


class Losses(VmapFunction):
    """[C, M, n] training losses."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, task: Task, chunk: Chunk, names: list[str], slot: Tensor, *w: Tensor) -> Any:
        x, y, _ = chunk.all_examples()
        models, dims, agents = dict(zip(names, w, strict=True)), in_dims[4:], torch.arange(len(y))
        M = _agents_first(w[0], dims[0], len(y)).shape[1]
        with torch.no_grad():
            outputs = [_outputs(task, models, dims, m, x, agents) for m in range(M)]
            return torch.stack([task.example_losses(out, y) for out in outputs], 1), 0


def _outputs(task: Task, w: Weights, dims: Sequence[int | None], m: int, x: Tensor, agents: Tensor) -> Tensor:
    """Return the outputs of model m at P agents, [P, n, classes].

    Args:
        task: The network and its loss.
        w: The models; [M, ...] if all agents share them, else with an axis of length C.
        dims: The axis of the agents in each tensor; None if it has none.
        m: The model.
        x: Inputs of all agents, [C, n, ...].
        agents: The agents, [P].
    """
    C = len(x)
    x = x if len(agents) == C else x[agents]
    if all(dim is None for dim in dims):  # one large product
        return torch.unflatten(task.outputs(take(w, m), x.flatten(0, 1)), 0, tuple(x.shape[:2]))
    own = {k: _agents_first(v, dim, C)[agents, m] for (k, v), dim in zip(w.items(), dims, strict=True)}
    out: Tensor = vmap(task.outputs)(own, x)
    return out


class SgdRequest(NamedTuple):
    """The arguments of `Sgd` that are not tensors."""

    task: Task
    chunk: Chunk
    train: Train
    lr: float
    names: list[str]  # of the model's tensors
    extra: list[str]  # of the tensors after the model's: weights, strength, to/...
    freeze: Collection[str]


class Sgd(VmapFunction):
    """K local steps for each pair (e, m) that `only` selects."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, request: SgdRequest, slot: Tensor, only: Tensor, *rest: Tensor) -> Any:
        C, names = info.batch_size, request.names
        only, *tensors = [_agents_first(v, dim, C) for v, dim in zip((only, *rest), in_dims[2:], strict=True)]
        w = dict(zip(names, tensors, strict=False))  # [C, M, ...]
        extra = dict(zip(request.extra, tensors[len(names) :], strict=True))
        e, m = only.nonzero(as_tuple=True)  # the pairs to train, [P] each
        theta = {k: v.clone() for k, v in w.items()}
        if len(e):
            pairs = {k: v[e, m] for k, v in w.items()}  # [P, ...]
            pull = None
            if "strength" in extra:
                pull = Pull({k: extra[f"to/{k}"][e, m] for k in names}, extra["strength"][e])
            weights = extra["weights"][e, m] if "weights" in extra else None  # [P, n]
            _train(request, pairs, e, pull, weights)
            for k in names:
                theta[k][e, m] = pairs[k]
        return tuple(theta.values()), (0,) * len(names)


def _train(request: SgdRequest, model: Weights, e: Tensor, pull: Pull | None, weights: Tensor | None) -> None:
    """Take K local steps, in place, on P models at once: model [P, ...] on the data of agents e [P]. Eqs. 4-5."""
    kernel = Mlp.of(request.task, flat=request.chunk.source.x.dim() == 2)
    optimiser = LocalOptimiser(request.train, request.lr)
    for (x, y, mask), rows in request.chunk.steps(e):
        size = mask.sum(1, keepdim=True)  # [P, 1] examples in this batch; 0: this agent has no such step
        share = mask / size.clamp_min(1)
        if weights is not None:
            share = share * (weights if rows is None else weights.gather(1, rows))
        if kernel is not None:
            grad = kernel.gradient(model, x, request.task.scaled(y), share, request.freeze)
        else:
            grad = gradient(request.task, model, x, y, share, request.freeze)
        if pull is not None:
            strength = torch.as_tensor(pull.strength)
            grad = {k: g + broadcast(strength, g) * (model[k] - pull.to[k]) for k, g in grad.items()}
        idle = (size[:, 0] == 0).nonzero().flatten()
        before = {k: model[k][idle] for k in grad} if len(idle) else {}
        optimiser.step(model, grad)
        for k, v in before.items():
            model[k][idle] = v


def gradient(task: Task, w: Weights, x: Tensor, y: Tensor, share: Tensor, freeze: Collection[str]) -> Weights:
    """Return the gradient of sum(share * loss) in each of P networks of any kind, by autograd."""
    with torch.enable_grad():
        leaves = {k: w[k].detach().requires_grad_() for k in task.parameters if k not in freeze}
        out = vmap(partial(task.outputs, train=True))({**w, **leaves}, x)
        loss = (task.example_losses(out, y) * share).sum()
        grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)  # 0 if not used
        return dict(zip(leaves, grads, strict=True))


def _agents_first(v: Tensor, axis: int | None, C: int) -> Tensor:
    """Return v with the axis of the C agents in front; it is added if v has none (axis = None)."""
    return v.expand(C, *v.shape) if axis is None else v.movedim(axis, 0)
