"""Measure what Flower's simulation costs.

Run: python benchmarks/flower.py

It compares a FedAvg round of ten agents in the simulation with a round of the serial engine. The engines take
turns, and the simulation stays open. Both run on the same machine, so the difference is the cost of the messages.
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np

import focusfl as ff
from focusfl.run.setup import Setup

REPEAT = 7


def main() -> None:
    """Print the ratio for two data sets."""
    for name, fed in (
        ("digits, MLP", ff.data.rotated_digits(seed=0)),
        ("MNIST 10 x 1000, 784-200-10", ff.data.rotated_mnist(seed=0, n=1000, n_test=100)),
    ):
        algorithm = ff.FedAvg()
        setups = {engine: Setup.of(algorithm, fed, 100, engine=engine) for engine in ("serial", "flower")}
        start = {engine: setup.start() for engine, setup in setups.items()}
        seconds: dict[str, list[float]] = {engine: [] for engine in setups}
        try:
            for turn in range(REPEAT + 1):
                for engine, setup in setups.items():
                    clock = time.perf_counter()
                    setup.engine.round(algorithm, *start[engine], turn, np.arange(fed.E))
                    if turn:  # the first round also starts the workers
                        seconds[engine].append(time.perf_counter() - clock)
        finally:
            setups["flower"].engine.close()
        ratio = median(b / a for a, b in zip(seconds["serial"], seconds["flower"], strict=True))
        print(f"{name}: {ratio:.1f} times the serial engine ({median(seconds['serial']):.3f} s per round)")


if __name__ == "__main__":
    main()
