"""Labels of the user's own files: words or numbers become classes, or the targets of a regression."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from focusfl.data.own.contents import FileContents
from focusfl.data.own.numbers import looks_like_number, parse_number
from focusfl.data.own.table import cell_value, is_missing, number_word
from focusfl.util.errors import InputError, Problems, require

TargetOption = Literal["auto", "class", "number"]
MAX_CLASSES = 10_000
MANY_LABELS = 20  # more different whole numbers may be meant as amounts, and so may ...
SEVERAL_LABELS = 10  # ... more than these, if there are fewer than ...
LABELS_PER_CLASS = 3  # ... so many examples of each
NEARLY = 0.95  # share of labels that differ or look like numbers, from which on all are taken to
MAX_CLASS_LIKE_LABELS = 10  # so few different floats, all of them whole numbers, may be meant as classes


class Kinds(NamedTuple):
    """The kinds of labels in a file, each with its first label and where that is: "'ill' in a.csv, row 2".

    Attributes:
        words: Words.
        fractions: Numbers that are not whole.
        floats: Whole numbers that are written with a point.
        whole: Whole numbers.
    """

    words: str = ""
    fractions: str = ""
    floats: str = ""
    whole: str = ""


def with_labels(part: FileContents, is_gap: Callable[[Any], bool] = is_missing) -> FileContents:
    """Return a table or texts without the examples that have no label.

    Args:
        part: The file.
        is_gap: Whether a cell is a missing label.
    """
    if part.kind not in ("a table", "text"):
        return part
    keep = [i for i, label in enumerate(part.y) if not is_gap(label)]
    if len(keep) == len(part.y):
        return part
    if not keep:
        raise InputError(f"{part.path}: no row has a label; leave the agent out, or add labels")
    x = part.x.rows(keep) if part.kind == "a table" else [part.x[i] for i in keep]
    n = len(part.y) - len(keep)
    note = f"{part.path}: {n} {'row' if n == 1 else 'rows'} without a label left out"
    places = [part.places[i] for i in keep]
    return replace(part, x=x, y=[part.y[i] for i in keep], places=places, notes=(*part.notes, note))


def missing_label(parts: Sequence[FileContents]) -> Callable[[Any], bool]:
    """Return what tells whether a cell is a missing label; - is none if others are +, nor is none among words."""
    written = [label.strip() for part in parts for label in part.y if isinstance(label, str)]
    kept = {"-"} if "+" in written else set[str]()
    if any(isinstance(cell_value(label), str) for label in written):
        kept.add("none")
    return (lambda label: is_missing(label) and str(label).strip() not in kept) if kept else is_missing


def encode_labels(parts: list[FileContents], target: TargetOption = "auto") -> tuple[list[Tensor], tuple[str, ...]]:
    """Turn labels into numbers: words are numbered in sorted order over all files, numbers stay as they are.

    Words that differ only in capital letters are one class, unless a file has both. Whole numbers of which some are
    written as 1.0, as pandas does in a file with missing cells, are classes if there are few different ones.

    Args:
        parts: The files.
        target: See `folder`.

    Returns:
        y of each file, int64 for classes and float32 for regression; and the words, if there are any.

    Raises:
        InputError: Labels are missing or out of range, or words and numbers are mixed; the message names all files.
    """
    problems, kinds, sound = Problems(), Kinds(), list[int]()
    y = [label_values(part, target) for part in parts]
    for k, (part, labels) in enumerate(zip(parts, y, strict=True)):
        with problems.collect():
            found = _kinds(part, labels, target)
            kinds = Kinds(*(a or b for a, b in zip(kinds, found, strict=True)))
            sound.append(k)
    both = len(sound) == len(y) and kinds.whole and kinds.floats and not (kinds.words or kinds.fractions)
    if both and len({label for labels in y for label in labels}) <= MAX_CLASS_LIKE_LABELS:
        y, kinds = [[int(label) for label in labels] for labels in y], kinds._replace(floats="")
    mixed = [kind for kind in kinds if kind] if kinds.words or not kinds.fractions else []
    if len(mixed) > 1:
        hint = "use one kind in all files" if kinds.words else "data.target=class or data.target=number decides"
        problems.add(f"labels of different kinds, {' and '.join(mixed)}: {hint}")
    is_class = bool(kinds.whole) and not any(kinds[:3])
    for k in sound if is_class else ():
        with problems.collect():
            _require_classes(parts[k], y[k])
    problems.report()
    if kinds.words:
        names, known = class_names(y)
        require("the number of classes", len(names), len(names) <= MAX_CLASSES, f"at most {MAX_CLASSES}")
        return [torch.tensor([known[label] for label in labels]) for labels in y], names
    return [torch.tensor([label if is_class else float(label) for label in labels]) for labels in y], ()


def require_different(root: Path, words: Sequence[str]) -> None:
    """Refuse a folder with a single class, if classes are words.

    Args:
        root: The folder, for the message.
        words: The names of the classes, if the labels are words.
    """
    if len(words) == 1:
        hint = "add examples of other classes, or name another label column with data.label"
        raise InputError(f"{root}: all labels are {words[0]!r}, so there is nothing to learn; {hint}")


def may_be_amounts(different: int, n: int) -> bool:
    """Whether n labels with so many different values may be amounts rather than classes.

    >>> may_be_amounts(21, 10_000), may_be_amounts(12, 30), may_be_amounts(12, 100), may_be_amounts(5, 10)
    (True, True, False, False)
    """
    return different > MANY_LABELS or (different > SEVERAL_LABELS and n < LABELS_PER_CLASS * different)


def refuse_amounts(parts: Sequence[FileContents], target: TargetOption) -> None:
    """Refuse tables and texts whose labels cannot be meant as classes: nearly all differ, or look like amounts.

    Args:
        parts: All files.
        target: See `folder`; with "class" or "number" the user has decided.
    """
    if target != "auto" or parts[0].kind not in ("a table", "text"):
        return
    pairs = [(part, i, label) for part in parts for i, label in enumerate(label_values(part, target))]
    different = {label for *_, label in pairs}
    if not may_be_amounts(len(different), len(pairs)):
        return
    part, i, first = pairs[0]
    how = "data.target=number reads them as amounts, data.target=class as classes all the same"
    if all(isinstance(label, int) for label in different) and len(different) >= NEARLY * len(pairs):
        many = f"{len(different)} of {len(pairs)} labels are different"
        raise InputError(f"{part.at(i)}: label {first} and the others cannot be classes: {many}; {how}")
    words = [place for place in pairs if isinstance(place[2], str)]
    alike = [place for place in words if looks_like_number(place[2])]
    if alike and len(alike) >= NEARLY * len(words):
        part, i, first = alike[0]
        how = "write them as 1234.5, and they are amounts; data.target=class makes classes of them as they are"
        raise InputError(f"{part.at(i)}: labels {first!r} and others look like numbers: {how}")


def class_names(files: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the names of the classes in order, and the class of each label: of spellings, the most frequent.

    Args:
        files: The labels of each file.

    Example:
        >>> class_names([["Ill", "Well"], ["ill", "ill", "well", "well"]])
        (('ill', 'well'), {'ill': 0, 'Ill': 0, 'well': 1, 'Well': 1})
        >>> class_names([["hid", "hId"], ["hid"]])  # in one file: two classes
        (('hId', 'hid'), {'hid': 1, 'hId': 0})
    """
    groups = spellings(files)
    order = sorted((group[0] for group in groups), key=label_order)
    return tuple(order), {label: order.index(group[0]) for group in groups for label in group}


def spellings(files: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the labels in groups that are one class, the most frequent first.

    They differ only in blanks, or, if no file has two of them, in capital letters.
    """
    counts = Counter(label for labels in files for label in labels)
    each = [{" ".join(label.split()) for label in {*labels}} for labels in files]
    together = {key for labels in each for key, n in Counter(map(str.casefold, labels)).items() if n > 1}
    groups: dict[str, list[str]] = {}
    for label in sorted(counts, key=lambda label: (-counts[label], label)):
        plain = " ".join(label.split())
        groups.setdefault(plain if plain.casefold() in together else plain.casefold(), []).append(label)
    return list(groups.values())


def spellings_note(parts: Sequence[FileContents]) -> list[str]:
    """Say which labels are read as one class."""
    written = [[label.strip() for label in part.y if isinstance(label, str)] for part in parts]
    groups = [", ".join(sorted(group)) for group in spellings(written) if len(group) > 1]
    return [f"labels that differ only in capital letters or blanks are one class: {'; '.join(groups)}"] * bool(
        groups
    )


def _kinds(part: FileContents, labels: list[Any], target: TargetOption) -> Kinds:
    """Return the kinds of labels in a file; refuse those that are no labels."""
    gaps = [i for i, label in enumerate(labels) if label == "" or _is_no_number(label)]
    words = [i for i, label in enumerate(labels) if isinstance(label, str) and label]
    problems, found = Problems(), dict[str, str]()
    if gaps:
        more = f" ({len(gaps)} such rows)" if len(gaps) > 1 else ""
        problems.add(f"{part.at(gaps[0])}: the label is empty, NaN or infinite{more}")
    if words and target == "number":
        more = f" (nor {len(words) - 1} more)" if len(words) > 1 else ""
        first = f"label {labels[words[0]]!r} is not a number{more}"
        problems.add(f"{part.at(words[0])}: {first} (data.target = number)")
    problems.report()
    for i, label in enumerate(labels):
        kind = _kind(label)
        if kind not in found:
            found[kind] = f"{label!r} in {part.at(i)}"
    return Kinds(**found)


def _is_no_number(label: Any) -> bool:
    return not isinstance(label, str) and not abs(label) < 3e38


def _kind(label: Any) -> str:
    if isinstance(label, str):
        return "words"
    return "whole" if isinstance(label, int) else "fractions" if label % 1 else "floats"


def _require_classes(part: FileContents, labels: list[int]) -> None:
    bad = [i for i, label in enumerate(labels) if not 0 <= label < MAX_CLASSES]
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        hint = "data.target=class makes classes of any numbers, data.target=number means regression"
        where, label = part.at(bad[0]), labels[bad[0]]
        raise InputError(f"{where}: label {label}{more}; a class is 0 to {MAX_CLASSES - 1}; {hint}")


def label_values(part: FileContents, target: TargetOption) -> list[Any]:
    """Return the labels of a file as words, whole numbers or floats."""
    if part.kind == "images":
        return part.y
    return [_as_target(_parse_label(label), target) for label in part.y]


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
