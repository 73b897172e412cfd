"""Pruning: an agent skips models that its label makes unimportant. This saves nearly all of the work of M > 1.

A model with a label of at most `prune` is not trained. A model whose label is smaller still, by e^20, cannot
matter for many rounds, so its loss is only estimated, on a tenth of the examples. An estimate can be too low.
Therefore it raises a label at most to just above that limit; the next round then computes the loss on all
examples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

ESTIMATE_MARGIN = 20.0  # the loss of a model is estimated if its log label is this far below log(prune)


@dataclass(frozen=True)
class Pruning:
    """Handles models whose loss is only estimated.

    Args:
        limit: The log label below which a loss is estimated.
    """

    limit: float

    def limit_rise(self, before: Tensor, after: Tensor) -> Tensor:
        """Return the log labels after the E step, with those from estimates limited to just above the limit."""
        estimated = before < self.limit
        others = torch.where(estimated, -math.inf, after).logsumexp(-1, keepdim=True)
        limited = torch.where(estimated, after.minimum(others + self.limit + 1), after)
        return torch.where(estimated.any(-1, keepdim=True), torch.log_softmax(limited, dim=-1), after)
