"""Time functions in turns; the other benchmarks import this file.

What is compared takes turns, so that a busy moment of the machine affects all of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch

import focusfl as ff
from focusfl.core import Algorithm
from focusfl.data.federation import Recipe, Rows
from focusfl.run.setup import Setup

Job = Callable[[], object]


def time_in_turns(jobs: dict[str, Job], repeat: int) -> dict[str, list[float]]:
    """Run all jobs `repeat` times in turns, after one warm-up run of each; return the seconds of every run."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(repeat + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(seconds: dict[str, list[float]], slow: str, fast: str) -> float:
    """Return the median over the turns of the ratio of two jobs' seconds within a turn."""
    return median(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))


def one_round(setup: Setup, settled: bool = True) -> Job:
    """Return a job that runs one round. With `settled`, every agent of FOCUS belongs to one cluster."""
    server, states = setup.start()
    all_agents = np.arange(setup.fed.E)
    if settled and "log_pi" in states:
        settle(states["log_pi"])

    def job() -> None:
        upload = setup.engine.round(setup.algorithm, server, states, 0, all_agents)
        setup.algorithm.aggregate(server, upload.add, upload.each, torch.from_numpy(all_agents))

    return job


def settle(log_pi: torch.Tensor) -> None:
    """Set the labels in place: agent e belongs to cluster e mod M with certainty."""
    E, M = log_pi.shape
    log_pi[:] = -1000.0
    log_pi[torch.arange(E), torch.arange(E) % M] = 0.0


def small_agents(E: int, n: int = 60, n_test: int = 10) -> ff.Federation:
    """Return E agents with n random examples each: 64 features, ten classes, and an MLP 64-32-10."""
    rng = np.random.default_rng(0)

    def rows(size: int) -> Rows:
        x = torch.from_numpy(rng.standard_normal((E * size, 64), dtype=np.float32))
        return Rows(x, torch.from_numpy(rng.integers(0, 10, E * size)), torch.arange(E + 1) * size)

    recipe = Recipe(model=lambda: ff.models.mlp(64, 32, 10))
    return ff.Federation("small", rows(n), rows(n_test), classes=10, recipe=recipe)


def setup(
    fed: ff.Federation, algorithm: Algorithm, train: ff.Train, engine: str = "auto", **options: object
) -> Setup:
    """Set up a run of 100 rounds."""
    return Setup.of(algorithm, fed, 100, train=train, engine=engine, **options)  # type: ignore[arg-type]
