"""Nested dicts of tensors ("trees"): map over them, flatten them, read and write rows, sum them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Tree = dict[str, Any]


def tree_map(f: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Apply f to each leaf of a tree, together with the same leaf of the other trees.

    Args:
        f: The function.
        tree: A tree.
        *rest: More trees with the same keys.

    Example:
        >>> tree_map(lambda a, b: a + b, {"w": {"a": 1}}, {"w": {"a": 2}})
        {'w': {'a': 3}}
    """
    out: Tree = {}
    for k, v in tree.items():
        others = [r[k] for r in rest]
        out[k] = tree_map(f, v, *others) if isinstance(v, dict) else f(v, *others)
    return out


def flatten(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """Return a flat dict whose keys are the paths of the leaves.

    Example:
        >>> flatten({"w": {"a": 1}, "b": 2})
        {'w/a': 1, 'b': 2}
    """
    flat: dict[str, Tensor] = {}
    for k, v in tree.items():
        flat |= flatten(v, f"{prefix}{k}/") if isinstance(v, dict) else {prefix + k: v}
    return flat


def unflatten(flat: dict[str, Tensor]) -> Tree:
    """Undo `flatten`.

    Example:
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
    """Return rows of every leaf; `rows` is any index that a tensor accepts."""
    return tree_map(lambda v: v[rows], tree)


def put(tree: Tree, rows: Tensor | int, new: Tree) -> None:
    """Write rows of every leaf, in place."""
    tree_map(lambda v, n: v.__setitem__(rows, n), tree, new)


def repeat(tree: Tree, E: int) -> Tree:
    """Return E copies along a new first axis."""
    return tree_map(lambda v: v.detach().unsqueeze(0).repeat(E, *[1] * v.dim()), tree)


@dataclass
class RunningSum:
    """A running sum of trees, in double precision so that the order of the terms hardly matters.

    Example:
        >>> total = RunningSum()
        >>> total.add({"n": torch.tensor(2.0)})
        >>> total.add({"n": torch.tensor([3.0, 4.0])}, stacked=True)
        >>> total.result()
        {'n': tensor(9.)}
    """

    _sum: dict[str, Tensor] = field(default_factory=dict)
    _dtype: dict[str, torch.dtype] = field(default_factory=dict)

    def add(self, tree: Tree, stacked: bool = False) -> None:
        """Add one tree, or with `stacked` all rows of its tensors."""
        for k, v in flatten(tree).items():
            wide = torch.float32 if v.device.type == "mps" else torch.float64  # mps has no float64
            if k not in self._sum:
                self._sum[k] = torch.zeros(v.shape[1:] if stacked else v.shape, dtype=wide, device=v.device)
                self._dtype[k] = v.dtype
            self._sum[k] += v.sum(0, dtype=wide) if stacked else v

    def result(self) -> Tree:
        """Return the sum in the precision of the terms, and give up its memory: call this once."""
        return unflatten({k: self._sum.pop(k).to(dtype) for k, dtype in self._dtype.items()})
