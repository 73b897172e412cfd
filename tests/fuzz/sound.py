"""What is damaged: small sound folders of data and of runs, made once per process by the program itself."""

from __future__ import annotations

import atexit
import contextlib
import csv
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from .harness import focusfl

QUICK = ("--rounds", 1, "--seeds", 0, "--set", "train.steps=1", "--set", "bayes=none", "--engine", "serial")
AGENTS = ("aarau", "bern", "chur", "davos")
SUFFIXES = ("csv", "npz", "parquet", "png")


@cache
def root() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="focusfl-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def examples(e: int) -> tuple[np.ndarray, np.ndarray]:
    """Agents of two clusters: [20, 2] and [20]."""
    rng = np.random.default_rng(e)
    x = rng.normal(size=(20, 2)).round(3)
    return x, ((x[:, 0] > 0) ^ (e >= 2)).astype(int)


@cache
def data(suffix: str) -> Path:
    """A folder with four agents, in files of this kind."""
    folder = root() / f"data-{suffix}"
    folder.mkdir()
    for e, name in enumerate(AGENTS):
        write_agent(folder / name, suffix, *examples(e))
    if suffix == "csv":
        lines = [("agent", "cluster"), *((name, int(e >= 2)) for e, name in enumerate(AGENTS))]
        with (folder / "clusters.csv").open("w", newline="") as handle:
            csv.writer(handle).writerows(lines)
    return folder


def write_agent(place: Path, suffix: str, x: np.ndarray, y: np.ndarray) -> None:
    path = place.with_name(f"{place.name}.{suffix}")
    if suffix == "csv":
        with path.open("w", newline="") as handle:
            csv.writer(handle).writerows([("a", "b", "label"), *zip(*x.T.tolist(), y.tolist(), strict=True)])
    elif suffix == "npz":
        np.savez_compressed(path, x=x, y=y)
    elif suffix == "parquet":
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.table({"a": x[:, 0], "b": x[:, 1], "label": y})
        pyarrow.parquet.write_table(table, path)
    else:
        from PIL import Image

        for i, (pixels, label) in enumerate(zip(x[:6], y[:6], strict=True)):
            (place / f"class{label}").mkdir(parents=True, exist_ok=True)
            grey = (np.abs(np.outer(pixels, [1, 2])) * 60).clip(0, 255).astype("uint8")
            Image.fromarray(grey).save(place / f"class{label}" / f"{i}.png")


def train_on(folder: Path) -> tuple[object, ...]:
    """The words of a command that trains on a folder, without --out."""
    return ("compare", "--data", "folder", "--set", f"data.path={folder}", "--algorithms", "local", *QUICK)


@cache
def trained(suffix: str) -> Any:
    """The results of training on a sound folder."""
    out = root() / f"out-{suffix}"
    ended = focusfl(*train_on(data(suffix)), "--out", out)
    assert ended.code == 0, ended
    return rows(out)


@dataclass(frozen=True)
class Experiment:
    """The folder of an experiment, and the words of the command that made it, without --out."""

    folder: Path
    words: tuple[object, ...]

    def copy(self, to: Path) -> Path:
        return Path(shutil.copytree(self.folder, to / "run"))


def _experiment(*more: object) -> tuple[object, ...]:
    words = ("compare", "--data", "folder", "--set", f"data.path={data('csv')}", "--engine", "serial")
    return (*words, "--set", "train.steps=2", "--set", "focus.adapt=false", "--set", "checkpoint_every=1", *more)


@cache
def finished() -> Experiment:
    """Two methods, two seeds, three rounds."""
    words = _experiment("--algorithms", "focus,fedavg", "--seeds", "0,1", "--rounds", 3)
    folder = root() / "finished" / "run"
    ended = focusfl(*words, "--out", folder)
    assert ended.code == 0, ended
    return Experiment(folder, words)


@cache
def killed() -> Experiment:
    """One method that was stopped after two of four rounds; its second run has not started."""
    words = _experiment("--algorithms", "focus:init=tied,fedavg", "--seeds", 0, "--rounds", 4)
    folder = root() / "killed" / "run"

    @contextlib.contextmanager
    def stop_after_two_rounds() -> Iterator[Callable[[], bool]]:
        asked: list[None] = []
        yield lambda: len(asked) >= 2 or asked.append(None) or len(asked) >= 2

    with mock.patch("focusfl.run.compare.graceful_stop", stop_after_two_rounds):
        ended = focusfl(*words, "--out", folder)
    assert ended.code == 130, ended
    return Experiment(folder, words)


@cache
def resumed() -> Any:
    """The results of the killed experiment, resumed."""
    out = killed().copy(root() / "resumed")
    ended = focusfl(*killed().words, "--out", out, "--resume")
    assert ended.code == 0, ended
    return rows(out)


@cache
def reported() -> tuple[str, str]:
    """The pages of the finished experiment."""
    out = finished().copy(root() / "reported")
    assert focusfl("report", out).code == 0
    return pages(out)


def prepare() -> None:
    """Make everything now: in a case it would count as the time of the case."""
    for suffix in SUFFIXES:
        trained(suffix)
    reported()
    resumed()


def pages(out: Path) -> tuple[str, str]:
    return (out / "report.md").read_text(), (out / "report.html").read_text()


def rows(out: Path) -> Any:
    """Return results.json without what time does to it."""
    return [without_time(row) for row in json.loads((out / "results.json").read_text())]


def without_time(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k not in ("seconds", "made", "digest")}
