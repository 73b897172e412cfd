"""One agent at a time, with any network: its losses, its local training, its predictions.

The serial engine and the nodes of a Flower deployment run this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from focusfl.core import Algorithm, Data, Models, Predictor, SgdOptions, State, one_hot
from focusfl.core.train import Train
from focusfl.core.tree import take, tree_map
from focusfl.engines import plan
from focusfl.engines.optimiser import Optimiser
from focusfl.models.task import Score, Task, Weights

EVAL_ROWS = 1000  # examples in one forward pass where no gradient is needed


class LocalAgent:
    """core.Agent for agent e in round t, on its own data."""

    def __init__(self, task: Task, data: Data, train: Train, lr: float, seed: int, t: int, e: int) -> None:
        self.task, self.data, self.train, self.lr = task, data, train, lr
        self.seed, self.t, self.e = seed, t, e
        self.learnt = tuple(task.parameters)
        self.n = torch.tensor(float(len(data.y)), device=data.y.device)
        self.full = plan.full(train, np.array([len(data.y)]))
        self._passes: dict[int, tuple[Weights, Weights, Tensor]] = {}  # m: stack asked for, leaves, loss

    def losses(self, w: Models, rough: Tensor | None = None) -> Tensor:
        tenth = plan.rough(self.t, len(self.data.y))
        sample = Data(self.data.x[tenth], self.data.y[tenth])
        estimate = [False] * len(next(iter(w.values()))) if rough is None else rough.tolist()
        return torch.stack([self._loss(w, m, sample if r else self.data) for m, r in enumerate(estimate)])

    def _loss(self, w: Models, m: int, data: Data) -> Tensor:
        if data is self.data and self.full and self.task.stateless:  # keep the graph: `sgd` begins with this pass
            self._passes[m] = (w, *self._training_loss(take(w, m), self._whole))
            return self._passes[m][2].detach()
        return self._each(take(w, m), data).sum() / len(data.y)

    def example_losses(self, w: Models) -> Tensor:
        return torch.stack([self._each(take(w, m), self.data) for m in range(len(next(iter(w.values()))))])

    @torch.no_grad()
    def _each(self, model: Weights, data: Data) -> Tensor:
        """Loss on each example, [n]."""
        parts = zip(data.x.split(EVAL_ROWS), data.y.split(EVAL_ROWS), strict=True)
        return torch.cat(
            [self.task.example_losses(self.task.outputs(model, channels_last(self.task, x)), y) for x, y in parts]
        )

    def mean(self, values: Tensor) -> Tensor:
        return values.sum(-1) / self.n

    def class_counts(self) -> Tensor:
        assert self.task.classes is not None
        return one_hot(self.data.y, self.task.classes).sum(0)

    def sgd(self, w: Models, **options: Unpack[SgdOptions]) -> Models:
        M, only = len(next(iter(w.values()))), options.get("only")
        theta = tree_map(lambda v: v.detach().clone(), w)
        with torch.random.fork_rng(devices=[], enabled=not self.task.stateless):  # dropout: from (seed, t, e) alone
            if not self.task.stateless:
                torch.manual_seed(plan.draw(self.seed, self.t, self.e))
            for m in range(M) if only is None else only.nonzero().flatten().tolist():
                self._descend(take(theta, m), w, m, options)
        self._passes = {}
        return theta

    def _descend(self, model: Weights, w: Models, m: int, options: SgdOptions) -> None:
        """K local steps, in place, on the model, which is w_m to begin with: eqs. 4-5."""
        pull, freeze, every = options.get("pull"), options.get("freeze", ()), options.get("weights")
        weights = None if every is None else every[m]
        optimiser = Optimiser(self.train, self.lr)
        fresh = weights is None and not freeze  # then the E step's forward pass is the first step's too
        for k, (batch, rows) in enumerate(self._batches()):
            if fresh and k == 0 and m in self._passes and self._passes[m][0] is w:
                _, leaves, loss = self._passes.pop(m)
            else:
                share = weights if weights is None or rows is None else weights[rows]
                leaves, loss = self._training_loss(model, batch, share, freeze)
            grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)  # 0 where not used
            grad = dict(zip(leaves, grads, strict=True))
            if pull is not None:
                grad = {p: g + pull.strength * (model[p] - pull.to[p][m]) for p, g in grad.items()}
            optimiser.step(model, grad)

    @cached_property
    def _whole(self) -> Data:
        """All examples, as a full-batch step takes them."""
        x, y = self.data
        return Data(x.bfloat16(), y) if self.task.bf16 and x.is_floating_point() else self.data

    def _batches(self) -> Iterator[tuple[Data, Tensor | None]]:
        """The examples of each step, and which rows they are; None: all."""
        n = len(self.data.y)
        if self.full:
            yield from [(self._whole, None)] * plan.steps(self.train, n)
            return
        made = plan.batches(self.seed, self.t, np.array([self.e]), np.array([n]), self.train)
        steps = [made.step(0, k) for k in range(made.size.shape[1])]
        if any(len(rows) == 1 for rows in steps) and not self.task.accepts_one_example(self.data.x[:1]):
            steps = plan.joined(steps)
        for rows in (torch.from_numpy(step).to(self.data.y.device) for step in steps):
            yield Data(self.data.x[rows], self.data.y[rows]), rows

    def _training_loss(
        self, model: Weights, batch: Data, weights: Tensor | None = None, freeze: Collection[str] = ()
    ) -> tuple[Weights, Tensor]:
        """The mean loss on a batch, with its graph, and the parameters it depends on."""
        with torch.enable_grad():
            leaves = {k: model[k].detach().requires_grad_() for k in self.task.parameters if k not in freeze}
            out = self.task.outputs({**model, **leaves}, channels_last(self.task, batch.x), train=True)
            losses = self.task.example_losses(out, batch.y)
            return leaves, (losses if weights is None else weights * losses).mean()


def predictor(task: Task, x: Tensor) -> Predictor:
    """h of the examples x, model after model."""

    def h(w: Models, only: Tensor | None = None) -> Tensor:
        M, predictions = len(next(iter(w.values()))), {}
        for m in range(M) if only is None else only.nonzero().flatten().tolist():
            outputs = [task.outputs(take(w, m), channels_last(task, part)) for part in x.split(EVAL_ROWS)]
            predictions[m] = torch.cat([task.predictions(out) for out in outputs])
        skipped = torch.zeros_like(next(iter(predictions.values())))
        return torch.stack([predictions.get(m, skipped) for m in range(M)])

    return h


@torch.no_grad()
def score(algorithm: Algorithm, view: State, state: State, task: Task, data: Data) -> Score:
    """One agent's predictions for these examples, judged example by example: the evaluation of every engine."""
    return task.score(algorithm.predict(view, state, predictor(task, data.x)), data.y)


def channels_last(task: Task, x: Tensor) -> Tensor:
    """Images with the channels innermost, which makes convolutions a fifth faster.

    Not where a convolution has fewer than eight channels: there torch 2.13 writes out of bounds on the cpu.
    """
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 and task.prefers_channels_last else x
