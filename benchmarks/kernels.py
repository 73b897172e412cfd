"""The hand-written gradient against vmap of autograd: the same P small networks. python benchmarks/kernels.py"""

from __future__ import annotations

import argparse

import torch
from turns import ratio, turns

import focusfl as ff
from focusfl.engines.kernels.mlp import Mlp
from focusfl.engines.vectorised.batched import _gradient
from focusfl.models.task import Task


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--repeat", type=int, default=50)
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    task = Task(ff.models.mlp(64, 32, 10), 10)
    kernel = Mlp.of(task, flat=True)
    assert kernel is not None
    for P, B in ((100, 20), (300, 20), (1000, 20), (100, 60), (300, 60)):
        w = {k: torch.randn(P, *v.shape) for k, v in task.weights().items()}
        x, y, share = torch.randn(P, B, 64), torch.randint(0, 10, (P, B)), torch.full((P, B), 1 / B)
        seconds = turns(
            {
                "autograd": lambda w=w, x=x, y=y, s=share: _gradient(task, w, x, y, s, ()),  # type: ignore[misc]
                "kernel": lambda w=w, x=x, y=y, s=share: kernel.gradient(w, x, y, s),  # type: ignore[misc]
            },
            chosen.repeat,
        )
        print(f"{P} networks x {B} examples: autograd / kernel {ratio(seconds, 'autograd', 'kernel'):.2f}")


if __name__ == "__main__":
    main()
