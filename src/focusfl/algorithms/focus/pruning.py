"""Models that an agent skips because its label for them is tiny: this saves nearly all of the work of M > 1.

A model with label at most `prune` is not trained. One whose label is smaller still, by e^20, is many rounds away
from
mattering: its loss is estimated on a tenth of the examples. An estimate may be too good, so it can lift a
    label only to just above that line; the next round then judges the model on all examples.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FAR = 20.0  # nats below `prune` from which on a loss is only estimated


class Pruning:
    """Which models are judged roughly; with prune = 0, none."""

    def __init__(self, prune: float) -> None:
        self.limit = math.log(prune) - FAR if prune else -math.inf

    def far(self, log_pi: Tensor) -> Tensor:
        """[M] bool: the models whose loss may be estimated."""
        return log_pi < self.limit

    def hold(self, before: Tensor, after: Tensor) -> Tensor:
        """Labels after the E step, where those judged roughly come back to just above the limit at most."""
        far = self.far(before)
        others = torch.where(far, -math.inf, after).logsumexp(-1, keepdim=True)
        held = torch.log_softmax(torch.where(far, after.minimum(others + self.limit + 1), after), dim=-1)
        return torch.where(far.any(-1, keepdim=True), held, after)
