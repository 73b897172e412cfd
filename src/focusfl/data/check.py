"""Checks of data before it is used. The messages name the agent and the row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from focusfl.core import Data
from focusfl.util.errors import InputError


def as_data(where: str, pair: tuple[Any, Any], tokens: bool = False) -> Data:
    """Turn an (x, y) pair of anything array-like into tensors.

    Args:
        where: How messages name the pair, for example "agent 3".
        pair: The inputs and the labels.
        tokens: Whether x becomes int64, for an embedding, instead of float32.

    Returns:
        x, and y as int64 (classes) or float32 (regression, or [n, L] with several labels per example, 0 or 1).

    Raises:
        InputError: It is not a pair of arrays of numbers with as many labels as examples.
    """
    try:
        x, y = pair
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: expected a pair (x, y), found {type(pair).__name__}") from error
    if _has_words(y):
        number = "names = sorted({*y}); y = [names.index(label) for label in y]"
        raise InputError(f"{where}, y: the labels are words, not numbers; for all agents alike: {number}")
    x, y = as_inputs(f"{where}, x", x), _tensor(f"{where}, y", y)
    if y.dim() == 2 and y.shape[1] == 1:
        y = y.squeeze(1)
    if y.dim() not in (1, 2) or len(y) != len(x):
        raise InputError(f"{where}: x has {len(x)} rows, but y has shape {list(y.shape)}; expected [{len(x)}]")
    if y.dim() == 2 and not ((y == 0) | (y == 1)).all():
        raise InputError(f"{where}: y has shape {list(y.shape)}; several labels per example must each be 0 or 1")
    numbers = y.is_floating_point() or y.dim() == 2
    return Data(x.long() if tokens else x.float(), y.float() if numbers else y.long())


def _has_words(y: Any) -> bool:
    if isinstance(y, Tensor):
        return False
    try:
        values = np.asarray(y)
    except ValueError:  # rows of different lengths
        return False
    return values.dtype.kind in "US" or (values.dtype == object and any(isinstance(v, str) for v in values.flat))


def as_inputs(where: str, x: Any) -> Tensor:
    """Turn examples without labels into a tensor [n, ...]; raise an InputError that names `where` otherwise."""
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
            raise TypeError("it has text, or rows of different lengths")
        return torch.from_numpy(np.ascontiguousarray(array))
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: not an array of numbers: {error}") from error


def check_agents(
    agents: Sequence[Data], classes: int | None, kind: str, also: Sequence[Data] = (), also_kind: str = "test"
) -> int | None:
    """Check that the agents' data can be trained on.

    Args:
        agents: The data of each agent.
        classes: The number of classes, if the user gave it.
        kind: How messages name `agents`, for example "training".
        also: Other data of the same agents, checked in the same way.
        also_kind: How messages name them.

    Returns:
        The number of classes, or of labels per example; None for regression.

    Raises:
        InputError: There are fewer than two agents, or data that is empty, not finite, of another shape or with
            labels out of range.
    """
    if len(agents) < 2:
        count = "no agents" if not agents else "one agent"
        raise InputError(f"{count}: a federation needs at least two, because fairness compares agents")
    first = agents[0]
    named = [(f"agent {e}, {kind}", d) for e, d in enumerate(agents)]
    named += [(f"agent {e}, {also_kind}", d) for e, d in enumerate(also)]
    for where, data in named:
        if not len(data.y):
            raise InputError(f"{where}: no examples; leave the agent out, or add data")
        if data.x.shape[1:] != first.x.shape[1:]:
            shapes = f"{list(data.x.shape[1:])}, agent 0 has {list(first.x.shape[1:])}"
            raise InputError(f"{where}: an example has shape {shapes}; all agents need the same shape")
        if data.y.dtype != first.y.dtype:
            raise InputError(
                f"{where}: labels are {data.y.dtype}, agent 0 has {first.y.dtype}; use the same type for all agents"
            )
        if data.y.shape[1:] != first.y.shape[1:]:
            shapes = f"{list(data.y.shape[1:])}, agent 0 has {list(first.y.shape[1:])}"
            raise InputError(f"{where}: the labels of an example have shape {shapes}; use the same for all agents")
        for part, values in (("x", data.x), ("y", data.y)):
            bad = (~torch.isfinite(values.flatten(1) if values.dim() > 1 else values[:, None])).any(1)
            if bad.any():
                raise InputError(
                    f"{where}, {part}, row {int(bad.nonzero()[0])}: NaN or infinite; clean the data, then try again"
                )
    if first.y.dim() == 2:
        several = first.y.shape[1]
        if classes not in (None, several):
            raise InputError(f"classes = {classes}, but an example has {several} labels: leave classes out")
        return several
    if first.y.is_floating_point():
        if classes is not None:
            raise InputError(f"classes = {classes}, but the labels are {first.y.dtype}: classes need whole numbers")
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
    """Return the true clusters numbered 0..C-1 in order of appearance, [E]."""
    if clusters is None:
        return None
    if len(clusters) != E:
        raise InputError(f"clusters has {len(clusters)} entries for {E} agents; expected one per agent")
    seen: dict[object, int] = {}
    return torch.tensor([seen.setdefault(getattr(c, "item", lambda c=c: c)(), len(seen)) for c in clusters])
