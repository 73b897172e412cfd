"""Labels that a person gives in Python: where classes have names, True or 1.0 does not stand for one of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from focusfl.data.own.inputs import label_numbers
from focusfl.data.own.schema import listed
from focusfl.data.own.table import cell_value, number_word
from focusfl.util.errors import InputError


def named_labels(y: Any, labels: Sequence[str], classes: int | None, at: Callable[[int], str] | None = None) -> Any:
    """Return labels as numbers, as `label_numbers` does; truth values and floats do not stand for names.

    Raises:
        InputError: As `label_numbers`; or classes have names, and a label is a truth value or a float.

    Example:
        >>> named_labels(["well"], ("ill", "well"), 2)
        [1]
    """
    if labels:
        for i, label in enumerate(_single_labels(y)):
            if isinstance(label, bool | np.bool_ | float | np.floating) and not _names_class(label, labels):
                where = f"the labels, row {i}, counting from 0" if at is None else at(i)
                names = listed(labels)
                raise InputError(f"{where}: label {label}: the classes have names, pass these: {names}")
    return label_numbers(y, labels, classes, at)


def _single_labels(y: Any) -> list[Any]:
    """Return labels one by one; none if an example has several, or if they are no array."""
    try:
        values = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    except ValueError:
        return []
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    single: list[Any] = values.tolist() if values.ndim == 1 else []
    return single


def _names_class(label: Any, labels: Sequence[str]) -> bool:
    """Whether a class is called like this number or truth value; a missing label is refused elsewhere."""
    value = cell_value(label)
    if isinstance(label, bool) and {name.casefold() for name in labels} <= {"false", "true"}:
        return True  # sorted, so that their numbers are those of the truth values
    return isinstance(value, float) and (math.isnan(value) or number_word(value) in labels)
