"""Theorems 3 and 4 of the paper, FOCUS is fairer than FedAvg, as functions; docs/theory.md has the proofs.

A name that ends in `_printed` is the paper's formula; where that does not hold, the name without it is one that
does. `mus`, [E, d], are the vectors mu_e of linear agents, whose excess risk is delta^2 ||w - mu_e||^2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from focusfl.fairness.metrics import faa
from focusfl.research.theory.convergence import Bound


def faa_fedavg_exact(mus: Tensor, delta: float) -> float:
    """FedAvg's FAA on linear agents with as much data each: w = mean of mu_e, excess risk delta^2 ||w - mu_e||^2.

    >>> faa_fedavg_exact(torch.tensor([[0.0], [0.0], [3.0]]), delta=1)
    3.0
    """
    return faa_focus_exact(mus, torch.zeros(len(mus)), delta)


def faa_focus_exact(mus: Tensor, clusters: Tensor, delta: float) -> float:
    """FOCUS's FAA once pi_em is 0 or 1: the same with the mean over each agent's own cluster; clusters [E].

    >>> faa_focus_exact(torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([0, 0, 1]), delta=2)
    4.0
    """
    same = (clusters[:, None] == clusters).to(mus.dtype)
    w = same @ mus / same.sum(1, keepdim=True)  # [E, d]
    return faa(delta**2 * (w - mus).square().sum(1))


def faa_focus_upper_printed(r: float, delta: float) -> float:
    """FAA_focus <= delta^2 r^2 (theorem 3). True if mu* is the mean of its mu_e, or of at most two agents.

    >>> faa_focus_upper_printed(r=0.5, delta=2)
    1.0
    """
    return delta**2 * r**2


def faa_focus_upper(r: float, delta: float, largest: int) -> float:
    """FAA_focus <= delta^2 (2 r (G - 1) / G)^2, G agents in the largest cluster. One at +r, others at -r reach it.

    >>> faa_focus_upper(r=0.5, delta=2, largest=2), faa_focus_upper(r=0.5, delta=2, largest=4)
    (1.0, 2.25)
    """
    return delta**2 * (2 * r * (largest - 1) / largest) ** 2


def faa_fedavg_lower_printed(E: int, R: float, r: float, delta: float, outliers: int = 1) -> Bound:
    """FAA_avg >= delta^2 ((R^2 (E - 2) - 2 R r) / E + r^2) (theorem 3); its proof gives - r^2 in place of + r^2.

    Several outliers (appendix B.1): delta^2 ((R (E - E_k) - r E_k)^2 / E^2 - (r + R E_k / E)^2) if E_k < E / 2.

    >>> faa_fedavg_lower_printed(E=4, R=1, r=0.5, delta=2)
    Bound(value=2.0, why='')
    >>> faa_fedavg_lower_printed(E=4, R=4, r=1, delta=1, outliers=2)
    Bound(value=-6.75, why='needs E_k < E / 2')
    """
    if outliers == 1:
        value = (R**2 * (E - 2) - 2 * R * r) / E + r**2
    else:
        value = ((R * (E - outliers) - r * outliers) / E) ** 2 - (r + R * outliers / E) ** 2
    return _lower(delta**2 * value, "" if 2 * outliers < E else "needs E_k < E / 2")


def faa_fedavg_lower(E: int, R: float, r: float, delta: float, outliers: int = 1, centred: bool = False) -> Bound:
    """FAA_avg >= delta^2 (k (R - s)^2 - r^2 + s^2), k = 1 - 2 E_k / E, s = min(r, R k / (1 + k)); attained.

    Every outlier is at least R from mu*, all others within r of it. `centred`: mu* is their mean, and s = 0.

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
    return _lower(delta**2 * (k * (R - s) ** 2 - r**2 + s**2))


def faa_focus_upper_convex_printed(E: int, G: float, r: float) -> float:
    """FAA_focus <= B = 2 G r / (E - 1) (theorem 4): r is a total variation distance, loss <= G.

    >>> faa_focus_upper_convex_printed(E=5, G=2, r=0.5)
    0.5
    """
    return 2 * G * r / (E - 1)


def faa_focus_upper_convex(E: int, G: float, r: float) -> float:
    """FAA_focus <= B = 2 G r (E - 2) / (E - 1): of the E - 1 terms that are averaged all but one are up to 2 G r.

    >>> faa_focus_upper_convex(E=5, G=2, r=0.5)
    1.5
    """
    return 2 * G * r * (E - 2) / (E - 1)


def faa_fedavg_lower_convex_printed(E: int, R: float, B: float, mu: float, L: float) -> Bound:
    """FAA_avg >= ((E-1)/E - k/E^2) R - (1 + k (E-1)/E - k^2/E) B - 2 k/E sqrt(B (R - k B)), k = L/mu (theorem 4).

    >>> faa_fedavg_lower_convex_printed(E=4, R=1.0, B=0.0, mu=1, L=1).value
    0.6875
    """
    k = L / mu
    if k * B > R:
        return Bound(0.0, "needs R >= B L / mu")
    first = ((E - 1) / E - k / E**2) * R
    return _lower(first - (1 + k * (E - 1) / E - k**2 / E) * B - 2 * k / E * math.sqrt(B * (R - k * B)))


def faa_fedavg_lower_convex(E: int, R: float, B: float, mu: float, L: float, mean_of_optima: bool = False) -> Bound:
    """FAA_avg >= (1 - k/(E-1)^2) ((sqrt(R) - sqrt(k B)) / (1 + k/(E-1)))^2 - B, k = L/mu.

    This is at the minimum of sum_e L_e, where FedAvg ends for K = 1. `mean_of_optima`: where it ends in the mean of
    the theta_e*, as the paper has it (K to infinity): ((E-1)/E - k/E) Q - B - 2 k/E sqrt(B Q), Q = R - k B.
    Both take B = faa_focus_upper_convex(...).

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
        return _lower(((E - 1) / E - k / E) * Q - B - 2 * k / E * math.sqrt(B * Q))
    e = ((math.sqrt(R) - math.sqrt(k * B)) / (1 + k / (E - 1))) ** 2
    return _lower((1 - k / (E - 1) ** 2) * e - B)


def _lower(value: float, why: str = "") -> Bound:
    return Bound(value, why or ("" if value > 0 else "says nothing: an FAA is never below 0"))
