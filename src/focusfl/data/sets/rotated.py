"""Distribute images among agents, each of whom sees them rotated in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from focusfl.data.federation import Rows
from focusfl.util.errors import require


def distribute_rotated(
    x: Any,
    y: Any,
    turns: Sequence[int],
    rng: np.random.Generator,
    n: int | None = None,
    mix: float = 1.0,
    centre: Tensor | float = 0.0,
    spread: Tensor | float = 1.0,
) -> Rows:
    """Shuffle images, split them equally among agents, and rotate each agent's.

    Args:
        x: uint8 images [N, ..., H, W].
        y: Labels [N].
        turns: By how many quarter turns each agent's images are rotated, [E].
        rng: Decides the order.
        n: Images per agent; by default all.
        mix: The share of an agent's images that has its own rotation; the rest, in equal parts, has the rotations
            of the other agents.
        centre: What to subtract from x / 255.
        spread: What to divide by after that.

    Returns:
        float32 rows (x / 255 - centre) / spread; every image belongs to at most one agent.

    Raises:
        InputError: n is larger than the number of images per agent.
    """
    E = len(turns)
    kinds = sorted({k % 4 for k in turns})
    parts = np.array_split(rng.permutation(len(y)), E)
    size = len(parts[-1])
    require("data.n", n, lambda v: v is None or 1 <= v <= size, f"from 1 to {size} examples per agent")
    parts = [part[:n] for part in parts]
    offsets = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0)
    out = torch.empty((int(offsets[-1]), *x.shape[1:]))
    for e, (part, own) in enumerate(zip(parts, turns, strict=True)):
        others = [k for k in kinds if k != own % 4] if mix < 1 else []
        cuts = np.cumsum([round(mix * len(part)) if others else len(part), *_equal_parts(part, others, mix)])
        begin = 0
        for k, end in zip([own, *others], cuts, strict=True):
            images = torch.from_numpy(np.asarray(x[part[begin:end]]))
            turned = torch.rot90(images, k, dims=(-2, -1)).float().div_(255).sub_(centre).div_(spread)
            out[int(offsets[e]) + begin : int(offsets[e]) + int(end)] = turned
            begin = int(end)
    return Rows(out, torch.from_numpy(np.asarray(y)[np.concatenate(parts)]).long(), offsets)


def _equal_parts(part: np.ndarray[Any, Any], others: list[int], mix: float) -> list[int]:
    """Split what is left after the share `mix` into equal sizes, one per other rotation."""
    left = len(part) - round(mix * len(part))
    return [left // len(others) + (i < left % len(others)) for i in range(len(others))] if others else []
