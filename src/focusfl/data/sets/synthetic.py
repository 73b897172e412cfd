"""Linear data with outlier agents: section 4.2 and table 1 of the paper."""

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
    """y = mu_e^T x + eps, x ~ N(0, I_d), eps ~ N(0, sigma_e^2), the last agents outliers.

    mu_e lies within r of its cluster's centre. The outliers' centre is at distance R from the others'; with
    several `outlier_clusters` the outliers are dealt out to that many centres, at least R from each other.
    `sigma`: one number, or one an agent. The Bayes-optimal loss of agent e is sigma_e^2.
    """
    require("data.seed", seed, seed >= 0, "0 or more")
    require("data.E", E, E >= 2, "2 or more")
    require("data.outliers", outliers, 0 <= outliers < E, f"from 0 to {E - 1}")
    fits = 0 < outlier_clusters <= max(1, outliers)
    require("data.outlier_clusters", outlier_clusters, fits, "from 1 to the number of outliers")
    require("data.d", d, d >= outlier_clusters, f"{outlier_clusters} or more: a direction per outlier cluster")
    require("data.n", n, n >= 1, "1 or more")
    require("data.n_test", n_test, n_test >= 1, "1 or more")
    require("data.R", R, R >= 0, "0 or more")
    require("data.r", r, r >= 0, "0 or more")
    sigmas = [float(s) for s in sigma] if isinstance(sigma, Sequence) else [float(sigma)] * E
    if len(sigmas) != E or not all(0 <= s < math.inf for s in sigmas):
        raise InputError(f"data.sigma = {sigma}: expected a number of 0 or more, or {E} of them")

    rng = np.random.default_rng([seed, 1])
    centre = rng.normal(size=d) / np.sqrt(d)
    directions = np.linalg.qr(rng.normal(size=(d, d)))[0][:outlier_clusters]  # orthogonal: sqrt(2) R apart
    centres = np.vstack([centre, centre + R * directions])  # [C, d]
    clusters = [0] * (E - outliers) + [1 + i % outlier_clusters for i in range(outliers)]

    agents: list[Data] = []
    held_out: list[Data] = []
    for e in range(E):
        step = rng.normal(size=d)
        mu = centres[clusters[e]] + r * rng.uniform() ** (1 / d) * step / np.linalg.norm(
            step
        )  # uniform in the r-ball
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
