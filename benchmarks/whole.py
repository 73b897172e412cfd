"""Compare whole runs of FOCUS, of FOCUS without shortcuts and of FedAvg.

Run: python benchmarks/whole.py

The data are rotated MNIST, M = 3, 300 rounds. The runs take turns, one round each. The benchmark prints the ratios
of their times, and how much the shortcuts change the accuracy and the labels. The shortcuts concern models with
small labels: they are not trained, their losses are estimated on some examples, and predictions leave them out.
"""

from __future__ import annotations

import argparse

import torch

import focusfl as ff
from focusfl.run.loop import Round, run
from focusfl.run.setup import Setup


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--rounds", type=int, default=300, help="number of rounds")
    parser.add_argument("--n", type=int, default=300, help="images per agent")
    parser.add_argument("--seed", type=int, default=1, help="seed of the data and the runs")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    fed = ff.data.rotated_mnist(n=options.n, seed=options.seed)
    for init in ("independent", "split"):
        methods = {
            "FedAvg": ff.FedAvg(),
            "FOCUS": ff.Focus(M=3, init=init),
            "no shortcuts": ff.Focus(M=3, init=init, prune=0.0),
        }
        setups = {
            k: Setup.of(a, fed, options.rounds, seed=options.seed, engine="serial") for k, a in methods.items()
        }
        runs = {k: run(setup, eval_every=0) for k, setup in setups.items()}
        last: dict[str, Round] = {}
        for _ in range(options.rounds):
            last = {k: next(rounds) for k, rounds in runs.items()}
        scores = {k: setups[k].engine.evaluate(methods[k], r.server, r.states) for k, r in last.items()}
        pi = {
            k: setups[k].engine.labels(methods[k], last[k].server, last[k].states)
            for k in ("FOCUS", "no shortcuts")
        }
        seconds = {k: r.total_seconds for k, r in last.items()}
        acc = {k: 100 * float(s.acc.mean()) for k, s in scores.items() if s.acc is not None}
        print(f"init = {init}: FOCUS / FedAvg {seconds['FOCUS'] / seconds['FedAvg']:.2f},", end=" ")
        print(f"without shortcuts {seconds['no shortcuts'] / seconds['FedAvg']:.2f};", end=" ")
        print(f"accuracy {acc['FOCUS']:.2f} % and without shortcuts {acc['no shortcuts']:.2f} %;", end=" ")
        assert pi["FOCUS"] is not None and pi["no shortcuts"] is not None
        difference = float((pi["FOCUS"] - pi["no shortcuts"]).abs().max())
        print(f"the labels differ by at most {difference:.1e}", flush=True)


if __name__ == "__main__":
    main()
