"""Names as numbers that add up: from the sum over all nodes, the union of their names can be read.

A node writes each of its names into `HASHES` cells of a table of numbers; which cells, the name's hash says: 1 into
the count, and the letters, a checksum and the column into the rest of the cell. The server adds up the tables. A
cell into which one name only was written, by k nodes, has k times that name's numbers, so the name can be read and
taken out of its other cells, which leaves other cells with one name, and so on: an invertible Bloom lookup table
(Goodrich and Mitzenmacher 2011). The sum says which names there are and how many nodes have each, not which nodes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence

import numpy as np

from focusfl.data.own.description import BUCKETS
from focusfl.data.own.moments import Floats
from focusfl.data.own.node import MAX_NAME_BYTES

HASHES = 4
HEAD = 5  # count, column, length, and two numbers of the checksum
WIDTH = HEAD + MAX_NAME_BYTES // 2  # two bytes in a number: a secure sum takes numbers up to 2^20
SPARE = 2.0  # cells for each expected name; the names of 1.3 cells each can be read if there are many
Name = tuple[int, str]  # column, value


class Unreadable(ValueError):
    """There are too many names for the table, or a node's numbers are no names."""


def cells_for(occupied: Sequence[int], attempt: int = 0) -> int:
    """Return how many cells the names of columns need, whose hashes fall into so many buckets."""
    expected = sum(-BUCKETS * math.log1p(-min(k, BUCKETS - 1) / BUCKETS) for k in occupied)
    return HASHES * math.ceil((SPARE * expected + 12) * 2**attempt / HASHES) if occupied else 0


def table_of(names: Iterable[Name], cells: int, salt: int = 0) -> Floats:
    """Return the table of one node's names, [cells, WIDTH]."""
    table = np.zeros((cells, WIDTH))
    for name in {*names}:
        for cell in _cells(name, cells, salt):
            table[cell] += _numbers(name)
    return table


def read_names(total: Floats, nodes: int, salt: int = 0) -> dict[int, set[str]]:
    """Return the names of each column, from the sum of the tables of so many nodes.

    Raises:
        Unreadable: The names cannot be told apart.
    """
    table, cells = np.rint(total), len(total)
    found: dict[int, set[str]] = {}
    waiting = list(range(cells))
    while waiting:
        cell = waiting.pop()
        name = _single(table[cell], cell, cells, nodes, salt)
        if name is None:
            continue
        count = table[cell, 0]
        found.setdefault(name[0], set()).add(name[1])
        for other in _cells(name, cells, salt):
            table[other] -= count * _numbers(name)
            waiting.append(other)
    if table.any():
        raise Unreadable("names of categories or classes could not be read from the sum")
    return found


def _single(row: Floats, cell: int, cells: int, nodes: int, salt: int) -> Name | None:
    """Return the name in a cell, if it holds one name only."""
    count = row[0]
    if not 1 <= count <= nodes or (row % count).any():
        return None
    numbers = (row / count).astype(int)
    length = int(numbers[2])
    if not 0 <= length <= MAX_NAME_BYTES or numbers.min() < 0 or numbers.max() >= 2**16:
        return None
    raw = numbers[HEAD:].astype("<u2").tobytes()
    try:
        name = int(numbers[1]), raw[:length].decode()
    except UnicodeDecodeError:
        return None
    same = np.array_equal(_numbers(name), numbers)
    return name if same and cell in _cells(name, cells, salt) else None


def _numbers(name: Name) -> Floats:
    """Return a name as numbers below 2^16, [WIDTH]."""
    raw = name[1].encode()
    padded = np.frombuffer(raw.ljust(MAX_NAME_BYTES, b"\0"), "<u2")
    check = np.frombuffer(_digest(name, -1)[:4], "<u2")
    return np.concatenate([[1, name[0], len(raw)], check, padded]).astype(float)


def _cells(name: Name, cells: int, salt: int) -> list[int]:
    """Return the cells of a name, one in each of `HASHES` parts of the table, so that they differ."""
    part, digest = cells // HASHES, _digest(name, salt)
    places = np.frombuffer(digest, "<u4")[:HASHES].astype(int) % part
    return [k * part + int(place) for k, place in enumerate(places)]


def _digest(name: Name, salt: int) -> bytes:
    return hashlib.sha256(f"{salt} {name[0]} {name[1]}".encode()).digest()
