"""What a run's groups and agents are called: by their names, or by ranges of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from focusfl.report.rows import Row, agent_numbers
from focusfl.util.files import visible

CONFIDENT_LABEL = 0.9  # largest label pi of an agent whose assignment is confident, at least
MIXTURES = ("fedem", "fedsoft")  # methods whose labels are weights: an agent mixes the models of several clusters
MANY = 6  # names from which on a sentence does not list those of whom nothing else is said
MAX_RANGES = 40  # ranges of agents, or agents by name, that a sentence lists


def groups(row: Row) -> dict[int, list[int]]:
    """Return the agents of each cluster, in the order of their first agents."""
    found: dict[int, list[int]] = {}
    for e, m in zip(agent_numbers(row), row["clusters"], strict=True):
        found.setdefault(m, []).append(e)
    return found


def uncertain_agents(runs: Sequence[Row]) -> dict[int, float]:
    """Return the agents whose largest label, mean over the seeds, is below CONFIDENT_LABEL; with that label."""
    largest: dict[int, list[float]] = {}
    for row in runs:
        for e, pi in zip(agent_numbers(row), row["pi"] or [], strict=True):
            largest.setdefault(e, []).append(max(pi))
    return {e: fmean(labels) for e, labels in sorted(largest.items()) if fmean(labels) < CONFIDENT_LABEL}


def numbered(noun: str, numbers: Sequence[int]) -> str:
    """Name things by their numbers.

    >>> numbered("agent", [9]), numbered("agent", [0, 1, 2, 5, 8, 7])
    ('agent 9', 'agents 0-2, 5 and 7-8')
    """
    ranges: list[list[int]] = []
    for e in sorted(numbers):
        if ranges and ranges[-1][1] == e - 1:
            ranges[-1][1] = e
        else:
            ranges.append([e, e])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in ranges[:MAX_RANGES]]
    left = sum(b - a + 1 for a, b in ranges[MAX_RANGES:])
    *rest, last = [*shown, f"{left} more"] if left else shown
    return f"{noun}{'s' * (len(numbers) > 1)} " + " and ".join([", ".join(rest), last] if rest else [last])


def who(row: Row, agents: Sequence[int]) -> str:
    """Name agents: by their names if they have names, else by their numbers. Many, if they are all, are counted.

    >>> who({"names": ["aarau", "bern", "chur"]}, [2, 0]), who({}, [2, 0])
    ('aarau and chur', 'agents 0 and 2')
    """
    names = row.get("names")
    if not names:
        return numbered("agent", agents)
    if len(agents) == len(names) > MANY:
        return f"all {len(agents)} agents"
    shown = [visible(names[e]) for e in sorted(agents)]
    left = len(shown) - MAX_RANGES
    *rest, last = [*shown[:MAX_RANGES], f"{left} more"] if left > 0 else shown
    return " and ".join([", ".join(rest), last] if rest else [last])


def agent_names(names: Sequence[str]) -> str:
    """Say which agent has which number; empty if they have no names.

    >>> agent_names(["aarau", "bern"])
    'Agents: 0 aarau, 1 bern'
    """
    return "Agents: " + ", ".join(f"{e} {name}" for e, name in enumerate(names)) if names else ""


def not_shown(missing: Sequence[int]) -> str:
    """Name the agents that only some of the runs have (rows.shared_agents)."""
    their = "its" if len(missing) == 1 else "their"
    return f"Not shown: {numbered('agent', missing)}, because some of these runs lack {their} last numbers."
