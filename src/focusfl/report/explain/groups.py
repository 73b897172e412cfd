"""Who is in which group, and how surely: from the labels in rows of results.json; and agents in words."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

Row = dict[str, Any]
SURE = 0.9  # a largest label pi from here on is certain: all other groups together have less than a tenth
LONG = 40  # stretches of agents that a sentence bears


def numbers(row: Row) -> list[int]:
    """The agents' numbers; across machines some may have sent no result."""
    return list(row.get("agents") or range(len(row["loss"])))


def who(names: Sequence[str]) -> str:
    """Which agent has which number, where they have names.

    >>> who(["aarau", "bern"])
    'Agents: 0 aarau, 1 bern'
    """
    return "Agents: " + ", ".join(f"{e} {name}" for e, name in enumerate(names)) if names else ""


def groups(row: Row) -> dict[int, list[int]]:
    """Cluster: its agents. In the order of their first agents."""
    found: dict[int, list[int]] = {}
    for e, m in zip(numbers(row), row["clusters"], strict=True):
        found.setdefault(m, []).append(e)
    return found


def agreeing(runs: Sequence[Row]) -> tuple[list[int], list[int]]:
    """The seeds after the first that found the same groups, up to their names; and those that found others."""
    parted = [{frozenset(agents) for agents in groups(row).values()} for row in runs]
    same = [row["seed"] for row, found in zip(runs, parted, strict=True) if found == parted[0]]
    return same[1:], [row["seed"] for row in runs if row["seed"] not in same]


def uncertain(runs: Sequence[Row]) -> dict[int, float]:
    """Agents whose largest label, mean over the seeds, is below SURE; with that label."""
    largest: dict[int, list[float]] = {}
    for row in runs:
        for e, pi in zip(numbers(row), row["pi"], strict=True):
            largest.setdefault(e, []).append(max(pi))
    return {e: fmean(labels) for e, labels in sorted(largest.items()) if fmean(labels) < SURE}


def empty(row: Row) -> int:
    """Clusters that nobody is in, surely or not."""
    taken = set(row["clusters"])
    labels = enumerate(zip(*row["pi"], strict=True))
    return sum(m not in taken and max(column) < 1 - SURE for m, column in labels)


def agents(who: Sequence[int]) -> str:
    """
    >>> agents([9]), agents([0, 1, 2, 5, 8, 7])
    ('agent 9', 'agents 0-2, 5 and 7-8')
    """
    return f"agent{'s' * (len(who) > 1)} {ranges(who)}"


def ranges(who: Sequence[int]) -> str:
    stretches: list[list[int]] = []
    for e in sorted(who):
        if stretches and stretches[-1][1] == e - 1:
            stretches[-1][1] = e
        else:
            stretches.append([e, e])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in stretches[:LONG]]
    left = sum(b - a + 1 for a, b in stretches[LONG:])
    *rest, last = [*shown, f"{left} more"] if left else shown
    return " and ".join([", ".join(rest), last] if rest else [last])
