"""Labels of the user's own files: words or numbers become classes, or the targets of a regression."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from focusfl.data.own.contents import FileContents
from focusfl.data.own.numbers import parse_number
from focusfl.data.own.table import cell_value, is_missing, number_word
from focusfl.util.errors import InputError, require

TargetOption = Literal["auto", "class", "number"]
MAX_CLASSES = 10_000


def with_labels(part: FileContents) -> FileContents:
    """Return a table or texts without the examples that have no label."""
    if part.kind not in ("a table", "text"):
        return part
    keep = [i for i, label in enumerate(part.y) if not is_missing(label)]
    if len(keep) == len(part.y):
        return part
    x = part.x.rows(keep) if part.kind == "a table" else [part.x[i] for i in keep]
    n = len(part.y) - len(keep)
    note = f"{part.path}: {n} {'row' if n == 1 else 'rows'} without a label left out"
    places = [part.places[i] for i in keep]
    return replace(part, x=x, y=[part.y[i] for i in keep], places=places, notes=(*part.notes, note))


def encode_labels(parts: list[FileContents], target: TargetOption = "auto") -> tuple[list[Tensor], tuple[str, ...]]:
    """Turn labels into numbers: words are numbered in sorted order over all files, numbers stay as they are.

    Args:
        parts: The files.
        target: See `folder`.

    Returns:
        y of each file, int64 for classes and float32 for regression; and the words, if there are any.

    Raises:
        InputError: A label is missing or out of range, or words and numbers are mixed.
    """
    y = [
        part.y if part.kind == "images" else [_as_target(_parse_label(label), target) for label in part.y]
        for part in parts
    ]
    first: dict[str, str] = {}  # kind of label -> the first of that kind, for messages
    for part, labels in zip(parts, y, strict=True):
        for i, label in enumerate(labels):
            kind = "word" if isinstance(label, str) else "fraction" if label % 1 else type(label).__name__
            if label == "" or (kind != "word" and not abs(label) < 3e38):
                raise InputError(f"{part.at(i)}: the label is empty, NaN or infinite")
            if kind == "word" and target == "number":
                raise InputError(f"{part.at(i)}: label {label!r} is not a number (data.target = number)")
            if kind not in first:
                first[kind] = f"{label!r} in {part.at(i)}"
    if len(first) > 1 and ("word" in first or "fraction" not in first):
        kinds = "use words, whole numbers or floats for all labels"
        raise InputError(f"labels of different kinds, {' and '.join(first.values())}: {kinds}")
    if "word" in first:
        different = sorted({label for labels in y for label in labels}, key=label_order)
        names = {name: c for c, name in enumerate(different)}
        require("the number of classes", len(names), len(names) <= MAX_CLASSES, f"at most {MAX_CLASSES}")
        return [torch.tensor([names[label] for label in labels]) for labels in y], tuple(names)
    if first.keys() != {"int"}:
        return [torch.tensor([float(label) for label in labels]) for labels in y], ()
    for part, labels in zip(parts, y, strict=True):
        for i in (i for i, label in enumerate(labels) if not 0 <= label < MAX_CLASSES):
            hint = f"a class is 0 to {MAX_CLASSES - 1}; for regression write {labels[i]}.0"
            raise InputError(f"{part.at(i)}: label {labels[i]}; {hint}")
    return [torch.tensor(labels) for labels in y], ()


def _as_target(label: Any, target: TargetOption) -> Any:
    """Return a label as the option data.target asks for: a number as a word, or as a float."""
    if isinstance(label, str) or target == "auto":
        return label
    return number_word(label) if target == "class" else float(label)


def label_order(word: str) -> tuple[bool, float, str]:
    """Sort numbers by value, then words by letter.

    >>> sorted(["ill", "10", "9"], key=label_order)
    ['9', '10', 'ill']
    """
    number = cell_value(word)
    return (False, number, "") if isinstance(number, float) and number == number else (True, 0.0, word)


def _parse_label(label: Any) -> Any:
    """Return a number if the label can be read as one, else the word; None becomes NaN.

    >>> [_parse_label(label) for label in ("3", " 2.5", "cat ", "1_2", 4, True, None)]
    [3, 2.5, 'cat', '1_2', 4, 1, nan]
    """
    if isinstance(label, str):
        for kind in (int, float):
            with suppress(ValueError):
                return parse_number(kind, label)
        return label.strip()
    if label is None or isinstance(label, float):
        return float("nan") if label is None else label
    return int(label) if isinstance(label, int) else str(label)
