"""A cell: one method on one data set with one seed. Tables share cells, so each is computed once.

CELLS/KEY/cell.json      what it is
CELLS/KEY/...            its run: history.jsonl, two checkpoints, result.json
CELLS/KEY/error.txt      why it failed
CELLS/surrogates/        best losses, shared by the cells
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import torch

from focusfl.core import Algorithm
from focusfl.data import DATA
from focusfl.report.rows import RoundHistory, Row
from focusfl.run import history, identity, results
from focusfl.run.best_loss import Surrogates
from focusfl.run.experiment import Experiment
from focusfl.run.fit import train_and_judge
from focusfl.run.result import identifying_options
from focusfl.run.setup import Setup
from focusfl.util import files
from focusfl.util.errors import CannotRun
from focusfl.util.machine import provenance
from focusfl.util.progress import RunProgress

GOALS = (0.55, 0.6, 0.65, *history.GOALS)  # accuracies of the tables for CIFAR and for MNIST
Status = Literal["done", "running", "started", "failed", "missing"]


@dataclass(frozen=True)
class Cell:
    """One method of an experiment, with one seed."""

    experiment: Experiment
    method: str
    seed: int
    replacement: Algorithm | None = None  # for the algorithm that the experiment has by that name

    @property
    def algorithm(self) -> Algorithm:
        """Its algorithm, with options."""
        return self.replacement or self.experiment.algorithm(self.method)

    @cached_property
    def spec(self) -> dict[str, Any]:
        """Everything that its numbers depend on, with every default."""
        e = self.experiment
        options = {k: v for k, v in e.data.items() if k != "name"}
        defaults = inspect.signature(DATA[e.data["name"]]).parameters.values()
        data = {p.name: p.default for p in defaults if p.default is not p.empty} | options
        data["seed"] = options.get("seed", self.seed)
        algorithm = self.algorithm
        s = e.settings
        precision = None if s.precision == "float32" else s.precision
        later = {
            "joins": s.joins,
            "leaves": s.leaves,
            "precision": precision,
            "model": e.model,
        }  # older cells have none of them
        return {
            "algorithm": type(algorithm).__name__.lower(),
            "params": identifying_options(algorithm),
            "data": {"name": e.data["name"], **data},
            "shift": e.shift,
            "train": e.train,
            "rounds": s.rounds,
            "seed": self.seed,
            "fraction": s.fraction,
            "bayes": s.bayes,
            "eval_every": s.eval_every,
            **{k: v for k, v in later.items() if v},
        }

    @cached_property
    def key(self) -> str:
        """Identifies the cell: a hash of its `spec`."""
        text = json.dumps(self.spec, sort_keys=True, default=list)
        return identity.text_digest(text)[:16]

    @cached_property
    def in_bf16(self) -> Cell:
        """The same cell in bfloat16, which may take its place."""
        return replace(self, experiment=self.experiment.with_settings(precision="bf16"))

    @property
    def prerequisite(self) -> Cell | None:
        """The cell whose clusters its method uses (core.Algorithm.prerequisite); None for most methods."""
        needed = self.algorithm.prerequisite()
        exact = self.experiment.with_settings(precision="float32")
        return None if needed is None else replace(self, experiment=exact, replacement=needed.algorithm)

    def folder(self, cells: Path) -> Path:
        """Return the folder of its run."""
        return cells / self.key

    def done(self, cells: Path) -> bool:
        """Say whether it has a result."""
        return (self.folder(cells) / "result.json").exists()

    def rounds_done(self, cells: Path) -> int:
        """Count the lines of its history, for a progress bar."""
        path = self.folder(cells) / history.NAME
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def status(self, cells: Path) -> Status:
        """Say how far it is. "running": another process computes it; "started": it has stopped before the end."""
        folder = self.folder(cells)
        if self.done(cells):
            return "done"
        if not folder.exists():
            return "missing"
        with files.lock(folder / "lock", wait=0) as free:
            if not free:
                return "running"
        return "failed" if (folder / "error.txt").exists() else "started"

    def result(self, cells: Path) -> Row | None:
        """Read its result; None if it has none."""
        return results.read_row(self.folder(cells))

    def run(self, cells: Path, stop: Callable[[], bool], clusters: list[int] | None = None) -> bool:
        """Compute it, or resume it.

        Args:
            cells: The folder of all cells.
            stop: Asked after every round whether to stop.
            clusters: Those that its prerequisite found; without them the prerequisite is run here.

        Returns:
            Whether it is done; False if another process is computing it.

        Raises:
            LockedError: Another process is computing its best losses.
            Interrupted: `stop` returned True.
        """
        folder = files.make_folder(self.folder(cells))
        with files.lock(folder / "lock", wait=0.5) as held:  # `status` holds it for an instant
            if not held:
                return False
            if self.done(cells):
                return True
            (folder / "error.txt").unlink(missing_ok=True)
            files.write_json(folder / "cell.json", self.spec)
            e = self.experiment.model_copy(update={"algorithms": [self.method]})
            setup = e.setups(self.seed)[self.method]
            if isinstance(setup, CannotRun):
                raise setup
            assert isinstance(setup, Setup)
            if clusters is not None and (needed := setup.algorithm.prerequisite()) is not None:
                setup = setup.changed(needed.with_clusters(torch.tensor(clusters)))
            surrogates = Surrogates(cells / "surrogates", wait=False)
            with RunProgress(False) as bars:
                result = train_and_judge(setup, bars, surrogates, folder, stop=stop)
            row = result.row() | {"method": self.method, "key": self.key, "made": provenance()}
            row["history"] = cast(RoundHistory | None, history.thin(history.read(folder)))
            results.write_row(folder, row, GOALS)
            return True
