"""How long a round, a prediction and a metric take: `focusfl reproduce runtime` and `metric-time`."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from focusfl.algorithms import ALGORITHMS
from focusfl.algorithms.focus.focus import Focus
from focusfl.data.sets.mnist import rotated_mnist
from focusfl.engines import plan
from focusfl.fairness import metrics
from focusfl.report.section import Measurement
from focusfl.run.setup import Setup

Watch = Callable[[int, int], None]  # called with the steps done and all steps
SETTLED_FOCUS = "focus, labels settled"


def runtime(n: int | None, repeats: int, watch: Watch = lambda done, total: None) -> list[Measurement]:
    """Measure the seconds of a round and of a prediction of every method on rotated MNIST.

    The methods take turns, so that a busy moment of the machine affects all.

    Args:
        n: Training examples per agent; None: all.
        repeats: How many turns.
        watch: Called after every measurement.

    Returns:
        One line per method: medians over the turns, and medians of the ratios to FedAvg.
    """
    fed = rotated_mnist(n=n)
    assert fed.clusters is not None
    setups = {}
    for name, kind in ALGORITHMS.items():
        algorithm = Focus(M=3, init="tied") if kind is Focus else kind()  # the split's first rounds have one model
        if (needed := algorithm.prerequisite()) is not None:
            algorithm = needed.with_clusters(fed.clusters)
        setups[name] = Setup.of(algorithm, fed, engine="serial")
    states = {name: setup.start() for name, setup in setups.items()}
    setups[SETTLED_FOCUS], (server, agents) = setups["focus"], setups["focus"].start()
    agents["log_pi"] = torch.log_softmax(50 * (fed.clusters[:, None] == torch.arange(3)).float(), 1)
    states[SETTLED_FOCUS] = server, agents
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in setups}
    for turn in range(repeats):
        for i, (name, setup) in enumerate(setups.items()):
            times[name].append(_round_and_prediction(setup, *states[name], turn))
            watch(turn * len(setups) + i + 1, repeats * len(setups))
    base = times["fedavg"]
    rows = []
    for name, each in times.items():
        ratios = [[mine[i] / theirs[i] for mine, theirs in zip(each, base, strict=True)] for i in range(2)]
        rows.append({"method": name, "round_seconds": median(t for t, _ in each), "round_ratio": median(ratios[0])})
        rows[-1] |= {"inference_seconds": median(t for _, t in each), "inference_ratio": median(ratios[1])}
    return rows


def _round_and_prediction(setup: Setup, server: Any, agents: Any, t: int) -> tuple[float, float]:
    cohort = plan.cohort(0, t, setup.fed.E, 1.0)
    clock = time.perf_counter()
    upload = setup.engine.round(setup.algorithm, server, agents, t, cohort)
    setup.algorithm.aggregate(server, upload.add, upload.each, torch.from_numpy(cohort))
    middle = time.perf_counter()
    setup.engine.evaluate(setup.algorithm, server, agents)
    return middle - clock, time.perf_counter() - middle


def metric_time(trials: int = 100) -> list[Measurement]:
    """Measure the seconds to compute each fairness metric from the agents' losses: the mean over the trials."""
    rng = torch.Generator().manual_seed(0)
    rows = []
    for E in (10, 100, 1_000_000):
        loss, best = torch.rand(E, generator=rng), torch.rand(E, generator=rng)
        jobs: dict[str, Callable[[], float]] = {
            "accuracy parity": lambda loss=loss: metrics.accuracy_parity(loss),  # type: ignore[misc]
            "agnostic loss": lambda loss=loss: metrics.agnostic_loss(loss),  # type: ignore[misc]
            "FAA": lambda loss=loss, best=best: metrics.faa(metrics.excess_risk(loss, best)),  # type: ignore[misc]
        }
        for name, job in jobs.items():
            job()
            clock = time.perf_counter()
            for _ in range(trials):
                job()
            rows.append({"metric": name, "agents": E, "seconds": (time.perf_counter() - clock) / trials})
    return rows
