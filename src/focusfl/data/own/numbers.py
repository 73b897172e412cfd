"""Numbers as people write them in the cells of a table."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from focusfl.util.errors import InputError

Number = TypeVar("Number", int, float)
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?", re.ASCII)
DIGITS = r"(\d+([.,]\d+)?|\d{1,3}([,.' ]\d{3})+([.,]\d+)?)"
GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}", re.ASCII)  # 1.182, which may be 1182
CURRENCY = r"(CHF|EUR|USD|GBP|Fr\.|[€$£])"
NUMBER_LIKE = re.compile(rf"([<>~]?=?|{CURRENCY})\s?[+-]?{DIGITS}\s?(%|{CURRENCY})?", re.ASCII)


def parse_number(kind: Callable[[str], Number], cell: str) -> Number:
    """Return the number in a cell. Python reads 1_000 as a number; here it is a word, and raises a ValueError.

    >>> parse_number(int, "12"), parse_number(float, "1e3")
    (12, 1000.0)
    """
    if "_" in cell:
        raise ValueError(cell)
    return kind(cell)


def is_number(cell: str) -> bool:
    """Whether a cell is a number."""
    try:
        parse_number(float, cell)
    except ValueError:
        return False
    return True


def looks_like_number(word: str) -> bool:
    """Whether a word is a number that is written in another way: 1,5 or 1'000.50 or 1.000,50 or 12 % or <0.5.

    >>> [looks_like_number(word) for word in ("1,5", "1'000", "1.000,5", "12 %", "<0.5", "CHF 7", "A1", "1-2")]
    [True, True, True, True, True, True, False, False]
    """
    return NUMBER_LIKE.fullmatch(word) is not None


def parse_cell(cell: Any, where: str, text: str = "") -> float:
    """Return the number in a cell; an empty cell becomes NaN, which is refused later.

    Args:
        cell: The cell.
        where: Its place, for the message.
        text: The option data.text, where the reader has it.
    """
    cell = "" if cell is None else str(cell)
    try:
        return parse_number(float, cell) if cell.strip() else float("nan")
    except ValueError as error:
        hint = "write decimals with a point" if "," in cell else "fill in or remove such values"
        raise not_a_number(cell, where, "if it is the text column, set data.text" if text else hint) from error


def not_a_number(cell: str, where: str, hint: str) -> InputError:
    """Return the error that a cell is not a number."""
    short = cell if len(cell) < 40 else cell[:37] + "..."
    return InputError(f"{where}: {short!r} is not a number ({hint})")


def with_point(cell: str) -> str:
    """Write a number that has a decimal comma with a point.

    >>> [with_point(cell) for cell in ("1,5", " -0,25", "3e1", "a,b", "1,2,3")]
    ['1.5', ' -0.25', '3e1', 'a,b', '1,2,3']
    """
    return cell.replace(",", ".") if "," in cell and DECIMAL_COMMA.fullmatch(cell.strip()) else cell


def number_hint(word: str) -> str:
    """Say what to do with a word among numbers.

    >>> number_hint("1.182")
    'may be 1182, as there are decimal commas too; write decimals with a point, and nothing between thousands'
    """
    if GROUPED.fullmatch(word):
        whole = word.replace(".", "")
        how = "write decimals with a point, and nothing between thousands"
        return f"may be {whole}, as there are decimal commas too; {how}"
    return (
        "write decimals with a point"
        if "," in word
        else "correct it, or leave the cell empty if the value is missing"
    )
