"""Images shared out among agents, each of whom holds them turned its own way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from focusfl.data.federation import Rows
from focusfl.util.errors import require


def share_out(
    x: Any,
    y: Any,
    turns: Sequence[int],
    rng: np.random.Generator,
    n: int | None = None,
    mix: float = 1.0,
    centre: Tensor | float = 0.0,
    spread: Tensor | float = 1.0,
) -> Rows:
    """uint8 images x [N, ..., H, W] -> float32 rows, (x / 255 - centre) / spread, every image held once.

    A seeded shuffle, then equal parts (of n images at most); agent e's are turned by turns[e] quarters. With mix
    < 1 only that share of them is: the rest, in equal parts, is turned as the other agents' are.
    """
    E = len(turns)
    kinds = sorted({k % 4 for k in turns})
    parts = np.array_split(rng.permutation(len(y)), E)
    size = len(parts[-1])
    require("data.n", n, n is None or 1 <= n <= size, f"from 1 to {size} examples an agent")
    parts = [part[:n] for part in parts]
    at = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0)
    out = torch.empty((int(at[-1]), *x.shape[1:]))
    for e, (part, own) in enumerate(zip(parts, turns, strict=True)):
        others = [k for k in kinds if k != own % 4] if mix < 1 else []
        cuts = np.cumsum([round(mix * len(part)) if others else len(part), *_equal(part, others, mix)])
        begin = 0
        for k, end in zip([own, *others], cuts, strict=True):
            images = torch.from_numpy(np.asarray(x[part[begin:end]]))
            turned = torch.rot90(images, k, dims=(-2, -1)).float().div_(255).sub_(centre).div_(spread)
            out[int(at[e]) + begin : int(at[e]) + int(end)] = turned
            begin = int(end)
    return Rows(out, torch.from_numpy(np.asarray(y)[np.concatenate(parts)]).long(), at)


def _equal(part: np.ndarray[Any, Any], others: list[int], mix: float) -> list[int]:
    """Sizes of what is left after the share `mix`, split evenly; they add up."""
    left = len(part) - round(mix * len(part))
    return [left // len(others) + (i < left % len(others)) for i in range(len(others))] if others else []
