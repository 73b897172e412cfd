"""Parquet files -> arrays: the Yelp reviews, and whatever comes from the hub."""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from focusfl.data.sources import Dataset, Raw, Unavailable
from focusfl.data.store_bar import Step
from focusfl.data.store_texts import split_arrays

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
