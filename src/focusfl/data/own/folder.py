"""A federation from a folder with one entry per agent: your own data. docs/your-data.md shows the layouts."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor

from focusfl.core import Data
from focusfl.data.federation import Federation, Rows, own_recipe
from focusfl.data.overview import overview
from focusfl.data.own.inputs import Inputs, Kind
from focusfl.data.own.moments import Moments
from focusfl.data.own.readers import (
    MAX_MB,
    READERS,
    FileContents,
    csv_rows,
    describe_shape,
    parse_number,
    read_file,
    read_images,
    require_regular,
    visible_entries,
)
from focusfl.data.own.schema import MissingOption, Schema, infer, listed
from focusfl.data.own.table import cell_value, is_missing, number_word
from focusfl.util.errors import InputError, Problems, nearest, require, require_choice
from focusfl.util.files import visible
from focusfl.util.progress import count_progress

TargetOption = Literal["auto", "class", "number"]
Names = str | list[str] | tuple[str, ...]
FILE_KINDS = "csv, parquet or npz file"
MAX_CLASSES = 10_000
MAX_CLASS_LIKE_LABELS = 10  # so few different floats, all of them whole numbers, may be meant as classes
MAX_UNSCALED = 10.0  # mean or deviation of a feature; the default learning rates suit features of about 1
FEW_TEST = 10  # test examples of an agent, below which its accuracy says little
SECONDS_BEFORE_BAR = 2.0


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

    def remarks(self) -> list[str]:
        """Return how tables were understood, and warnings about what may be misunderstood, one sentence each."""
        schema = [] if self.inputs is None or self.inputs.schema is None else self.inputs.schema.remarks()
        return [*self.file_notes, *schema, *self._label_remarks(), *self._agent_remarks(), *self._scale_remarks()]

    def _label_remarks(self) -> list[str]:
        lower = [name.lower() for name in self.labels]
        similar = [name for name in self.labels if lower.count(name.lower()) > 1]
        if similar:
            return [
                f"classes {', '.join(similar)} differ only in capital letters: if they are one, use one spelling"
            ]
        values = self.training.y.unique() if self.classes is None else torch.zeros(0)
        if 0 < len(values) <= MAX_CLASS_LIKE_LABELS and bool((values % 1 == 0).all()):
            kind = f"decimal numbers such as {float(values[0])}"
            return [f"the labels are {kind}, so this is regression; for classes write whole numbers"]
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
        return [f"column {self.columns[j]!r} has large values ({numbers}): data.scale = true scales all columns"]

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
    path: str | Path,
    seed: int = 0,
    test: float = 0.2,
    label: str = "label",
    text: str = "text",
    hidden: int | None = None,
    scale: bool = False,
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
        hidden: Hidden units of the recipe's MLP; 0 is a linear model. By default 32.
        scale: Whether to scale each feature to mean 0 and deviation 1 over all agents' training data.
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
        ``fed = folder("hospitals", label="diagnosis", scale=True)``
    """
    require("data.seed", seed, seed >= 0, "0 or more")
    require("data.test", test, 0 < test < 1, "a share between 0 and 1")
    require("data.hidden", hidden, hidden is None or hidden >= 0, "0 or more")
    require("data.max_mb", max_mb, max_mb > 0, "megabytes, more than 0")
    require_choice("data.missing", missing, get_args(MissingOption))
    require_choice("data.target", target, get_args(TargetOption))
    places = _find_agents(root := expanded(path))
    clusters = _read_clusters(root / "clusters.csv", list(places))
    problems = Problems()
    contents: list[list[FileContents]] = []  # [E] an agent's training and test data, or all of it
    with count_progress("reading agents", len(places), delay=SECONDS_BEFORE_BAR) as advance:
        for place in places.values():
            with problems.collect():
                contents.append(read_agent(place, root, label, text, max_mb))
            advance(1)
    problems.report()
    if missing == "impute":
        contents = [[with_labels(part) for part in agent] for agent in contents]
    parts = align([part for agent in contents for part in agent])
    y, label_names = encode_labels(parts, target)
    schema = _schema(parts, [len(agent) for agent in contents], _names(drop), _names(categorical), missing)
    if schema is not None:
        parts = [replace(part, x=schema.encode(part, problems)) for part in parts]
        problems.report()
    data = iter([Data(*pair) for pair in zip(input_tensors(parts, encode), y, strict=True)])
    pairs = []
    for name, agent in zip(places, contents, strict=True):
        whole = next(data)
        with problems.collect():
            split = len(agent) == 1
            pairs.append(split_test(whole, test, seed, name, agent[0].path) if split else (whole, next(data)))
    problems.report()
    training, testing = Rows.join([a for a, _ in pairs]), Rows.join([b for _, b in pairs])
    moments = Moments.of([pair[0].x.numpy() for pair in pairs]) if scale or schema is not None else None
    if schema is not None and moments is not None:
        schema = schema.with_means(moments.mean)
        training, testing = _filled(training, schema), _filled(testing, schema)
    classes = None if y[0].is_floating_point() else max(2, *(1 + int(labels.max()) for labels in y))
    fed = FolderFederation(
        name=visible(root.resolve().name),
        training=training,
        testing=testing,
        classes=classes,
        clusters=clusters,
        recipe=own_recipe(training.x[0].numel(), classes, hidden),
        agents=tuple(places),
        labels=label_names,
        columns=() if schema is None else schema.features,
        inputs=inputs_of(parts[0], training.x, label, text, encode is not None, schema),
        file_notes=tuple(note for part in parts for note in part.notes),
        root=root,
    )
    return _scale(fed, moments) if scale and moments is not None else fed


def inputs_of(
    first: FileContents, x: Tensor, label: str, text: str, own_encoder: bool = False, schema: Schema | None = None
) -> Inputs:
    """Return the form of the examples x that were read from files like the first."""
    columns = schema.features if schema is not None else first.columns if first.kind == "a table" else ()
    own = own_encoder and first.kind == "text"
    kind = cast(Kind, first.kind)
    return Inputs(kind, tuple(x.shape[1:]), columns=columns, label=label, text=text, own_encoder=own, schema=schema)


def _names(option: Names) -> list[str]:
    """Return the names of columns, which may be written with commas."""
    return [name.strip() for name in option.split(",") if name.strip()] if isinstance(option, str) else list(option)


def _schema(
    parts: list[FileContents], files: list[int], drop: list[str], categorical: list[str], missing: MissingOption
) -> Schema | None:
    """Return what the columns of tables are; None if the files are no tables.

    Args:
        parts: The files of all agents.
        files: How many of them each agent has; the first is for training.
        drop: See `folder`.
        categorical: See `folder`.
        missing: See `folder`.
    """
    if parts[0].kind != "a table":
        for name, option in (("drop", drop), ("categorical", categorical)):
            require(f"data.{name}", ", ".join(option), not option, f"nothing: the files are {parts[0].kind}")
        return None
    firsts = [sum(files[:e]) for e in range(len(files))]
    return infer([parts[i] for i in firsts], drop, categorical, missing)


def _filled(rows: Rows, schema: Schema) -> Rows:
    return replace(rows, x=torch.from_numpy(schema.filled(rows.x.numpy())))


def with_labels(part: FileContents) -> FileContents:
    """Return a table or texts without the examples that have no label."""
    if part.kind not in ("a table", "text"):
        return part
    keep = [i for i, label in enumerate(part.y) if not is_missing(label)]
    if len(keep) == len(part.y):
        return part
    x = part.x.rows(keep) if part.kind == "a table" else [part.x[i] for i in keep]
    n = len(part.y) - len(keep)
    note = f"{part.path}: {n} {'row' if n == 1 else 'rows'} without a label left out"
    places = [part.places[i] for i in keep]
    return replace(part, x=x, y=[part.y[i] for i in keep], places=places, notes=(*part.notes, note))


def _scale(fed: FolderFederation, moments: Moments) -> FolderFederation:
    assert fed.inputs is not None
    amounts = None if fed.inputs.schema is None else fed.inputs.schema.amounts
    mean, deviation = moments.scaling(fed.inputs.shape, amounts)
    fed = replace(fed, inputs=replace(fed.inputs, mean=mean, deviation=deviation))
    training, testing = (Rows(fed.scaled(rows.x), rows.y, rows.offsets) for rows in (fed.training, fed.testing))
    return replace(fed, training=training, testing=testing)


# --- the layout of the folder


def expanded(path: str | Path) -> Path:
    """Return the path with ~ replaced by the home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InputError(f"{path}: no such user; write the folder's path (data.path)") from error


def _find_agents(root: Path) -> dict[str, Path]:
    """Return agent name -> file or sub-folder, in sorted order."""
    if not root.is_dir():
        raise InputError(f"{root}: no such folder (data.path)")
    agents: dict[str, Path] = {}
    problems = Problems()
    for place in (p for p in visible_entries(root, root) if p.name != "clusters.csv"):
        name = visible(place.name if place.is_dir() else place.stem)
        if not place.is_dir() and place.suffix.lower() not in READERS:
            expected = f"expected one sub-folder or one {FILE_KINDS} per agent"
            problems.add(f"{place}: unexpected; {expected}")
        elif name in agents:
            problems.add(f"{place}: {agents[name]} is an agent of the same name; rename one of them")
        else:
            agents[name] = place
    problems.report()
    if len(agents) < 2 or agents.keys() == {"train", "test"}:
        expected = f"expected two or more agents, one sub-folder or one {FILE_KINDS} each"
        raise InputError(f"{root}: {expected}; found {', '.join(agents) or 'no agents'}")
    return dict(sorted(agents.items()))


def read_agent(place: Path, root: Path, label: str, text: str, max_mb: int = MAX_MB) -> list[FileContents]:
    """Read one agent's file or sub-folder.

    Args:
        place: The file or sub-folder.
        root: Links that lead out of this folder are refused.
        label: The name of the label column.
        text: The name of the text column.
        max_mb: See `read_file`.

    Returns:
        [training, test], or [all examples].

    Raises:
        InputError: The layout or a file cannot be used.
    """
    if not place.is_dir():
        return read_file(place, label, text, max_mb)
    entries = visible_entries(place, root)
    named = {p.name if p.is_dir() else p.stem: p for p in entries}
    halves = [named[half] for half in ("train", "test") if half in named]
    if len(halves) == 1:
        hint = "; add test data, or rename it to data, and a share is set aside" if "train" in named else ""
        raise InputError(f"{place}: only {halves[0].name}, expected train and test{hint}")
    if not halves and not (len(entries) == 1 and entries[0].is_file()):
        return [read_images(place, root)]
    for extra in (p for p in entries if halves and p not in halves):
        raise InputError(f"{extra}: unexpected next to train and test; remove it")
    read = [[read_images(p, root)] if p.is_dir() else read_file(p, label, text, max_mb) for p in halves or entries]
    if len(read) == 2 and max(map(len, read)) == 2:
        raise InputError(f"{place}: x_train and x_test inside train or test; expected x and y there")
    return [part for parts in read for part in parts]


def _read_clusters(path: Path, agents: list[str]) -> Tensor | None:
    """Return the true clusters from clusters.csv, columns agent and cluster; None if there is no such file."""
    if not path.exists():
        return None
    require_regular(path)
    rows = csv_rows(path)
    header = next(rows, (0, []))[1]
    if sorted(header) != ["agent", "cluster"]:
        raise InputError(f"{path}: expected the columns agent and cluster, found {', '.join(header) or 'nothing'}")
    cluster_of: dict[str, str] = {}
    for row, cells in rows:
        cluster, agent = (visible(cells[header.index(name)].strip()) for name in ("cluster", "agent"))
        where = f"{path}, row {row} (counting the header)"
        if agent not in agents:
            raise InputError(f"{where}: no agent {agent!r}: {nearest(agent, agents)}")
        if agent in cluster_of or not cluster:
            raise InputError(f"{where}: expected exactly one cluster for agent {agent!r}")
        cluster_of[agent] = cluster
    for agent in agents:
        if agent not in cluster_of:
            raise InputError(f"{path}: no row for agent {agent!r}; add one")
    names = sorted({*cluster_of.values()})
    return torch.tensor([names.index(cluster_of[agent]) for agent in agents])


# --- from file contents to tensors


def align(parts: list[FileContents]) -> list[FileContents]:
    """Check that all files have the same kind and shape, and put their columns in the order of the first.

    Raises:
        InputError: A file is empty, or differs from the first.
    """
    problems, out = Problems(), []
    first = next((part for part in parts if part.y), parts[0])
    for part in parts:
        with problems.collect():
            out.append(_aligned(part, first))
    problems.report()
    return out


def _aligned(part: FileContents, first: FileContents) -> FileContents:
    if not part.y:
        raise InputError(f"{part.path}: no examples; leave the agent out, or add data")
    if part.kind != first.kind:
        raise InputError(f"{part.path}: {part.kind}, but {first.path}: {first.kind}; use one kind for all agents")
    differing = sorted({*part.columns} ^ {*first.columns})
    if differing:
        only = f"only one of them has {', '.join(differing)}"
        raise InputError(f"{part.path}: its columns differ from those of {first.path}: {only}")
    if part.columns != first.columns:
        part = replace(part, x=part.x.select(first.columns), columns=first.columns)
    if part.kind not in ("a table", "text") and part.x.shape[1:] != first.x.shape[1:]:
        places = (part.at(0), first.at(0)) if part.kind == "images" else (part.path, first.path)
        shapes = f"{describe_shape(part.x[0])}, but {places[1]}: {describe_shape(first.x[0])}"
        raise InputError(f"{places[0]}: {shapes}; all agents need the same")
    return part


def input_tensors(parts: list[FileContents], encode: Callable[[list[str]], Tensor] | None) -> list[Tensor]:
    """Return x of each file; text is encoded, by default as sentence embeddings."""
    if parts[0].kind != "text":
        return [torch.from_numpy(part.x) for part in parts]
    if encode is None:
        from focusfl.models.text import embed

        encode = embed
    x = encode([text for part in parts for text in part.x])  # all at once, so that one cache entry serves all seeds
    return list(x.float().split([len(part.x) for part in parts]))


def encode_labels(parts: list[FileContents], target: TargetOption = "auto") -> tuple[list[Tensor], tuple[str, ...]]:
    """Turn labels into numbers: words are numbered in sorted order over all files, numbers stay as they are.

    Args:
        parts: The files.
        target: See `folder`.

    Returns:
        y of each file, int64 for classes and float32 for regression; and the words, if there are any.

    Raises:
        InputError: A label is missing or out of range, or words and numbers are mixed.
    """
    y = [label_values(part, target) for part in parts]
    first: dict[str, str] = {}  # kind of label -> the first of that kind, for messages
    for part, labels in zip(parts, y, strict=True):
        for i, label in enumerate(labels):
            kind = "word" if isinstance(label, str) else "fraction" if label % 1 else type(label).__name__
            if label == "" or (kind != "word" and not abs(label) < 3e38):
                raise InputError(f"{part.at(i)}: the label is empty, NaN or infinite")
            if kind == "word" and target == "number":
                raise InputError(f"{part.at(i)}: label {label!r} is not a number (data.target = number)")
            if kind not in first:
                first[kind] = f"{label!r} in {part.at(i)}"
    if len(first) > 1 and ("word" in first or "fraction" not in first):
        kinds = "use words, whole numbers or floats for all labels"
        raise InputError(f"labels of different kinds, {' and '.join(first.values())}: {kinds}")
    if "word" in first:
        different = sorted({label for labels in y for label in labels}, key=label_order)
        names = {name: c for c, name in enumerate(different)}
        require("the number of classes", len(names), len(names) <= MAX_CLASSES, f"at most {MAX_CLASSES}")
        return [torch.tensor([names[label] for label in labels]) for labels in y], tuple(names)
    if first.keys() != {"int"}:
        return [torch.tensor([float(label) for label in labels]) for labels in y], ()
    for part, labels in zip(parts, y, strict=True):
        for i in (i for i, label in enumerate(labels) if not 0 <= label < MAX_CLASSES):
            hint = f"a class is 0 to {MAX_CLASSES - 1}; for regression write {labels[i]}.0"
            raise InputError(f"{part.at(i)}: label {labels[i]}; {hint}")
    return [torch.tensor(labels) for labels in y], ()


def label_values(part: FileContents, target: TargetOption) -> list[Any]:
    """Return the labels of a file as words, whole numbers or floats."""
    if part.kind == "images":
        return part.y
    return [_as_target(_parse_label(label), target) for label in part.y]


def _as_target(label: Any, target: TargetOption) -> Any:
    """Return a label as the option data.target asks for: a number as a word, or as a float."""
    if isinstance(label, str) or target == "auto":
        return label
    return number_word(label) if target == "class" else float(label)


def label_order(word: str) -> tuple[bool, float, str]:
    """Sort numbers by value, then words by letter.

    >>> sorted(["ill", "10", "9"], key=label_order)
    ['9', '10', 'ill']
    """
    number = cell_value(word)
    return (False, number, "") if isinstance(number, float) and number == number else (True, 0.0, word)


def _parse_label(label: Any) -> Any:
    """Return a number if the label can be read as one, else the word; None becomes NaN.

    >>> [_parse_label(label) for label in ("3", " 2.5", "cat ", "1_2", 4, True, None)]
    [3, 2.5, 'cat', '1_2', 4, 1, nan]
    """
    if isinstance(label, str):
        for kind in (int, float):
            with suppress(ValueError):
                return parse_number(kind, label)
        return label.strip()
    if label is None or isinstance(label, float):
        return float("nan") if label is None else label
    return int(label) if isinstance(label, int) else str(label)


def split_test(data: Data, share: float, seed: int, agent: str, path: Path) -> tuple[Data, Data]:
    """Set a random share of an agent's examples aside for testing.

    The choice depends on the seed and the agent's name, not on the other agents.

    Args:
        data: All examples of the agent, two or more.
        share: The share to set aside; training and test get at least one example each.
        seed: The seed.
        agent: The agent's name.
        path: The agent's file, for messages.

    Returns:
        Training and test data.

    Raises:
        InputError: There are fewer than two examples.
    """
    train, test = split_rows(len(data.y), share, seed, agent, path)
    return Data(data.x[train], data.y[train]), Data(data.x[test], data.y[test])


def split_rows(n: int, share: float, seed: int, agent: str, path: Path) -> tuple[Tensor, Tensor]:
    """Return which of an agent's n examples are for training, and which for testing: see `split_test`."""
    if n < 2:
        raise InputError(f"{path}: {n} example cannot be split into training and test; add more examples")
    order = torch.from_numpy(np.random.default_rng([seed, zlib.crc32(agent.encode())]).permutation(n))
    held = min(max(round(n * share), 1), n - 1)
    return order[held:].sort().values, order[:held].sort().values
