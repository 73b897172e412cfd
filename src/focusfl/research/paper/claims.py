"""Does what the paper says hold here? Decided by the numbers of all seeds."""

from __future__ import annotations

from statistics import mean
from typing import Any

from focusfl.report.below import below
from focusfl.report.section import Claim
from focusfl.report.tables import title
from focusfl.research.paper.reproduction import Saying

Row = dict[str, Any]


def judge(saying: Saying, rows: list[Row], methods: dict[str, list[str]] | None = None) -> Claim:
    """holds: in the mean and in every seed, in all parts; holds weakly: in the mean; else it does not hold.

    Over the seeds that all of the methods have: means over different seeds are of different data.

    methods  by part, those that the table has: while one of them has no row, nothing is said
    """
    every = dict.fromkeys([*(methods or {}), *(row["part"] for row in rows)])
    parts = [saying.part] if saying.part is not None else list(every) or [""]
    weakly = strictly = True
    numbers = []
    for part in parts:
        values = _values(saying, [row for row in rows if row["part"] == part])
        mine = values.pop(saying.better, {})
        others = {k: v for k, v in values.items() if not saying.than or k in saying.than}
        wanted = set(saying.than or (methods or {}).get(part, [])) - {saying.better}
        absent = wanted - set(others) | (set() if mine else {saying.better})
        if absent or not others:
            said = ", ".join(sorted(map(title, absent))) if mine or others else "all"
            return Claim(saying.says, "not measured", "missing: " + ": ".join(filter(None, [part, said])))
        seeds = sorted(mine.keys() & set.intersection(*(set(v) for v in others.values())))
        if not seeds:
            return Claim(saying.says, "not measured", "missing: a seed that all have")
        means = {k: mean(v[s] for s in seeds) for k, v in others.items()}
        rival, mine_mean = max(means, key=lambda k: means[k]), mean(mine[s] for s in seeds)  # larger is better here
        weakly &= mine_mean + saying.within >= means[rival]
        strictly &= all(mine[s] + saying.within >= v[s] for v in others.values() for s in seeds)
        ours, best = _sign(saying) * mine_mean, _sign(saying) * means[rival]
        digits = 1 if saying.metric == "rounds" else 4
        other = "worst" if saying.worse else "best"
        said = f"{title(saying.better)} {ours:.{digits}f}, the {other} other ({title(rival)}) {best:.{digits}f}"
        said += f" ({len(seeds)} of {len(mine)} seeds)" if len(seeds) < len(mine) else ""
        runs = [row for row in rows if (row["part"], row["method"]) == (part, saying.better)]
        said += f"; {title(saying.better)} has agents below their best loss" * (
            saying.metric == "faa" and bool(below(runs))
        )
        numbers.append(f"{part}: {said}" if part else said)
    verdict = "holds" if weakly and strictly else "holds weakly" if weakly else "does not hold"
    return Claim(saying.says, verdict, "; ".join(numbers))


def _sign(saying: Saying) -> int:
    return 1 if (saying.metric == "avg_acc") != saying.worse else -1


def _values(saying: Saying, rows: list[Row]) -> dict[str, dict[int, float]]:
    """By method and seed, turned so that larger is better."""
    sign = _sign(saying)
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        value = _rounds(row) if saying.metric == "rounds" else row[saying.metric]
        if value is not None:
            found.setdefault(row["method"], {})[row["seed"]] = sign * value
    return found


def _rounds(row: Row) -> float | None:
    """The mean over the goals; one that was never reached counts as all the rounds there were."""
    goals = row.get("rounds_to")
    return mean(row["rounds"] if t is None else t for t in goals.values()) if goals else None
