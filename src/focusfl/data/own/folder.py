"""A user's own data: a folder with one entry per agent. docs/your-data.md shows the layouts."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from focusfl.core import Data
from focusfl.core.train import Train
from focusfl.data.federation import Federation, Recipe, Rows
from focusfl.data.own.readers import READERS, Part, csv_rows, entries, plain, read_file, read_images, readable, size
from focusfl.models import mlp
from focusfl.util.errors import InputError, nearest, require

FILES = "csv, parquet or npz file"
MOST_CLASSES = 10_000
FEW = 10  # different labels, all whole: they look like classes
FAR = 10.0  # mean or deviation of a feature: training as it is set is for features of about 1


@dataclass(frozen=True)
class Folder(Federation):
    """With the names that the folder gave, and how its features were scaled."""

    agents: tuple[str, ...] = ()  # [E]
    labels: tuple[str, ...] = ()  # [classes] where they are words
    columns: tuple[str, ...] = ()  # of a table: the features in order
    mean: Tensor | None = None  # of a feature, over all training data; None: not scaled
    deviation: Tensor | None = None  # 1 where the feature is constant

    def remarks(self) -> list[str]:
        """What may have been understood otherwise than it was meant."""
        return [*self._labels(), *self._far()]

    def _labels(self) -> list[str]:
        low = [name.lower() for name in self.labels]
        alike = [name for name in self.labels if low.count(name.lower()) > 1]
        if alike:
            return [f"classes {', '.join(alike)} differ in capital letters alone: write them alike if they are one"]
        values = self.training.y.unique() if self.classes is None else torch.zeros(0)
        if 0 < len(values) <= FEW and bool((values % 1 == 0).all()):
            return [
                f"labels are numbers with a point, {values[0]} for one: regression. For classes write whole numbers"
            ]
        return []

    def _far(self) -> list[str]:
        """Training from raw ages and prices goes wrong, and nothing else would say why."""
        if not self.columns or self.mean is not None:
            return []
        x = self.training.x.double()
        far = torch.maximum(x.mean(0).abs(), x.std(0, correction=0))
        j = int(far.argmax())
        if far[j] <= FAR:
            return []
        numbers = f"mean {x[:, j].mean():.3g}, deviation {x[:, j].std(correction=0):.3g}"
        return [f"column {self.columns[j]!r} is far from 1 ({numbers}): data.scale = true brings all to about 1"]

    def scaled(self, x: Any) -> Tensor:
        """Raw values [n, ...] as the models were trained on; new data must pass here before `result.predict`."""
        raw: Tensor = torch.as_tensor(x, dtype=torch.float32)
        if self.mean is None or self.deviation is None:
            return raw
        return (raw - self.mean.to(raw.device)) / self.deviation.to(raw.device)


def folder(
    path: str | Path,
    seed: int = 0,
    test: float = 0.2,
    label: str = "label",
    text: str = "text",
    hidden: int | None = None,
    scale: bool = False,
    encode: Callable[[list[str]], Tensor] | None = None,
) -> Folder:
    """Your own data: a folder with a sub-folder or a csv, parquet or npz file per agent.

    test         share of an agent's examples to set aside, where it brings no test data
    label, text  names of these columns in csv and parquet
    hidden       of the recipe's network; 0: linear. By default 64, and linear in regression
    scale        bring each feature to mean 0 and deviation 1 over all agents' training data
    encode       texts -> [n, d]; by default frozen sentence embeddings
    """
    require("data.seed", seed, seed >= 0, "0 or more")
    require("data.test", test, 0 < test < 1, "a share between 0 and 1")
    require("data.hidden", hidden, hidden is None or hidden >= 0, "0 or more")
    found = _agents(root := Path(path).expanduser())
    clusters = _clusters(root / "clusters.csv", list(found))
    held: list[list[Part]] = []  # [E] an agent's training and test data, or all of it
    with _bar(len(found)) as advance:
        for place in found.values():
            held.append(read_agent(place, root, label, text))
            advance()
    parts = alike([part for own in held for part in own])
    y, names = number_labels(parts)
    data = iter([Data(*pair) for pair in zip(features(parts, encode), y, strict=True)])
    pairs = [
        (next(data), next(data)) if len(own) == 2 else split(next(data), test, seed, name, own[0].path)
        for name, own in zip(found, held, strict=True)
    ]
    training, testing = Rows.join([a for a, _ in pairs]), Rows.join([b for _, b in pairs])
    classes = None if y[0].is_floating_point() else max(2, *(1 + int(labels.max()) for labels in y))
    recipe = _recipe(training.x[0].numel(), hidden, classes)
    said = readable(root.resolve().name), training, testing, classes, clusters, None, recipe
    fed = Folder(*said, tuple(found), names, parts[0].columns if parts[0].kind == "a table" else ())
    return _scaled(fed) if scale else fed


def _recipe(features: int, hidden: int | None, classes: int | None) -> Recipe:
    width = hidden if hidden is not None else 0 if classes is None else 64
    model = partial(mlp, *(units for units in (features, width, classes or 1) if units))
    return Recipe(model, Train(lr=0.05 if classes is None else 0.1, steps=20, batch=64), rounds=60)


def _agents(root: Path) -> dict[str, Path]:
    """Name -> file or sub-folder, in sorted order."""
    if not root.is_dir():
        raise InputError(f"{root}: no such folder (data.path)")
    found: dict[str, Path] = {}
    for place in (p for p in entries(root, root) if p.name != "clusters.csv"):
        name = readable(place.name if place.is_dir() else place.stem)
        if not place.is_dir() and place.suffix.lower() not in READERS:
            raise InputError(f"{place}: unexpected; expected a sub-folder or a {FILES} per agent")
        if name in found:
            raise InputError(f"{place}: there is an agent of that name already, {found[name]}")
        found[name] = place
    if len(found) < 2 or found.keys() == {"train", "test"}:
        what = f"expected two or more agents, a sub-folder or a {FILES} each"
        raise InputError(f"{root}: {what}; found {', '.join(found) or 'no agents'}")
    return dict(sorted(found.items()))


def read_agent(place: Path, root: Path, label: str, text: str) -> list[Part]:
    """One agent: [training, test], or [all of it]."""
    if not place.is_dir():
        return read_file(place, label, text)
    inside = entries(place, root)
    named = {p.name if p.is_dir() else p.stem: p for p in inside}
    halves = [named[half] for half in ("train", "test") if half in named]
    if len(halves) == 1:
        hint = "; add test data, or call it data to have it split" if "train" in named else ""
        raise InputError(f"{place}: only {halves[0].name}, expected train and test{hint}")
    if not halves and not (len(inside) == 1 and inside[0].is_file()):
        return [read_images(place, root)]
    for spare in (p for p in inside if halves and p not in halves):
        raise InputError(f"{spare}: unexpected beside train and test")
    read = [[read_images(p, root)] if p.is_dir() else read_file(p, label, text) for p in halves or inside]
    if len(read) == 2 and max(map(len, read)) == 2:
        raise InputError(f"{place}: x_train and x_test inside of train or test; expected x and y")
    return [part for parts in read for part in parts]


def alike(parts: list[Part]) -> list[Part]:
    """All of one kind and shape; columns in the order of the first."""
    first, out = parts[0], []
    for part in parts:
        if not part.y:
            raise InputError(f"{part.path}: no examples; leave the agent out or give it data")
        if part.kind != first.kind:
            raise InputError(f"{part.path}: {part.kind}, but {first.path}: {first.kind}; use one kind for all")
        odd = sorted({*part.columns} ^ {*first.columns})
        if odd:
            raise InputError(f"{part.path}: not the columns of {first.path}: only one has {', '.join(odd)}")
        if part.columns != first.columns:
            part = replace(part, x=part.x[:, [part.columns.index(name) for name in first.columns]])
        if part.kind != "text" and part.x.shape[1:] != first.x.shape[1:]:
            places = (part.at(0), first.at(0)) if part.kind == "images" else (part.path, first.path)
            raise InputError(
                f"{places[0]}: {size(part.x[0])}, but {places[1]}: {size(first.x[0])}; use one for all"
            )
        out.append(part)
    return out


def features(parts: list[Part], encode: Callable[[list[str]], Tensor] | None) -> list[Tensor]:
    if parts[0].kind != "text":
        return [torch.from_numpy(part.x) for part in parts]
    if encode is None:
        from focusfl.models.text import embed

        encode = embed
    x = encode([text for part in parts for text in part.x])  # all at once: what is kept of it serves every seed
    return list(x.float().split([len(part.x) for part in parts]))


def number_labels(parts: list[Part]) -> tuple[list[Tensor], tuple[str, ...]]:
    """Whole numbers stay; words are numbered in sorted order over all agents and given back; floats: regression."""
    y = [part.y if part.kind == "images" else [_value(label) for label in part.y] for part in parts]
    first: dict[str, str] = {}  # kind of label -> the first of that kind
    for part, labels in zip(parts, y, strict=True):
        for i, label in enumerate(labels):
            kind = "word" if isinstance(label, str) else "fraction" if label % 1 else type(label).__name__
            if label == "" or (kind != "word" and not abs(label) < 3e38):
                raise InputError(f"{part.at(i)}: the label is empty, NaN or infinite")
            if kind not in first:
                first[kind] = f"{label!r} in {part.at(i)}"
    if len(first) > 1 and ("word" in first or "fraction" not in first):
        raise InputError(f"labels {' and '.join(first.values())}: use words, whole numbers or floats for all")
    if "word" in first:
        names = {name: c for c, name in enumerate(sorted({label for labels in y for label in labels}))}
        return [torch.tensor([names[label] for label in labels]) for labels in y], tuple(names)
    if first.keys() != {"int"}:
        return [torch.tensor([float(label) for label in labels]) for labels in y], ()
    for part, labels in zip(parts, y, strict=True):
        for i in (i for i, label in enumerate(labels) if not 0 <= label < MOST_CLASSES):
            hint = f"a class is 0 to {MOST_CLASSES - 1}; for regression write {labels[i]}.0"
            raise InputError(f"{part.at(i)}: label {labels[i]}; {hint}")
    return [torch.tensor(labels) for labels in y], ()


def _value(label: Any) -> Any:
    """A number where it can be read as one; nothing at all is NaN.

    >>> [_value(label) for label in ("3", " 2.5", "cat ", "1_2", 4, True, None)]
    [3, 2.5, 'cat', '1_2', 4, 1, nan]
    """
    if isinstance(label, str):
        for kind in (int, float):
            with suppress(ValueError):
                return plain(kind, label)
        return label.strip()
    if label is None or isinstance(label, float):
        return float("nan") if label is None else label
    return int(label) if isinstance(label, int) else str(label)


def split(data: Data, share: float, seed: int, agent: str, path: Path) -> tuple[Data, Data]:
    """Shuffle, then set `share` aside, at least one on either side. Depends on the agent's name, not on others."""
    n = len(data.y)
    if n < 2:
        raise InputError(f"{path}: {n} example cannot be split into training and test; give it more")
    order = torch.from_numpy(np.random.default_rng([seed, zlib.crc32(agent.encode())]).permutation(n))
    held = min(max(round(n * share), 1), n - 1)
    rest, out = order[held:].sort().values, order[:held].sort().values
    return Data(data.x[rest], data.y[rest]), Data(data.x[out], data.y[out])


def _scaled(fed: Folder) -> Folder:
    """Of a constant feature the deviation need not be 0: rounding makes it tiny. Its values say it better."""
    x = fed.training.x
    least, constant = x.amin(0), x.amin(0) == x.amax(0)
    mean = torch.where(constant, least, x.mean(0))
    deviation = torch.where(constant, 1, x.std(0, correction=0))
    fed = replace(fed, mean=mean, deviation=deviation)
    training, testing = (Rows(fed.scaled(rows.x), rows.y, rows.at) for rows in (fed.training, fed.testing))
    return replace(fed, training=training, testing=testing)


def _clusters(path: Path, agents: list[str]) -> Tensor | None:
    """The true clusters, where clusters.csv beside the agents has columns agent and cluster."""
    if not path.exists():
        return None
    rows = csv_rows(path)
    header = next(rows, (0, []))[1]
    if sorted(header) != ["agent", "cluster"]:
        raise InputError(f"{path}: expected the columns agent and cluster, found {', '.join(header) or 'nothing'}")
    given: dict[str, str] = {}
    for row, cells in rows:
        cluster, agent = (cells[header.index(name)].strip() for name in ("cluster", "agent"))
        where = f"{path}, row {row} (counting the header)"
        if agent not in agents:
            raise InputError(f"{where}: no agent {agent!r}: {nearest(agent, agents)}")
        if agent in given or not cluster:
            raise InputError(f"{where}: expected one cluster for agent {agent!r}")
        given[agent] = cluster
    for agent in agents:
        if agent not in given:
            raise InputError(f"{path}: no row for agent {agent!r}")
    names = sorted({*given.values()})
    return torch.tensor([names.index(given[agent]) for agent in agents])


@contextmanager
def _bar(agents: int, after: float = 2) -> Iterator[Callable[[], None]]:
    """On stderr, if it takes longer and a terminal is there to see it; call what it gives after each agent."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("left"))
    bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
    task = bar.add_task("reading agents", total=agents)
    later = Timer(after, bar.start)
    later.daemon = True
    later.start()
    try:
        yield partial(bar.advance, task)
    finally:
        later.cancel()
        later.join()
        bar.stop()
