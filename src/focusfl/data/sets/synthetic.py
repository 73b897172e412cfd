"""Synthetic linear data with outlier agents: section 4.2 and table 1 of the paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from focusfl.core import Data
from focusfl.core.train import Train
from focusfl.data.federation import Federation, Recipe, Rows
from focusfl.models import linear
from focusfl.util.errors import InputError, require


def synthetic(
    seed: int = 0,
    E: int = 10,
    outliers: int = 1,
    outlier_clusters: int = 1,
    R: float = 1.0,
    r: float = 0.01,
    d: int = 10,
    n: int = 100,
    n_test: int = 1000,
    sigma: float | Sequence[float] = 0.1,
) -> Federation:
    """Linear regression y = mu_e^T x + noise, where the last agents are outliers; no download.

    x ~ N(0, I_d), and the noise is N(0, sigma_e^2), so the lowest possible loss of agent e is sigma_e^2. The vector
    mu_e lies within r of the centre of its cluster.

    Args:
        seed: Decides all random numbers.
        E: The number of agents.
        outliers: How many agents are outliers.
        outlier_clusters: Over how many centres the outliers are spread; the centres are at least R apart.
        R: The distance of an outlier centre from the centre of the other agents.
        r: The largest distance of mu_e from its centre.
        d: The number of features.
        n: Training examples per agent.
        n_test: Test examples per agent.
        sigma: The standard deviation of the noise: one value, or one value per agent.

    Returns:
        A federation for regression, with its true clusters and lowest possible losses.

    Raises:
        InputError: An option is out of range.

    Example:
        >>> fed = synthetic(E=4, sigma=0.5)
        >>> fed.clusters.tolist(), fed.bayes.tolist()
        ([0, 0, 0, 1], [0.25, 0.25, 0.25, 0.25])
    """
    require("data.seed", seed, lambda v: v >= 0, "0 or more")
    require("data.E", E, lambda v: v >= 2, "2 or more")
    require("data.outliers", outliers, lambda v: 0 <= v < E, f"from 0 to {E - 1}")
    fits = 0 < outlier_clusters <= max(1, outliers)
    require("data.outlier_clusters", outlier_clusters, fits, "from 1 to the number of outliers")
    expected = f"{outlier_clusters} or more, one direction per outlier cluster"
    require("data.d", d, lambda v: v >= outlier_clusters, expected)
    require("data.n", n, lambda v: v >= 1, "1 or more")
    require("data.n_test", n_test, lambda v: v >= 1, "1 or more")
    require("data.R", R, lambda v: v >= 0, "0 or more")
    require("data.r", r, lambda v: v >= 0, "0 or more")
    sigmas = [float(s) for s in sigma] if isinstance(sigma, Sequence) else [float(sigma)] * E
    if len(sigmas) != E or not all(0 <= s < math.inf for s in sigmas):
        raise InputError(f"data.sigma = {sigma}: expected one number, 0 or more, or {E} of them, one per agent")

    rng = np.random.default_rng([seed, 1])
    centre = rng.normal(size=d) / np.sqrt(d)
    directions = np.linalg.qr(rng.normal(size=(d, d)))[0][:outlier_clusters]  # orthogonal: sqrt(2) R apart
    centres = np.vstack([centre, centre + R * directions])  # [C, d]
    clusters = [0] * (E - outliers) + [1 + i % outlier_clusters for i in range(outliers)]

    agents: list[Data] = []
    held_out: list[Data] = []
    for e in range(E):
        step = rng.normal(size=d)
        length = np.linalg.norm(step)
        mu = centres[clusters[e]] + r * rng.uniform() ** (1 / d) * step / length  # uniform in the ball of radius r
        for size, into in ((n, agents), (n_test, held_out)):
            x = rng.normal(size=(size, d))
            y = x @ mu + sigmas[e] * rng.normal(size=size)
            into.append(Data(torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)))
    return Federation(
        name="synthetic",
        training=Rows.join(agents),
        testing=Rows.join(held_out),
        classes=None,
        clusters=torch.tensor(clusters),
        bayes=torch.tensor(sigmas).square(),
        recipe=Recipe(model=partial(linear, d), train=Train(lr=0.05, steps=10), rounds=200),
    )
