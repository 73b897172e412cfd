"""Timing side by side: what is compared takes turns, so that a busy moment of the machine hits all of it."""

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


def turns(jobs: dict[str, Job], repeat: int) -> dict[str, list[float]]:
    """Seconds of each, measured in turn after one to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(repeat + 1):
        for name, go in jobs.items():
            start = time.perf_counter()
            go()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(seconds: dict[str, list[float]], slow: str, fast: str) -> float:
    """The median over the turns of the ratio within a turn."""
    return median(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))


def one_round(setup: Setup, settled: bool = True) -> Job:
    """A round that can be timed again and again. FOCUS's labels have settled: one cluster an agent."""
    server, states = setup.start()
    everyone = np.arange(setup.fed.E)
    if settled and "log_pi" in states:
        settle(states["log_pi"])

    def go() -> None:
        upload = setup.engine.round(setup.algorithm, server, states, 0, everyone)
        setup.algorithm.aggregate(server, upload.add, upload.each, torch.from_numpy(everyone))

    return go


def settle(log_pi: torch.Tensor) -> None:
    """Agent e belongs to cluster e mod M, beyond doubt."""
    E, M = log_pi.shape
    log_pi[:] = -1000.0
    log_pi[torch.arange(E), torch.arange(E) % M] = 0.0


def small_agents(E: int, n: int = 60, n_test: int = 10) -> ff.Federation:
    """E agents with n examples of 64 numbers each, in ten classes; MLP 64-32-10."""
    rng = np.random.default_rng(0)

    def rows(size: int) -> Rows:
        x = torch.from_numpy(rng.standard_normal((E * size, 64), dtype=np.float32))
        return Rows(x, torch.from_numpy(rng.integers(0, 10, E * size)), torch.arange(E + 1) * size)

    recipe = Recipe(model=lambda: ff.models.mlp(64, 32, 10))
    return ff.Federation("small", rows(n), rows(n_test), classes=10, recipe=recipe)


def setup(fed: ff.Federation, algorithm: Algorithm, train: ff.Train, engine: str = "auto", **more: object) -> Setup:
    return Setup.of(algorithm, fed, 100, train=train, engine=engine, **more)  # type: ignore[arg-type]
