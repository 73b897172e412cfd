"""Measure how time and memory grow with the number of agents and with the model.

Run: python benchmarks/scale.py --out FILE

1. FOCUS with M = 3 and 100 to 100,000 agents, 60 examples each, an MLP 64-32-10 and 5 local steps with batches of
   20; a tenth of the agents participates in a round. Measured: seconds per participating agent, and peak memory
   without the data.
2. FOCUS with M = 2, a ResNet-18 (width 64) and 100 agents. Measured: peak memory without the data, in copies of the
   model.

Every case runs in its own process, because the peak memory of a process cannot be reset.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from figure import figure
from timing import small_agents

import focusfl as ff
from focusfl.data.federation import Recipe, Rows
from focusfl.engines import plan
from focusfl.run.setup import Setup

AGENTS = (100, 1_000, 10_000, 100_000)


def peak_memory() -> int:
    """Return the peak memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def images(E: int, n: int = 2) -> ff.Federation:
    """Return E agents with n random images each, and a ResNet-18."""
    rows = [
        Rows(torch.randn(E * s, 3, 32, 32), torch.randint(0, 10, (E * s,)), torch.arange(E + 1) * s) for s in (n, 2)
    ]
    return ff.Federation("images", *rows, classes=10, recipe=Recipe(model=lambda: ff.models.resnet18(10)))


def data_bytes(fed: ff.Federation) -> int:
    """Return the size of all training and test data."""
    return sum(v.numel() * v.element_size() for rows in (fed.training, fed.testing) for v in (rows.x, rows.y))


def measure(
    fed: ff.Federation, algorithm: ff.Focus, train: ff.Train, fraction: float, rounds: int
) -> dict[str, Any]:
    """Run some rounds; return the seconds per participating agent and the memory, as in scale.json."""
    gc.collect()
    before = peak_memory()
    setup = Setup.of(algorithm, fed, rounds, train=train, fraction=fraction)
    server, states = setup.start()
    seconds = []
    for t in range(rounds):
        cohort = plan.cohort(0, t, fed.E, fraction)
        start = time.perf_counter()
        with setup.engine.threads():
            answers = setup.engine.round(algorithm, server, states, t, cohort)
        server = algorithm.aggregate(server, answers.add, answers.each, torch.from_numpy(cohort))
        del answers
        seconds.append((time.perf_counter() - start) / len(cohort))
    model = sum(v.numel() * v.element_size() for v in setup.task.weights().values())
    used = {"data": data_bytes(fed), "peak": peak_memory(), "before": before, "model": model}
    return {"agents": fed.E, "seconds_per_agent": median(seconds[1:]), **used}


def run_case(name: str) -> dict[str, Any]:
    """Measure one case in this process: "resnet18", or a number of small agents."""
    torch.set_num_threads(1)
    if name == "resnet18":
        ff.models.resnet18(10, width=8)(torch.randn(2, 3, 32, 32)).sum().backward()  # for the libraries' memory
        fed = images(100)
        return measure(fed, ff.Focus(M=2, init="tied"), ff.Train(lr=0.01, steps=1, batch=2), 1.0, 2)
    fed = small_agents(int(name))
    rounds = 4 if fed.E >= 100_000 else 11
    return measure(fed, ff.Focus(M=3, init="tied"), ff.Train(steps=5, batch=20), 0.1, rounds)


def run_in_process(name: str) -> dict[str, Any]:
    """Measure one case in a new process."""
    out = subprocess.run(
        [sys.executable, __file__, "--case", name], check=True, capture_output=True, text=True
    ).stdout
    return dict(json.loads(out))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", help="measure only this case and print JSON: resnet18, or a number of agents")
    parser.add_argument("--repeat", type=int, default=3, help="number of timed runs")
    parser.add_argument("--out", type=Path, help="write the numbers to this JSON file and a figure next to it")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(run_case(options.case)))
        return
    turns = [[run_in_process(str(E)) for E in AGENTS] for _ in range(options.repeat)]
    rows = []
    for i, E in enumerate(AGENTS):
        same = [turn[i] for turn in turns]
        row = same[0] | {"seconds_per_agent": median(r["seconds_per_agent"] for r in same)}
        row["to_1000"] = median(t[i]["seconds_per_agent"] / t[1]["seconds_per_agent"] for t in turns)
        rows.append(row)
        print(f"{E:7,} agents: {1e6 * row['seconds_per_agent']:.0f} us per participating agent,", end=" ")
        print(f"{row['to_1000']:.2f} times that of 1,000 agents;", end=" ")
        print(f"peak {row['peak'] / 1e9:.2f} GB, {(row['peak'] - row['data']) / 1e9:.2f} GB without the data")
    large = run_in_process("resnet18")
    copies = (large["peak"] - large["before"]) / large["model"]
    print(f"ResNet-18, 100 agents, M = 2: {copies:.1f} copies of the model, without the data")
    if options.out:
        options.out.with_suffix(".svg").write_text(figure(rows))
        options.out.write_text(json.dumps({"small agents": rows, "resnet18": large}, indent=1) + "\n")


if __name__ == "__main__":
    main()
