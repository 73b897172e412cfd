"""Convert trees of tensors to Flower's records and back, and check what a peer sent."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from focusfl.core.tree import Tree, flatten, tree_map, unflatten


class Refused(Exception):
    """A peer's message cannot be accepted; the error says why in one line."""


def to_arrays(tree: Tree) -> ArrayRecord:
    """Return a tree as Flower's record; nested keys become paths such as "w/1.weight"."""
    flat = flatten(tree)
    return ArrayRecord(OrderedDict((k, Array(v.detach().cpu().contiguous().numpy())) for k, v in flat.items()))


def to_tree(content: RecordDict, name: str) -> Tree:
    """Return the record of that name as a tree, which is empty if there is no such record."""
    record = content.array_records.get(name, ArrayRecord())
    return unflatten({k: torch.from_numpy(array.numpy().copy()) for k, array in record.items()})


def known_records(content: RecordDict, *names: str) -> None:
    """Raise Refused if a peer sent a record that is not one of these."""
    for name in content:
        if name not in names:
            raise Refused(f"it sent {name[:40]!r}, which was not asked for")


def checked(content: RecordDict, name: str, like: Tree) -> Tree:
    """Return a peer's record of that name as a tree; its keys, shapes and types must be those of `like`.

    Raises:
        Refused: If it differs, or a number is not finite.
    """
    record = content.array_records.get(name, ArrayRecord())
    wanted = flatten(like)  # empty sub-trees are not sent; they are taken from `like`
    if set(record) != set(wanted):
        odd = sorted(set(record) ^ set(wanted))[0]
        raise Refused(f"{name}: {'unexpected' if odd in record else 'missing'} tensor {odd!r}")
    tensors: list[Tensor] = []
    for k, v in wanted.items():
        values = checked_array(f"{name}/{k}", record[k], tuple(v.shape), str(v.numpy().dtype))
        tensors.append(torch.from_numpy(values.copy()))
        if tensors[-1].is_floating_point() and not torch.isfinite(tensors[-1]).all():
            raise Refused(f"{name}/{k}: NaN or infinite")
    each = iter(tensors)
    return tree_map(lambda _: next(each), like)  # in the order of `flatten`


def checked_array(name: str, array: Array, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """A peer's array, if it is of that shape and type; what it says of itself may lie."""
    wanted = f"expected {list(shape)} {dtype}"
    if (tuple(array.shape), array.dtype) != (shape, dtype):
        raise Refused(f"{name}: {wanted}, got {list(array.shape)[:8]} {array.dtype[:20]!r}")
    if len(array.data) > math.prod(shape) * np.dtype(dtype).itemsize + 4096:
        raise Refused(f"{name}: {wanted}, got {len(array.data)} bytes")
    try:
        values = array.numpy()
    except Exception as error:  # invalid bytes can make numpy raise anything
        raise Refused(f"{name}: not readable ({type(error).__name__})") from error
    if not isinstance(values, np.ndarray) or (values.shape, str(values.dtype)) != (shape, dtype):
        raise Refused(f"{name}: {wanted}, got something else")
    return values
