"""How certain FAA is, and whether two methods differ by more than noise: lines for the tables."""

from __future__ import annotations

from typing import Any

from focusfl.fairness.intervals import Interval, difference, over_seeds

Row = dict[str, Any]
SAYS = "FAA corrected for noise; 95 % intervals over test examples and seeds"
NONE = "-"


def table(by_method: dict[str, list[Row]]) -> tuple[list[str], list[list[str]]] | None:
    """Headings and a line a method; None where no method has intervals, as in results of older versions."""
    known = {name: runs for name, runs in by_method.items() if runs and all("faa_interval" in row for row in runs)}
    if not known:
        return None
    each = {name: _mean(runs, "faa_interval") for name, runs in known.items()}
    shared, uneven = _shared(known)

    def unfair(name: str) -> tuple[float, int, float]:
        """On the seeds that all have. Several may have 0: then who has more seeds, and is the fairer on them."""
        return _mean(shared[name], "faa_interval").estimate, -len(known[name]), each[name].estimate

    fairest = min(known, key=unfair)
    many = all("faa90_interval" in row for runs in known.values() for row in runs)
    head = ["method", "FAA", "95 % interval", *["5-95 % of agents"] * many]
    lines = []
    for name in by_method:
        if name not in each:
            lines.append([name] + [NONE] * (len(head) + 1))
            continue
        line = [name, f"{each[name].estimate:.3g}", _range(each[name], "")]
        if many:
            middle = _mean(known[name], "faa90_interval")
            line.append(f"{middle.estimate:.3g} ({_range(middle, '')})")
        gap = None if name == fairest else above(known[name], known[fairest])
        lines.append([*line, *([NONE, NONE] if gap is None else [_gap(gap), verdict(gap)])])
    unpaired = any(rho(a, b) is None for runs in known.values() for a, b in _pairs(runs, known[fairest]))
    against = f"above {fairest}" + " on shared seeds" * uneven + ", unpaired" * unpaired
    return [*head, against, "beyond noise"], lines


def above(runs: list[Row], others: list[Row]) -> Interval | None:
    """FAA of one method less that of another, on the seeds that both have."""
    gaps = [
        difference(_interval(a, "faa_interval"), _interval(b, "faa_interval"), rho(a, b) or 0.0)
        for a, b in _pairs(runs, others)
    ]
    return over_seeds(gaps) if gaps else None


def rho(one: Row, other: Row) -> float | None:
    """The correlation of the two methods' noise, where both were judged on the same examples and it is known."""
    for a, b in ((one, other), (other, one)):
        if b["method"] in a.get("faa_correlation", {}):
            return float(a["faa_correlation"][b["method"]])
    return 1.0 if one is other else None


def verdict(gap: Interval) -> str:
    """Is 0 outside the interval?"""
    return "yes" if gap.low > 0 or gap.high < 0 else "no"


def _mean(runs: list[Row], key: str) -> Interval:
    """Over the seeds; FAA is never below 0."""
    mean = over_seeds([_interval(row, key) for row in runs])
    return mean._replace(low=max(mean.low, 0.0))


def _shared(known: dict[str, list[Row]]) -> tuple[dict[str, list[Row]], bool]:
    """The runs on the seeds that all methods have, all runs where there is no such seed; were there others?"""
    seeds = [{row["seed"] for row in runs} for runs in known.values()]
    common = set.intersection(*seeds)
    kept = {name: [row for row in runs if row["seed"] in common] for name, runs in known.items()}
    return kept if common else known, any(one != common for one in seeds)


def _interval(row: Row, key: str) -> Interval:
    return Interval(**row[key])


def _pairs(runs: list[Row], others: list[Row]) -> list[tuple[Row, Row]]:
    return [(a, b) for a in runs for b in others if a["seed"] == b["seed"]]


def _range(i: Interval, sign: str) -> str:
    return f"{i.low:{sign}.3g} to {i.high:{sign}.3g}"


def _gap(i: Interval) -> str:
    return f"{i.estimate:+.3g} ({_range(i, '+')})"
