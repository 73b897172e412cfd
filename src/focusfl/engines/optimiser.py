"""The optimiser of local training: SGD and AdamW, as in torch.optim, for one model or for many stacked ones."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from focusfl.core.train import Train
from focusfl.models.task import Weights

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # AdamW


@dataclass
class LocalOptimiser:
    """The optimiser of one local training, with its memory.

    Args:
        train: The options of local training.
        lr: The learning rate of this round.
    """

    train: Train
    lr: float
    steps: int = 0
    first_moment: Weights = field(default_factory=dict)  # of SGD: the momentum
    second_moment: Weights = field(default_factory=dict)

    @torch.no_grad()
    def step(self, w: Weights, grad: Weights) -> None:
        """Take one step, in place. The tensors may have any leading axes."""
        self.steps += 1
        for name, g in grad.items():
            v = w[name]
            if self.train.optimiser == "adamw":
                first = self.first_moment.setdefault(name, torch.zeros_like(v)).lerp_(g, 1 - BETA1)
                second = self.second_moment.setdefault(name, torch.zeros_like(v))
                second.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
                v.mul_(1 - self.lr * self.train.weight_decay)
                deviation = (second / (1 - BETA2**self.steps)).sqrt_().add_(EPS)
                v.addcdiv_(first, deviation, value=-self.lr / (1 - BETA1**self.steps))
                continue
            if self.train.weight_decay:
                g = g + self.train.weight_decay * v
            if self.train.momentum:
                before = self.first_moment.get(name)
                g = self.first_moment[name] = g if before is None else g + self.train.momentum * before
            v.sub_(g, alpha=self.lr)
