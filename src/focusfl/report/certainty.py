"""How certain FAA is: intervals, whether methods differ by more than noise, and agents below their best loss."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import mean
from typing import Literal

from focusfl.fairness.intervals import Interval, difference, over_seeds
from focusfl.report.names import who
from focusfl.report.rows import IntervalRow, Row, Runs, agent_numbers

TITLE = "FAA corrected for noise, with 95 % intervals over test examples and seeds"
UNKNOWN = "-"
NEGATIVE = "An agent with a negative excess risk does better than its best loss as it was measured."
CAUSE = {
    True: "The best losses are known, so that is the noise of the test examples.",
    False: "The best losses are estimates, and a method may find a better model than those tried for them.",
}
MEASURE = (
    "Nobody is worse off by it, but FAA counts the difference; the numbers of agents that are worse off, and the "
    "losses, do not depend on best losses."
)
BELOW_BEST_LOSS = (
    "These agents end below their best loss by more than three standard errors, which raises FAA as much as being "
    "above it:"
)


def faa_table(runs: Runs) -> tuple[list[str], list[list[str]]] | None:
    """Make the table of FAA with intervals.

    Args:
        runs: By the method's title.

    Returns:
        Headings and one line per method; None if no method has intervals, as in results of older versions.
    """
    known = {name: rows for name, rows in runs.items() if rows and all("faa_interval" in row for row in rows)}
    if not known:
        return None
    means = {name: mean_interval(rows, "faa_interval") for name, rows in known.items()}
    seeds = [{row["seed"] for row in rows} for rows in known.values()]
    common = set.intersection(*seeds)
    unfairness = {}  # on the seeds that all have; of equal methods the one with more seeds, then the fairer on them
    for name, rows in known.items():
        shared = [row for row in rows if row["seed"] in common] if common else rows
        unfairness[name] = mean_interval(shared, "faa_interval").estimate, -len(rows), means[name].estimate
    fairest = min(known, key=lambda name: unfairness[name])
    many = all("faa90_interval" in row for rows in known.values() for row in rows)
    gaps = {name: faa_difference(rows, known[fairest]) for name, rows in known.items()}
    heading = f"above {fairest}" + " on shared seeds" * any(one != common for one in seeds)
    heading += ", unpaired" * any(not paired for _, paired in gaps.values())
    head = ["method", "FAA", "95 % interval", *["5-95 % of agents"] * many, heading, "beyond noise"]
    lines = []
    for name in runs:
        if name in known:
            gap = None if name == fairest else gaps[name][0]
            lines.append([name, *_faa_cells(known[name], means[name], gap, many)])
        else:
            lines.append([name] + [UNKNOWN] * (len(head) - 1))
    return head, lines


def _faa_cells(rows: Sequence[Row], faa: Interval, gap: Interval | None, many: bool) -> list[str]:
    """One method's line; `gap` is None for the fairest method, and where no seed is shared with it."""
    cells = [f"{faa.estimate:.3g}", f"{faa.low:.3g} to {faa.high:.3g}"]
    if many:
        middle = mean_interval(rows, "faa90_interval")
        cells.append(f"{middle.estimate:.3g} ({middle.low:.3g} to {middle.high:.3g})")
    if gap is None:
        return [*cells, UNKNOWN, UNKNOWN]
    beyond_noise = gap.low > 0 or gap.high < 0
    return [*cells, f"{gap.estimate:+.3g} ({gap.low:+.3g} to {gap.high:+.3g})", "yes" if beyond_noise else "no"]


def mean_interval(runs: Sequence[Row], key: Literal["faa_interval", "faa90_interval"]) -> Interval:
    """Return the interval of the mean over the seeds. FAA is never below 0."""
    found = over_seeds([_interval(row[key]) for row in runs])
    return found._replace(low=max(found.low, 0.0))


def _interval(stored: IntervalRow) -> Interval:
    return Interval(stored["low"], stored["estimate"], stored["high"])


def faa_difference(runs: Sequence[Row], others: Sequence[Row]) -> tuple[Interval | None, bool]:
    """Compare the FAA of two methods on the seeds that both have.

    Args:
        runs: The runs of one method.
        others: The runs of the other.

    Returns:
        FAA of the one minus that of the other, None without a shared seed; and whether the correlation of their
        noise is known for all of these seeds, because both were evaluated on the same examples.
    """
    gaps, paired = [], True
    for a, b in ((a, b) for a in runs for b in others if a["seed"] == b["seed"]):
        rho = a.get("faa_correlation", {}).get(b["method"], b.get("faa_correlation", {}).get(a["method"]))
        if a is b:
            rho = 1.0
        paired = paired and rho is not None
        gaps.append(difference(_interval(a["faa_interval"]), _interval(b["faa_interval"]), rho or 0.0))
    return (over_seeds(gaps) if gaps else None), paired


def below_best_loss(runs: Sequence[Row]) -> dict[int, float]:
    """Find agents whose excess risk is below 0 by more than the noise of the test data.

    A best loss that was trained is an estimate, and an agent can do better. Then FAA counts as unfair that an agent
    has done better than was thought possible.

    Args:
        runs: The runs of one method.

    Returns:
        The mean excess risk over the seeds, by the agent's place in the row.

    >>> run = {"excess_risk": [-0.2, -0.2, 0.1], "excess_se": [0.05, 0.1, 0.05]}
    >>> below_best_loss([run]), below_best_loss([run, run | {"excess_risk": [0.0, -0.4, 0.1]}])
    ({0: -0.2}, {1: -0.30000000000000004})
    """
    known = [row for row in runs if row.get("excess_se")]
    if not known:
        return {}
    risks = [mean(each) for each in zip(*(row["excess_risk"] for row in known), strict=True)]
    below = {}
    for e, (risk, *errors) in enumerate(zip(risks, *(row["excess_se"] for row in known), strict=True)):
        noise = [se for se in errors if se is not None]
        if len(noise) == len(known) and risk < -3 * sqrt(sum(se**2 for se in noise)) / len(known):
            below[e] = risk
    return below


def negative_risks(runs: Runs) -> list[str]:
    """Say how many excess risks are negative, mean over the seeds, and what that means; nothing if none is.

    Args:
        runs: By the method's title.
    """
    counts = []
    for name, rows in runs.items():
        if not rows or rows[0]["bayes_kind"] == "none":
            continue
        risks = [mean(each) for each in zip(*(row["excess_risk"] for row in rows), strict=True)]
        if negative := sum(risk < 0 for risk in risks):
            beyond = len(below_best_loss(rows))
            noise = f", {beyond} by more than three standard errors" * any(row.get("excess_se") for row in rows)
            counts.append(f"{name} {negative} of {len(risks)}{noise}")
    if not counts:
        return []
    kind = next(rows[0]["bayes_kind"] for rows in runs.values() if rows)
    return [f"Negative excess risks: {'; '.join(counts)}.", f"{NEGATIVE} {CAUSE[kind == 'exact']} {MEASURE}"]


def below_best_loss_lines(parts: dict[str, Runs]) -> list[str]:
    """Say for each setting and method how many agents are below their best loss, and which one most."""
    lines = []
    for part, methods in parts.items():
        for name, runs in methods.items():
            if below := below_best_loss(runs):
                e = min(below, key=lambda e: below[e])
                where = ": ".join(filter(None, [part, name]))
                count = f"{len(below)} of {len(runs[0]['loss'])} agents"
                lines.append(f"{where}: {count}, {who(runs[0], [agent_numbers(runs[0])[e]])} by {-below[e]:.3f}")
    return lines
