"""Runs side by side: each agent beside itself. Across machines some agents may have sent no last numbers."""

from __future__ import annotations

from focusfl.report.explain.groups import agents, numbers
from focusfl.report.section import Row

Runs = dict[str, list[Row]]  # by the method's title
EACH = ("loss", "excess_risk", "pi", "clusters", "true_clusters")  # of a row: an entry an agent, in the row's order
NOBODY = "No agent's last numbers are in all of these runs."


def present(runs: Runs) -> Runs:
    """The same runs with the agents that are in all of them, so that a place in one is the same agent in all."""
    kept = sorted(set.intersection(*_each(runs)))
    return {name: [_only(row, kept) for row in rows] for name, rows in runs.items()}


def missed(runs: Runs) -> str:
    """Who is in some of the runs and not in all, in words; nothing where there is nobody."""
    every = _each(runs)
    kept = set.intersection(*every)
    some = sorted(set.union(*every) - kept)
    return f"Not shown: {agents(some)}, whose last numbers not all of these runs have." if some else ""


def _each(runs: Runs) -> list[set[int]]:
    return [set(numbers(row)) for rows in runs.values() for row in rows]


def _only(row: Row, kept: list[int]) -> Row:
    """Its entries of those agents. A history has the labels of all agents: e is a place in it."""
    at = {e: i for i, e in enumerate(numbers(row))}
    cut: Row = {key: [row[key][at[e]] for e in kept] for key in EACH if row.get(key) is not None}
    history = row.get("history") or {}
    if history.get("pi"):
        pi = [[labels[e] for e in kept] for labels in history["pi"]["pi"]]
        cut["history"] = history | {"pi": history["pi"] | {"pi": pi}}
    return row | cut | {"agents": kept}
