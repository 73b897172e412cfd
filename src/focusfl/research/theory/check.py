"""`focusfl theory`: measure FOCUS and FedAvg against each bound of theorems 1 to 4, as printed and as corrected.

The file has three parts: the measurements, their settings, and the Markdown tables.

A row of a measurement has the keys what, setting, statement ("printed" or "corrected"), t (the round), measured,
side ("<=" or ">="), bound, holds and why. If the bound says nothing, `holds` is None and `why` gives the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from focusfl.fairness.metrics import faa
from focusfl.research.theory import convergence as conv
from focusfl.research.theory import fairness as fair
from focusfl.research.theory.convergence import Bound
from focusfl.research.theory.problems import (
    Problem,
    coin_problem,
    least_log_odds,
    linear_problem,
    logistic_problem,
    natural_start,
    run_fedavg,
    run_focus,
)

Row = dict[str, Any]
Options = dict[str, Any]
Measurement = Callable[[], list[Row]]

TOLERANCE = 1e-3  # relative to the bound, because the runs are in single precision
SETTLED_LOG_ODDS = 10  # labels with at least these log-odds count as 0 and 1


# Measurements


def bound_rows(
    what: str, setting: str, t: int, measured: float, bounds: Sequence[Bound], lower: bool = False
) -> list[Row]:
    """Compare a measured number with the printed and the corrected bound; `lower`: they are lower bounds."""
    rows = []
    for statement, bound in zip(("printed", "corrected"), bounds, strict=True):
        tolerance = TOLERANCE * abs(bound.value) + 1e-9
        holds = measured >= bound.value - tolerance if lower else measured <= bound.value + tolerance
        row = {"what": what, "setting": setting, "statement": statement, "t": t, "measured": measured}
        row |= {"side": ">=" if lower else "<=", "bound": bound.value}
        rows.append(row | {"holds": None if bound.why else holds, "why": bound.why})
    return rows


def check_labels(
    problem: Problem, first_weights: Tensor, setting: str, eta: float, K: int, T: int, delta0: float | None = None
) -> list[Row]:
    """Compare the least confident agent's label with the bound, round by round.

    The corrected bound uses the slack of each round in place of Delta_0. `delta0` is the Delta_0 of the printed
    bound; by default it is the slack of the first weights.
    """
    R, r, mu, L, M = problem.R, problem.r, problem.mu, problem.L, len(first_weights)
    if delta0 is None:
        delta0 = conv.slack(first_weights, problem.centres, r, mu, L)
    printed_gain = conv.gain_printed(R, delta0, mu)
    w, gains, rows = first_weights, 0.0, []
    for t, (after, log_pi) in enumerate(run_focus(problem, first_weights, eta, K, T), 1):
        gains += conv.gain(R, conv.slack(w, problem.centres, r, mu, L), mu, L)
        corrected = Bound(conv.log_odds_lower(M, gains), _if_sampled(problem))
        bounds = [Bound(conv.log_odds_lower(M, t * printed_gain)), corrected]
        what = f"Theorem {_theorem(problem)}, labels: ln(pi_em / (1 - pi_em)), least over e in S_m"
        rows += bound_rows(what, setting, t, least_log_odds(problem, log_pi), bounds, lower=True)
        w = after
    return rows


def check_models(
    problem: Problem, first_weights: Tensor, setting: str, eta: float, K: int, T: int, sigma: float = 0.1
) -> list[Row]:
    """Compare ||w_m - w_m*||^2 of linear agents with the whole right-hand side of theorem 1, round by round."""
    R, r, mu, E, M = problem.R, problem.r, problem.mu, len(problem.optima), len(first_weights)
    delta0 = conv.slack(first_weights, problem.centres, r)
    gain = conv.gain_printed(R, delta0, mu)
    shares = [[conv.share_of_others(E, g, M, gain * t) for t in range(1, T + 1)] for g in problem.sizes]
    R_max = float(torch.cdist(problem.centres, problem.centres).max())
    margin = min(conv.natural_margin(R, R_max, r, delta0, share[0]) for share in shares)
    why = "" if margin >= 0 else "needs natural_margin(...) >= 0"
    first = (first_weights - problem.centres).norm(dim=1).tolist()
    rows = []
    for t, (w, _) in enumerate(run_focus(problem, first_weights, eta, K, T), 1):
        for m, distance in enumerate((w - problem.centres).norm(dim=1).tolist()):
            gamma, delta = problem.sizes[m], (mu / 2) ** 0.5
            printed = conv.w_upper_printed(t, K, E, gamma, M, eta, delta, sigma, r, first[m], gain)
            corrected = Bound(conv.w_upper(t, first[m], (1 - eta * mu) ** K, r, R_max, shares[m]) ** 2, why)
            what, bounds = "Theorem 1, models: ||w_m - w_m*||^2", [printed, corrected]
            rows += bound_rows(what, f"{setting}, m={m + 1}", t, distance**2, bounds)
    return rows


def check_rates(problem: Problem, first_weights: Tensor, setting: str, eta: float, K: int, T: int) -> list[Row]:
    """Compare the factor by which ||w_m - w_m*||^2 shrinks per round, over the last ten rounds; r must be 0."""
    path = run_focus(problem, first_weights, eta, K, T)
    distances = torch.stack([(w - problem.centres).square().sum(1) for w, _ in path])
    factors = ((distances[-1] / distances[-11]) ** 0.1).tolist()
    mu, L, rows = problem.mu, problem.L, []
    for m, factor in enumerate(factors):
        gamma = problem.sizes[m]
        steps = [conv.rate_printed(eta, gamma, len(first_weights), mu, L), conv.rate(eta, mu, L)]
        bounds = [Bound(step.value**K, step.why) for step in steps]
        what = f"Theorem {_theorem(problem)}, rate: factor of ||w_m - w_m*||^2 in a round"
        rows += bound_rows(what, f"{setting}, gamma_m={gamma}", T, factor, bounds)
    return rows


def check_linear_fairness(
    problem: Problem, setting: str, R: float, r: float, outliers: int, T: int = 30
) -> list[Row]:
    """Compare FAA / delta^2 of FOCUS, started at the centres, and of FedAvg after T rounds with theorem 3."""
    delta2, E = problem.mu / 2, len(problem.optima)
    eta = 1 / (4 * delta2)
    *_, (w, log_pi) = run_focus(problem, problem.centres, eta, 5, T)
    focus = faa(problem.excess(log_pi.exp() @ w)) / delta2
    fedavg = faa(problem.excess(run_fedavg(problem, eta, 5, T).expand_as(problem.optima))) / delta2
    unsettled, sampled = _if_unsettled(problem, log_pi), _if_sampled(problem)
    upper = [
        Bound(fair.faa_focus_upper_printed(r, 1), unsettled),
        Bound(fair.faa_focus_upper(r, 1, max(problem.sizes)), unsettled or sampled),
    ]
    corrected = fair.faa_fedavg_lower(E, R, r, 1, outliers)
    printed = fair.faa_fedavg_lower_printed(E, R, r, 1, outliers)
    lower = [printed, Bound(corrected.value, corrected.why or sampled)]
    rows = bound_rows("Theorem 3, FAA of FOCUS / delta^2", setting, T, focus, upper)
    return rows + bound_rows("Theorem 3, FAA of FedAvg / delta^2", setting, T, fedavg, lower, lower=True)


def check_convex_fairness(problem: Problem, setting: str, eta: float, T: int) -> list[Row]:
    """Compare the final FAA of FOCUS, and of FedAvg with K = 1 and with K = 40, with theorem 4."""
    E, G, mu, L = len(problem.optima), problem.G, problem.mu, problem.L
    R, r = problem.outlier_gap, problem.total_variation
    B_printed, B = fair.faa_focus_upper_convex_printed(E, G, r), fair.faa_focus_upper_convex(E, G, r)
    *_, (w, log_pi) = run_focus(problem, problem.centres, eta, 5, T)
    focus = faa(problem.excess(log_pi.exp() @ w))
    upper = [Bound(bound, _if_unsettled(problem, log_pi)) for bound in (B_printed, B)]
    rows = bound_rows("Theorem 4, FAA of FOCUS", setting, T, focus, upper)
    printed = fair.faa_fedavg_lower_convex_printed(E, R, B_printed, mu, L)
    for K, rounds in ((1, 100), (40, 10)):
        fedavg = faa(problem.excess(run_fedavg(problem, eta, K, rounds).expand_as(problem.optima)))
        corrected = fair.faa_fedavg_lower_convex(E, R, B, mu, L, mean_of_optima=K > 1)
        what, bounds = "Theorem 4, FAA of FedAvg", [printed, corrected]
        rows += bound_rows(what, f"{setting}, K={K}", rounds, fedavg, bounds, lower=True)
    return rows


def _theorem(problem: Problem) -> int:
    return 1 if problem.mu == problem.L else 2


def _if_sampled(problem: Problem) -> str:
    """The corrected bounds are about populations."""
    return "needs exact moments" if problem.sampled else ""


def _if_unsettled(problem: Problem, log_pi: Tensor) -> str:
    """Theorems 3 and 4 are about labels of 0 and 1."""
    return "" if least_log_odds(problem, log_pi) > SETTLED_LOG_ODDS else "needs labels that have settled"


# Settings

BASE: Options = {"E": 10, "R": 1.0, "r": 0.1, "delta": 4.0, "Delta_0": 0.2}
PAPER: Options = {"E": 10, "R": 1.0, "r": 0.01, "delta": 1.0, "Delta_0": 0.49}  # the paper's data, from the centres
LABELS: list[Options] = [
    BASE,
    BASE | {"E": 30},
    BASE | {"outliers": 3},
    BASE | {"R": 2.0, "r": 0.3, "delta": 2.0, "Delta_0": 0.4},
    PAPER,
    PAPER | {"outliers": 5},
    BASE | {"sample": 100},
    BASE | {"sample": 8},
]
MODELS: list[Options] = [
    BASE,
    BASE | {"outliers": 3},
    BASE | {"R": 1000.0, "r": 100.0, "delta": 0.004, "Delta_0": 200.0},  # BASE in other units
]
RATES: list[Options] = [{"E": 10, "outliers": 1}, {"E": 10, "outliers": 5}, {"E": 30, "outliers": 1}]
LINEAR_FAIRNESS: list[Options] = [
    {"E": 10, "R": 1.0, "r": 0.1},
    {"E": 10, "R": 1.0, "r": 0.01},
    {"E": 10, "R": 1.0, "r": 0.3},
    {"E": 10, "R": 2.0, "r": 0.1},
    {"E": 4, "R": 1.0, "r": 0.1},
    {"E": 30, "R": 1.0, "r": 0.1},
    {"E": 10, "R": 1.0, "r": 0.1, "outliers": 3},
    {"E": 10, "R": 1.0, "r": 0.1, "placement": "aside"},
    {"E": 10, "R": 1.0, "r": 0.1, "placement": "aside", "outliers": 2},
    {"E": 10, "R": 1.0, "r": 0.1, "placement": "apart"},
    {"E": 9, "R": 1.0, "r": 0.3, "placement": "pairs"},
    {"E": 3, "R": 1.0, "r": 0.45, "placement": "pairs"},
]
PAPER_SAMPLE: Options = {"E": 10, "R": 1.0, "r": 0.01, "delta": 1.0, "d": 10, "sample": 100}  # as in its table 1
LOGISTIC: list[Options] = [
    {"E": 10, "r": 0.0},
    {"E": 10, "r": 0.002},
    {"E": 10, "r": 0.02},
    {"E": 5, "r": 0.0},
    {"E": 20, "r": 0.002},
]


def check_all(quick: bool = False, watch: Callable[[int, int], None] = lambda done, total: None) -> list[Row]:
    """Make all measurements.

    Args:
        quick: make only the first measurement of each kind.
        watch: is called as watch(done, total) after each measurement.

    Returns:
        The rows of all measurements; the module's docstring lists their keys.
    """
    kinds = [_labels(), _models(), _rates(), _linear_fairness(), _convex_fairness()]
    measurements = [measure for kind in kinds for measure in (kind[:1] if quick else kind)]
    rows = []
    for done, measure in enumerate(measurements, 1):
        rows += measure()
        watch(done, len(measurements))
    return rows


def setting_text(options: Options) -> str:
    """Write a setting with the paper's symbols.

    >>> setting_text({"E": 10, "outliers": 3, "r": 0.1, "placement": "aside"})
    'E=10, E_k=3, r=0.1, mu_e aside'
    """
    symbols = {"outliers": "E_k", "sample": "n"}
    return ", ".join(
        f"mu_e {v}" if k == "placement" else f"{symbols.get(k, k)}={v:.4g}" for k, v in options.items()
    )


def linear_start(options: Options, sideways: bool = False) -> tuple[Problem, Tensor]:
    """Linear agents, and first weights whose slack is the option Delta_0 (or the largest possible one)."""
    problem = linear_problem(**{k: v for k, v in options.items() if k != "Delta_0"})
    largest = conv.slack(problem.centres, problem.centres, problem.r)
    return problem, natural_start(problem, min(options["Delta_0"], largest), sideways)


def _labels() -> list[Measurement]:
    def linear(options: Options) -> list[Row]:
        problem, first_weights = linear_start(options)
        return check_labels(problem, first_weights, setting_text(options), 0.02 / options["delta"] ** 2, 5, 30)

    def wrong_clusters() -> list[Row]:
        """The pairs vary more than the outlier makes a difference, so FOCUS splits the pairs instead."""
        options: Options = {"E": 9, "R": 1.0, "r": 0.4, "delta": 0.5, "placement": "pairs", "Delta_0": 0.05}
        problem, first_weights = linear_start(options, sideways=True)
        return check_labels(problem, first_weights, setting_text(options), 1.0, 5, 150)

    def far_start() -> list[Row]:
        """Theorem 1's condition as printed: w_2 is at its centre, w_1 far from its own."""
        problem, _ = linear_start(BASE)
        first_weights = problem.centres.clone()
        first_weights[0, 0] -= 2 * problem.R
        delta0 = conv.slack_printed(first_weights, problem.centres, problem.r)
        setting = setting_text(BASE | {"Delta_0": delta0}) + ", w_1 = w_1* - 2R"
        return check_labels(problem, first_weights, setting, 0.02 / 16, 5, 30, delta0)

    def logistic(options: Options) -> list[Row]:
        problem = logistic_problem(**options)
        delta0 = conv.slack(problem.centres, problem.centres, problem.r, problem.mu, problem.L) / 2
        setting = "logistic, " + setting_text(options | {"Delta_0": delta0})
        eta = 1 / (2 * (problem.mu + problem.L))
        return check_labels(problem, natural_start(problem, delta0), setting, eta, 5, 30)

    settings = [*LOGISTIC[:2], LOGISTIC[0] | {"outliers": 5}, LOGISTIC[0] | {"outliers": 5, "ridge": 0.02}]
    return [
        *(partial(linear, o) for o in LABELS),
        wrong_clusters,
        far_start,
        *(partial(logistic, o) for o in settings),
    ]


def _models() -> list[Measurement]:
    def linear(options: Options) -> list[Row]:
        return check_models(*linear_start(options), setting_text(options), 0.02 / options["delta"] ** 2, 1, 10)

    def large_cluster() -> list[Row]:
        """A large cluster and small steps: the printed rate is too fast, and the other terms are too small."""
        options: Options = {"E": 100, "R": 1.0, "r": 0.0, "delta": 4.0, "Delta_0": 0.3}
        setting = setting_text(options | {"eta delta^2": 0.001})
        return check_models(*linear_start(options), setting, 0.001 / 16, 1, 150)

    return [*(partial(linear, options) for options in MODELS), large_cluster]


def _rates() -> list[Measurement]:
    def linear(options: Options) -> list[Row]:
        others: Options = {"r": 0.0, "delta": 4.0, "Delta_0": 0.3}
        problem, first_weights = linear_start(others | options, sideways=True)
        return check_rates(problem, first_weights, setting_text(options), 0.02 / 16, 5, 16)

    def logistic() -> list[Row]:
        problem = logistic_problem(E=30, outliers=15)
        return check_rates(problem, natural_start(problem, 0.1), "logistic, E=30, E_k=15", 0.2, 2, 80)

    return [*(partial(linear, options) for options in RATES), logistic]


def _linear_fairness() -> list[Measurement]:
    def linear(options: Options, T: int = 20) -> list[Row]:
        problem, outliers = linear_problem(**{"delta": 4.0, **options}), options.get("outliers", 1)
        return check_linear_fairness(problem, setting_text(options), options["R"], options["r"], outliers, T)

    return [*(partial(linear, options) for options in LINEAR_FAIRNESS), partial(linear, PAPER_SAMPLE, 100)]


def _convex_fairness() -> list[Measurement]:
    def logistic(options: Options) -> list[Row]:
        problem = logistic_problem(**options)
        eta = 1 / (2 * (problem.mu + problem.L))
        return check_convex_fairness(problem, "logistic, " + setting_text(options), eta, 150)

    coins = coin_problem([9] + [0] * 8 + [20], size=4.0)
    eta = 1 / (2 * (coins.mu + coins.L))
    return [
        partial(check_convex_fairness, coins, "coins, E=10, r=0.45", eta, 20),
        *(partial(logistic, options) for options in LOGISTIC),
    ]


# Tables


def report(rows: list[Row]) -> str:
    """Write the measurements as Markdown tables, one per statement."""
    parts = []
    for what in dict.fromkeys(row["what"] for row in rows):
        lines = [f"**{_escape(what)}**", "", "| setting | t | measured | printed | holds | corrected | holds |"]
        lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
        for line in summary([row for row in rows if row["what"] == what]):
            setting, *rest = list(line.values())[1:]
            lines.append("| " + " | ".join([_escape(setting), *rest]) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def summary(rows: list[Row]) -> list[dict[str, str]]:
    """Summarise the measurements, one line per setting.

    A line shows the round in which the printed bound is worst, and in how many rounds each bound holds.
    """
    lines = []
    for what, setting in dict.fromkeys((row["what"], row["setting"]) for row in rows):
        same = [row for row in rows if (row["what"], row["setting"]) == (what, setting)]
        printed, corrected = ([row for row in same if row["statement"] == s] for s in ("printed", "corrected"))
        worst = min(range(len(printed)), key=lambda i: _margin(printed[i]))
        line = {"what": what, "setting": setting, "t": str(printed[worst]["t"])}
        line["measured"] = _number(printed[worst]["measured"])
        for name, each in (("printed", printed), ("corrected", corrected)):
            line[name] = f"{each[worst]['side']} {_number(each[worst]['bound'])}"
            line[f"{name} holds"] = _holds(each)
        lines.append(line)
    return lines


def _margin(row: Row) -> float:
    gap = float(row["measured"] - row["bound"])
    return gap if row["side"] == ">=" else -gap


def _holds(rows: list[Row]) -> str:
    reasons = {row["why"] for row in rows if row["why"]}
    if reasons:
        return "; ".join(sorted(reasons))
    held = sum(row["holds"] for row in rows)
    if len(rows) == 1:
        return "yes" if held else "**no**"
    return f"{held} of {len(rows)}" if held == len(rows) else f"**{held} of {len(rows)}**"


def _escape(text: str) -> str:
    return text.replace("*", r"\*")


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) > 1e-12 else "0"
