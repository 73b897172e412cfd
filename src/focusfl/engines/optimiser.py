"""The optimisers of local training, as in torch.optim, for one model or for many stacked ones."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from focusfl.core.train import Train
from focusfl.models.task import Weights

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # Adam and AdamW
ALPHA = 0.99  # RMSprop


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
        kind, decay = self.train.optimiser, self.train.weight_decay
        for name, g in grad.items():
            v = w[name]
            if kind == "adamw":
                v.mul_(1 - self.lr * decay)
            elif decay:
                g = g + decay * v
            if kind in ("adam", "adamw"):
                first = self.first_moment.setdefault(name, torch.zeros_like(v)).lerp_(g, 1 - BETA1)
                deviation = (self._mean_square(name, g, BETA2) / (1 - BETA2**self.steps)).sqrt_().add_(EPS)
                v.addcdiv_(first, deviation, value=-self.lr / (1 - BETA1**self.steps))
                continue
            if kind == "rmsprop":
                g = g / self._mean_square(name, g, ALPHA).sqrt().add_(EPS)
            if self.train.momentum:
                before = self.first_moment.get(name)
                g = self.first_moment[name] = g if before is None else g + self.train.momentum * before
            v.sub_(g, alpha=self.lr)

    def _mean_square(self, name: str, g: Tensor, keep: float) -> Tensor:
        """Return the running mean of the squared gradient."""
        second = self.second_moment.setdefault(name, torch.zeros_like(g))
        return second.mul_(keep).addcmul_(g, g, value=1 - keep)
