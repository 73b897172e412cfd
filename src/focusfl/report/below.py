"""Agents that end below the best loss that FAA is reckoned from: a surrogate is an estimate, and can be beaten.

Then FAA counts as unfair that somebody has done better than was thought possible.
"""

from __future__ import annotations

from math import sqrt
from statistics import mean
from typing import Any

Row = dict[str, Any]
SAYS = "Below the best loss by more than three standard errors, which raises FAA as much as being above it:"


def below(runs: list[Row]) -> dict[int, float]:
    """The agents of one method whose excess risk, the mean over its seeds, is below 0 beyond the test data's noise.

    >>> run = {"excess_risk": [-0.2, -0.2, 0.1], "excess_se": [0.05, 0.1, 0.05]}
    >>> below([run]), below([run, {"excess_risk": [0.0, -0.4, 0.1], "excess_se": [0.05, 0.1, 0.05]}])
    ({0: -0.2}, {1: -0.30000000000000004})
    """
    known = [run for run in runs if run.get("excess_se")]
    if not known:
        return {}
    risks = [mean(each) for each in zip(*(run["excess_risk"] for run in known), strict=True)]
    errors = [
        sqrt(sum(se**2 for se in each)) / len(known)
        for each in zip(*(run["excess_se"] for run in known), strict=True)
    ]
    return {e: risk for e, (risk, error) in enumerate(zip(risks, errors, strict=True)) if risk < -3 * error}


def lines(parts: dict[str, dict[str, list[Row]]]) -> list[str]:
    """By setting and method, both by name: how many agents, and which is furthest below."""
    said = []
    for part, methods in parts.items():
        for name, runs in methods.items():
            if found := below(runs):
                e = min(found, key=lambda e: found[e])
                where = ": ".join(filter(None, [part, name]))
                said.append(f"{where}: {len(found)} of {len(runs[0]['loss'])} agents, agent {e} by {-found[e]:.3f}")
    return said
