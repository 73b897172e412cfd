"""A federation from a folder with one entry per agent: your own data. docs/your-data.md shows the layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from focusfl.core import Data
from focusfl.data.federation import Federation, Rows, own_recipe
from focusfl.data.overview import overview
from focusfl.data.own.contents import MAX_MB, FileContents
from focusfl.data.own.examples import input_tensors, inputs_of, split_test
from focusfl.data.own.gather import Gathered, ReadOptions, gather
from focusfl.data.own.inputs import Inputs
from focusfl.data.own.labels import MAX_CLASS_LIKE_LABELS, TargetOption, may_be_amounts, spellings_note
from focusfl.data.own.layout import expanded, find_agents, read_clusters
from focusfl.data.own.moments import Moments
from focusfl.data.own.repeats import repeats_notes
from focusfl.data.own.schema import MissingOption, Schema, listed
from focusfl.util.errors import InputError, Problems, require, require_choice, require_instance, whole_number
from focusfl.util.files import visible

Names = str | list[str] | tuple[str, ...]
MAX_UNSCALED = 10.0  # mean or deviation of a feature; the default learning rates suit features of about 1
FEW_TEST = 10  # test examples of an agent, below which its accuracy says little
MAX_NOTES = 8  # on files


@dataclass(frozen=True)
class FolderFederation(Federation):
    """A federation that was read from a folder, with the names found there.

    Attributes:
        agents: The agents' names, [E].
        labels: The names of the classes, if the labels are words.
        columns: The features of a table, in order.
        inputs: The form of the files' examples, with the scaling; new data is brought into it.
        file_notes: What the user should know about how files were read, one sentence each.
        root: The folder.
    """

    agents: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    inputs: Inputs | None = None
    file_notes: tuple[str, ...] = ()
    root: Path | None = field(default=None, repr=False)

    @property
    def mean(self) -> Tensor | None:
        """The mean of each feature over all training data; None if the features were not scaled."""
        return None if self.inputs is None else self.inputs.mean

    @property
    def deviation(self) -> Tensor | None:
        """The standard deviation of each feature; 1 where it is constant. None if not scaled."""
        return None if self.inputs is None else self.inputs.deviation

    def train(self, agent: int | str) -> Data:
        """Return the training examples of an agent as in the files: not scaled. `training` has them scaled."""
        return self._raw(super().train(agent))

    def test(self, agent: int | str) -> Data:
        """Return the test examples of an agent as in the files: not scaled, as `model.predict` takes them.

        `testing` has them scaled, as the network takes them.
        """
        return self._raw(super().test(agent))

    def _raw(self, data: Data) -> Data:
        return data if self.inputs is None else Data(self.inputs.unscaled(data.x), data.y)

    def _repr_html_(self) -> str:
        return overview(self, self.agents, self.labels, self.columns)

    def understood(self) -> list[str]:
        """Return how the files were read: labels, and what each column of a table is; one sentence each."""
        schema = [] if self.inputs is None or self.inputs.schema is None else self.inputs.schema.describe()
        return [*self.file_notes, *self._target(), *schema]

    def _target(self) -> list[str]:
        if self.inputs is None or self.inputs.kind != "a table":
            return []
        y = self.all_rows.y
        if self.classes is None:
            return [f"label: {self.inputs.label}, a number from {y.min():.4g} to {y.max():.4g}"]
        counts = torch.bincount(y, minlength=self.classes).tolist()
        names = self.labels or [str(c) for c in range(self.classes)]
        each = listed([f"{name} ({n})" for name, n in zip(names, counts, strict=False)])
        return [f"label: {self.inputs.label}, classes (training examples): {each}"]

    def remarks(self) -> list[str]:
        """Return how tables were understood, and warnings about what may be misunderstood, one sentence each."""
        schema = [] if self.inputs is None or self.inputs.schema is None else self.inputs.schema.remarks()
        return [
            *self.file_notes,
            *schema,
            *self._label_remarks(),
            *self._agent_remarks(),
            *self._repeats,
            *self._scale_remarks(),
        ]

    @cached_property
    def _repeats(self) -> list[str]:
        """Rows of a table that are in both training and test data make results too good."""
        if self.inputs is None or self.inputs.schema is None:
            return []
        widths = [len(column.features) for column in self.inputs.schema.columns if column.features]
        rows, each = self.all_rows, range(self.E)
        return repeats_notes(self.agents, [rows.of(e) for e in each], [self.testing.of(e) for e in each], widths)

    def _label_remarks(self) -> list[str]:
        lower = [name.casefold() for name in self.labels]
        similar = [name for name in self.labels if lower.count(name.casefold()) > 1]
        if similar:
            return [
                f"classes {', '.join(similar)} differ only in capital letters: if they are one, use one spelling"
            ]
        found = self.training.y.unique() if self.training.y.dim() == 1 else torch.zeros(0)
        if len(found) == 1 and self.inputs is not None and self.inputs.kind == "a table":
            label = self.labels[int(found[0])] if self.labels else f"{found[0].item():g}"
            return [f"all training labels are {label}, so there is nothing to learn"]
        if self.classes is not None and not self.labels and self.inputs is not None:
            n = len(self.training.y)
            if self.inputs.kind in ("a table", "text") and may_be_amounts(len(found), n):
                what = f"{len(found)} different whole numbers in {n} training examples"
                return [f"label: {self.inputs.label}, {what}, read as classes; data.target=number makes amounts"]
        values = found if self.classes is None else torch.zeros(0)
        if 0 < len(values) <= MAX_CLASS_LIKE_LABELS and bool((values % 1 == 0).all()):
            kind = f"decimal numbers such as {float(values[0])}"
            return [f"the labels are {kind}, so this is regression; data.target=class makes classes"]
        return []

    def _agent_remarks(self) -> list[str]:
        """An agent whose table has one class, or hardly any test data, gives numbers that say little."""
        lines: list[str] = []
        if self.inputs is None or self.inputs.schema is None:
            return lines
        if self.classes is not None:
            one = [name for e, name in enumerate(self.agents) if len(self.training.of(e).y.unique(dim=0)) == 1]
            if one:
                lines.append(f"only one class in the training data of {listed(one)}")
        few = [name for name, n in zip(self.agents, self.testing.sizes.tolist(), strict=True) if n < FEW_TEST]
        if few:
            lines.append(f"fewer than {FEW_TEST} test examples, so their numbers are mostly chance: {listed(few)}")
        return lines

    def _scale_remarks(self) -> list[str]:
        """Training on raw ages and prices goes wrong, and nothing else would say why."""
        if not self.columns or self.mean is not None:
            return []
        x = self.training.x.double()
        largest = torch.maximum(x.mean(0).abs(), x.std(0, correction=0))
        j = int(largest.argmax())
        if largest[j] <= MAX_UNSCALED:
            return []
        numbers = f"mean {x[:, j].mean():.3g}, deviation {x[:, j].std(correction=0):.3g}"
        return [f"column {self.columns[j]!r} has large values ({numbers}): leave out data.scale = false"]

    def scaled(self, x: Any) -> Tensor:
        """Scale raw values as the training data were scaled. `result.predict` does this by itself.

        Args:
            x: Raw values [n, ...], features in the order of `columns`.

        Returns:
            float32 of the same shape; unchanged if the federation is not scaled.
        """
        raw: Tensor = torch.as_tensor(x, dtype=torch.float32)
        return raw if self.inputs is None else self.inputs.scaled(raw)


def folder(
    path: str | Path = "",
    seed: int = 0,
    test: float = 0.2,
    label: str = "label",
    text: str = "text",
    hidden: int | None = None,
    scale: bool | None = None,
    encode: Callable[[list[str]], Tensor] | None = None,
    max_mb: int = MAX_MB,
    drop: Names = (),
    categorical: Names = (),
    missing: MissingOption = "impute",
    target: TargetOption = "auto",
) -> FolderFederation:
    """Your own data: a folder with one sub-folder, or one csv, parquet or npz file, per agent.

    Args:
        path: The folder. Its entries give the agents their names.
        seed: Decides which examples are set aside for testing.
        test: The share of an agent's examples to set aside, if the agent has no test data.
        label: The name of the label column in csv and parquet.
        text: The name of the text column in csv and parquet.
        hidden: Hidden units of the recipe's MLP (32 by default) beside a linear model; 0 is a linear model alone.
        scale: Whether to scale each feature to mean 0 and deviation 1 over all agents' training data. By default
            tables are scaled, and arrays, images and text are not. Categories stay 0 and 1.
        encode: A function from texts to [n, d]; by default frozen sentence embeddings.
        max_mb: A compressed file that would unpack to more megabytes is refused.
        drop: Columns of a table to leave out.
        categorical: Columns of a table that are categories, even if they look like numbers or identifiers.
        missing: "impute": a missing number becomes the mean of the column, and another column says so; examples
            without a label are left out. "refuse": missing cells are an error.
        target: How labels are read. "auto": words and whole numbers are classes, floats mean regression; "class":
            all are classes; "number": regression.

    Returns:
        The federation, with the names of agents, classes and columns.

    Raises:
        InputError: Something cannot be used; the message names the file and the row.

    Example:
        ``fed = folder("hospitals", label="diagnosis")``
    """
    if path == "":
        raise InputError("data.path is missing: --set data.path=DIR names the folder with one entry per agent")
    require_instance("path", path, (str, Path), "the folder of your data")
    seed = whole_number("data.seed", seed, 0)
    require("data.test", test, lambda share: 0 < share < 1, "a share between 0 and 1")
    require("data.hidden", hidden, lambda width: width is None or width >= 0, "0 or more")
    require("data.max_mb", max_mb, lambda size: size > 0, "megabytes, more than 0")
    for option, column in (("label", label), ("text", text)):
        require_instance(f"data.{option}", column, str, "the name of a column")
    for option, columns in (("drop", drop), ("categorical", categorical)):
        require_instance(f"data.{option}", columns, (str, list, tuple), "names of columns")
        for column in columns:
            require_instance(f"data.{option}", column, str, "names of columns")
    require_choice("data.missing", missing, get_args(MissingOption))
    require_choice("data.target", target, get_args(TargetOption))
    reading = ReadOptions(label, text, max_mb, _names(drop), _names(categorical), missing, target)
    problems = Problems()
    places = find_agents(root := expanded(path), problems)
    clusters = None
    with problems.collect():
        clusters = read_clusters(root / "clusters.csv", list(places))
    files = gather([*places.values()], root, reading, problems)
    x = input_tensors(files.parts, encode)
    training, testing = _split(files, x, list(places), seed, test)
    schema = files.schema
    scale = schema is not None if scale is None else scale
    if schema is not None:
        schema, keep = schema.without_constants((training.x == training.x[0]).all(0).tolist())
        training, testing = (replace(rows, x=rows.x[:, keep]) for rows in (training, testing))
    moments = None
    if scale or schema is not None:
        moments = Moments.of([training.of(e).x.numpy() for e in range(len(places))])
    if schema is not None and moments is not None:
        schema = schema.with_means(moments.mean)
        training, testing = _filled(training, schema), _filled(testing, schema)
    classes = None if files.y[0].is_floating_point() else max(2, *(1 + int(labels.max()) for labels in files.y))
    fed = FolderFederation(
        name=visible(root.resolve().name),
        training=training,
        testing=testing,
        classes=classes,
        clusters=clusters,
        recipe=own_recipe(training.x[0].numel(), classes, hidden),
        agents=tuple(places),
        labels=files.labels,
        columns=() if schema is None else schema.features,
        inputs=inputs_of(files.parts[0], training.x, label, text, encode is not None, schema),
        file_notes=(*_file_notes(files.parts), *_identifiers_note(files.identifiers)),
        root=root,
    )
    return _scale(fed, moments) if scale and moments is not None else fed


def _names(option: Names) -> tuple[str, ...]:
    """Return the names of columns, which may be written with commas."""
    names = option.split(",") if isinstance(option, str) else option
    return tuple(name.strip() for name in names if name.strip())


def _split(files: Gathered, x: list[Tensor], names: list[str], seed: int, test: float) -> tuple[Rows, Rows]:
    """Return the training and test examples of all agents."""
    data = iter([Data(*pair) for pair in zip(x, files.y, strict=True)])
    pairs = []
    for name, agent in zip(names, files.agents, strict=True):
        whole = next(data)
        split = len(agent) == 1
        pairs.append(split_test(whole, test, seed, name, agent[0].path) if split else (whole, next(data)))
    return Rows.join([a for a, _ in pairs]), Rows.join([b for _, b in pairs])


def _file_notes(parts: list[FileContents]) -> tuple[str, ...]:
    """Return what was noted about files: what holds for several of them once, and of many notes the first."""
    notes = Problems()
    for part in parts:
        for note in part.notes:
            notes.add(note)
    lines = notes.lines()
    more = [f"and {len(lines) - MAX_NOTES} more notes on files"] * (len(lines) > MAX_NOTES)
    return (*lines[:MAX_NOTES], *more, *spellings_note(parts))


def _identifiers_note(names: tuple[str, ...]) -> list[str]:
    """Say which columns of numbers may be identifiers: a network could learn patients by heart from them."""
    if not names:
        return []
    what = "whole numbers that all differ within every file, as identifiers do"
    return [f"{what}: {listed(names)}; if they are, data.drop={','.join(names)} leaves them out"]


def _filled(rows: Rows, schema: Schema) -> Rows:
    return replace(rows, x=torch.from_numpy(schema.filled(rows.x.numpy())))


def _scale(fed: FolderFederation, moments: Moments) -> FolderFederation:
    assert fed.inputs is not None
    amounts = None if fed.inputs.schema is None else fed.inputs.schema.amounts
    mean, deviation = moments.scaling(fed.inputs.shape, amounts)
    fed = replace(fed, inputs=replace(fed.inputs, mean=mean, deviation=deviation))
    training, testing = (Rows(fed.scaled(rows.x), rows.y, rows.offsets) for rows in (fed.training, fed.testing))
    return replace(fed, training=training, testing=testing)
