"""Local optimisers, as torch.optim has them, on tensors with any leading axes: one model or many at once."""

from __future__ import annotations

import torch
from torch import Tensor

from focusfl.core.train import Train
from focusfl.models.task import Weights

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # AdamW


class Optimiser:
    """Memory for one local training; `step` changes the weights in place."""

    def __init__(self, train: Train, lr: float) -> None:
        self.train, self.lr, self.k = train, lr, 0
        self.first: Weights = {}
        self.second: Weights = {}

    @torch.no_grad()
    def step(self, w: Weights, grad: Weights) -> None:
        self.k += 1
        rule = self._adamw if self.train.optimiser == "adamw" else self._sgd
        for name, g in grad.items():
            rule(name, w[name], g)

    def _sgd(self, name: str, w: Tensor, g: Tensor) -> None:
        if self.train.weight_decay:
            g = g + self.train.weight_decay * w
        if self.train.momentum:
            g = self.first[name] = g + self.train.momentum * self.first[name] if name in self.first else g
        w.sub_(g, alpha=self.lr)

    def _adamw(self, name: str, w: Tensor, g: Tensor) -> None:
        m = self.first.setdefault(name, torch.zeros_like(w)).lerp_(g, 1 - BETA1)
        v = self.second.setdefault(name, torch.zeros_like(w)).mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
        w.mul_(1 - self.lr * self.train.weight_decay)
        spread = (v / (1 - BETA2**self.k)).sqrt_().add_(EPS)
        w.addcdiv_(m, spread, value=-self.lr / (1 - BETA1**self.k))
