"""Problems for which every number in theorems 1 to 4 is known, and FOCUS and FedAvg on them.

The agents are linear, logistic with a ridge term, or coins. The moments of an agent's sample are exactly those of
its population, so no result depends on chance unless a random sample is requested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from focusfl.algorithms.fedavg import FedAvg
from focusfl.algorithms.focus.focus import Focus
from focusfl.core import Agent, Data, Networks, State, Upload, vector
from focusfl.core.train import Train
from focusfl.data.federation import Federation, Recipe, Rows
from focusfl.models import linear
from focusfl.research.theory.convergence import separation
from focusfl.run.loop import run
from focusfl.run.setup import Setup

Placement = Literal["random", "pairs", "aside", "apart"]


@dataclass(frozen=True)
class Problem:
    """E agents in M clusters, in double precision. The last agent is an outlier."""

    fed: Federation
    optima: Tensor  # [E, d] theta_e*; for linear agents mu_e
    clusters: Tensor  # [E]
    centres: Tensor  # [M, d] w_m*
    mu: float  # each L_e is mu-strongly convex and L-smooth
    L: float
    excess: Callable[[Tensor], Tensor]  # one model per agent [E, d] -> their excess risks [E]
    ridge: float = 0.0  # lam in lam/2 ||w||^2
    total_variation: float = 0.0  # r of theorem 4: the largest distance of two agents that are not outliers
    G: float = math.inf  # the largest loss of an example under any theta_e*
    sampled: bool = False  # whether the agents have random samples

    @property
    def R(self) -> float:
        """The smallest distance of two centres."""
        return separation(self.centres)

    @property
    def r(self) -> float:
        """The largest distance of an optimum from its centre."""
        return float((self.optima - self.centres[self.clusters]).norm(dim=1).max())

    @property
    def sizes(self) -> list[int]:
        """gamma_m = |S_m|, the number of agents in each cluster."""
        return self.clusters.bincount().tolist()

    @property
    def outlier_gap(self) -> float:
        """R of theorem 4: min over e in S_1 of L_E(theta_e*) - L_E(theta_E*)."""
        others = self.optima[self.clusters == 0]
        return min(float(self.excess(theta.expand_as(self.optima))[-1]) for theta in others)


def linear_problem(
    E: int = 10,
    outliers: int = 1,
    R: float = 1.0,
    r: float = 0.1,
    delta: float = 1.0,
    placement: Placement = "random",
    sample: int | None = None,
    d: int = 4,
    sigma: float = 0.1,
    seed: int = 0,
) -> Problem:
    """Return linear agents, y = mu_e^T x + noise, around mu* = 0 and outliers around a second centre.

    Args:
        E: the number of agents.
        outliers: how many of them, at the end, are outliers.
        R: the distance of the second centre from mu*, along the first axis.
        r: the largest distance of a mu_e from its centre.
        delta: the standard deviation of each feature.
        placement: where the mu_e are, see `offsets`.
        sample: the number of random examples per agent. With None, X^T X / n = delta^2 I and X^T noise = 0 exactly.
        d: the number of features.
        sigma: the standard deviation of the noise.
        seed: the seed of everything random.
    """
    rng = torch.Generator().manual_seed(seed)
    clusters = torch.tensor([0] * (E - outliers) + [1] * outliers)
    centres = R * torch.eye(d, dtype=torch.float64)[0] * torch.tensor([[0.0], [1.0]])
    mus = centres[clusters] + r * offsets(placement, E, outliers, d, rng)
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


def offsets(placement: Placement, E: int, outliers: int, d: int, rng: torch.Generator) -> Tensor:
    """Return mu_e minus its centre, for r = 1, [E, d].

    random  anywhere in the ball; for outliers orthogonal to the first axis, so that they are at least R from mu*
    pairs   half of the agents at +1 and half at -1 on the second axis, so that mu* is their mean
    aside   all agents at 1 on the first axis, towards the outliers
    apart   one agent at +1 on the second axis, all others at -1

    Except for "random", outliers are at their centre.
    """
    G = E - outliers
    if placement == "random":
        steps = torch.randn(E, d, generator=rng, dtype=torch.float64)
        steps[G:, 0] = 0
        radius = torch.rand(E, 1, generator=rng) ** (1 / d)
        return torch.as_tensor(steps / steps.norm(dim=1, keepdim=True) * radius)
    steps = torch.zeros(E, d, dtype=torch.float64)
    if placement == "aside":
        steps[:G, 0] = 1
    elif placement == "apart":
        steps[:G, 1] = -1
        steps[0, 1] = 1
    else:
        steps[: G // 2, 1] = 1
        steps[G // 2 : G // 2 * 2, 1] = -1  # if their number is odd, the last one stays at mu*
    return steps


def logistic_problem(
    E: int = 10, outliers: int = 1, r: float = 0.0, ridge: float = 0.25, d: int = 3, n: int = 1000, seed: int = 0
) -> Problem:
    """Return agents with labels 0 and 1 and the loss ln(1 + e^z) - y z + ridge/2 ||w||^2, where z = w^T x.

    All agents have the same x. Each agent has r n / 2 flipped labels that no other agent has flipped, so the total
    variation distance of two agents is r. In addition, all labels of the outliers are flipped.

    Raises:
        ValueError: there are not enough labels to flip.
    """
    rng = torch.Generator().manual_seed(seed)
    x = torch.linalg.qr(torch.randn(n, d, generator=rng, dtype=torch.float64))[0] * math.sqrt(n)  # X^T X / n = I
    y = (torch.rand(n, generator=rng) < torch.sigmoid(3 * x[:, 0])).double().repeat(E, 1)
    order, flipped = torch.randperm(n, generator=rng), round(r * n / 2)
    if E * flipped > n:
        raise ValueError(f"E = {E}, r = {r}: E r / 2 must be at most 1")
    for e in range(E):
        rows = order[e * flipped : (e + 1) * flipped]
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
    fed = _federation(agents, 2, clusters, nn.Sequential(linear(d), LogitPair()))
    L = ridge + 0.25  # e^z / (1 + e^z)^2 <= 1/4
    G = float(worst.max())
    return Problem(fed, optima, clusters, centres, ridge, L, lambda w: losses(w) - best, ridge, r, G)


def coin_problem(heads: Sequence[int], tosses: int = 20, size: float = 1.0) -> Problem:
    """Return agents with coins: agent e has seen heads heads[e] times. The loss is size^2 (w - [heads])^2.

    For w in [0, 1] the loss is at most size^2. The last agent is the outlier.
    """
    q = torch.tensor(heads, dtype=torch.float64) / tosses
    clusters = torch.tensor([0] * (len(heads) - 1) + [1])
    y = torch.stack([(torch.arange(tosses) < h).float() for h in heads])
    fed = _federation([Data(torch.full((tosses, 1), size), size * row) for row in y], None, clusters, linear(1))
    centres = torch.stack([q[:-1].mean(), q[-1]])[:, None]
    total_variation = float(q[:-1].max() - q[:-1].min())
    mu, G = 2 * size**2, size**2

    def excess(w: Tensor) -> Tensor:
        return G * (w[:, 0] - q) ** 2

    return Problem(fed, q[:, None], clusters, centres, mu, mu, excess, total_variation=total_variation, G=G)


class LogitPair(nn.Module):
    """Turns one logit z into the logits 0 and z of two classes."""

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(z), z], -1)


def _newton(x: Tensor, y: Tensor, ridge: float) -> Tensor:
    """The agents' optima theta_e*, [E, d], by Newton's method."""
    n, d = x.shape
    w = torch.zeros(len(y), d, dtype=x.dtype)
    for _ in range(30):
        p = torch.sigmoid(w @ x.T)
        gradient = (p - y) @ x / n + ridge * w
        hessian = torch.einsum("en,ni,nj->eij", p * (1 - p), x, x) / n + ridge * torch.eye(d, dtype=x.dtype)
        w = w - torch.linalg.solve(hessian, gradient)
    return w


def _federation(agents: list[Data], classes: int | None, clusters: Tensor, model: nn.Module) -> Federation:
    rows = Rows.join(agents)
    return Federation("theory", rows, rows, classes, clusters, recipe=Recipe(model=lambda: model))


@dataclass(frozen=True)
class FocusFrom(Focus):
    """FOCUS that starts from the given weights. Its E step includes the ridge term, as its M step does."""

    first_weights: Tensor = field(default_factory=lambda: torch.zeros(0))  # [M, d]
    ridge: float = 0.0

    def start(self, networks: Networks, E: int) -> State:
        w = networks.copies(len(self.first_weights))
        return {"w": {k: self.first_weights.reshape(v.shape).to(v) for k, v in w.items()}}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        ridge = self.ridge / 2 * vector(server["w"]).square().sum(1)  # pi exp(-loss - ridge)
        return super().local(server, {"log_pi": state["log_pi"] - ridge}, agent)


def run_focus(
    problem: Problem, first_weights: Tensor, eta: float, K: int, T: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Run FOCUS from the given weights; yield the models [M, d] and the log labels [E, M] after each round."""
    M = len(first_weights)
    algorithm = FocusFrom(M=M, init="tied", prune=0.0, first_weights=first_weights, ridge=problem.ridge)
    for done in run(_setup(algorithm, problem, eta, K, T), eval_every=0):
        yield vector(done.server["w"]).double(), done.states["log_pi"].double().clone()


def run_fedavg(problem: Problem, eta: float, K: int, T: int) -> Tensor:
    """Run FedAvg; return the model after T rounds, [d]."""
    *_, last = run(_setup(FedAvg(), problem, eta, K, T), eval_every=0)
    return vector(last.server["w"])[0].double()


def least_log_odds(problem: Problem, log_pi: Tensor) -> float:
    """Return the least confident agent's log-odds: min over e of ln(pi_em / (1 - pi_em)), e in S_m."""
    own = torch.nn.functional.one_hot(problem.clusters, log_pi.shape[1]).bool()
    return float((log_pi[own] - log_pi.masked_fill(own, -torch.inf).logsumexp(1)).min())


def natural_start(problem: Problem, delta0: float, sideways: bool = False) -> Tensor:
    """Return first weights with the slack delta0, [M, d].

    Every model is displaced from its centre towards the next centre. With `sideways` the coordinates of that
    direction are rolled by one, which for linear problems is at right angles to it.
    """
    a, b = problem.mu**0.5, problem.L**0.5
    distance = problem.R * a / (a + b) - problem.r - delta0
    direction = problem.centres.roll(-1, 0) - problem.centres
    if sideways:
        direction = direction.roll(1, 1)
    return torch.as_tensor(problem.centres + distance * direction / direction.norm(dim=1, keepdim=True))


def _setup(algorithm: Focus | FedAvg, problem: Problem, eta: float, K: int, T: int) -> Setup:
    train = Train(lr=eta, steps=K, weight_decay=problem.ridge)
    return Setup.of(algorithm, problem.fed, T, train=train, engine="vectorised")
