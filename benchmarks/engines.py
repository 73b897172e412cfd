"""Speed of the engines, as ratios measured side by side. `make bench`, or: python benchmarks/engines.py --threads 2

200 agents x 50 examples, MLP 64-32-10, K = 10 local steps; full batch, and batches of 20.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from statistics import median

import torch
from turns import one_round, ratio, setup, small_agents, turns

import focusfl as ff
from focusfl.fairness import metrics


def start_up(command: str, without: str = "pass") -> float:
    """Seconds a fresh Python takes for the command, less those for what it would need anyway."""
    times = []
    for _ in range(7):
        took = []
        for code in (command, without):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
            took.append(time.perf_counter() - start)
        times.append(took[0] - took[1])
    return median(times)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--repeat", type=int, default=15)
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    fed = small_agents(E=200, n=50)
    print(f"{fed.E} agents x 50 examples, MLP 64-32-10, K = 10, {chosen.threads} thread(s)")
    for name, train in (("full batch", ff.Train(steps=10)), ("batches of 20", ff.Train(steps=10, batch=20))):
        for engine in ("serial", "vectorised"):
            pair = {
                "FedAvg": one_round(setup(fed, ff.FedAvg(), train, engine)),
                "FOCUS": one_round(setup(fed, ff.Focus(M=3, init="tied"), train, engine)),
            }
            seconds = turns(pair, chosen.repeat)
            times = ", ".join(f"{k} {1000 * median(v):.0f} ms" for k, v in seconds.items())
            compared = ratio(seconds, "FOCUS", "FedAvg")
            print(f"{name}, {engine}: {times}; FOCUS (M = 3, settled) / FedAvg {compared:.2f}")
        both = {e: one_round(setup(fed, ff.FedAvg(), train, e)) for e in ("serial", "vectorised")}
        print(f"{name}, FedAvg: serial / vectorised {ratio(turns(both, 5), 'serial', 'vectorised'):.1f}")
    risks = torch.randn(1_000_000)
    print(f"FAA of 1,000,000 agents: {1000 * median(turns({'faa': lambda: metrics.faa(risks)}, 9)['faa']):.1f} ms")
    run = "import sys; sys.argv = ['focusfl', '--help']; from focusfl.cli import main; main()"
    print(f"focusfl --help: {start_up(run):.2f} s")
    everything = "import focusfl as ff; ff.fit, ff.Focus, ff.data.rotated_digits, ff.models.mlp, ff.Train"
    print(f"import focusfl, all of it, beyond torch and numpy: {start_up(everything, 'import torch, numpy'):.2f} s")


if __name__ == "__main__":
    main()
