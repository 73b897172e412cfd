"""Raw files -> arrays, once. Raw files with a pin have been checked before they come here."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from focusfl.data.sources import Dataset, Raw, Unavailable
from focusfl.data.store_bar import Step
from focusfl.data.store_parquet import from_hub, library, yelp
from focusfl.data.store_texts import split_arrays

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
