"""Speed of the engines, as ratios measured side by side. `make bench`, or: python benchmarks/engines.py --threads 2

200 agents x 50 examples, MLP 64-32-10, K = 10 local steps; full batch, and batches of 20.
Every round is timed in turn, several times over; printed is the median of the ratios within a turn.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch

import focusfl as ff
from focusfl import metrics
from focusfl.core import Algorithm
from focusfl.training import Setup


def agents(E: int = 200, n: int = 50) -> ff.Federation:
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(n + 10, 64)).astype("float32"), rng.integers(0, 10, n + 10)) for _ in range(E)]
    return ff.Federation.from_agents(pairs, test=10 / (n + 10), model=lambda: ff.models.mlp(64, 32, 10))


def one_round(fed: ff.Federation, algorithm: Algorithm, engine: str, train: ff.Train) -> Callable[[], None]:
    """A round that can be timed again and again. FOCUS's labels have settled: one cluster an agent."""
    setup = Setup.of(algorithm, fed, 100, train=train, engine=engine)
    server, states = setup.start()
    everyone = np.arange(fed.E)
    if isinstance(algorithm, ff.Focus):
        states["log_pi"][:] = -50.0
        states["log_pi"][everyone, everyone % algorithm.M] = 0.0

    def go() -> None:
        upload = setup.runner.round(algorithm, server, states, 0, everyone)
        algorithm.aggregate(server, upload.add, upload.each, torch.from_numpy(everyone))

    return go


def turns(rounds: dict[str, Callable[[], None]], repeat: int) -> dict[str, list[float]]:
    """Seconds of each, measured in turn after one round to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in rounds}
    for turn in range(repeat + 1):
        for name, go in rounds.items():
            start = time.perf_counter()
            go()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(seconds: dict[str, list[float]], slow: str, fast: str) -> float:
    return median(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))


def start_up() -> float:
    """Seconds from typing `focusfl --help` to its last line."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        command = "import sys; sys.argv = ['focusfl', '--help']; from focusfl.cli import main; main()"
        subprocess.run([sys.executable, "-c", command], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return median(times)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--repeat", type=int, default=15)
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    fed = agents()
    size = int(fed.training.sizes[0])
    print(f"{fed.E} agents x {size} examples, MLP 64-32-10, K = 10, {chosen.threads} thread(s)")
    for name, train in (("full batch", ff.Train(steps=10)), ("batches of 20", ff.Train(steps=10, batch=20))):
        for engine in ("serial", "vectorised"):
            pair = {
                "FedAvg": one_round(fed, ff.FedAvg(), engine, train),
                "FOCUS": one_round(fed, ff.Focus(M=3), engine, train),
            }
            seconds = turns(pair, chosen.repeat)
            times = ", ".join(f"{k} {1000 * median(v):.0f} ms" for k, v in seconds.items())
            compared = ratio(seconds, "FOCUS", "FedAvg")
            print(f"{name}, {engine}: {times}; FOCUS (M = 3, settled) / FedAvg {compared:.2f}")
        both = {engine: one_round(fed, ff.FedAvg(), engine, train) for engine in ("serial", "vectorised")}
        print(f"{name}, FedAvg: serial / vectorised {ratio(turns(both, 5), 'serial', 'vectorised'):.1f}")
    risks = torch.randn(1_000_000)
    print(f"FAA of 1,000,000 agents: {1000 * median(turns({'faa': lambda: metrics.faa(risks)}, 9)['faa']):.1f} ms")
    print(f"focusfl --help: {start_up():.2f} s")


if __name__ == "__main__":
    main()
