"""Rounds on rotated MNIST against the processor's limit. `make bench`, or: python benchmarks/mnist.py --threads 2

10 agents x 6000 images, MLP 784-200-10, K = 10 full-batch steps. Compared with the matrix products of such a round
alone, and FOCUS with settled labels (M = 3 and 10) with FedAvg; predictions of a mixture with those of one model.
"""

from __future__ import annotations

import argparse
from statistics import median

import torch
from turns import Job, one_round, ratio, settle, setup, turns

import focusfl as ff
from focusfl.run.setup import Setup
from focusfl.util.device import supports_bf16

K = 10


def products(fed: ff.Federation) -> Job:
    """The matrix products of a FedAvg round, and nothing else."""
    w1, w2 = torch.randn(200, 784), torch.randn(10, 200)
    n = int(fed.training.sizes[0])
    d1, d2 = torch.randn(n, 200), torch.randn(n, 10)

    def go() -> None:
        for e in range(fed.E):
            x = fed.train(e).x.flatten(1)
            for _ in range(K):
                h = x @ w1.t()
                h @ w2.t(), d2.t() @ h, d2 @ w2, d1.t() @ x

    return go


def predictions(run: Setup) -> Job:
    server, states = run.start()
    if "log_pi" in states:
        settle(states["log_pi"])
    return lambda: run.engine.evaluate(run.algorithm, server, states)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--repeat", type=int, default=7)
    options.add_argument("--n", type=int, default=6000, help="images an agent")
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    fed = ff.data.rotated_mnist(n=chosen.n)
    train = ff.Train(lr=0.1, steps=K)
    runs = {
        "FedAvg": ff.FedAvg(),
        "FOCUS M = 3": ff.Focus(M=3, init="tied"),
        "FOCUS M = 10": ff.Focus(M=10, init="tied"),
    }
    setups = {name: setup(fed, algorithm, train, "serial") for name, algorithm in runs.items()}
    jobs: dict[str, Job] = {"products": products(fed)} | {name: one_round(run) for name, run in setups.items()}
    if supports_bf16(torch.device("cpu")):
        jobs["bf16"] = one_round(setup(fed, ff.FedAvg(), train, "serial", precision="bf16"))
    seconds = turns(jobs, chosen.repeat)
    work = 2 * fed.E * K * chosen.n * (2 * 784 * 200 + 3 * 200 * 10)
    print(f"a FedAvg round on rotated MNIST, {chosen.n} images an agent, {chosen.threads} thread(s):")
    print(f"  {median(seconds['FedAvg']):.2f} s; {work / median(seconds['FedAvg']) / 1e9:.0f} GFLOP/s")
    print(f"  of the rate of its products alone: {ratio(seconds, 'products', 'FedAvg'):.2f}")
    for name in ("FOCUS M = 3", "FOCUS M = 10"):
        print(f"  {name}, settled / FedAvg: {ratio(seconds, name, 'FedAvg'):.2f}")
    if "bf16" in jobs:
        print(f"  float32 / bf16: {ratio(seconds, 'FedAvg', 'bf16'):.2f}")
    else:
        print("  bf16: this processor has no units for it")
    said = turns({name: predictions(run) for name, run in setups.items()}, 5 * chosen.repeat)
    for name in ("FOCUS M = 3", "FOCUS M = 10"):
        print(f"  predictions, {name}, settled / FedAvg: {ratio(said, name, 'FedAvg'):.2f}")


if __name__ == "__main__":
    main()
