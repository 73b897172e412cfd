"""What a run found, in plain sentences: the groups, who is uncertain, who gained and who lost, and warnings where
another tool would do as well or better. Pure functions on rows of results.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from focusfl.report.explain.gains import BASES, SMALL, Gains, against, alone, named, wanted
from focusfl.report.explain.groups import SURE, Row, agents, agreeing, groups, ranges, uncertain
from focusfl.report.explain.warnings import warnings

__all__ = ["BASES", "SMALL", "Row", "compared", "explain", "over_seeds", "wanted"]


def explain(row: Row, others: Sequence[Row] = ()) -> list[str]:
    """Of one run; `others`: runs of FedAvg and Local on the same data and seed, as far as there are any."""
    return over_seeds([row], others)


def over_seeds(runs: Sequence[Row], others: Sequence[Row] = ()) -> list[str]:
    """Of one method's runs: the groups of the first, labels and gains on average. Warnings come last."""
    bases = compared(runs, others)
    gains = [_gains(BASES[name], found) for name, found in bases.items()]
    if runs[0]["pi"] is None:
        shared = "all agents share one model" if len(groups(runs[0])) == 1 else "every agent has its own model"
        return [f"No groups: {shared}.", *gains]
    found = [_groups(runs), *_seeds(runs), _certain(runs), *gains]
    return found + [f"Warning: {line}" for line in warnings(runs, bases)]


def compared(runs: Sequence[Row], others: Sequence[Row]) -> dict[str, Gains]:
    """By what they are held against. Where the best losses are those of agents alone, that needs no further run."""
    rows = {name: _first([row for row in others if row["algorithm"] == name]) for name in BASES}
    rows["local"] = rows["local"] or [made for row in runs if (made := alone(row)) is not None]
    found = {name: against(runs, base) for name, base in rows.items() if name != runs[0]["algorithm"]}
    return {name: gains for name, gains in found.items() if gains is not None}


def _first(rows: Sequence[Row]) -> list[Row]:
    """Of a method that is there with several options, those with the first ones."""
    return [row for row in rows if named(row) == named(rows[0])]


def _groups(runs: Sequence[Row]) -> str:
    found = groups(runs[0])
    listed = "; ".join(f"{agents(who)} (cluster {m})" for m, who in found.items())
    many = f"{len(found)} groups" if len(found) > 1 else "one group"
    seed = f" with seed {runs[0]['seed']}" if len(runs) > 1 else ""
    return f"Found {many}{seed}: {listed}."


def _seeds(runs: Sequence[Row]) -> Iterator[str]:
    same, other = agreeing(runs)
    if same:
        yield f"Seed{'s' * (len(same) > 1)} {ranges(same)} found the same groups."
    if other:
        many = " and ".join(str(len(groups(row))) for row in runs if row["seed"] in other)
        yield f"Seed{'s' * (len(other) > 1)} {ranges(other)} found other groups, {many} of them."


def _certain(runs: Sequence[Row]) -> str:
    unsure, mean = uncertain(runs), "mean over the seeds" * (len(runs) > 1)
    if not unsure:
        return f"Nobody is uncertain: largest label pi {SURE} or more{mean and f' ({mean})'}."
    are = "is" if len(unsure) == 1 else "are"
    said = f"{agents(list(unsure)).capitalize()} {are} uncertain: largest label pi below {SURE}"
    least = f"{'down to ' * (len(unsure) > 1)}{min(unsure.values()):.2f}"
    return f"{said} ({least}{mean and f'; {mean}'})."


def _gains(name: str, found: Gains) -> str:
    ours, theirs = found.losses(list(found.each))
    parts = [_counted(found.gained, f"of {len(found.each)} agents gained"), _counted(found.lost, "lost")]
    parts += [f"no clear difference for {_counted(found.same)}"] * bool(found.same)
    beyond = f", beyond {found.limit}" if found.overall else ""
    return f"Against {name}: {', '.join(parts)}. On average the loss is {ours:.3g} instead of {theirs:.3g}{beyond}."


def _counted(who: Sequence[int], what: str = "") -> str:
    """
    >>> _counted([7, 8], "lost"), _counted([], "lost"), _counted([3])
    ('2 lost (agents 7-8)', 'none lost', '1 (agent 3)')
    """
    parts = [str(len(who) or "none"), what, f"({agents(who)})" if who else ""]
    return " ".join(filter(None, parts))
