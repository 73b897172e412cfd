"""Checks of data before it is used. The messages name the agent and the row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from focusfl.core import Data
from focusfl.util.errors import InputError

RAW = "focusfl.data.folder reads raw tables with words, dates and missing cells"


class ColumnOrder:
    """The columns of the first data frame; those of the others are brought into their order.

    Example:
        >>> class Frame(dict):
        ...     columns = property(list)
        >>> order = ColumnOrder()
        >>> order.aligned("agent 0, x", Frame(a=[1], b=[2])).tolist()
        [[1, 2]]
        >>> order.aligned("agent 1, x", Frame(b=[4], a=[3])).tolist()
        [[3, 4]]
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.first = ""  # where the first data frame is

    def aligned(self, where: str, table: Any) -> Any:
        """Return the cells of a data frame in the common order, [n, columns]; anything else as it is.

        Raises:
            InputError: The columns are others than those of the first data frame, or one does not hold numbers.
        """
        if not hasattr(table, "columns"):
            return table
        keys = {str(key): key for key in table.columns}
        if len(keys) < len(table.columns):
            raise InputError(f"{where}: several columns have the same name; rename or remove one of them")
        if not self.names:
            self.names, self.first = [*keys], where
        lacks = [name for name in self.names if name not in keys]
        extra = [name for name in keys if name not in self.names]
        if lacks or extra:
            words = [f"it lacks {', '.join(lacks)}"] * bool(lacks) + [f"only it has {', '.join(extra)}"] * bool(
                extra
            )
            hint = "give all agents the same columns"
            raise InputError(f"{where}: its columns differ from those of {self.first}: {'; '.join(words)}; {hint}")
        cells = [_numbers(f"{where}, column {name!r}", table[keys[name]]) for name in self.names]
        return np.stack(cells, 1) if cells else np.asarray(table)


def _numbers(where: str, column: Any) -> Any:
    """Return the numbers of a column; refuse words, dates and missing cells of other kinds than NaN."""
    cells = np.asarray(column)
    if cells.dtype == object and not any(isinstance(cell, str | bytes) for cell in cells):
        try:
            return cells.astype(np.float64)
        except (TypeError, ValueError):
            pass
    if cells.dtype.kind not in "biuf":
        raise InputError(f"{where}: expected numbers, found {_kind(cells)}; {RAW}")
    return cells


def _kind(cells: Any) -> str:
    """Say what the cells of an array are that are no numbers."""
    if cells.dtype.kind in "mM":
        return "dates"
    odd = next((cell for cell in cells.flat if not isinstance(cell, int | float)), "")
    return f"{'text, such as ' if isinstance(odd, str) else ''}{str(odd)[:40]!r}"


def _in_rows_of(where: str, x: Any, y: Any) -> Any:
    """Return labels in the order of the rows of x, if both have an index with the names of rows."""
    rows, its = (getattr(v, "index", None) for v in (x, y))
    if rows is None or its is None or callable(rows) or callable(its):  # a list has a method of that name
        return y
    rows, its = list(rows), list(its)
    if rows == its or len(rows) != len(its):  # other numbers of rows are refused later
        return y
    places = {name: i for i, name in enumerate(its)}
    if len(places) < len(its) or {*rows} != places.keys():
        hint = "give both the same index, or pass y.to_numpy() if the rows are in the same order"
        raise InputError(f"{where}: the index of y is not that of x; {hint}")
    return np.asarray(y)[[places[name] for name in rows]]


def as_data(
    where: str, pair: tuple[Any, Any], tokens: bool = False, orders: tuple[ColumnOrder, ColumnOrder] | None = None
) -> Data:
    """Turn an (x, y) pair of anything array-like into tensors.

    Args:
        where: How messages name the pair, for example "agent 3".
        pair: The inputs and the labels.
        tokens: Whether x becomes int64, for an embedding, instead of float32.
        orders: The columns of x and of y in the data frames of all agents; by default those of this pair.

    Returns:
        x, and y as int64 (classes) or float32 (regression, or [n, L] with several labels per example, 0 or 1).

    Raises:
        InputError: It is not a pair of arrays of numbers with as many labels as examples.
    """
    try:
        if isinstance(pair, Mapping | str) or hasattr(pair, "columns"):
            raise TypeError("its names would be taken for x and y")
        x, y = pair
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: expected a pair (x, y), found {type(pair).__name__}") from error
    of_x, of_y = orders or (ColumnOrder(), ColumnOrder())
    y = _in_rows_of(where, x, y)
    x = of_x.aligned(f"{where}, x", x)
    if hasattr(y, "columns") and len(y.columns) > 1:  # several labels per example
        y = of_y.aligned(f"{where}, y", y)
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
            raise TypeError(f"it has {_text_in(array)}; {RAW}")
        if array.dtype.kind in "mM":
            raise TypeError(f"it has dates; {RAW}")
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))  # pandas gives what is read-only
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: not an array of numbers: {error}") from error


def _text_in(array: Any) -> str:
    """Say where an array has text."""
    if array.ndim == 2:
        for j in range(array.shape[1]):
            word = next((cell for cell in array[:, j] if isinstance(cell, str)), None)
            if word is not None:
                return f"text in column {j}, such as {word[:40]!r}"
    return "text, or rows of different lengths"


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
