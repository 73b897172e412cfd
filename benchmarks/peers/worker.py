"""One peer in a process of its own, a round at a time: python -m peers.worker PEER WORK.npz --threads 1

A line on standard input asks for a round, the answer is one line of JSON. A peer's file has `PACKAGE`, its name
among the installed packages, and `run(work, turn)`: the library's own loop, which calls `turn` between two rounds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import numpy as np
from peers.work import Array, Work

Rows = Counter[int]  # examples in a step -> how many such steps
FOREVER = 1_000_000  # rounds: the peers are told to stop, they do not count


class Turn:
    """Called between two rounds: answers for the one that ended, waits until the next is asked for."""

    def __init__(self, width: int, threads: int, package: str, answers: TextIO) -> None:
        self.threads, self._width, self._package, self._answers = threads, width, package, answers
        self._asked: list[str] = []  # ["round"], or ["check", where to write the weights]
        self._begun, self._children = (0.0, 0.0), 0.0  # clocks: wall, CPU; CPU of the processes begun here
        self._rows: Rows = Counter()
        self._unhook: Callable[[], None] = lambda: None

    def __call__(self, weights: Callable[[], list[Array]], rows: Callable[[], Rows] | None = None) -> bool:
        """False: no more rounds. `rows` tells the last round's steps where torch's modules cannot be watched."""
        wall, own = time.perf_counter(), time.process_time()
        self._unhook()
        if self._asked[:1] == ["round"]:
            cpu = own - self._begun[1] + children_seconds() - self._children
            self._answer({"wall": wall - self._begun[0], "cpu": cpu})
        elif self._asked:
            np.savez(self._asked[1], **{f"w{i}": np.asarray(w) for i, w in enumerate(weights())})
            self._answer({"rows": rows() if rows else self._rows, "version": version(self._package)})
        self._asked = sys.stdin.readline().split()
        self._unhook = self._watch() if self._asked[:1] == ["check"] and rows is None else lambda: None
        self._children = children_seconds()
        self._begun = (time.perf_counter(), time.process_time())
        return bool(self._asked)

    def _answer(self, said: dict[str, object]) -> None:
        print(json.dumps(said), file=self._answers, flush=True)

    def _watch(self) -> Callable[[], None]:
        """Count the batches that reach a first layer in training."""
        from torch import nn
        from torch.nn.modules.module import register_module_forward_pre_hook

        self._rows = Counter()

        def see(module: nn.Module, inputs: Any) -> None:
            if isinstance(module, nn.Linear) and module.in_features == self._width and module.training:
                self._rows[len(inputs[0])] += 1

        return register_module_forward_pre_hook(see).remove


def children_seconds() -> float:
    """CPU time of all processes that descend from this one, where /proc tells."""
    parents, ticks = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # gone meanwhile
            continue
        pid = int(stat.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    total, new = 0, {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in new}:
        total += sum(ticks[pid] for pid in new)
    return total / os.sysconf("SC_CLK_TCK")


def import_torchvision() -> None:
    """For libraries that import it. Built for CUDA beside a CPU build of torch it fails while it describes its own
    operators to torch; nothing here uses them, so the description is left out.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        left_out = "torchvision._meta_registrations"
        sys.modules[left_out] = ModuleType(left_out)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("peer")
    options.add_argument("work", type=Path)
    options.add_argument("--threads", type=int, default=1)
    chosen = options.parse_args()
    sys.argv[1:] = []  # some libraries read it
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to the log
    peer = importlib.import_module(f"peers.{chosen.peer}")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(chosen.threads)
    work = Work.read(chosen.work)
    peer.run(work, Turn(work.x.shape[2], chosen.threads, peer.PACKAGE, answers))


if __name__ == "__main__":
    main()
