"""Data is checked before it is used; a message names the agent and the row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from focusfl.core import Data
from focusfl.util.errors import InputError


def as_data(where: str, pair: tuple[Any, Any], tokens: bool = False) -> Data:
    """Anything array-like -> float32 x (int64 if `tokens`), and y as int64 (classes) or float32 (regression)."""
    try:
        x, y = pair
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: expected a pair (x, y), found {type(pair).__name__}") from error
    x, y = as_inputs(f"{where}, x", x), _tensor(f"{where}, y", y)
    if y.dim() == 2 and y.shape[1] == 1:
        y = y.squeeze(1)
    if y.dim() != 1 or len(y) != len(x):
        raise InputError(f"{where}: {len(x)} rows of x, but y has shape {list(y.shape)}; expected [{len(x)}]")
    return Data(x.long() if tokens else x.float(), y.float() if y.is_floating_point() else y.long())


def as_inputs(where: str, x: Any) -> Tensor:
    """Examples without labels."""
    x = _tensor(where, x)
    if x.dim() < 2:
        raise InputError(f"{where}: expected [examples, features...], found shape {list(x.shape)}")
    return torch.as_tensor(x)


def _tensor(where: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    try:
        array = np.asarray(value)
        if array.dtype == object or array.dtype.kind in "USO":
            raise TypeError("text or rows of different length where numbers belong")
        return torch.from_numpy(np.ascontiguousarray(array))
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: not an array of numbers: {error}") from error


def check_agents(agents: Sequence[Data], classes: int | None, kind: str, also: Sequence[Data] = ()) -> int | None:
    """Refuse what cannot be trained on; return the number of classes (None: regression)."""
    if len(agents) < 2:
        found = "no agents" if not agents else "one agent"
        raise InputError(f"{found}: a federation needs at least two, since fairness compares agents")
    first = agents[0]
    named = [(f"agent {e}, {kind}", d) for e, d in enumerate(agents)]
    named += [(f"agent {e}, test", d) for e, d in enumerate(also)]
    for where, data in named:
        if not len(data.y):
            raise InputError(f"{where}: no examples; leave the agent out or give it data")
        if data.x.shape[1:] != first.x.shape[1:]:
            shapes = f"{list(data.x.shape[1:])}, agent 0 has {list(first.x.shape[1:])}"
            raise InputError(f"{where}: an example has shape {shapes}; all agents must have the same")
        if data.y.dtype != first.y.dtype:
            raise InputError(
                f"{where}: labels are {data.y.dtype}, agent 0 has {first.y.dtype}; use one kind for all"
            )
        for part, values in (("x", data.x), ("y", data.y)):
            bad = (~torch.isfinite(values.flatten(1) if values.dim() > 1 else values[:, None])).any(1)
            if bad.any():
                raise InputError(
                    f"{where}, {part}, row {int(bad.nonzero()[0])}: NaN or infinite; clean the data first"
                )
    if first.y.is_floating_point():
        if classes is not None:
            raise InputError(f"classes = {classes}, but the labels are {first.y.dtype}: give whole numbers")
        return None
    found_classes = 1 + max(int(d.y.max()) for _, d in named)
    limit = found_classes if classes is None else classes
    for where, data in named:
        bad = (data.y < 0) | (data.y >= limit)
        if bad.any():
            row = int(bad.nonzero()[0])
            raise InputError(f"{where}, row {row}: label {int(data.y[row])} is out of range 0..{limit - 1}")
    return max(limit, 2)


def check_clusters(clusters: Sequence[int] | None, E: int) -> Tensor | None:
    """True clusters as 0..C-1 in order of appearance."""
    if clusters is None:
        return None
    if len(clusters) != E:
        raise InputError(f"clusters has {len(clusters)} entries for {E} agents")
    seen: dict[object, int] = {}
    return torch.tensor([seen.setdefault(getattr(c, "item", lambda c=c: c)(), len(seen)) for c in clusters])
