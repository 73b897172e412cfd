"""From the contents of files to examples: columns in one order, inputs as tensors, test data set aside."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from focusfl.core import Data
from focusfl.data.own.contents import FileContents, describe_shape
from focusfl.data.own.inputs import Inputs, Kind
from focusfl.data.own.schema import Schema
from focusfl.data.own.table_files import only_alike, simplified
from focusfl.util.errors import InputError, Problems


def align(parts: list[FileContents]) -> list[FileContents]:
    """Check that all files have the same kind and shape, and put their columns in the order of the first.

    Raises:
        InputError: A file is empty, or differs from the others.
    """
    problems = Problems()
    first = usual(parts)
    out = [part for part in (aligned(part, first, problems) for part in parts) if part is not None]
    problems.report()
    return out


def usual(parts: list[FileContents]) -> FileContents:
    """Return the first file whose kind and columns are those of the most files with examples."""
    sound = [part for part in parts if part.y] or parts
    forms = [(part.kind, frozenset(map(simplified, part.columns))) for part in sound]
    return sound[forms.index(Counter(forms).most_common(1)[0][0])]


def aligned(part: FileContents, first: FileContents, problems: Problems) -> FileContents | None:
    """Return a file in the form of another, or None and a problem. Names may be spelled alike: `only_alike`."""
    if not part.y:
        problems.add(f"{part.path}: no examples; leave the agent out, or add data")
    elif part.kind != first.kind:
        problems.add(f"{part.path}: {part.kind}, but {first.path}: {first.kind}; use one kind for all agents")
    elif part.kind in ("a table", "text"):
        part = _renamed(part, first)
        if part.columns == first.columns:
            return part
        if not {*part.columns} ^ {*first.columns}:
            return replace(part, x=part.x.select(first.columns), columns=first.columns)
        problems.add(_differing(part, first))
    elif part.x.shape[1:] != first.x.shape[1:]:
        places = (part.at(0), first.at(0)) if part.kind == "images" else (part.path, first.path)
        shapes = f"{describe_shape(part.x[0])}, but {places[1]}: {describe_shape(first.x[0])}"
        problems.add(f"{places[0]}: {shapes}; all agents need the same")
    else:
        return part
    return None


def _renamed(part: FileContents, first: FileContents) -> FileContents:
    """Return a table with its columns named as in another, where the names are spelled alike."""
    new = {name: only_alike(name, first.columns) for name in part.columns if name not in first.columns}
    new = {old: name for old, name in new.items() if name and name not in part.columns}
    if not new or part.kind != "a table" or len({*new.values()}) < len(new):
        return part
    columns = tuple(new.get(name, name) for name in part.columns)
    note = f"{part.path}: {', '.join(f'{old!r} is read as {name!r}' for old, name in new.items())}"
    return replace(part, x=replace(part.x, columns=columns), columns=columns, notes=(*part.notes, note))


def _differing(part: FileContents, first: FileContents) -> str:
    """Say which columns a file lacks, and which only it has."""
    lacks = [name for name in first.columns if name not in part.columns]
    extra = [name for name in part.columns if name not in first.columns]
    words = [f"it lacks {', '.join(lacks)}"] * bool(lacks) + [f"only it has {', '.join(extra)}"] * bool(extra)
    pairs = [(name, get_close_matches(name, extra, n=1, cutoff=0.8)) for name in lacks]
    alike = "".join(f"rename {close[0]!r} to {name!r}, or " for name, close in pairs if close)
    hint = f"{alike}leave columns out: data.drop={','.join([*lacks, *extra])}"
    return f"{part.path}: its columns differ from those of {first.path}: {'; '.join(words)}: {hint}"


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
    train, test = split_rows(len(data.y), share, seed, agent, path)
    return Data(data.x[train], data.y[train]), Data(data.x[test], data.y[test])


def split_rows(n: int, share: float, seed: int, agent: str, path: Path) -> tuple[Tensor, Tensor]:
    """Return which of an agent's n examples are for training, and which for testing: see `split_test`."""
    if n < 2:
        hint = "add more examples, or leave the agent out"
        raise InputError(f"{path}: {n} example cannot be split into training and test; {hint}")
    order = torch.from_numpy(np.random.default_rng([seed, zlib.crc32(agent.encode())]).permutation(n))
    held = min(max(round(n * share), 1), n - 1)
    return order[held:].sort().values, order[:held].sort().values
