"""Turn the raw files of a data set into arrays, and check them.

Images are uint8 arrays. Texts become two arrays, one blob of UTF-8 bytes and the position where each text ends, so
that both kinds can be memory-mapped; `Texts` reads them back.
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

from focusfl.data.store.sources import Dataset, RawFiles, Unavailable
from focusfl.util.progress import Advance

Arrays: TypeAlias = dict[str, Any]
_EXTRA = {"PIL": "images", "pyarrow": "text", "huggingface_hub": "text"}  # library -> extra of focusfl with it


def to_arrays(dataset: Dataset, raw: RawFiles, advance: Advance) -> Arrays:
    """Convert a data set, either from the files of the catalogue or from those of the hub, and check it.

    Args:
        dataset: The data set.
        raw: Its raw files.
        advance: Called with the number of bytes converted since its last call.

    Returns:
        The arrays by name, for example "train_x".

    Raises:
        Unavailable: The files cannot be read, or their shapes, counts or labels are wrong.
    """
    try:
        from_catalogue = raw.keys() == dataset.files.keys()
        arrays = _READERS[dataset.name](raw, advance) if from_catalogue else from_hub(dataset, raw, advance)
        _check(dataset, arrays)
    except (ValueError, KeyError, TypeError) as error:
        raise Unavailable(f"cannot be read ({type(error).__name__}: {error})") from error
    return arrays


def _check(dataset: Dataset, arrays: Arrays) -> None:
    """Check shapes, counts and labels; for files without a pin this is the only check."""
    counts = len(arrays["train_y"]), len(arrays["test_y"])
    if counts not in dataset.counts:
        raise Unavailable(f"{counts[0]} training and {counts[1]} test examples, expected {dataset.counts[0]}")
    for split, n in zip(("train", "test"), counts, strict=True):
        y = arrays[f"{split}_y"]
        if y.min() < 0 or y.max() >= dataset.classes:
            raise Unavailable(f"{split}: labels {y.min()}..{y.max()}, expected 0..{dataset.classes - 1}")
        if dataset.balanced and set(np.bincount(y)) != {n // dataset.classes}:
            raise Unavailable(f"{split}: {np.bincount(y).tolist()} examples per class, expected equal numbers")
        x = arrays[f"{split}_text_ends"] if dataset.shape is None else arrays[f"{split}_x"]
        if x.shape != (n, *(dataset.shape or ())):
            raise Unavailable(f"{split}: shape {x.shape}, expected {(n, *(dataset.shape or ()))}")


def check_encoder(raw: RawFiles) -> None:
    """Check that a text encoder is MiniLM: 6 layers, 384 wide."""
    try:
        config = json.loads(raw["config.json"].read_bytes())
        layers, width = config["num_hidden_layers"], config["hidden_size"]
    except (ValueError, KeyError, TypeError) as error:
        raise Unavailable(f"config.json: not the description of a text encoder ({error})") from error
    if (layers, width) != (6, 384):
        raise Unavailable(f"config.json: {layers} layers, {width} wide; MiniLM has 6 layers and is 384 wide")


# --- one reader per data set of the catalogue


def mnist(raw: RawFiles, advance: Advance) -> Arrays:
    """Read MNIST's idx files: a header, then the pixels or labels."""
    arrays: Arrays = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        for key, file, header in (("x", "images-idx3", 16), ("y", "labels-idx1", 8)):
            values = np.fromfile(raw[f"{prefix}-{file}-ubyte"], np.uint8)
            advance(values.size)
            values = values[header:]
            arrays[f"{split}_{key}"] = values.reshape(-1, 28, 28) if key == "x" else values.astype(np.int64)
    return arrays


def cifar10(raw: RawFiles, advance: Advance) -> Arrays:
    """Read CIFAR-10's PNG files: a row of a PNG is one image, 32 x 32 pixels of red, green, blue."""
    image = optional_library("PIL.Image")

    def batch(file: str) -> Any:
        with image.open(raw[file]) as opened:
            rows = np.asarray(opened)  # [10000, 1024, 3]
        advance(raw[file].stat().st_size)
        return rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)

    labels = {split: json.loads(raw[f"{split}_lables.json"].read_text()) for split in ("train", "test")}
    return {
        "train_x": np.concatenate([batch(f"data_batch_{i}.png") for i in range(1, 6)]),
        "train_y": np.array(labels["train"], np.int64),
        "test_x": batch("test_batch.png"),
        "test_y": np.array(labels["test"], np.int64),
    }


def imdb(raw: RawFiles, advance: Advance) -> Arrays:
    """Read IMDb's reviews, four quarters: test and train negative, test and train positive; `s` is the label."""
    reviews = json.loads(raw["reviews.json"].read_bytes())
    if [review["s"] for review in reviews] != [0] * 25_000 + [1] * 25_000:
        raise Unavailable("reviews.json: the labels are not 25,000 negative, then 25,000 positive")
    arrays: Arrays = {}
    for split, start in (("train", 12_500), ("test", 0)):
        both = reviews[start : start + 12_500] + reviews[start + 25_000 : start + 37_500]
        arrays |= _text_arrays(split, [review["t"] for review in both], [review["s"] for review in both])
        advance(raw["reviews.json"].stat().st_size // 2)
    return arrays


def yelp(raw: RawFiles, advance: Advance) -> Arrays:
    """Read the Yelp reviews; `source` becomes a number in the alphabetical order of the sources' names."""
    read = optional_library("pyarrow.parquet").read_table
    tables = {split: read(raw[f"yelp_bal_{split}.parquet"]) for split in ("train16k", "test11k")}
    names = sorted({name for table in tables.values() for name in table["source"].to_pylist()})
    arrays: Arrays = {}
    for file, table in tables.items():
        split = file.rstrip("0123456789k")
        arrays |= _text_arrays(split, table["text"].to_pylist(), table["label"].to_pylist())
        arrays[f"{split}_source"] = np.array([names.index(name) for name in table["source"].to_pylist()], np.int64)
        advance(raw[f"yelp_bal_{file}.parquet"].stat().st_size)
    return arrays


_READERS: dict[str, Callable[[RawFiles, Advance], Arrays]] = {
    "mnist": mnist,
    "cifar10": cifar10,
    "imdb": imdb,
    "yelp": yelp,
}


# --- the hub's files, which have one layout for all data sets


def from_hub(dataset: Dataset, raw: RawFiles, advance: Advance) -> Arrays:
    """Read the hub's parquet files: columns `label`, and `text` or an image as encoded bytes."""
    read = optional_library("pyarrow.parquet").read_table
    arrays: Arrays = {}
    for split in ("train", "test"):
        paths = [path for file, path in sorted(raw.items()) if f"{split}-" in Path(file).name]
        tables = [read(path) for path in paths]
        if not tables or "label" not in tables[0].column_names:
            raise Unavailable(f"no {split} part with a column 'label'")
        column = next((c for c in ("text", "image", "img") if c in tables[0].column_names), "")
        if (column == "text") != (dataset.shape is None):
            raise Unavailable(f"the {split} part has the columns {', '.join(tables[0].column_names)}")
        values = [value for table in tables for value in table[column].to_pylist()]
        labels = [label for table in tables for label in table["label"].to_pylist()]
        if dataset.shape is None:
            arrays |= _text_arrays(split, values, labels)
        else:
            encoded = (value["bytes"] for value in values)
            arrays[f"{split}_x"] = _decode_images(dataset.shape, encoded, len(values), advance)
            arrays[f"{split}_y"] = np.array(labels, np.int64)
        if dataset.name == "yelp":
            arrays[f"{split}_source"] = np.zeros(len(labels), np.int64)
    return arrays


def _decode_images(shape: tuple[int, ...], encoded: Iterable[bytes], n: int, advance: Advance) -> Any:
    """Decode PNG bytes into [n, *shape]; an image of another size is refused before it is decoded."""
    image = optional_library("PIL.Image")
    out = np.empty((n, *shape), np.uint8)
    for i, data in enumerate(encoded):
        try:
            with image.open(io.BytesIO(data)) as opened:
                if opened.size != shape[-2:]:
                    raise Unavailable(f"image {i} is {opened.size}, expected {shape[-2:]}")
                pixels = np.asarray(opened.convert("RGB" if len(shape) == 3 else "L"))
        except (OSError, SyntaxError) as error:  # what Pillow raises for a bad file
            raise Unavailable(f"image {i} cannot be read ({error})") from error
        out[i] = pixels.transpose(2, 0, 1) if len(shape) == 3 else pixels
        advance(len(data))
    return out


# --- texts as arrays


class Texts(Sequence[str]):
    """A sequence of str over UTF-8 bytes and the position where each text ends; a text is decoded when asked for.

    Example:
        >>> texts = Texts(*pack_texts(["good", "", "très bon"]))
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


def pack_texts(texts: Iterable[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the two arrays of a `Texts`."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), ends


def _text_arrays(split: str, texts: Iterable[str], labels: Iterable[int]) -> Arrays:
    """Return the arrays of labelled texts, as `join_texts` reads them."""
    blob, ends = pack_texts(texts)
    return {f"{split}_text": blob, f"{split}_text_ends": ends, f"{split}_y": np.array(list(labels), np.int64)}


def join_texts(arrays: Arrays) -> Arrays:
    """Turn each pair of arrays NAME and NAME_ends into one `Texts`; other arrays stay as they are."""
    texts = {name: Texts(arrays[name], arrays[f"{name}_ends"]) for name in arrays if f"{name}_ends" in arrays}
    return {name: texts.get(name, array) for name, array in arrays.items() if not name.endswith("_ends")}


def optional_library(name: str) -> Any:
    """Import an optional library.

    Raises:
        Unavailable: It is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        extra = _EXTRA[name.partition(".")[0]]
        raise Unavailable(f'needs {name}: pip install "focusfl[{extra}]"') from error
