"""Theorems 1 and 2 of the paper, which say that FOCUS converges, as functions. docs/theory.md has the proofs.

A function whose name ends in `_printed` is the paper's formula. Where that formula does not hold, the function
without the suffix is a corrected one. The arguments are the paper's symbols:

    E, M, K, T  agents, clusters, local steps per round, rounds
    R, r        the smallest distance of two centres w_m*; the largest of an agent's optimum from its centre
    delta0      Delta_0, how much closer than necessary the first models are to their centres
    gamma       gamma_m = |S_m|, the number of agents in cluster m
    mu, L       strong convexity and smoothness of the agents' losses
    eta         the learning rate

Theorem 1 is theorem 2 with mu = L = 2 delta^2, the curvature of the linear agents' loss delta^2 ||w - mu_e||^2 +
sigma^2, so the functions take mu and L.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Bound(NamedTuple):
    """The value of a bound, and why it says nothing; `why` is empty if the bound applies."""

    value: float
    why: str = ""


def separation(centres: Tensor) -> float:
    """Return R, the smallest distance of two centres: min over m != m' of ||w_m* - w_m'*||.

    >>> separation(torch.tensor([[0.0, 0.0], [3.0, 4.0], [9.0, 0.0]]))
    5.0
    """
    return float(torch.nn.functional.pdist(centres).min())


def slack_printed(w: Tensor, centres: Tensor, r: float) -> float:
    """Return the largest Delta_0 that satisfies the condition of theorem 1.

    The condition is ||w_m - w_m*|| <= min_{m' != m} ||w_m - w_m'*|| - 2 (r + Delta_0) for all m. It does not imply
    that w_m is near w_m*: in the example w_1 is at distance 2, and w_2 is closer to w_1* than w_1 is.

    >>> slack_printed(torch.tensor([[-2.0], [1.0]]), torch.tensor([[0.0], [1.0]]), r=0.1)
    0.4
    """
    distances = torch.cdist(w.double(), centres.double())
    own = distances.diag()
    others = distances.masked_fill(torch.eye(len(w), dtype=torch.bool), math.inf).min(1).values
    return float((others - own).min()) / 2 - r


def slack(w: Tensor, centres: Tensor, r: float, mu: float = 1.0, L: float = 1.0) -> float:
    """Return the slack of models in the sense of theorem 2 and of theorem 1's proof.

    Delta = R sqrt(mu) / (sqrt(mu) + sqrt(L)) - r - max_m ||w_m - w_m*||. For the models of round t it is Delta_t.
    First models are called natural if their slack is positive.

    >>> slack(torch.tensor([[-0.25], [1.0]]), torch.tensor([[0.0], [1.0]]), r=0.125)
    0.125
    """
    a, b = math.sqrt(mu), math.sqrt(L)
    return separation(centres) * a / (a + b) - r - float((w - centres).norm(dim=1).max())


def gain_printed(R: float, delta0: float, mu: float) -> float:
    """Return what, according to the paper, each E step adds to ln(pi_em / pi_em') for e in S_m.

    It is mu R Delta_0; for linear agents 2 R delta^2 Delta_0.

    >>> gain_printed(R=2, delta0=0.25, mu=2 * 3**2)
    9.0
    """
    return mu * R * delta0


def gain(R: float, delta: float, mu: float, L: float) -> float:
    """Return the least that an E step adds if the slack is `delta` in that round (lemmas 1 and 3). It may be
    negative.

    It is mu/2 b^2 - L/2 a^2 with a = R sqrt(mu) / (sqrt(mu) + sqrt(L)) - delta and b = R - r - (a - r) = R - a. For
    mu = L this is mu R delta.

    >>> gain(R=2, delta=0.25, mu=18, L=18), gain(R=3, delta=0.5, mu=1, L=4)
    (9.0, 2.625)
    """
    a = R * math.sqrt(mu) / (math.sqrt(mu) + math.sqrt(L)) - delta
    return mu / 2 * max(R - a, 0.0) ** 2 - L / 2 * a**2


def log_odds_lower(M: int, gains: float) -> float:
    """Return the lower bound of the log-odds of the right label after E steps with the total gain `gains`.

    ln(pi_em / (1 - pi_em)) >= gains - ln(M - 1) for e in S_m.

    >>> log_odds_lower(M=2, gains=3.0)
    3.0
    """
    return gains - math.log(M - 1)


def pi_lower_bound(M: int, gains: float) -> float:
    """Return the lower bound of the right label after E steps with the total gain `gains`.

    pi_em >= 1 / (1 + (M - 1) exp(-gains)) for e in S_m. Theorems 1 and 2 have gains = T gain_printed(...).

    >>> pi_lower_bound(M=4, gains=0.0), pi_lower_bound(M=2, gains=math.log(3))
    (0.25, 0.75)
    """
    return 1 / (1 + (M - 1) * math.exp(-gains))


def share_of_others(E: int, gamma: int, M: int, gains: float) -> float:
    """Return the largest share of cluster model m's weight, sum_e pi_em, that agents outside S_m can have.

    It is x / (1 + x) with x = (E - gamma) / gamma exp(-gains) (1 + (M - 1) exp(-gains)) / (1 + exp(-gains)).

    >>> share_of_others(E=10, gamma=5, M=2, gains=0.0)
    0.5
    """
    off = math.exp(-gains)
    x = (E - gamma) / gamma * off * (1 + (M - 1) * off) / (1 + off)
    return x / (1 + x)


def natural_margin(R: float, R_max: float, r: float, delta0: float, share: float) -> float:
    """Return the margin of the condition that theorem 1 lacks.

    If (R/2 - r - Delta_0) - (r + share R_max) >= 0, no M step moves w_m further than R/2 - r - Delta_0 from w_m*.
    Here `share` is share_of_others after the first round and R_max the largest distance of two centres.

    >>> natural_margin(R=1, R_max=1, r=0.125, delta0=0.125, share=0.125)
    0.0
    """
    return R / 2 - r - delta0 - (r + share * R_max)


def rate_printed(eta: float, gamma: int, M: int, mu: float, L: float) -> Bound:
    """Return the paper's factor of ||w_m - w_m*||^2 per local step; over T rounds it has the exponent K T.

    It is 1 - eta A with A = 2 gamma_m / M mu L / (mu + L); for linear agents 1 - 2 eta gamma_m delta^2 / M.

    >>> rate_printed(eta=0.05, gamma=4, M=2, mu=2, L=2)
    Bound(value=0.8, why='')
    >>> rate_printed(eta=0.25, gamma=9, M=2, mu=2, L=2).why
    'needs eta < M (mu + L) / (2 gamma_m mu L)'
    """
    value = 1 - eta * 2 * gamma / M * mu * L / (mu + L)
    return Bound(value, "" if value > 0 else "needs eta < M (mu + L) / (2 gamma_m mu L)")


def rate(eta: float, mu: float, L: float) -> Bound:
    """Return the factor of ||w_m - w_m*||^2 per local step once the labels are right.

    It is 1 - 2 eta mu L / (mu + L); for linear agents exactly (1 - 2 eta delta^2)^2.

    >>> rate(eta=0.05, mu=2, L=2)
    Bound(value=0.81, why='')
    """
    value = (1 - eta * mu) ** 2 if mu == L else 1 - 2 * eta * mu * L / (mu + L)
    return Bound(value, "" if eta <= 2 / (mu + L) else "needs eta <= 2 / (mu + L)")


def A_printed(E: int, M: int, K: int, delta: float, step: Bound, gain: float) -> Bound:
    """Return theorem 1's constant A = 2 E K (M - 1) delta^2 / (step^K - exp(-gain)) with step = rate_printed(...).

    >>> A_printed(E=3, M=2, K=1, delta=1, step=Bound(0.75), gain=math.log(4))
    Bound(value=12.0, why='')
    >>> A_printed(E=3, M=2, K=9, delta=1, step=Bound(0.75), gain=math.log(4)).why
    'needs step^K > exp(-gain)'
    """
    return _fraction(2 * E * K * (M - 1) * delta**2, step, K, gain)


def B_printed(E: int, M: int, T: int, K: int, G: float, mu: float, L: float, step: Bound, gain: float) -> Bound:
    """Return theorem 2's constant B; its proof has eta K in place of T.

    B = G M T E (4 L / mu + 6 / (mu (mu + L))) / (step^K - exp(-gain)) with step = rate_printed(...).

    >>> B_printed(E=3, M=2, T=1, K=1, G=1, mu=1, L=1, step=Bound(0.75), gain=math.log(4))
    Bound(value=84.0, why='')
    """
    return _fraction(G * M * T * E * (4 * L / mu + 6 / (mu * (mu + L))), step, K, gain)


def w_upper_printed(
    T: int,
    K: int,
    E: int,
    gamma: int,
    M: int,
    eta: float,
    delta: float,
    sigma: float,
    r: float,
    distance: float,
    gain: float,
) -> Bound:
    """Return theorem 1's upper bound of the expected squared distance of model m from its centre.

    E||w_m^(T) - w_m*||^2 <= step^(KT) (distance^2 + A) + 2 M K r + M delta^2 E beta T^(-1/2) / 2 O(K^3, sigma^2)
    with distance = ||w_m^(0) - w_m*|| and beta = eta sqrt(T). The paper does not spell out O(K^3, sigma^2); by its
    proof it is (16 K^3 + K (1 + sigma^2 / delta^2)) / gamma_m, where O(d / n_e) is set to 1. Theorem 2 does not
    spell out its O(K r) either, so there is no such function for it.

    >>> w_upper_printed(1, 1, 4, 1, 2, eta=0.25, delta=1, sigma=0, r=0.5, distance=0.5, gain=math.log(4)).value
    31.1875
    """
    step = rate_printed(eta, gamma, M, 2 * delta**2, 2 * delta**2)
    A = A_printed(E, M, K, delta, step, gain)
    rest = (16 * K**3 + K * (1 + sigma**2 / delta**2)) / gamma
    first = step.value ** (K * T) * (distance**2 + A.value)
    return Bound(first + 2 * M * K * r + M * delta**2 * E * eta / 2 * rest, A.why)


def w_upper(T: int, distance: float, step: float, r: float, R_max: float, shares: Sequence[float]) -> float:
    """Return an upper bound of the distance of model m from its centre, for linear agents and exact gradients.

    ||w_m^(T) - w_m*|| <= q^T distance + (1 - q) sum_{t=1..T} q^(T-t) (r + share_t R_max) with distance = ||w_m^(0)
    - w_m*||, q = step = (1 - 2 eta delta^2)^K and shares[t - 1] = share_of_others after t E steps.

    >>> w_upper(T=2, distance=1.0, step=0.5, r=0.25, R_max=1.0, shares=[0.5, 0.25])
    0.6875
    """
    for t in range(T):
        distance = step * distance + (1 - step) * (r + shares[t] * R_max)
    return distance


def _fraction(numerator: float, step: Bound, K: int, gain: float) -> Bound:
    denominator = step.value**K - math.exp(-gain)
    why = step.why or ("" if denominator > 0 else "needs step^K > exp(-gain)")
    return Bound(numerator / denominator if denominator else math.inf, why)
