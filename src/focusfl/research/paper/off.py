"""Which numbers are off the paper's by more than counts as the same, and why, as far as that is known."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean
from typing import Any

from focusfl.report.section import Off
from focusfl.report.tables import COLUMNS, title
from focusfl.research.paper.reproduction import Reproduction

Row = dict[str, Any]
ACCURACY, SHARE = 0.01, 0.3  # accuracy may differ by so much, a loss or FAA by that share of the paper's
PRINTED = 0.0005  # half of the last digit that the paper prints: less cannot be told
UNKNOWN = "Not explained"


def off(one: Reproduction, rows: list[Row]) -> list[Off]:
    """By part and method. The small scale has other settings, so its numbers have to be others."""
    if one.scale != "paper":
        return []
    found = []
    for part in one.parts:
        for method, paper in part.expect.items():
            runs = [row for row in rows if (row["part"], row["method"]) == (part.name, method)]
            if gaps := list(_gaps(runs, paper)):
                where = ": ".join(filter(None, [part.name, title(method)]))
                found.append(Off(where, "; ".join(gaps), part.why.get(method, UNKNOWN)))
    return found


def differs(metric: str, ours: float, paper: float) -> bool:
    """
    >>> differs("avg_acc", 0.95, 0.93), differs("faa", 0.12, 0.10), differs("faa", 0.14, 0.10)
    (True, False, True)
    >>> differs("faa", 0.0014, 0.001)  # the paper prints three digits
    False
    """
    allowed = ACCURACY if metric == "avg_acc" else SHARE * abs(paper)
    return abs(ours - paper) > max(allowed, PRINTED)


def _gaps(runs: list[Row], paper: dict[str, float]) -> Iterator[str]:
    for metric, heading in COLUMNS.items():
        values = [row[metric] for row in runs if row[metric] is not None]
        if values and metric in paper and differs(metric, mean(values), paper[metric]):
            yield f"{heading} {mean(values):.3f} instead of {paper[metric]:.3f}"
