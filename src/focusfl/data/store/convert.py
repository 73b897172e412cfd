"""Raw files -> arrays: what each data set is made of, in one memory-mapped form.

Texts lie in one blob of UTF-8 with the place where each ends.
"""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from focusfl.data.store.sources import Dataset, Raw, Unavailable
from focusfl.util.progress import Step


class Texts(Sequence[str]):
    """A sequence of str over UTF-8 bytes and where each text ends; nothing is read before it is asked for.

    >>> texts = Texts(*pack(["good", "", "très bon"]))
    >>> len(texts), texts[2], texts[-3], texts[1:]
    (3, 'très bon', 'good', ['', 'très bon'])
    """

    def __init__(self, blob: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self._blob, self._ends = blob, ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        start = int(self._ends[i - 1]) if i else 0
        return self._blob[start : int(self._ends[i])].tobytes().decode()

    def __repr__(self) -> str:
        return f"<{len(self)} texts>"


def pack(texts: Iterable[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The two arrays of a `Texts`."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([len(one) for one in encoded], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), ends


def split_arrays(split: str, texts: Iterable[str], labels: Iterable[int]) -> dict[str, Any]:
    """The arrays of a labelled split, as `join` reads them."""
    blob, ends = pack(texts)
    return {f"{split}_text": blob, f"{split}_text_ends": ends, f"{split}_y": np.array(list(labels), np.int64)}


def join(arrays: dict[str, Any]) -> dict[str, Any]:
    """Pairs `NAME`, `NAME_ends` become one `Texts`; other arrays stay."""
    texts = {name: Texts(arrays[name], arrays[f"{name}_ends"]) for name in arrays if f"{name}_ends" in arrays}
    return {name: texts.get(name, array) for name, array in arrays.items() if not name.endswith("_ends")}


_EXTRA = {"PIL": "images", "pyarrow": "text", "huggingface_hub": "text"}


def library(name: str) -> Any:
    """An optional library, or what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        extra = _EXTRA[name.partition(".")[0]]
        raise Unavailable(f'needs {name}: pip install "focusfl[{extra}]"') from error


def yelp(raw: Raw, step: Step) -> dict[str, Any]:
    """`source` becomes a number: 0, 1, ... in the alphabetical order of the sources' names."""
    read = library("pyarrow.parquet").read_table
    tables = {split: read(raw[f"yelp_bal_{split}.parquet"]) for split in ("train16k", "test11k")}
    names = sorted({name for table in tables.values() for name in table["source"].to_pylist()})
    arrays: dict[str, Any] = {}
    for file, table in tables.items():
        split = file.rstrip("0123456789k")
        arrays |= split_arrays(split, table["text"].to_pylist(), table["label"].to_pylist())
        arrays[f"{split}_source"] = np.array([names.index(one) for one in table["source"].to_pylist()], np.int64)
        step(raw[f"yelp_bal_{file}.parquet"].stat().st_size)
    return arrays


def from_hub(chosen: Dataset, raw: Raw, step: Step) -> dict[str, Any]:
    """The hub's parquet files: `label`, and `text` or an image as encoded bytes."""
    read = library("pyarrow.parquet").read_table
    arrays: dict[str, Any] = {}
    for split in ("train", "test"):
        paths = [path for file, path in sorted(raw.items()) if f"{split}-" in Path(file).name]
        tables = [read(path) for path in paths]
        if not tables or "label" not in tables[0].column_names:
            raise Unavailable(f"no {split} part with a column 'label'")
        column = next((c for c in ("text", "image", "img") if c in tables[0].column_names), "")
        if (column == "text") != (chosen.shape is None):
            raise Unavailable(f"the {split} part has the columns {', '.join(tables[0].column_names)}")
        values = [one for table in tables for one in table[column].to_pylist()]
        labels = [one for table in tables for one in table["label"].to_pylist()]
        if chosen.shape is None:
            arrays |= split_arrays(split, values, labels)
        else:
            arrays[f"{split}_x"] = _decode(chosen.shape, (one["bytes"] for one in values), len(values), step)
            arrays[f"{split}_y"] = np.array(labels, np.int64)
        if chosen.name == "yelp":
            arrays[f"{split}_source"] = np.zeros(len(labels), np.int64)
    return arrays


def _decode(shape: tuple[int, ...], encoded: Iterable[bytes], n: int, step: Step) -> Any:
    """PNG bytes -> [n, *shape]; an image of another size is refused before it is decoded."""
    image = library("PIL.Image")
    out = np.empty((n, *shape), np.uint8)
    for i, data in enumerate(encoded):
        try:
            with image.open(io.BytesIO(data)) as opened:
                if opened.size != shape[-2:]:
                    raise Unavailable(f"image {i} is {opened.size}, expected {shape[-2:]}")
                pixels = np.asarray(opened.convert("RGB" if len(shape) == 3 else "L"))
        except (OSError, SyntaxError) as error:  # Pillow's two ways to refuse a file
            raise Unavailable(f"image {i} cannot be read ({error})") from error
        out[i] = pixels.transpose(2, 0, 1) if len(shape) == 3 else pixels
        step(len(data))
    return out


Arrays: TypeAlias = dict[str, Any]


def mnist(raw: Raw, step: Step) -> Arrays:
    arrays: Arrays = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        for key, file, header in (("x", "images-idx3", 16), ("y", "labels-idx1", 8)):
            values = np.fromfile(raw[f"{prefix}-{file}-ubyte"], np.uint8)
            step(values.size)
            values = values[header:]
            arrays[f"{split}_{key}"] = values.reshape(-1, 28, 28) if key == "x" else values.astype(np.int64)
    return arrays


def cifar10(raw: Raw, step: Step) -> Arrays:
    """A row of a PNG is one image: 32x32 pixels, row after row, each pixel red, green, blue."""
    image = library("PIL.Image")

    def batch(file: str) -> Any:
        with image.open(raw[file]) as opened:
            rows = np.asarray(opened)  # [10000, 1024, 3]
        step(raw[file].stat().st_size)
        return rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)

    labels = {split: json.loads(raw[f"{split}_lables.json"].read_text()) for split in ("train", "test")}
    return {
        "train_x": np.concatenate([batch(f"data_batch_{i}.png") for i in range(1, 6)]),
        "train_y": np.array(labels["train"], np.int64),
        "test_x": batch("test_batch.png"),
        "test_y": np.array(labels["test"], np.int64),
    }


def imdb(raw: Raw, step: Step) -> Arrays:
    """Four quarters: test and train negative, test and train positive; `s` must agree."""
    reviews = json.loads(raw["reviews.json"].read_bytes())
    if [one["s"] for one in reviews] != [0] * 25_000 + [1] * 25_000:
        raise Unavailable("reviews.json: the labels are not 25,000 negative, then 25,000 positive")
    arrays: Arrays = {}
    for split, at in (("train", 12_500), ("test", 0)):
        both = reviews[at : at + 12_500] + reviews[at + 25_000 : at + 37_500]
        arrays |= split_arrays(split, [one["t"] for one in both], [one["s"] for one in both])
        step(raw["reviews.json"].stat().st_size // 2)
    return arrays


def arrays(chosen: Dataset, raw: Raw, step: Step) -> Arrays:
    """The data set as arrays, of the right shapes and counts; raw files with the names we know, or the hub's."""
    try:
        ours = raw.keys() == chosen.files.keys()
        made = _READERS[chosen.name](raw, step) if ours else from_hub(chosen, raw, step)
        check(chosen, made)
    except (ValueError, KeyError, TypeError) as error:
        raise Unavailable(f"cannot be read ({type(error).__name__}: {error})") from error
    return made


def check(chosen: Dataset, arrays: Arrays) -> None:
    """Shapes and counts; all there is to check where no pin is known."""
    found = len(arrays["train_y"]), len(arrays["test_y"])
    if found not in chosen.counts:
        raise Unavailable(f"{found[0]} training and {found[1]} test examples, expected {chosen.counts[0]}")
    for split, n in zip(("train", "test"), found, strict=True):
        y = arrays[f"{split}_y"]
        if y.min() < 0 or y.max() >= chosen.classes:
            raise Unavailable(f"{split}: labels {y.min()}..{y.max()}, expected 0..{chosen.classes - 1}")
        if chosen.even and set(np.bincount(y)) != {n // chosen.classes}:
            raise Unavailable(f"{split}: {np.bincount(y).tolist()} examples per class, expected equal numbers")
        x = arrays[f"{split}_text_ends"] if chosen.shape is None else arrays[f"{split}_x"]
        if x.shape != (n, *(chosen.shape or ())):
            raise Unavailable(f"{split}: shape {x.shape}, expected {(n, *(chosen.shape or ()))}")


def check_model(raw: Raw) -> None:
    """MiniLM and no other: 6 layers, 384 wide."""
    try:
        config = json.loads(raw["config.json"].read_bytes())
        found = config["num_hidden_layers"], config["hidden_size"]
    except (ValueError, KeyError, TypeError) as error:
        raise Unavailable(f"config.json: not the description of a text encoder ({error})") from error
    if found != (6, 384):
        raise Unavailable(f"config.json: {found[0]} layers, {found[1]} wide; MiniLM has 6 and 384")


_READERS: dict[str, Callable[[Raw, Step], Arrays]] = {
    "mnist": mnist,
    "cifar10": cifar10,
    "imdb": imdb,
    "yelp": yelp,
}
