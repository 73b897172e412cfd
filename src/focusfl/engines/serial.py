"""Serial: agent after agent, model after model. Any network; skips what `only` rules out."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from focusfl.core import Algorithm, Data, Models, Predictor, Pull, State, one_hot
from focusfl.core.train import Train
from focusfl.core.tree import Total, put, take, tree_map
from focusfl.engines import plan
from focusfl.engines.base import Answers, Engine, Scores
from focusfl.engines.optimiser import Optimiser
from focusfl.models.task import Task, Weights

EVAL_ROWS = 1000  # examples in one forward pass where no gradient is needed


class Serial(Engine):
    """One agent at a time."""

    name: ClassVar[str] = "serial"

    def round(self, algorithm: Algorithm, server: State, states: State, t: int, cohort: plan.Ints) -> Answers:
        total, rows = Total(), []
        lr = self.train.lr_at(t, self.rounds)
        for e in cohort.tolist():
            agent = SerialAgent(self.task, self.fed.train(e), self.train, lr, self.seed, t, e)
            view = algorithm.downlink(server, torch.tensor(e))
            state, upload = algorithm.local(view, take(states, e), agent)
            put(states, e, state)
            total.add(upload.add)
            rows.append(upload.each)
            del upload, state  # summed as they come: the next agent's need the room
        each = tree_map(lambda *vs: torch.stack(vs), *rows)
        return Answers(total.result(), each, cohort)

    @torch.no_grad()
    def evaluate(self, algorithm: Algorithm, server: State, states: State) -> Scores:
        loss, right = [], []
        for e in range(self.fed.E):
            x, y = self.fed.test(e)
            view = algorithm.downlink(server, torch.tensor(e))
            p = algorithm.predict(view, take(states, e), predictor(self.task, x))
            score = self.task.score(p, y)
            loss.append(score.loss.mean())
            right.append(score.correct.mean())
        return Scores(torch.stack(loss), None if self.task.classes is None else torch.stack(right))


class SerialAgent:
    """core.Agent for agent e in round t."""

    def __init__(self, task: Task, data: Data, train: Train, lr: float, seed: int, t: int, e: int) -> None:
        self.task, self.data, self.train, self.lr = task, data, train, lr
        self.seed, self.t, self.e = seed, t, e
        self.learnt = tuple(task.parameters)
        self.n = torch.tensor(float(len(data.y)), device=data.y.device)
        self.full = plan.full(train, np.array([len(data.y)]))
        self._passes: dict[int, tuple[Weights, Weights, Tensor]] = {}  # m: stack asked for, leaves, loss

    def losses(self, w: Models, rough: Tensor | None = None) -> Tensor:
        some = plan.rough(self.t, len(self.data.y))
        few = Data(self.data.x[some], self.data.y[some])
        roughly = [False] * len(next(iter(w.values()))) if rough is None else rough.tolist()
        return torch.stack([self._loss(w, m, few if r else self.data) for m, r in enumerate(roughly)])

    def _loss(self, w: Models, m: int, data: Data) -> Tensor:
        if data is self.data and self.full and self.task.stateless:  # keep the graph: `sgd` begins with this pass
            self._passes[m] = self._forward(w, m)
            return self._passes[m][2].detach()
        return self._each(take(w, m), data).sum() / len(data.y)

    def example_losses(self, w: Models) -> Tensor:
        return torch.stack([self._each(take(w, m), self.data) for m in range(len(next(iter(w.values()))))])

    @torch.no_grad()
    def _each(self, model: Weights, data: Data) -> Tensor:
        """Loss on each example, [n]."""
        parts = zip(data.x.split(EVAL_ROWS), data.y.split(EVAL_ROWS), strict=True)
        return torch.cat(
            [self.task.example_losses(self.task.outputs(model, laid(self.task, x)), y) for x, y in parts]
        )

    def mean(self, values: Tensor) -> Tensor:
        return values.sum(-1) / self.n

    def class_counts(self) -> Tensor:
        assert self.task.classes is not None
        return one_hot(self.data.y, self.task.classes).sum(0)

    def sgd(
        self,
        w: Models,
        pull: Pull | None = None,
        only: Tensor | None = None,
        weights: Tensor | None = None,
        freeze: Collection[str] = (),
    ) -> Models:
        M = len(next(iter(w.values())))
        kept = range(M) if only is None else only.nonzero().flatten().tolist()
        theta = tree_map(lambda v: v.detach().clone(), w)
        with torch.random.fork_rng(devices=[], enabled=not self.task.stateless):  # dropout: from (seed, t, e) alone
            if not self.task.stateless:
                torch.manual_seed(plan.draw(self.seed, self.t, self.e))
            for m in kept:
                self._descend(take(theta, m), w, m, pull, None if weights is None else weights[m], freeze)
        self._passes = {}
        return theta

    def _descend(
        self,
        model: Weights,
        w: Models,
        m: int,
        pull: Pull | None,
        weights: Tensor | None,
        freeze: Collection[str],
    ) -> None:
        """K local steps, in place, on the model, which is w_m to begin with: eqs. 4-5."""
        optimiser = Optimiser(self.train, self.lr)
        fresh = weights is None and not freeze  # then the E step's pass will do for the first step
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

    def _forward(self, w: Models, m: int) -> tuple[Weights, Weights, Tensor]:
        leaves, loss = self._training_loss(take(w, m), self._whole)
        return w, leaves, loss

    def _training_loss(
        self, model: Weights, batch: Data, weights: Tensor | None = None, freeze: Collection[str] = ()
    ) -> tuple[Weights, Tensor]:
        """The mean loss on a batch, with its graph, and the parameters it depends on."""
        with torch.enable_grad():
            leaves = {k: model[k].detach().requires_grad_() for k in self.task.parameters if k not in freeze}
            out = self.task.outputs({**model, **leaves}, laid(self.task, batch.x), train=True)
            losses = self.task.example_losses(out, batch.y)
            return leaves, (losses if weights is None else weights * losses).mean()


def predictor(task: Task, x: Tensor) -> Predictor:
    """h of the examples x, model after model."""

    def h(w: Models, only: Tensor | None = None) -> Tensor:
        def one(model: Weights) -> Tensor:
            return torch.cat(
                [task.predictions(task.outputs(model, laid(task, part))) for part in x.split(EVAL_ROWS)]
            )

        M = len(next(iter(w.values())))
        said = {m: one(take(w, m)) for m in (range(M) if only is None else only.nonzero().flatten().tolist())}
        nothing = torch.zeros_like(next(iter(said.values())))
        return torch.stack([said.get(m, nothing) for m in range(M)])

    return h


def laid(task: Task, x: Tensor) -> Tensor:
    """Images with the channels innermost: convolutions are a fifth faster so.

    Not where a convolution has fewer than eight channels: there torch 2.13 writes out of bounds on the cpu.
    """
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 and task.prefers_channels_last else x
