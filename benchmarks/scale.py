"""How time and memory grow with the number of agents, and with the model. python benchmarks/scale.py --out FILE

1. FOCUS, M = 3, with 100 to 100,000 agents x 60 examples, MLP 64-32-10, 5 local steps of batches of 20; a tenth of
   the agents takes part in a round. Seconds per participating agent, and the peak of memory beyond the data.
2. FOCUS, M = 2, ResNet-18 (width 64), 100 agents: the peak of memory beyond the data, in copies of the model.

Each case runs in a process of its own: a peak cannot be taken back.
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
from turns import small_agents

import focusfl as ff
from focusfl.data.federation import Recipe, Rows
from focusfl.engines import plan
from focusfl.run.setup import Setup

AGENTS = (100, 1_000, 10_000, 100_000)


def peak() -> int:
    """Bytes this process has held at most, so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def images(E: int, n: int = 2) -> ff.Federation:
    rows = [
        Rows(torch.randn(E * s, 3, 32, 32), torch.randint(0, 10, (E * s,)), torch.arange(E + 1) * s) for s in (n, 2)
    ]
    return ff.Federation("images", *rows, classes=10, recipe=Recipe(model=lambda: ff.models.resnet18(10)))


def bytes_of(fed: ff.Federation) -> int:
    return sum(v.numel() * v.element_size() for rows in (fed.training, fed.testing) for v in (rows.x, rows.y))


def measure(
    fed: ff.Federation, algorithm: ff.Focus, train: ff.Train, fraction: float, rounds: int
) -> dict[str, Any]:
    gc.collect()
    before = peak()
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
    used = {"data": bytes_of(fed), "peak": peak(), "before": before, "model": model}
    return {"agents": fed.E, "seconds_per_agent": median(seconds[1:]), **used}


def case(name: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    if name == "resnet18":
        ff.models.resnet18(10, width=8)(torch.randn(2, 3, 32, 32)).sum().backward()  # the libraries' own memory
        fed = images(100)
        return measure(fed, ff.Focus(M=2, init="tied"), ff.Train(lr=0.01, steps=1, batch=2), 1.0, 2)
    fed = small_agents(int(name))
    rounds = 4 if fed.E >= 100_000 else 11
    return measure(fed, ff.Focus(M=3, init="tied"), ff.Train(steps=5, batch=20), 0.1, rounds)


def apart(name: str) -> dict[str, Any]:
    out = subprocess.run(
        [sys.executable, __file__, "--case", name], check=True, capture_output=True, text=True
    ).stdout
    return dict(json.loads(out))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--case", help="one case, as JSON")
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--out", type=Path, help="keep the numbers as JSON, and a figure beside it")
    chosen = options.parse_args()
    if chosen.case:
        print(json.dumps(case(chosen.case)))
        return
    turns = [[apart(str(E)) for E in AGENTS] for _ in range(chosen.repeat)]
    rows = []
    for i, E in enumerate(AGENTS):
        same = [turn[i] for turn in turns]
        row = same[0] | {"seconds_per_agent": median(r["seconds_per_agent"] for r in same)}
        row["to_1000"] = median(t[i]["seconds_per_agent"] / t[1]["seconds_per_agent"] for t in turns)
        rows.append(row)
        print(f"{E:7,} agents: {1e6 * row['seconds_per_agent']:.0f} us per participating agent,", end=" ")
        print(f"{row['to_1000']:.2f} of that with 1,000;", end=" ")
        print(f"peak {row['peak'] / 1e9:.2f} GB, {(row['peak'] - row['data']) / 1e9:.2f} beyond the data")
    large = apart("resnet18")
    copies = (large["peak"] - large["before"]) / large["model"]
    print(f"ResNet-18, 100 agents, M = 2: {copies:.1f} copies of the model above the data")
    if chosen.out:
        chosen.out.with_suffix(".svg").write_text(figure(rows))
        chosen.out.write_text(json.dumps({"small agents": rows, "resnet18": large}, indent=1) + "\n")


if __name__ == "__main__":
    main()
