"""`focusfl theory`: the settings in which the four theorems are measured."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from focusfl.research.theory import convergence as th
from focusfl.research.theory.data import Problem, coin_problem, linear_problem, logistic_problem
from focusfl.research.theory.measure import Row, fair_convex, fair_linear, labels, models, rates
from focusfl.research.theory.runs import natural

Job = Callable[[], list[Row]]
Options = dict[str, Any]

BASE: Options = {"E": 10, "R": 1.0, "r": 0.1, "delta": 4.0, "Delta_0": 0.2}
WEAK: Options = {"E": 10, "R": 1.0, "r": 0.01, "delta": 1.0, "Delta_0": 0.49}  # the paper's data, from the centres
LABELS: list[Options] = [
    BASE,
    BASE | {"E": 30},
    BASE | {"outliers": 3},
    BASE | {"R": 2.0, "r": 0.3, "delta": 2.0, "Delta_0": 0.4},
    WEAK,
    WEAK | {"outliers": 5},
    BASE | {"sample": 100},
    BASE | {"sample": 8},
]
MODELS: list[Options] = [
    BASE,
    BASE | {"outliers": 3},
    BASE | {"R": 1000.0, "r": 100.0, "delta": 0.004, "Delta_0": 200.0},  # in other units
]
RATES: list[Options] = [{"E": 10, "outliers": 1}, {"E": 10, "outliers": 5}, {"E": 30, "outliers": 1}]
FAIR: list[Options] = [
    {"E": 10, "R": 1.0, "r": 0.1},
    {"E": 10, "R": 1.0, "r": 0.01},
    {"E": 10, "R": 1.0, "r": 0.3},
    {"E": 10, "R": 2.0, "r": 0.1},
    {"E": 4, "R": 1.0, "r": 0.1},
    {"E": 30, "R": 1.0, "r": 0.1},
    {"E": 10, "R": 1.0, "r": 0.1, "outliers": 3},
    {"E": 10, "R": 1.0, "r": 0.1, "where": "aside"},
    {"E": 10, "R": 1.0, "r": 0.1, "where": "aside", "outliers": 2},
    {"E": 10, "R": 1.0, "r": 0.1, "where": "apart"},
    {"E": 9, "R": 1.0, "r": 0.3, "where": "pairs"},
    {"E": 3, "R": 1.0, "r": 0.45, "where": "pairs"},
]
TABLE_1: Options = {"E": 10, "R": 1.0, "r": 0.01, "delta": 1.0, "d": 10, "sample": 100}  # the paper's data
LOGISTIC: list[Options] = [
    {"E": 10, "r": 0.0},
    {"E": 10, "r": 0.002},
    {"E": 10, "r": 0.02},
    {"E": 5, "r": 0.0},
    {"E": 20, "r": 0.002},
]


def check_all(quick: bool = False, watch: Callable[[int, int], None] = lambda done, total: None) -> list[Row]:
    """Every measurement, or (quick) the first of each kind; `watch(done, total)` is called after each."""
    kinds = [_labels(), _models(), _rates(), _fair(), _convex()]
    jobs = [job for kind in kinds for job in (kind[:1] if quick else kind)]
    rows = []
    for done, job in enumerate(jobs, 1):
        rows += job()
        watch(done, len(jobs))
    return rows


def said(options: Options) -> str:
    """In the paper's letters.

    >>> said({"E": 10, "outliers": 3, "r": 0.1, "where": "aside"})
    'E=10, E_k=3, r=0.1, mu_e aside'
    """
    names = {"outliers": "E_k", "sample": "n"}
    return ", ".join(f"mu_e {v}" if k == "where" else f"{names.get(k, k)}={v:.4g}" for k, v in options.items())


def begun(options: Options, across: bool = False) -> tuple[Problem, Tensor]:
    """Linear agents and first weights with the slack `Delta_0`."""
    problem = linear_problem(**{k: v for k, v in options.items() if k != "Delta_0"})
    most = th.slack(problem.centres, problem.centres, problem.r)
    return problem, natural(problem, min(options["Delta_0"], most), across)


def _labels() -> list[Job]:
    def one(options: Options) -> list[Row]:
        problem, begin = begun(options)
        return labels(problem, begin, said(options), 0.02 / options["delta"] ** 2, 5, 30)

    def wrong_way() -> list[Row]:
        """Agents in pairs across spread more than the outlier pulls: the pairs are split, not the outlier off."""
        options: Options = {"E": 9, "R": 1.0, "r": 0.4, "delta": 0.5, "where": "pairs", "Delta_0": 0.05}
        problem, begin = begun(options, across=True)
        return labels(problem, begin, said(options), 1.0, 5, 150)

    def far() -> list[Row]:
        """Theorem 1's condition as printed: w_1 is far out, w_2 at its centre."""
        problem, _ = begun(BASE)
        begin = problem.centres.clone()
        begin[0, 0] -= 2 * problem.R
        delta0 = th.slack_printed(begin, problem.centres, problem.r)
        setting = said(BASE | {"Delta_0": delta0}) + ", w_1 = w_1* - 2R"
        return labels(problem, begin, setting, 0.02 / 16, 5, 30, delta0)

    def logistic(options: Options) -> list[Row]:
        problem = logistic_problem(**options)
        delta0 = th.slack(problem.centres, problem.centres, problem.r, problem.mu, problem.L) / 2
        setting = "logistic, " + said(options | {"Delta_0": delta0})
        return labels(problem, natural(problem, delta0), setting, 1 / (2 * (problem.mu + problem.L)), 5, 30)

    second = [*LOGISTIC[:2], LOGISTIC[0] | {"outliers": 5}, LOGISTIC[0] | {"outliers": 5, "ridge": 0.02}]
    return [*(partial(one, o) for o in LABELS), wrong_way, far, *(partial(logistic, o) for o in second)]


def _models() -> list[Job]:
    def one(options: Options) -> list[Row]:
        return models(*begun(options), said(options), 0.02 / options["delta"] ** 2, 1, 10)

    def large() -> list[Row]:
        """A large cluster and small steps: the printed rate is too fast, and nothing else is left of the bound."""
        options: Options = {"E": 100, "R": 1.0, "r": 0.0, "delta": 4.0, "Delta_0": 0.3}
        setting = said(options | {"eta delta^2": 0.001})
        return models(*begun(options), setting, 0.001 / 16, 1, 150)

    return [*(partial(one, options) for options in MODELS), large]


def _rates() -> list[Job]:
    def one(options: Options) -> list[Row]:
        rest: Options = {"r": 0.0, "delta": 4.0, "Delta_0": 0.3}
        problem, begin = begun(rest | options, across=True)
        return rates(problem, begin, said(options), 0.02 / 16, 5, 16)

    def logistic() -> list[Row]:
        problem = logistic_problem(E=30, outliers=15)
        return rates(problem, natural(problem, 0.1), "logistic, E=30, E_k=15", 0.2, 2, 80)

    return [*(partial(one, options) for options in RATES), logistic]


def _fair() -> list[Job]:
    def one(options: Options, T: int = 20) -> list[Row]:
        problem = linear_problem(**{"delta": 4.0, **options})
        return fair_linear(problem, said(options), options["R"], options["r"], options.get("outliers", 1), T)

    return [*(partial(one, options) for options in FAIR), partial(one, TABLE_1, 100)]


def _convex() -> list[Job]:
    def logistic(options: Options) -> list[Row]:
        problem = logistic_problem(**options)
        return fair_convex(problem, "logistic, " + said(options), 1 / (2 * (problem.mu + problem.L)), 150)

    coins = coin_problem([9] + [0] * 8 + [20], size=4.0)
    coin = partial(fair_convex, coins, "coins, E=10, r=0.45", 1 / (2 * (coins.mu + coins.L)), 20)
    return [coin, *(partial(logistic, options) for options in LOGISTIC)]
