"""Theorems 1 to 4 measured: FOCUS and FedAvg against each bound, as printed and as corrected.

A row: what, setting, statement ("printed" or "corrected"), t, measured, side ("<=" or ">="), bound, holds, why.
`holds` is None where the bound says nothing, and `why` says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from focusfl.fairness.metrics import faa
from focusfl.research.theory import convergence as th
from focusfl.research.theory import fairness as fair
from focusfl.research.theory.convergence import Bound
from focusfl.research.theory.data import Problem
from focusfl.research.theory.runs import fedavg, focus, log_odds

Row = dict[str, Any]
TOLERANCE = 1e-3  # of the bound: room for single precision


def rows_of(
    what: str, setting: str, t: int, measured: float, bounds: Sequence[Bound], lower: bool = False
) -> list[Row]:
    """A row for each of two bounds, the printed and the corrected; `lower`: they are from below."""
    rows = []
    for statement, bound in zip(("printed", "corrected"), bounds, strict=True):
        room = TOLERANCE * abs(bound.value) + 1e-9
        holds = measured >= bound.value - room if lower else measured <= bound.value + room
        row = {"what": what, "setting": setting, "statement": statement, "t": t, "measured": measured}
        row |= {"side": ">=" if lower else "<=", "bound": bound.value}
        rows.append(row | {"holds": None if bound.why else holds, "why": bound.why})
    return rows


def labels(
    problem: Problem, begin: Tensor, setting: str, eta: float, K: int, T: int, said: float | None = None
) -> list[Row]:
    """The least sure agent's label over the rounds. Corrected: with the slack of each round in place of Delta_0.

    said  Delta_0, where it is not that of the ball around w_m* (theorem 1 states it in another way)
    """
    R, r, mu, L, M = problem.R, problem.r, problem.mu, problem.L, len(begin)
    first = th.gain_printed(R, th.slack(begin, problem.centres, r, mu, L) if said is None else said, mu)
    w, gains, rows = begin, 0.0, []
    for t, (after, log_pi) in enumerate(focus(problem, begin, eta, K, T), 1):
        gains += th.gain(R, th.slack(w, problem.centres, r, mu, L), mu, L)
        chance = "needs exact moments" if problem.sampled else ""
        bounds = [Bound(th.log_odds_lower(M, t * first)), Bound(th.log_odds_lower(M, gains), chance)]
        what = f"Theorem {_theorem(problem)}, labels: ln(pi_em / (1 - pi_em)), least over e in S_m"
        rows += rows_of(what, setting, t, log_odds(problem, log_pi), bounds, lower=True)
        w = after
    return rows


def models(
    problem: Problem, begin: Tensor, setting: str, eta: float, K: int, T: int, sigma: float = 0.1
) -> list[Row]:
    """||w_m - w_m*||^2 of linear agents over the rounds against all of theorem 1's right-hand side."""
    R, r, mu, E, M = problem.R, problem.r, problem.mu, len(problem.optima), len(begin)
    delta0 = th.slack(begin, problem.centres, r)
    gain = th.gain_printed(R, delta0, mu)
    shares = [[th.share_of_others(E, g, M, gain * t) for t in range(1, T + 1)] for g in problem.sizes]
    far = float(torch.cdist(problem.centres, problem.centres).max())
    room = min(th.keeps_natural(R, far, r, delta0, share[0]) for share in shares)
    why = "" if room >= 0 else "needs keeps_natural(...) >= 0"
    near = (begin - problem.centres).norm(dim=1).tolist()
    rows = []
    for t, (w, _) in enumerate(focus(problem, begin, eta, K, T), 1):
        for m, off in enumerate((w - problem.centres).norm(dim=1).tolist()):
            printed = th.w_upper_printed(
                t, K, E, problem.sizes[m], M, eta, (mu / 2) ** 0.5, sigma, r, near[m], gain
            )
            corrected = Bound(th.w_upper(t, near[m], (1 - eta * mu) ** K, r, far, shares[m]) ** 2, why)
            place = f"{setting}, m={m + 1}"
            rows += rows_of("Theorem 1, models: ||w_m - w_m*||^2", place, t, off**2, [printed, corrected])
    return rows


def rates(problem: Problem, begin: Tensor, setting: str, eta: float, K: int, T: int) -> list[Row]:
    """By what ||w_m - w_m*||^2 shrinks in a round, over the last ten; r = 0."""
    path = torch.stack([(w - problem.centres).square().sum(1) for w, _ in focus(problem, begin, eta, K, T)])
    factors = ((path[-1] / path[-11]) ** 0.1).tolist()
    mu, L, rows = problem.mu, problem.L, []
    for m, factor in enumerate(factors):
        gamma = problem.sizes[m]
        both = [th.rate_printed(eta, gamma, len(begin), mu, L), th.rate(eta, mu, L)]
        bounds = [Bound(step.value**K, step.why) for step in both]
        what = f"Theorem {_theorem(problem)}, rate: factor of ||w_m - w_m*||^2 in a round"
        rows += rows_of(what, f"{setting}, gamma_m={gamma}", T, factor, bounds)
    return rows


def fair_linear(problem: Problem, setting: str, R: float, r: float, outliers: int, T: int = 30) -> list[Row]:
    """FAA / delta^2 of FOCUS and of FedAvg, at the end, against theorem 3. FOCUS begins at the centres."""
    delta2, E = problem.mu / 2, len(problem.optima)
    eta = 1 / (4 * delta2)
    *_, (w, log_pi) = focus(problem, problem.centres, eta, 5, T)
    ours = faa(problem.excess(log_pi.exp() @ w)) / delta2
    theirs = faa(problem.excess(fedavg(problem, eta, 5, T).expand_as(problem.optima))) / delta2
    unsettled, chance = _unsettled(problem, log_pi), "needs exact moments" if problem.sampled else ""
    most = fair.faa_focus_upper(r, 1, max(problem.sizes))
    upper = [Bound(fair.faa_focus_upper_printed(r, 1), unsettled), Bound(most, unsettled or chance)]
    least = fair.faa_fedavg_lower(E, R, r, 1, outliers)
    lower = [fair.faa_fedavg_lower_printed(E, R, r, 1, outliers), Bound(least.value, least.why or chance)]
    rows = rows_of("Theorem 3, FAA of FOCUS / delta^2", setting, T, ours, upper)
    return rows + rows_of("Theorem 3, FAA of FedAvg / delta^2", setting, T, theirs, lower, lower=True)


def fair_convex(problem: Problem, setting: str, eta: float, T: int) -> list[Row]:
    """FAA of FOCUS, and of FedAvg with K = 1 and with K = 40, at the end, against theorem 4."""
    E, G, R, r, mu, L = len(problem.optima), problem.G, problem.gap, problem.tv, problem.mu, problem.L
    B_printed, B = fair.faa_focus_upper_convex_printed(E, G, r), fair.faa_focus_upper_convex(E, G, r)
    *_, (w, log_pi) = focus(problem, problem.centres, eta, 5, T)
    ours = faa(problem.excess(log_pi.exp() @ w))
    upper = [Bound(bound, _unsettled(problem, log_pi)) for bound in (B_printed, B)]
    rows = rows_of("Theorem 4, FAA of FOCUS", setting, T, ours, upper)
    printed = fair.faa_fedavg_lower_convex_printed(E, R, B_printed, mu, L)
    for K, rounds in ((1, 100), (40, 10)):
        theirs = faa(problem.excess(fedavg(problem, eta, K, rounds).expand_as(problem.optima)))
        corrected = fair.faa_fedavg_lower_convex(E, R, B, mu, L, mean_of_optima=K > 1)
        what, place = "Theorem 4, FAA of FedAvg", f"{setting}, K={K}"
        rows += rows_of(what, place, rounds, theirs, [printed, corrected], lower=True)
    return rows


def _theorem(problem: Problem) -> int:
    return 1 if problem.mu == problem.L else 2


def _unsettled(problem: Problem, log_pi: Tensor) -> str:
    """Theorems 3 and 4 are about labels of 0 and 1."""
    return "" if log_odds(problem, log_pi) > 10 else "needs labels that have settled"
