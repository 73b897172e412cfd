"""How often the interval of a validated best loss contains the true one, on data whose best loss is known.

`python -m focusfl.research.coverage --best-loss`; docs/decisions/35-validated-best-losses.md shows the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from focusfl.algorithms import FedAvg
from focusfl.core import Data
from focusfl.core.train import Train
from focusfl.data.federation import Federation, Recipe, Rows
from focusfl.data.sets.synthetic import synthetic
from focusfl.models import linear
from focusfl.run.candidates import Plan, validated
from focusfl.run.setup import Setup

EXPLANATION = (
    "Agents whose 95 % interval contains their best loss, and means over agents and draws: the loss of the chosen "
    "model, the estimate and the width of the interval, as shares of the best loss. Six agents."
)
Row = dict[str, float]
MakeData = Callable[[int], Federation]
TRAIN = Train(lr=0.1, steps=10)


def logistic(
    seed: int, E: int = 6, d: int = 5, n: int = 100, n_test: int = 500, strength: float = 2.0
) -> Federation:
    """Two classes, the second with probability 1 / (1 + exp(-mu_e^T x)); two groups with opposite mu_e.

    x ~ N(0, I_d), so mu_e^T x ~ N(0, strength^2), and the best loss is the mean entropy of the class.

    Args:
        seed: Decides all random numbers.
        E: The number of agents.
        d: The number of features.
        n: Training examples per agent.
        n_test: Test examples per agent.
        strength: The length of mu_e.
    """
    rng = np.random.default_rng([seed, 2])
    mu = rng.normal(size=d)
    mu *= strength / np.linalg.norm(mu)
    parts: tuple[list[Data], list[Data]] = ([], [])
    for e in range(E):
        for size, into in zip((n, n_test), parts, strict=True):
            x = rng.normal(size=(size, d))
            p = 1 / (1 + np.exp(-(x @ mu) * (1 if e % 2 else -1)))
            y = (rng.uniform(size=size) < p).astype(np.int64)
            into.append(Data(torch.tensor(x, dtype=torch.float32), torch.from_numpy(y)))
    recipe = Recipe(model=partial(linear, d, 2), train=TRAIN, rounds=20)
    best = torch.full((E,), mean_entropy(strength))
    training, testing = map(Rows.join, parts)
    return Federation("logistic", training, testing, classes=2, bayes=best, recipe=recipe)


def mean_entropy(strength: float) -> float:
    """Return the mean of -p log p - (1 - p) log(1 - p) for log(p / (1 - p)) ~ N(0, strength^2).

    >>> round(mean_entropy(1e-9), 6)  # a coin
    0.693147
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    z = strength * nodes
    p = 1 / (1 + np.exp(-z))
    entropy = np.logaddexp(0, z) - p * z
    return float(weights @ entropy / weights.sum())


SIGMAS = [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
_regression = partial(synthetic, E=6, d=5, n=100, n_test=500, sigma=SIGMAS)
CASES: dict[str, MakeData] = {
    "regression, one outlier": lambda seed: _regression(seed=seed),
    "regression, all differ a little": lambda seed: _regression(seed=seed, outliers=0, r=0.3),
    "regression, all differ a lot": lambda seed: _regression(seed=seed, outliers=0, r=3.0),
    "regression, 40 examples": lambda seed: _regression(seed=seed, n=40),
    "classes, two groups": logistic,
    "classes, 40 examples": partial(logistic, n=40),
}


def measure(make: MakeData, rng: torch.Generator) -> Row:
    """Draw data once: which share of the agents' intervals contain the true best loss?"""
    seed = int(torch.randint(2**31, (1,), generator=rng))
    fed = replace(make(seed), clusters=None)
    assert fed.bayes is not None
    plan = Plan.of(Setup.of(FedAvg(), fed, 20, seed=seed % 1000, bayes="validated", train=TRAIN))
    found = validated(plan, None)
    assert found.limits is not None
    low, estimate, high = found.limits
    return {
        "contains, %": 100 * _mean((low <= fed.bayes) & (fed.bayes <= high)),
        "measured / true": _mean(found.loss / fed.bayes),
        "estimate / true": _mean(estimate / fed.bayes),
        "width / true": _mean((high - low) / fed.bayes),
    }


def _mean(values: Tensor) -> float:
    return float(values.double().mean())
