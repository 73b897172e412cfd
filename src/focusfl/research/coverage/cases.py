"""Cases in which FAA is known: every agent's test examples are drawn from a distribution of known mean."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor
from torch.special import ndtr, ndtri

from focusfl.fairness.examples import Examples

N = 1000  # test examples an agent
WRONG, RIGHT, SHARE = (
    2.0,
    0.05,
    0.05,
)  # losses of a classifier: mean where it is wrong, where right; how often wrong


def gaussian(risk: Tensor, z: Tensor) -> Tensor:
    """Examples of mean `risk` [n] from standard normal numbers z [n]."""
    return risk + z


def squared(risk: Tensor, z: Tensor) -> Tensor:
    """Squared errors of a linear model, as on synthetic data, less the best loss, 1."""
    return (1 + risk) * z.square() - 1


def rare(risk: Tensor, z: Tensor) -> Tensor:
    """Losses of a good classifier: few examples are wrong, and cost much. Standard deviation 1, skewness 9."""
    u = ndtr(z)
    each = torch.where(u < SHARE, -WRONG * (u / SHARE).log(), -RIGHT * ((u - SHARE) / (1 - SHARE)).log())
    centre = SHARE * WRONG + (1 - SHARE) * RIGHT
    return risk + (each - centre) / sqrt(2 * SHARE * WRONG**2 + 2 * (1 - SHARE) * RIGHT**2 - centre**2)


class Case(NamedTuple):
    risk: Tensor  # [E], in standard errors of a mean of N examples of standard deviation 1
    kind: Callable[[Tensor, Tensor], Tensor] = gaussian
    sizes: Tensor | None = None  # [E] test examples; None: N each

    @property
    def at(self) -> Tensor:
        n = torch.full((len(self.risk),), N) if self.sizes is None else self.sizes
        return torch.cat([torch.zeros(1, dtype=torch.long), n.cumsum(0)])

    def noise(self, rng: torch.Generator) -> Tensor:
        return torch.randn(int(self.at[-1]), generator=rng, dtype=torch.double)

    def examples(self, z: Tensor) -> Examples:
        risk = self.risk.double() / sqrt(N)
        return Examples(self.kind(risk.repeat_interleave(self.at.diff()), z), self.at)


def groups(*each: tuple[int, float]) -> Tensor:
    """So many agents with such a risk."""
    return torch.cat([torch.full((n,), float(risk)) for n, risk in each])


UNEQUAL = torch.tensor([150, 1300, 50, 340, 2000, 75, 510, 110, 800, 220])
NORMAL = ndtri((torch.arange(100) + 0.5) / 100)
CASES = {
    "10 agents, 10 apart": Case(10.0 * torch.arange(10)),
    "10 equal": Case(groups((10, 0))),
    "9 and 1, 20 apart": Case(groups((9, 0), (1, 20))),
    "7 and 3, 10 apart": Case(groups((7, 0), (3, 10))),
    "7, 2 and 1, 5 apart": Case(groups((7, 0), (2, 5), (1, 10))),
    "10 agents, 1 apart": Case(1.0 * torch.arange(10)),
    "100 equal": Case(groups((100, 0))),
    "70 and 30, 10 apart": Case(groups((70, 0), (30, 10))),
    "70, 20 and 10, 10 apart": Case(groups((70, 0), (20, 10), (10, 20))),
    "100 of N(0, 10^2)": Case(10 * NORMAL),
    "100 of N(0, 3^2)": Case(3 * NORMAL),
    "squared errors, 10 equal": Case(groups((10, 0)), squared),
    "squared errors, 9 and 1": Case(sqrt(N) * groups((9, 1), (1, 81)), squared),  # FedAvg on synthetic data
    "rare errors, 10 equal": Case(groups((10, 0)), rare),
    "rare errors, 7 and 3": Case(groups((7, 0), (3, 10)), rare),
    "7 and 3, 50 to 2,000 examples": Case(groups((7, 0), (3, 10)), sizes=UNEQUAL),
}
PAIRS = {  # two methods on the same examples
    "apart - apart": (Case(10.0 * torch.arange(10)), Case(10.0 * torch.arange(10))),
    "apart - apart, the other way": (Case(10.0 * torch.arange(10)), Case(-10.0 * torch.arange(10))),
    "9 and 1 - equal": (Case(groups((9, 0), (1, 20))), Case(groups((10, 0)))),
    "9 and 1, 24 apart - 9 and 1, 20 apart": (Case(groups((9, 0), (1, 24))), Case(groups((9, 0), (1, 20)))),
    "7 and 3 - 7 and 3": (Case(groups((7, 0), (3, 10))), Case(groups((7, 0), (3, 10)))),
    "equal - equal": (Case(groups((10, 0))), Case(groups((10, 0)))),
    "1 apart - equal": (Case(1.0 * torch.arange(10)), Case(groups((10, 0)))),
}
