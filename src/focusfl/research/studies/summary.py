"""The runs of a study, counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from focusfl.research.studies.cases import Case
from focusfl.research.studies.runs import Key, Row

ACC = 0.005  # an accuracy that much lower ...
LOSS = 1.02  # ... and a loss that many times higher are no worse


@dataclass(frozen=True)
class Line:
    """A case and a start, over the seeds there are. None: no run has it."""

    case: Case
    start: str
    done: int
    seeds: int
    right: int  # runs with the true clusters at the end
    number: int  # runs with the true number of clusters at the end
    since: float | None  # median round from which right clusters stay right, of the runs that end with them
    acc: float | None
    loss: float | None
    worst: float | None  # the worst agent's loss
    faa: float | None
    diverged: int

    @property
    def whole(self) -> bool:
        return self.done == self.seeds


def count(case: Case, start: str, seeds: int, known: dict[Key, Row]) -> Line:
    seeds = case.seeds(seeds)
    rows = [known[case.name, start, seed] for seed in range(seeds) if (case.name, start, seed) in known]
    return Line(
        case,
        start,
        done=len(rows),
        seeds=seeds,
        right=sum(row["ari"] == 1 for row in rows),
        number=sum(row["clusters"] == case.clusters for row in rows),
        since=_over(median, rows, "since"),
        acc=_over(mean, rows, "acc"),
        loss=_over(mean, rows, "loss"),
        worst=_over(mean, rows, "worst"),
        faa=_over(mean, rows, "faa"),
        diverged=sum(row["loss"] is None for row in rows),
    )


def worse(one: Line, others: list[Line]) -> list[str] | None:
    """In what a start is worse than the best of the others; None: runs are missing."""
    if not (one.whole and all(other.whole for other in others)):
        return None
    found = ["right"] if one.right < max(other.right for other in others) else []
    best = max((other.acc for other in others if other.acc is not None), default=None)
    if best is not None and (one.acc is None or one.acc < best - ACC):
        found.append("accuracy")
    if _above(one.loss, [other.loss for other in others]):
        found.append("loss")
    if _above(one.worst, [other.worst for other in others]):
        found.append("worst loss")
    if _above(one.faa, [other.faa for other in others]):
        found.append("FAA")
    return found


def _above(loss: float | None, others: list[float | None]) -> bool:
    best = min((other for other in others if other is not None), default=None)
    return best is not None and (loss is None or loss > LOSS * best)


def _over(how: Callable[[list[Any]], float], rows: list[Row], name: str) -> float | None:
    values = [row[name] for row in rows if row[name] is not None]
    return how(values) if values else None
