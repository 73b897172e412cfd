"""One agent, with any network: its losses, its local training, its predictions.

The serial engine and the nodes of a Flower deployment use this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from focusfl.core import AgentPart, Data, Models, Predictor, SgdOptions
from focusfl.core.train import PLAIN, Train
from focusfl.core.tree import take, tree_map
from focusfl.engines import plan
from focusfl.engines.optimiser import LocalOptimiser
from focusfl.models.task import Task, Weights

EVAL_BATCH = 1000  # examples in one forward pass without gradients
ALIGNMENT = 64  # bytes


class LocalAgent:
    """Implements core.Agent for agent e in round t, on its own data.

    Args:
        task: The network and its loss.
        data: The agent's training examples.
        train: The options of local training.
        lr: The learning rate of this round.
        seed: The seed that batches are drawn with.
        t: The round.
        e: The agent's number.
        validation: The examples that it set aside, if there are any.
    """

    def __init__(
        self,
        task: Task,
        data: Data,
        train: Train,
        lr: float,
        seed: int,
        t: int,
        e: int,
        validation: Data | None = None,
    ) -> None:
        self.task, self.data, self.train, self.lr = task, aligned(data), train, lr
        self.validation = Data(data.x[:0], data.y[:0]) if validation is None else validation
        self.seed, self.t, self.e = seed, t, e
        self.trainable, self.log_loss = tuple(task.parameters), task.log_loss
        self.n = torch.tensor(float(len(data.y)), device=data.y.device)
        self.full_batches = train.batch is None or train.batch >= len(data.y)
        # Forward passes of the E step that the M step can begin with, by m: the stack, its leaves, the loss.
        self._passes: dict[int, tuple[Weights, Weights, Tensor]] = {}

    def on(self, part: AgentPart) -> LocalAgent:
        data = self.validation if part == "validation" else joined(self.data, self.validation)
        return LocalAgent(self.task, data, self.train, self.lr, self.seed, self.t, self.e)

    @cached_property
    def plain(self) -> LocalAgent:
        if self.train.optimiser == "sgd":
            return self
        return LocalAgent(self.task, self.data, PLAIN, PLAIN.lr_at(0, 1), self.seed, self.t, self.e)

    def losses(self, w: Models, estimate: Tensor | None = None) -> Tensor:
        tenth = plan.estimate_rows(self.t, len(self.data.y))
        sample = Data(self.data.x[tenth], self.data.y[tenth])
        estimated = [False] * len(next(iter(w.values()))) if estimate is None else estimate.tolist()
        return torch.stack([self._loss(w, m, sample if short else self.data) for m, short in enumerate(estimated)])

    def _loss(self, w: Models, m: int, data: Data) -> Tensor:
        """Return the mean loss of model m. With full batches, keep its graph: `sgd` begins with this pass."""
        if data is self.data and self.full_batches and self.task.stateless:
            self._passes[m] = (w, *self._training_loss(take(w, m), self._full_batch))
            return self._passes[m][2].detach()
        return self._example_losses(take(w, m), data).sum() / len(data.y)

    def example_losses(self, w: Models) -> Tensor:
        M = len(next(iter(w.values())))
        return torch.stack([self._example_losses(take(w, m), self.data) for m in range(M)])

    @torch.no_grad()
    def _example_losses(self, model: Weights, data: Data) -> Tensor:
        """Return the loss of one model on each example, [n]."""
        parts = zip(data.x.split(EVAL_BATCH), data.y.split(EVAL_BATCH), strict=True)
        return torch.cat(
            [self.task.example_losses(self.task.outputs(model, channels_last(self.task, x)), y) for x, y in parts]
        )

    def mean(self, values: Tensor) -> Tensor:
        return values.sum(-1) / self.n

    def class_counts(self) -> Tensor:
        return self.task.class_indicators(self.data.y).sum(0)

    def sgd(self, w: Models, **options: Unpack[SgdOptions]) -> Models:
        M, only = len(next(iter(w.values()))), options.get("only")
        theta = tree_map(lambda v: v.detach().clone(), w)
        with torch.random.fork_rng(devices=[], enabled=not self.task.stateless):
            if not self.task.stateless:  # dropout depends on (seed, t, e) alone
                torch.manual_seed(plan.dropout_seed(self.seed, self.t, self.e))
            for m in range(M) if only is None else only.nonzero().flatten().tolist():
                self._train(take(theta, m), w, m, options)
        self._passes = {}
        return theta

    def _train(self, model: Weights, w: Models, m: int, options: SgdOptions) -> None:
        """Take K local steps, in place, on `model`, which starts as w_m: eqs. 4-5."""
        pull, freeze, all_weights = options.get("pull"), options.get("freeze", ()), options.get("weights")
        weights = None if all_weights is None else all_weights[m]
        optimiser = LocalOptimiser(self.train, self.lr * options.get("rate", 1.0))
        reusable = weights is None and not freeze  # the E step's forward pass can serve as the first step's
        train = self.train.with_steps(options.get("steps"))
        for k, (batch, rows) in enumerate(self._batches(train)):
            if reusable and k == 0 and m in self._passes and self._passes[m][0] is w:
                _, leaves, loss = self._passes.pop(m)
            else:
                batch_weights = weights if weights is None or rows is None else weights[rows]
                leaves, loss = self._training_loss(model, batch, batch_weights, freeze)
            grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)  # 0 if not used
            grad = dict(zip(leaves, grads, strict=True))
            if pull is not None:
                grad = {p: g + pull.strength * (model[p] - pull.to[p][m]) for p, g in grad.items()}
            optimiser.step(model, grad)

    @cached_property
    def _full_batch(self) -> Data:
        """All examples, as a full-batch step takes them."""
        x, y = self.data
        return Data(x.bfloat16(), y) if self.task.bf16 and x.is_floating_point() else self.data

    def _batches(self, train: Train) -> Iterator[tuple[Data, Tensor | None]]:
        """Yield the examples of each step, and their rows; None for all rows."""
        n = len(self.data.y)
        if self.full_batches:
            yield from [(self._full_batch, None)] * plan.steps(train, n)
            return
        drawn = plan.batches(self.seed, self.t, np.array([self.e]), np.array([n]), train)
        steps = [drawn.step(0, k) for k in range(drawn.size.shape[1])]
        if any(len(rows) == 1 for rows in steps) and not self.task.accepts_one_example(self.data.x[:1]):
            steps = plan.merge_single_examples(steps)
        for rows in (torch.from_numpy(step).to(self.data.y.device) for step in steps):
            yield Data(self.data.x[rows], self.data.y[rows]), rows

    def _training_loss(
        self, model: Weights, batch: Data, weights: Tensor | None = None, freeze: Collection[str] = ()
    ) -> tuple[Weights, Tensor]:
        """Return the parameters that are trained, and the mean loss on a batch, with its graph."""
        with torch.enable_grad():
            leaves = {k: model[k].detach().requires_grad_() for k in self.task.parameters if k not in freeze}
            out = self.task.outputs({**model, **leaves}, channels_last(self.task, batch.x), train=True)
            losses = self.task.example_losses(out, batch.y)
            return leaves, (losses if weights is None else weights * losses).mean()


def aligned(data: Data) -> Data:
    """Return the examples at an address that matrix products are not sensitive to; a copy if they are elsewhere.

    MKL adds up in another order where a matrix does not begin at a multiple of ALIGNMENT bytes, as one agent's part
    of all examples may not. Then a run in one process would round differently from the same run across
    machines.
    """
    return data if data.x.data_ptr() % ALIGNMENT == 0 else Data(data.x.clone(), data.y)


def joined(a: Data, b: Data) -> Data:
    """Return the examples of both."""
    return Data(torch.cat([a.x, b.x]), torch.cat([a.y, b.y])) if len(b.y) else a


def predictor(task: Task, x: Tensor) -> Predictor:
    """Return the function h that predicts the examples x, model after model."""

    def h(w: Models, only: Tensor | None = None) -> Tensor:
        M, predictions = len(next(iter(w.values()))), {}
        for m in range(M) if only is None else only.nonzero().flatten().tolist():
            outputs = [task.outputs(take(w, m), channels_last(task, part)) for part in x.split(EVAL_BATCH)]
            predictions[m] = torch.cat([task.predictions(out) for out in outputs])
        like = next(iter(predictions.values()), None)
        skipped = torch.zeros_like(task.predictions(task.outputs(take(w, 0), x)) if like is None else like)
        return torch.stack([predictions.get(m, skipped) for m in range(M)])

    return h


def channels_last(task: Task, x: Tensor) -> Tensor:
    """Return images with the channels innermost, which makes convolutions a fifth faster.

    Convolutions with fewer than eight channels are left alone: torch 2.13 writes out of bounds for them on the cpu.
    """
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 and task.prefers_channels_last else x
