"""The history of a run as columns, as pandas.DataFrame takes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

AVERAGES = ("avg_loss", "agnostic_loss", "avg_acc", "validation_loss")


def by_round(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return one list per quantity, with one entry per round; NaN for rounds that were not evaluated.

    Args:
        rows: The rounds (run.history.RoundRow).

    Returns:
        round, seconds, averages over the agents, and the average of each metric under its name. A quantity that no
        round has is left out, as accuracy in regression.

    Example:
        >>> by_round([{"round": 1, "seconds": 0.5}, {"round": 2, "seconds": 0.25, "avg_loss": 3.0}])
        {'round': [1, 2], 'seconds': [0.5, 0.25], 'avg_loss': [nan, 3.0]}
    """
    flat = [{**{k: row.get(k) for k in AVERAGES}, **row.get("avg_metrics", {})} for row in rows]
    names = dict.fromkeys(name for row in flat for name, value in row.items() if value is not None)
    found: dict[str, list[float]] = {name: [row[name] for row in rows] for name in ("round", "seconds")}
    return found | {name: [_number(row.get(name)) for row in flat] for name in names}


def by_agent(rows: Sequence[Mapping[str, Any]], agents: Sequence[str | int]) -> dict[str, list[Any]]:
    """Return one list per quantity, with one entry per evaluated round and agent.

    Args:
        rows: The rounds (run.history.RoundRow). Rounds with only averages are left out.
        agents: The agents' names or numbers, [E].

    Returns:
        round, agent, loss, acc, validation_loss, each metric under its name, and the labels pi_0, pi_1, ...;
        NaN for what is not defined, and no list for what no agent has.

    Example:
        >>> row = {"round": 1, "loss": [1.0, 2.0], "pi": [[0.5, 0.5], [1.0, 0.0]]}
        >>> by_agent([row], ["bern", "genf"])["pi_1"]
        [0.5, 0.0]
    """
    flat: list[dict[str, Any]] = []
    for row in (row for row in rows if "loss" in row):
        lists = {"loss": row["loss"], "acc": row.get("acc"), "validation_loss": row.get("validation_losses")}
        lists |= row.get("metrics", {})
        for e, name in enumerate(agents):
            labels = row["pi"][e] if row.get("pi") else []
            numbers = {k: values[e] for k, values in lists.items() if values is not None}
            numbers |= {f"pi_{m}": p for m, p in enumerate(labels)}
            flat.append({"round": row["round"], "agent": name, **numbers})
    names = dict.fromkeys(name for row in flat for name in row if name not in ("round", "agent"))
    found: dict[str, list[Any]] = {name: [row[name] for row in flat] for name in ("round", "agent")}
    return found | {name: [_number(row.get(name)) for row in flat] for name in names}


def _number(value: float | None) -> float:
    return math.nan if value is None else value
