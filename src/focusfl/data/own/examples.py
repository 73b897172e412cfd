"""From the contents of files to examples: columns in one order, inputs as tensors, test data set aside."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from focusfl.core import Data
from focusfl.data.own.contents import FileContents, describe_shape
from focusfl.data.own.inputs import Inputs, Kind
from focusfl.data.own.schema import Schema
from focusfl.util.errors import InputError, Problems


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


def inputs_of(
    first: FileContents, x: Tensor, label: str, text: str, own_encoder: bool = False, schema: Schema | None = None
) -> Inputs:
    """Return the form of the examples x that were read from files like the first."""
    columns = schema.features if schema is not None else first.columns if first.kind == "a table" else ()
    own = own_encoder and first.kind == "text"
    kind = cast(Kind, first.kind)
    return Inputs(kind, tuple(x.shape[1:]), columns=columns, label=label, text=text, own_encoder=own, schema=schema)


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
    n = len(data.y)
    if n < 2:
        raise InputError(f"{path}: {n} example cannot be split into training and test; add more examples")
    order = torch.from_numpy(np.random.default_rng([seed, zlib.crc32(agent.encode())]).permutation(n))
    held = min(max(round(n * share), 1), n - 1)
    train, test = order[held:].sort().values, order[:held].sort().values
    return Data(data.x[train], data.y[train]), Data(data.x[test], data.y[test])
