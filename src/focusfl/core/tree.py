"""Nested dicts of tensors: map over them, lay them flat, take and put rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Tree = dict[str, Any]


def tree_map(f: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """f on each leaf; the others must have the same keys."""
    out: Tree = {}
    for k, v in tree.items():
        others = [r[k] for r in rest]
        out[k] = tree_map(f, v, *others) if isinstance(v, dict) else f(v, *others)
    return out


def flatten(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """{"w": {"a": x}} -> {"w/a": x}.

    >>> flatten({"w": {"a": 1}, "b": 2})
    {'w/a': 1, 'b': 2}
    """
    flat: dict[str, Tensor] = {}
    for k, v in tree.items():
        flat |= flatten(v, f"{prefix}{k}/") if isinstance(v, dict) else {prefix + k: v}
    return flat


def unflatten(flat: dict[str, Tensor]) -> Tree:
    """The way back.

    >>> unflatten({'w/a': 1, 'b': 2})
    {'w': {'a': 1}, 'b': 2}
    """
    tree: Tree = {}
    for path, v in flat.items():
        *parents, leaf = path.split("/")
        node = tree
        for part in parents:
            node = node.setdefault(part, {})
        node[leaf] = v
    return tree


def take(tree: Tree, rows: Any) -> Tree:
    """Row(s) of every leaf: any index that a tensor takes."""
    return tree_map(lambda v: v[rows], tree)


def put(tree: Tree, rows: Tensor | int, new: Tree) -> None:
    """Write row(s) in place."""
    tree_map(lambda v, n: v.__setitem__(rows, n), tree, new)


def repeat(tree: Tree, E: int) -> Tree:
    """E copies along a new first axis."""
    return tree_map(lambda v: v.detach().unsqueeze(0).repeat(E, *[1] * v.dim()), tree)


class Total:
    """A running sum of trees, in double precision, so that the order of the terms hardly matters."""

    def __init__(self) -> None:
        self._sum: dict[str, Tensor] = {}
        self._dtype: dict[str, torch.dtype] = {}

    def add(self, tree: Tree, stacked: bool = False) -> None:
        """Add one tree, or all rows of a stacked one."""
        for k, v in flatten(tree).items():
            wide = torch.float32 if v.device.type == "mps" else torch.float64  # mps has no float64
            if k not in self._sum:
                self._sum[k] = torch.zeros(v.shape[1:] if stacked else v.shape, dtype=wide, device=v.device)
                self._dtype[k] = v.dtype
            self._sum[k] += v.sum(0, dtype=wide) if stacked else v

    def result(self) -> Tree:
        """The sum, back in the terms' own precision. It is given away: the total is empty after."""
        return unflatten({k: self._sum.pop(k).to(dtype) for k, dtype in self._dtype.items()})
