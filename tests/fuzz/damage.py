"""Bad bytes, bad values and bad trees, from a random number generator."""

from __future__ import annotations

import json
from random import Random
from typing import Any

NASTY_TEXT = (
    "",
    " ",
    "x",
    "0",
    "nan",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "<script>alert(1)</script>",
    "| a | b |\n# head",
    "[bold]x[/y]",
    "a\nb\rc",
    "\u202eright to left",
    "é\u0301\U0001f600",
    "../../etc/passwd",
    "x" * 5000,
    "{0}%s{x}",
    "\udcff",
    "null\0byte",
)
NUMBERS = (0, 1, -1, 2, 3, 7, -7, 0.5, -0.0, 1.5, 1e-300, 1e300, 2**31, 2**63, -(2**63) - 1, 10**30)
NOT_FINITE = (float("nan"), float("inf"), float("-inf"))


def value(rng: Random, depth: int = 2) -> Any:
    """Draw a value that JSON can hold, NaN included."""
    kind = rng.randrange(8 if depth else 6)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind in (1, 2):
        return rng.choice(NUMBERS)
    if kind == 3:
        return rng.choice(NOT_FINITE)
    if kind in (4, 5):
        return rng.choice(NASTY_TEXT)
    items = [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return items if kind == 6 else {rng.choice(NASTY_TEXT): item for item in items}


def tree(rng: Random, root: Any) -> Any:
    """Damage a JSON value at one place: another value, one entry more or less, another key, another order."""
    if not isinstance(root, dict | list) or not root or rng.random() < 0.02:
        return value(rng)
    keys = list(root) if isinstance(root, dict) else list(range(len(root)))
    key = rng.choice(keys)
    inside = root[key]
    if isinstance(inside, dict | list) and inside and rng.random() < 0.7:
        changed: Any = tree(rng, inside)
    else:
        changed = _other(rng, inside)
    copy = root.copy()
    how = rng.randrange(8)
    if how == 0:
        del copy[key]
    elif how == 1 and isinstance(copy, dict):
        copy[rng.choice((str(key)[:-1], str(key).upper(), f"{key} ", rng.choice(NASTY_TEXT)))] = copy.pop(key)
    elif how == 1:
        copy.insert(key, changed)
    elif how == 2 and isinstance(copy, list):
        rng.shuffle(copy)
    else:
        copy[key] = changed
    return copy


def _other(rng: Random, old: Any) -> Any:
    """Draw another value; in half of the cases of the same type."""
    if rng.random() < 0.5:
        if isinstance(old, bool):
            return not old
        if isinstance(old, int | float):
            return rng.choice((-old, old + 1, old * 10, old / 3, rng.choice(NUMBERS), rng.choice(NOT_FINITE)))
        if isinstance(old, str):
            return rng.choice((old[:-1], old + "x", old.upper(), rng.choice(NASTY_TEXT)))
    return value(rng)


def content(rng: Random, sound: bytes) -> bytes:
    """Damage a file's bytes as bad luck does: a flipped bit, a zeroed block, a torn or repeated end."""
    raw = bytearray(sound)
    at, size = rng.randrange(len(raw) + 1), rng.choice((1, 4, 64, 512))
    how = rng.randrange(8)
    if how <= 1 and raw:
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    elif how == 2:
        raw[at : at + size] = bytes(len(raw[at : at + size]))
    elif how == 3:
        del raw[at:]
    elif how == 4:
        raw[at:at] = rng.randbytes(size)
    elif how == 5:
        raw[at:at] = raw[at : at + size]
    elif how == 6:
        raw += raw[at:] or b"\0"
    else:
        del raw[at : at + size]
    return bytes(raw)


def text(rng: Random, sound: str) -> bytes:
    """Damage a text file: bytes, a nasty word in it, or another encoding."""
    how = rng.randrange(4)
    if how == 0:
        at = rng.randrange(len(sound) + 1)
        return (sound[:at] + rng.choice(NASTY_TEXT) + sound[at:]).encode(errors="surrogateescape")
    if how == 1:
        return sound.encode(rng.choice(("utf-16", "utf-32", "latin-1", "utf-7", "cp500")), errors="replace")
    return content(rng, sound.encode())


def dumped(root: Any) -> str:
    """Write JSON; NaN and infinity as Python writes them."""
    return json.dumps(root)
