"""Trees of tensors as Flower's records and back. What a peer sent is checked before it is believed."""

from __future__ import annotations

from collections import OrderedDict

import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

from focusfl.tree import Tree, flatten, unflatten


class Refused(Exception):
    """Something that must not enter the model; says why in one line."""


def to_arrays(tree: Tree) -> ArrayRecord:
    """Nested keys become paths, "w/1.weight"."""
    flat = flatten(tree)
    return ArrayRecord(OrderedDict((k, Array(v.detach().cpu().contiguous().numpy())) for k, v in flat.items()))


def to_tree(content: RecordDict, name: str) -> Tree:
    """The record of that name as a tree; no such record: an empty one."""
    record = content.array_records.get(name, ArrayRecord())
    return unflatten({k: torch.from_numpy(array.numpy().copy()) for k, array in record.items()})


def checked(content: RecordDict, name: str, like: Tree) -> Tree:
    """The same, from a peer: the keys, shapes and types of `like`, and finite numbers. Else Refused."""
    record = content.array_records.get(name, ArrayRecord())
    wanted = flatten(like)  # branches without leaves do not travel: they are there as in `like`
    if set(record) != set(wanted):
        odd = sorted(set(record) ^ set(wanted))[0]
        raise Refused(f"{name}: {'unexpected' if odd in record else 'missing'} tensor {odd!r}")
    found = {k: _checked(f"{name}/{k}", record[k], v) for k, v in wanted.items()}
    return _shaped(like, found, "")


def _shaped(like: Tree, flat: dict[str, Tensor], at: str) -> Tree:
    return {k: _shaped(v, flat, f"{at}{k}/") if isinstance(v, dict) else flat[at + k] for k, v in like.items()}


def _checked(name: str, array: Array, like: Tensor) -> Tensor:
    said = (tuple(array.shape), array.dtype)
    wanted = (tuple(like.shape), str(like.numpy().dtype))
    if said != wanted or len(array.data) > like.numel() * like.element_size() + 4096:
        raise Refused(f"{name}: expected {list(wanted[0])} {wanted[1]}, got {list(said[0])} {said[1]}")
    try:
        values = array.numpy()
    except Exception as error:  # whatever the bytes make numpy say
        raise Refused(f"{name}: not readable ({type(error).__name__})") from error
    if (values.shape, str(values.dtype)) != wanted:  # the header may lie
        raise Refused(f"{name}: expected {list(wanted[0])} {wanted[1]}, got {list(values.shape)} {values.dtype}")
    found = torch.from_numpy(values.copy())
    if found.is_floating_point() and not torch.isfinite(found).all():
        raise Refused(f"{name}: NaN or infinite")
    return found
