"""Theorems 3 and 4 of the paper, which say that FOCUS is fairer than FedAvg, as functions. docs/theory.md has the
proofs.

A function whose name ends in `_printed` is the paper's formula. Where that formula does not hold, the function
without the suffix is a corrected one. `mus`, [E, d], are the vectors mu_e of linear agents, whose excess risk is
delta^2 ||w - mu_e||^2. R is the distance of the outliers from mu*, r the largest distance of the other agents from
it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from focusfl.fairness.metrics import faa
from focusfl.research.theory.convergence import Bound


def faa_fedavg_exact(mus: Tensor, delta: float) -> float:
    """Return FedAvg's FAA on linear agents with equally many examples: w is the mean of all mu_e.

    >>> faa_fedavg_exact(torch.tensor([[0.0], [0.0], [3.0]]), delta=1)
    3.0
    """
    return faa_focus_exact(mus, torch.zeros(len(mus)), delta)


def faa_focus_exact(mus: Tensor, clusters: Tensor, delta: float) -> float:
    """Return FOCUS's FAA once every pi_em is 0 or 1: w is the mean of mu_e over each agent's own cluster; clusters
    [E].

    >>> faa_focus_exact(torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([0, 0, 1]), delta=2)
    4.0
    """
    same = (clusters[:, None] == clusters).to(mus.dtype)
    w = same @ mus / same.sum(1, keepdim=True)  # [E, d]
    return faa(delta**2 * (w - mus).square().sum(1))


def faa_focus_upper_printed(r: float, delta: float) -> float:
    """Return theorem 3's upper bound FAA_focus <= delta^2 r^2.

    It holds if mu* is the mean of the mu_e around it, or if there are at most two of them.

    >>> faa_focus_upper_printed(r=0.5, delta=2)
    1.0
    """
    return delta**2 * r**2


def faa_focus_upper(r: float, delta: float, largest: int) -> float:
    """Return the corrected upper bound FAA_focus <= delta^2 (2 r (G - 1) / G)^2, with G agents in the largest
    cluster.

    It is attained by one agent at +r and all others at -r.

    >>> faa_focus_upper(r=0.5, delta=2, largest=2), faa_focus_upper(r=0.5, delta=2, largest=4)
    (1.0, 2.25)
    """
    return delta**2 * (2 * r * (largest - 1) / largest) ** 2


def faa_fedavg_lower_printed(E: int, R: float, r: float, delta: float, outliers: int = 1) -> Bound:
    """Return theorem 3's lower bound FAA_avg >= delta^2 ((R^2 (E - 2) - 2 R r) / E + r^2).

    Its proof gives - r^2 in place of + r^2. For several outliers appendix B.1 has
    delta^2 ((R (E - E_k) - r E_k)^2 / E^2 - (r + R E_k / E)^2) if E_k < E / 2.

    >>> faa_fedavg_lower_printed(E=4, R=1, r=0.5, delta=2)
    Bound(value=2.0, why='')
    >>> faa_fedavg_lower_printed(E=4, R=4, r=1, delta=1, outliers=2)
    Bound(value=-6.75, why='needs E_k < E / 2')
    """
    if outliers == 1:
        value = (R**2 * (E - 2) - 2 * R * r) / E + r**2
    else:
        value = ((R * (E - outliers) - r * outliers) / E) ** 2 - (r + R * outliers / E) ** 2
    return _lower_bound(delta**2 * value, "" if 2 * outliers < E else "needs E_k < E / 2")


def faa_fedavg_lower(E: int, R: float, r: float, delta: float, outliers: int = 1, centred: bool = False) -> Bound:
    """Return the corrected lower bound of FedAvg's FAA on linear agents; it is attained.

    FAA_avg >= delta^2 (k (R - s)^2 - r^2 + s^2) with k = 1 - 2 E_k / E and s = min(r, R k / (1 + k)), if every
    outlier is at least R from mu* and all other agents are within r of it. `centred` says that mu* is the mean of
    the latter; then s = 0.

    >>> faa_fedavg_lower(E=4, R=1, r=0.25, delta=2)
    Bound(value=1.125, why='')
    >>> faa_fedavg_lower(E=4, R=1, r=0.25, delta=2, centred=True).value
    1.75
    >>> faa_fedavg_lower(E=4, R=1, r=0.25, delta=2, outliers=2).why
    'needs E_k < E / 2'
    """
    k = 1 - 2 * outliers / E
    if k <= 0:
        return Bound(0.0, "needs E_k < E / 2")
    s = 0.0 if centred else min(r, R * k / (1 + k))
    return _lower_bound(delta**2 * (k * (R - s) ** 2 - r**2 + s**2))


def faa_focus_upper_convex_printed(E: int, G: float, r: float) -> float:
    """Return theorem 4's upper bound FAA_focus <= B = 2 G r / (E - 1); r is a total variation distance, G >= loss.

    >>> faa_focus_upper_convex_printed(E=5, G=2, r=0.5)
    0.5
    """
    return 2 * G * r / (E - 1)


def faa_focus_upper_convex(E: int, G: float, r: float) -> float:
    """Return the corrected upper bound FAA_focus <= B = 2 G r (E - 2) / (E - 1).

    All but one of the E - 1 averaged terms can be as large as 2 G r.

    >>> faa_focus_upper_convex(E=5, G=2, r=0.5)
    1.5
    """
    return 2 * G * r * (E - 2) / (E - 1)


def faa_fedavg_lower_convex_printed(E: int, R: float, B: float, mu: float, L: float) -> Bound:
    """Return theorem 4's lower bound of FedAvg's FAA, with k = L/mu and B = faa_focus_upper_convex_printed(...).

    FAA_avg >= ((E-1)/E - k/E^2) R - (1 + k (E-1)/E - k^2/E) B - 2 k/E sqrt(B (R - k B)).

    >>> faa_fedavg_lower_convex_printed(E=4, R=1.0, B=0.0, mu=1, L=1).value
    0.6875
    """
    k = L / mu
    if k * B > R:
        return Bound(0.0, "needs R >= B L / mu")
    first = ((E - 1) / E - k / E**2) * R
    return _lower_bound(first - (1 + k * (E - 1) / E - k**2 / E) * B - 2 * k / E * math.sqrt(B * (R - k * B)))


def faa_fedavg_lower_convex(E: int, R: float, B: float, mu: float, L: float, mean_of_optima: bool = False) -> Bound:
    """Return the corrected lower bound of FedAvg's FAA, with k = L/mu and B = faa_focus_upper_convex(...).

    FedAvg converges to the minimum of sum_e L_e for K = 1, and there
    FAA_avg >= (1 - k/(E-1)^2) ((sqrt(R) - sqrt(k B)) / (1 + k/(E-1)))^2 - B.
    The paper assumes that it converges to the mean of the theta_e*, which is true for K to infinity. Then, with
    `mean_of_optima`, FAA_avg >= ((E-1)/E - k/E) Q - B - 2 k/E sqrt(B Q), where Q = R - k B.

    >>> faa_fedavg_lower_convex(E=4, R=1.0, B=0.0, mu=1, L=1).value
    0.5
    >>> faa_fedavg_lower_convex(E=4, R=1.0, B=0.0, mu=1, L=1, mean_of_optima=True).value
    0.5
    """
    k = L / mu
    if k * B > R:
        return Bound(0.0, "needs R >= B L / mu")
    if mean_of_optima:
        Q = R - k * B
        return _lower_bound(((E - 1) / E - k / E) * Q - B - 2 * k / E * math.sqrt(B * Q))
    e = ((math.sqrt(R) - math.sqrt(k * B)) / (1 + k / (E - 1))) ** 2
    return _lower_bound((1 - k / (E - 1) ** 2) * e - B)


def _lower_bound(value: float, why: str = "") -> Bound:
    return Bound(value, why or ("" if value > 0 else "says nothing: an FAA is never below 0"))
