"""Other constructions of an interval of FAA, to compare with: the limits of each, [2]."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.special import ndtr, ndtri

from focusfl.fairness import intervals

DRAWS = 1000
ENDS = torch.tensor([0.025, 0.975], dtype=torch.double)


def rivals(x: Tensor, s: Tensor, n: int, rng: torch.Generator) -> dict[str, Tensor]:
    """n: examples an agent. The bootstrap resamples means, which are normal."""
    z = s * torch.randn(DRAWS, len(x), generator=rng, dtype=torch.double)
    found = gap(x, x)

    def stepped(step: float) -> Tensor:
        """Noise of `step` times its size, the change scaled back."""
        return (gap(x + step * z, x + step * z) - found) / step

    once = stepped(1)
    lean = ndtri((once < 0).double().mean().clamp(1 / DRAWS, 1 - 1 / DRAWS))
    every = torch.arange(len(s))
    c = torch.quantile(intervals.steepest_noise(s, every, every, intervals.ROUGH_DRAWS), 0.95)
    top, low = intervals.tied(x, s, 0.95, (x.argmax(), x.argmin()))
    half = torch.quantile(intervals.steepest_noise(s, top, low), 0.975)
    widest = intervals.widest_pair(x, s, 1.96)[0]
    return {
        "percentile": found + torch.quantile(once, ENDS),
        "basic": found - torch.quantile(once, ENDS.flip(0)),
        "bias-corrected": found + torch.quantile(once, ndtr(2 * lean + ndtri(ENDS))),
        "m of n": found - torch.quantile(stepped(n ** (1 / 6)), ENDS.flip(0)),  # m = n^(2/3)
        "numerical delta": found - torch.quantile(stepped(n ** (1 / 4)), ENDS.flip(0)),  # Hong and Li, n^(-1/4)
        "bands": torch.stack([gap(x - c * s, x + c * s), gap(x + c * s, x - c * s)]),
        "ties, halves": torch.stack([gap(x - half * s, x + half * s), torch.tensor(widest)]),
    }


def gap(x: Tensor, y: Tensor) -> Tensor:
    return x.amax(-1) - y.amin(-1)
