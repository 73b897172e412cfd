"""Compare the speed of the engines.

Run: `make bench`, or python benchmarks/engines.py --threads 2

It measures a round of FedAvg and of FOCUS with 200 agents, 50 examples each, an MLP 64-32-10 and K = 10 local
steps, with full batches and with batches of 20. It prints the time of FOCUS relative to FedAvg, and of the serial
engine relative to the vectorised one. It also measures FAA of a million agents and how long focusfl takes to start.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from statistics import median

import torch
from timing import one_round, ratio, setup, small_agents, time_in_turns

import focusfl as ff
from focusfl.fairness import metrics


def start_up(command: str, without: str = "pass") -> float:
    """Return the seconds a new Python process takes for `command`, minus those it takes for `without`."""
    differences = []
    for _ in range(7):
        seconds = []
        for code in (command, without):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - start)
        differences.append(seconds[0] - seconds[1])
    return median(differences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--repeat", type=int, default=15, help="number of timed runs")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    fed = small_agents(E=200, n=50)
    print(f"{fed.E} agents with 50 examples each, MLP 64-32-10, K = 10, {options.threads} thread(s)")
    for name, train in (("full batch", ff.Train(steps=10)), ("batches of 20", ff.Train(steps=10, batch=20))):
        for engine in ("serial", "vectorised"):
            pair = {
                "FedAvg": one_round(setup(fed, ff.FedAvg(), train, engine)),
                "FOCUS": one_round(setup(fed, ff.Focus(M=3, init="tied"), train, engine)),
            }
            seconds = time_in_turns(pair, options.repeat)
            times = ", ".join(f"{k} {1000 * median(v):.0f} ms" for k, v in seconds.items())
            relative = ratio(seconds, "FOCUS", "FedAvg")
            print(f"{name}, {engine}: {times}; FOCUS (M = 3, settled labels) / FedAvg {relative:.2f}")
        both = {e: one_round(setup(fed, ff.FedAvg(), train, e)) for e in ("serial", "vectorised")}
        print(f"{name}, FedAvg: serial / vectorised {ratio(time_in_turns(both, 5), 'serial', 'vectorised'):.1f}")
    risks = torch.randn(1_000_000)
    faa = time_in_turns({"faa": lambda: metrics.faa(risks)}, 9)["faa"]
    print(f"FAA of 1,000,000 agents: {1000 * median(faa):.1f} ms")
    show_help = "import sys; sys.argv = ['focusfl', '--help']; from focusfl.cli import main; main()"
    print(f"focusfl --help: {start_up(show_help):.2f} s")
    everything = "import focusfl as ff; ff.fit, ff.Focus, ff.data.rotated_digits, ff.models.mlp, ff.Train"
    print(f"import all of focusfl, without torch and numpy: {start_up(everything, 'import torch, numpy'):.2f} s")


if __name__ == "__main__":
    main()
