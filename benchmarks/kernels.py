"""Compare the hand-written gradient of small networks with vmap of autograd.

Run: python benchmarks/kernels.py

Both compute the gradients of the same P networks 64-32-10 on batches of B examples. The ratio of their times is
printed.
"""

from __future__ import annotations

import argparse

import torch
from timing import ratio, time_in_turns

import focusfl as ff
from focusfl.engines.kernels.mlp import Mlp
from focusfl.engines.vectorised.batched import gradient
from focusfl.models.task import Task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--repeat", type=int, default=50, help="number of timed runs")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    task = Task(ff.models.mlp(64, 32, 10), 10)
    kernel = Mlp.of(task, flat=True)
    assert kernel is not None
    for P, B in ((100, 20), (300, 20), (1000, 20), (100, 60), (300, 60)):
        w = {k: torch.randn(P, *v.shape) for k, v in task.weights().items()}
        x, y, share = torch.randn(P, B, 64), torch.randint(0, 10, (P, B)), torch.full((P, B), 1 / B)
        seconds = time_in_turns(
            {
                "autograd": lambda w=w, x=x, y=y, s=share: gradient(task, w, x, y, s, ()),  # type: ignore[misc]
                "kernel": lambda w=w, x=x, y=y, s=share: kernel.gradient(w, x, y, s),  # type: ignore[misc]
            },
            options.repeat,
        )
        print(f"{P} networks x {B} examples: autograd / kernel {ratio(seconds, 'autograd', 'kernel'):.2f}")


if __name__ == "__main__":
    main()
