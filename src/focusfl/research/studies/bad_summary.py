"""The runs of the study of bad agents, counted."""

from __future__ import annotations

from statistics import mean, median, stdev

from focusfl.research.studies.bad import WITHOUT, Case
from focusfl.research.studies.bad_runs import Key
from focusfl.research.studies.keeping import Row

CLOSE = 0.5  # points of accuracy that the good agents may lose


class Runs:
    """The rows of a method in a case, of all seeds there are, and of the same method without bad agents."""

    def __init__(self, method: str, case: Case, seeds: int, known: dict[Key, Row]) -> None:
        self.method, self.case, self.seeds = method, case, seeds
        self.rows = [row for key, row in sorted(known.items()) if key[:2] == (case.name, method)]
        self.before = {row["seed"]: row["acc"] for key, row in known.items() if key[:2] == (WITHOUT.name, method)}

    @property
    def diverged(self) -> int:
        return sum(row["acc"] is None for row in self.rows)

    @property
    def lost(self) -> list[float]:
        """Points of accuracy won (or lost, where below 0), seed by seed, where both runs are there and finite."""
        pairs = [(row["acc"], self.before.get(row["seed"])) for row in self.rows]
        return [100 * (acc - before) for acc, before in pairs if acc is not None and before is not None]

    def values(self, name: str) -> list[float]:
        return [row[name] for row in self.rows if row[name] is not None]

    @property
    def close(self) -> bool | None:
        """Do the good agents lose no more than CLOSE? None: runs are missing."""
        if len(self.rows) < self.seeds or len(self.before) < self.seeds:
            return None
        return not self.diverged and bool(self.lost) and mean(self.lost) >= -CLOSE


def spread(every: list[Runs]) -> float | None:
    """The standard deviation over the seeds of what is lost, of the median method and case."""
    found = [stdev(runs.lost) for runs in every if runs.case is not WITHOUT and len(runs.lost) > 1]
    return median(found) if found else None
