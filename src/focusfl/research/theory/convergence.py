"""Theorems 1 and 2 of the paper, FOCUS converges, as functions; docs/theory.md has the proofs.

A name that ends in `_printed` is the paper's formula; where that does not hold, the name without it is one that
does. Theorem 1 is theorem 2 with mu = L = 2 delta^2, the curvature of the linear agents' loss
delta^2 ||w - mu_e||^2 + sigma^2, so the functions take mu and L.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Bound(NamedTuple):
    """A bound and, where it says nothing, why."""

    value: float
    why: str = ""


def separation(centres: Tensor) -> float:
    """R = min over m != m' of ||w_m* - w_m'*||.

    >>> separation(torch.tensor([[0.0, 0.0], [3.0, 4.0], [9.0, 0.0]]))
    5.0
    """
    return float(torch.nn.functional.pdist(centres).min())


def slack_printed(w: Tensor, centres: Tensor, r: float) -> float:
    """Largest Delta_0 with ||w_m - w_m*|| <= min_{m' != m} ||w_m - w_m'*|| - 2 (r + Delta_0) for all m (theorem 1).

    This does not say that w_m is near w_m*: here w_1 is 2 off, and w_2 is nearer to w_1* than w_1 is.

    >>> slack_printed(torch.tensor([[-2.0], [1.0]]), torch.tensor([[0.0], [1.0]]), r=0.1)
    0.4
    """
    far = torch.cdist(w.double(), centres.double())
    own = far.diag()
    others = far.masked_fill(torch.eye(len(w), dtype=torch.bool), math.inf).min(1).values
    return float((others - own).min()) / 2 - r


def slack(w: Tensor, centres: Tensor, r: float, mu: float = 1.0, L: float = 1.0) -> float:
    """Delta = R sqrt(mu) / (sqrt(mu) + sqrt(L)) - r - max_m ||w_m - w_m*||: theorem 2, and theorem 1's proof. Round
    by round it is Delta_t; a start is natural if it is above 0.

    >>> slack(torch.tensor([[-0.25], [1.0]]), torch.tensor([[0.0], [1.0]]), r=0.125)
    0.125
    """
    a, b = math.sqrt(mu), math.sqrt(L)
    return separation(centres) * a / (a + b) - r - float((w - centres).norm(dim=1).max())


def gain_printed(R: float, delta0: float, mu: float) -> float:
    """What each E step is said to add to ln(pi_em / pi_em'), e in S_m: mu R Delta_0 (linear: 2 R delta^2 Delta_0).

    >>> gain_printed(R=2, delta0=0.25, mu=2 * 3**2)
    9.0
    """
    return mu * R * delta0


def gain(R: float, delta: float, mu: float, L: float) -> float:
    """What an E step adds at least when the slack is `delta` in that very round (lemmas 1 and 3; may be below 0).

    mu/2 b^2 - L/2 a^2 with a = R sqrt(mu) / (sqrt(mu) + sqrt(L)) - delta and b = R - r - (a - r) = R - a, which is
    mu R delta for mu = L.

    >>> gain(R=2, delta=0.25, mu=18, L=18), gain(R=3, delta=0.5, mu=1, L=4)
    (9.0, 2.625)
    """
    a = R * math.sqrt(mu) / (math.sqrt(mu) + math.sqrt(L)) - delta
    return mu / 2 * max(R - a, 0.0) ** 2 - L / 2 * a**2


def log_odds_lower(M: int, gains: float) -> float:
    """ln(pi_em / (1 - pi_em)) >= gains - ln(M - 1), e in S_m, after E steps that gained `gains` together.

    >>> log_odds_lower(M=2, gains=3.0)
    3.0
    """
    return gains - math.log(M - 1)


def pi_lower_bound(M: int, gains: float) -> float:
    """pi_em >= 1 / (1 + (M - 1) exp(-gains)), e in S_m: theorems 1 and 2 with gains = T gain_printed(...).

    >>> pi_lower_bound(M=4, gains=0.0), pi_lower_bound(M=2, gains=math.log(3))
    (0.25, 0.75)
    """
    return 1 / (1 + (M - 1) * math.exp(-gains))


def share_of_others(E: int, gamma: int, M: int, gains: float) -> float:
    """At most this part of the weight in cluster model m, sum_e pi_em, is of agents outside S_m; gamma = |S_m|.

    x / (1 + x), x = (E - gamma) / gamma exp(-gains) (1 + (M - 1) exp(-gains)) / (1 + exp(-gains)).

    >>> share_of_others(E=10, gamma=5, M=2, gains=0.0)
    0.5
    """
    off = math.exp(-gains)
    x = (E - gamma) / gamma * off * (1 + (M - 1) * off) / (1 + off)
    return x / (1 + x)


def keeps_natural(R: float, R_max: float, r: float, delta0: float, share: float) -> float:
    """What theorem 1 lacks: if this is 0 or more, no M step takes w_m further than R/2 - r - Delta_0 from w_m*.

    (R/2 - r - Delta_0) - (r + share R_max): `share` of the first round, R_max the largest distance of two centres.

    >>> keeps_natural(R=1, R_max=1, r=0.125, delta0=0.125, share=0.125)
    0.0
    """
    return R / 2 - r - delta0 - (r + share * R_max)


def rate_printed(eta: float, gamma: int, M: int, mu: float, L: float) -> Bound:
    """1 - eta A, A = 2 gamma_m / M mu L / (mu + L): the factor of ||w_m - w_m*||^2 per local step.

    Linear: 1 - 2 eta gamma_m delta^2 / M. Over T rounds it stands to the power of K T.

    >>> rate_printed(eta=0.05, gamma=4, M=2, mu=2, L=2)
    Bound(value=0.8, why='')
    >>> rate_printed(eta=0.25, gamma=9, M=2, mu=2, L=2).why
    'needs eta < M (mu + L) / (2 gamma_m mu L)'
    """
    value = 1 - eta * 2 * gamma / M * mu * L / (mu + L)
    return Bound(value, "" if value > 0 else "needs eta < M (mu + L) / (2 gamma_m mu L)")


def rate(eta: float, mu: float, L: float) -> Bound:
    """1 - 2 eta mu L / (mu + L): that factor once the labels are right. Linear: (1 - 2 eta delta^2)^2, exactly.

    >>> rate(eta=0.05, mu=2, L=2)
    Bound(value=0.81, why='')
    """
    value = (1 - eta * mu) ** 2 if mu == L else 1 - 2 * eta * mu * L / (mu + L)
    return Bound(value, "" if eta <= 2 / (mu + L) else "needs eta <= 2 / (mu + L)")


def A_printed(E: int, M: int, K: int, delta: float, step: Bound, gain: float) -> Bound:
    """A = 2 E K (M - 1) delta^2 / (step^K - exp(-gain)) of theorem 1; step = rate_printed(...).

    >>> A_printed(E=3, M=2, K=1, delta=1, step=Bound(0.75), gain=math.log(4))
    Bound(value=12.0, why='')
    >>> A_printed(E=3, M=2, K=9, delta=1, step=Bound(0.75), gain=math.log(4)).why
    'needs step^K > exp(-gain)'
    """
    return _over(2 * E * K * (M - 1) * delta**2, step, K, gain)


def B_printed(E: int, M: int, T: int, K: int, G: float, mu: float, L: float, step: Bound, gain: float) -> Bound:
    """B = G M T E (4 L / mu + 6 / (mu (mu + L))) / (step^K - exp(-gain)) of theorem 2. Its proof has eta K for T.

    >>> B_printed(E=3, M=2, T=1, K=1, G=1, mu=1, L=1, step=Bound(0.75), gain=math.log(4))
    Bound(value=84.0, why='')
    """
    return _over(G * M * T * E * (4 * L / mu + 6 / (mu * (mu + L))), step, K, gain)


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
    near: float,
    gain: float,
) -> Bound:
    """E||w_m^(T) - w_m*||^2 <= step^(KT) (near^2 + A) + 2 M K r + M delta^2 E beta T^(-1/2) / 2 O(K^3, sigma^2).

    `near` = ||w_m^(0) - w_m*||; beta = eta sqrt(T). O(K^3, sigma^2) is read off the proof as
    (16 K^3 + K (1 + sigma^2 / delta^2)) / gamma_m; the O(d / n_e) in it is not given and set to 1. Theorem 2 leaves
    its O(K r) open too, so it has no such function.

    >>> w_upper_printed(1, 1, 4, 1, 2, eta=0.25, delta=1, sigma=0, r=0.5, near=0.5, gain=math.log(4)).value
    31.1875
    """
    step = rate_printed(eta, gamma, M, 2 * delta**2, 2 * delta**2)
    A = A_printed(E, M, K, delta, step, gain)
    rest = (16 * K**3 + K * (1 + sigma**2 / delta**2)) / gamma
    first = step.value ** (K * T) * (near**2 + A.value)
    return Bound(first + 2 * M * K * r + M * delta**2 * E * eta / 2 * rest, A.why)


def w_upper(T: int, near: float, step: float, r: float, R_max: float, shares: Sequence[float]) -> float:
    """||w_m^(T) - w_m*|| <= q^T near + (1 - q) sum_{t=1..T} q^(T-t) (r + share_t R_max) for linear agents.

    q = step = (1 - 2 eta delta^2)^K, exact gradients; shares[t - 1] = share_of_others after t E steps.

    >>> w_upper(T=2, near=1.0, step=0.5, r=0.25, R_max=1.0, shares=[0.5, 0.25])
    0.6875
    """
    for t in range(T):
        near = step * near + (1 - step) * (r + shares[t] * R_max)
    return near


def _over(top: float, step: Bound, K: int, gain: float) -> Bound:
    under = step.value**K - math.exp(-gain)
    why = step.why or ("" if under > 0 else "needs step^K > exp(-gain)")
    return Bound(top / under if under else math.inf, why)
