"""Agents of whom every number in theorems 1 to 4 is known: linear, logistic with ridge, and tossed coins.

A sample is its agent's population: its moments are exact, so chance has no part but where it is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from focusfl.core import Data
from focusfl.data.federation import Federation, Recipe, Rows
from focusfl.models import linear
from focusfl.research.theory.convergence import separation

Where = Literal["random", "pairs", "aside", "apart"]


@dataclass(frozen=True)
class Problem:
    """E agents in M clusters; the last agent is an outlier. All in double precision."""

    fed: Federation
    optima: Tensor  # [E, d] theta_e*, mu_e of linear agents
    clusters: Tensor  # [E]
    centres: Tensor  # [M, d] w_m*
    mu: float  # each L_e is mu-strongly convex and L-smooth
    L: float
    excess: Callable[[Tensor], Tensor]  # models of the agents [E, d] -> excess risks [E]
    ridge: float = 0.0  # lam of lam/2 ||w||^2
    tv: float = 0.0  # r of theorem 4, largest total variation distance of agents that are no outliers
    G: float = math.inf  # largest loss of an example under any theta_e*
    sampled: bool = False  # the samples' moments are not the populations'

    @property
    def R(self) -> float:
        return separation(self.centres)

    @property
    def r(self) -> float:
        return float((self.optima - self.centres[self.clusters]).norm(dim=1).max())

    @property
    def sizes(self) -> list[int]:
        """gamma_m = |S_m|."""
        return self.clusters.bincount().tolist()

    @property
    def gap(self) -> float:
        """R of theorem 4: min over e in S_1 of L_E(theta_e*) - L_E(theta_E*)."""
        others = self.optima[self.clusters == 0]
        return min(float(self.excess(theta.expand_as(self.optima))[-1]) for theta in others)


def linear_problem(
    E: int = 10,
    outliers: int = 1,
    R: float = 1.0,
    r: float = 0.1,
    delta: float = 1.0,
    where: Where = "random",
    sample: int | None = None,
    d: int = 4,
    sigma: float = 0.1,
    seed: int = 0,
) -> Problem:
    """y = mu_e^T x + noise; the last agents are outliers around a second centre, R from mu* = 0 on the first axis.

    where   see `placed`
    sample  None: X^T X / n = delta^2 I and X^T noise = 0, exactly; else so many random examples an agent
    """
    rng = torch.Generator().manual_seed(seed)
    clusters = torch.tensor([0] * (E - outliers) + [1] * outliers)
    centres = R * torch.eye(d, dtype=torch.float64)[0] * torch.tensor([[0.0], [1.0]])
    mus = centres[clusters] + r * placed(where, E, outliers, d, rng)
    agents, n = [], sample or 2 * (d + 1)
    for mu in mus:
        draws = torch.randn(n, d + 1, generator=rng, dtype=torch.float64)
        draws = draws if sample else torch.linalg.qr(draws)[0] * math.sqrt(n)
        x = delta * draws[:, :-1]
        agents.append(Data(x.float(), (x @ mu + sigma * draws[:, -1]).float()))

    def excess(w: Tensor) -> Tensor:
        return delta**2 * (w - mus).square().sum(1)

    fed = _federation(agents, None, clusters, linear(d))
    return Problem(fed, mus, clusters, centres, 2 * delta**2, 2 * delta**2, excess, sampled=sample is not None)


def placed(where: Where, E: int, outliers: int, d: int, rng: torch.Generator) -> Tensor:
    """mu_e less its centre, for r = 1, [E, d].

    random  anywhere in the ball; outliers only across, so that they are R or more from mu*
    pairs   at +1 and -1 across: mu* is the mean. In the other two it is not, and outliers sit at their centre too
    aside   all 1 aside, towards the outliers
    apart   one at +1 across, all others at -1
    """
    G = E - outliers
    if where == "random":
        steps = torch.randn(E, d, generator=rng, dtype=torch.float64)
        steps[G:, 0] = 0
        radius = torch.rand(E, 1, generator=rng) ** (1 / d)
        return torch.as_tensor(steps / steps.norm(dim=1, keepdim=True) * radius)
    steps = torch.zeros(E, d, dtype=torch.float64)
    if where == "aside":
        steps[:G, 0] = 1
    elif where == "apart":
        steps[:G, 1] = -1
        steps[0, 1] = 1
    else:
        steps[: G // 2, 1] = 1
        steps[G // 2 : G // 2 * 2, 1] = -1  # of an odd number the last stays at mu*
    return steps


def logistic_problem(
    E: int = 10, outliers: int = 1, r: float = 0.0, ridge: float = 0.25, d: int = 3, n: int = 1000, seed: int = 0
) -> Problem:
    """Labels 0 and 1, loss ln(1 + e^z) - y z + ridge/2 ||w||^2, z = w^T x.

    All agents have the same x. Each has r n / 2 labels of its own turned round, so two are r apart in total
    variation, and the outliers have all of them turned round.
    """
    rng = torch.Generator().manual_seed(seed)
    x = torch.linalg.qr(torch.randn(n, d, generator=rng, dtype=torch.float64))[0] * math.sqrt(n)  # X^T X / n = I
    y = (torch.rand(n, generator=rng) < torch.sigmoid(3 * x[:, 0])).double().repeat(E, 1)
    own, turned = torch.randperm(n, generator=rng), round(r * n / 2)
    if E * turned > n:
        raise ValueError(f"E = {E}, r = {r}: E r / 2 must be at most 1")
    for e in range(E):
        rows = own[e * turned : (e + 1) * turned]
        y[e, rows] = 1 - y[e, rows]
    y[E - outliers :] = 1 - y[E - outliers :]
    clusters = torch.tensor([0] * (E - outliers) + [1] * outliers)

    def losses(w: Tensor) -> Tensor:
        z = w @ x.T  # [E, n]
        return torch.as_tensor((softplus(z) - y * z).mean(1) + ridge / 2 * w.square().sum(1))

    optima = _newton(x, y, ridge)
    best = losses(optima)
    centres = torch.stack([optima[clusters == m].mean(0) for m in (0, 1)])
    worst = softplus((optima @ x.T).abs()).max(1).values + ridge / 2 * optima.square().sum(1)
    agents = [Data(x.float(), row.long()) for row in y]
    fed = _federation(agents, 2, clusters, nn.Sequential(linear(d), AgainstZero()))
    L = ridge + 0.25  # e^z / (1 + e^z)^2 <= 1/4
    G = float(worst.max())
    return Problem(fed, optima, clusters, centres, ridge, L, lambda w: losses(w) - best, ridge, r, G)


def coin_problem(heads: Sequence[int], tosses: int = 20, size: float = 1.0) -> Problem:
    """Agent e's coin showed heads[e] times heads; the loss size^2 (w - [heads])^2 is at most size^2 on [0, 1]."""
    q = torch.tensor(heads, dtype=torch.float64) / tosses
    clusters = torch.tensor([0] * (len(heads) - 1) + [1])
    y = torch.stack([(torch.arange(tosses) < h).float() for h in heads])
    fed = _federation([Data(torch.full((tosses, 1), size), size * row) for row in y], None, clusters, linear(1))
    centres = torch.stack([q[:-1].mean(), q[-1]])[:, None]
    tv = float(q[:-1].max() - q[:-1].min())
    mu, G = 2 * size**2, size**2
    return Problem(fed, q[:, None], clusters, centres, mu, mu, lambda w: G * (w[:, 0] - q) ** 2, tv=tv, G=G)


class AgainstZero(nn.Module):
    """One logit z -> two, 0 and z."""

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(z), z], -1)


def _newton(x: Tensor, y: Tensor, ridge: float) -> Tensor:
    """The agents' own optima theta_e*, [E, d]."""
    n, d = x.shape
    w = torch.zeros(len(y), d, dtype=x.dtype)
    for _ in range(30):
        p = torch.sigmoid(w @ x.T)
        slope = (p - y) @ x / n + ridge * w
        curve = torch.einsum("en,ni,nj->eij", p * (1 - p), x, x) / n + ridge * torch.eye(d, dtype=x.dtype)
        w = w - torch.linalg.solve(curve, slope)
    return w


def _federation(agents: list[Data], classes: int | None, clusters: Tensor, model: nn.Module) -> Federation:
    rows = Rows.join(agents)
    return Federation("theory", rows, rows, classes, clusters, recipe=Recipe(model=lambda: model))
