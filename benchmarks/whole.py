"""A whole run of FOCUS against one of FedAvg, and against FOCUS without shortcuts. python benchmarks/whole.py

Rotated MNIST, M = 3, 300 rounds. The runs take turns, a round each; printed are the ratio of their seconds, and
what the shortcuts (models not trained, rough losses, models not asked) change in accuracy and labels.
"""

from __future__ import annotations

import argparse

import torch
from focusfl.run.training import labels

import focusfl as ff
from focusfl.run.loop import Round, run
from focusfl.run.setup import Setup


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--rounds", type=int, default=300)
    options.add_argument("--n", type=int, default=300, help="images an agent")
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    fed = ff.data.rotated_mnist(n=chosen.n, seed=chosen.seed)
    for init in ("independent", "split"):
        methods = {
            "FedAvg": ff.FedAvg(),
            "FOCUS": ff.Focus(M=3, init=init),
            "without": ff.Focus(M=3, init=init, prune=0.0),
        }
        setups = {k: Setup.of(a, fed, chosen.rounds, seed=chosen.seed, engine="serial") for k, a in methods.items()}
        runs = {k: run(setup, eval_every=0) for k, setup in setups.items()}
        last: dict[str, Round] = {}
        for _ in range(chosen.rounds):
            last = {k: next(rounds) for k, rounds in runs.items()}
        scores = {k: setups[k].engine.evaluate(methods[k], r.server, r.states) for k, r in last.items()}
        pi = {k: labels(methods[k], last[k].server, last[k].states, fed.E) for k in ("FOCUS", "without")}
        seconds = {k: r.seconds for k, r in last.items()}
        acc = {k: 100 * float(s.acc.mean()) for k, s in scores.items() if s.acc is not None}
        print(f"init = {init}: FOCUS / FedAvg {seconds['FOCUS'] / seconds['FedAvg']:.2f},", end=" ")
        print(f"without shortcuts {seconds['without'] / seconds['FedAvg']:.2f};", end=" ")
        print(f"accuracy {acc['FOCUS']:.2f} % against {acc['without']:.2f} %,", end=" ")
        assert pi["FOCUS"] is not None and pi["without"] is not None
        print(f"labels differ by {float((pi['FOCUS'] - pi['without']).abs().max()):.1e} at most", flush=True)


if __name__ == "__main__":
    main()
