"""What to know before the numbers of a table are read: how methods weigh agents, what a metric means and misses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from focusfl.algorithms import title
from focusfl.data.own.folder import FEW_TEST
from focusfl.fairness.scores import BUILT_IN, UNBALANCED, UNITS
from focusfl.report.names import who
from focusfl.report.rows import Row, agent_numbers
from focusfl.util.files import visible

MAX_RATIO = 1.1  # of the largest number of examples to the smallest, up to which weights by them are alike
SKILL = "skill: 1 - loss / loss of each agent's constant prediction, made of its training labels; 0 is no better."


def notes(rows: Sequence[Row]) -> list[str]:
    """Return the notes about a table of these rows, one sentence or two each."""
    if not rows:
        return []
    return [
        *_weights(rows),
        *_unbalanced(rows),
        *_metrics(rows),
        *_undefined(rows),
        *_few(rows),
        *_without_noise(rows),
    ]


def _weights(rows: Sequence[Row]) -> Iterator[str]:
    """How methods that can weigh agents by their examples did so, where agents have different numbers of them."""
    weighed: dict[bool, list[str]] = {False: [], True: []}
    for row in {row["method"]: row for row in rows}.values():
        n = row.get("n") or [1]
        if "weight_by_n" in row["params"] and max(n) > MAX_RATIO * min(n):
            by_n = row["params"]["weight_by_n"]
            weighed[by_n is None or bool(by_n)].append(title(row["method"]))
    how = {False: "same weight for all agents", True: "weights by numbers of examples"}
    parts = [f"{how[by_n]} in {_listed(names)}" for by_n, names in weighed.items() if names]
    if sum(map(len, weighed.values())) > 1:
        yield f"Averages of models (weight_by_n): {'; '.join(parts)}."


def _unbalanced(rows: Sequence[Row]) -> Iterator[str]:
    constant = rows[0].get("constant_acc")
    if constant is not None and constant > UNBALANCED:
        always = f"predicting each agent's most frequent class has an accuracy of {constant:.3f}"
        yield f"Classes are unbalanced: {always}, so accuracy says little."


def _metrics(rows: Sequence[Row]) -> Iterator[str]:
    names = dict.fromkeys(name for row in rows for name in row.get("metrics", {}))
    squared = next((row["target"] for row in rows if "target" in row and "loss_name" not in row), None)
    if squared is not None:
        yield f"loss: squared error, in squared units of {visible(squared)!r}; so are FAA and excess risks."
    units = [name for name in names if name in UNITS]
    if units:
        target = next((row["target"] for row in rows if "target" in row), "")
        of = f"of {visible(target)!r}" if target else "of the target"
        yield f"{_listed(units)} {'is' if len(units) == 1 else 'are'} in the units {of}."
    if "skill" in names:
        yield SKILL


def _undefined(rows: Sequence[Row]) -> Iterator[str]:
    """Name the agents for whom a metric has no value."""
    missing: dict[tuple[tuple[int, ...], bool], list[str]] = {}
    for name in dict.fromkeys(name for row in rows for name in row.get("metrics", {})):
        of = [row for row in rows if name in row.get("metrics", {})]
        each = zip(agent_numbers(of[0]), *(row["metrics"][name] for row in of), strict=False)
        agents = tuple(e for e, *values in each if None in values)
        if agents:
            missing.setdefault((agents, name in BUILT_IN), []).append(name)
    for (agents, known), metrics in missing.items():
        their = "its" if len(agents) == 1 else "their"
        verb, agent = "is" if len(metrics) == 1 else "are", who(rows[0], agents)
        why = f": {their} test labels are all equal" * known
        yield f"{_listed(metrics)} {verb} not defined for {agent}{why}. The means are over the other agents."


def _few(rows: Sequence[Row]) -> Iterator[str]:
    counts = rows[0].get("n_test")
    few = [e for e, n in zip(agent_numbers(rows[0]), counts or (), strict=False) if n < FEW_TEST]
    if few:
        have, their = ("has", "its") if len(few) == 1 else ("have", "their")
        yield f"{who(rows[0], few)} {have} fewer than {FEW_TEST} test examples: {their} numbers are mostly chance."


def _without_noise(rows: Sequence[Row]) -> Iterator[str]:
    """Name the agents that are in no judgement beyond noise, because their noise is not known."""
    row = next((row for row in rows if row.get("excess_se")), None)
    if row is None:
        return
    unknown = [e for e, se in zip(agent_numbers(row), row["excess_se"], strict=True) if se is None]
    if unknown:
        have, their, of = ("has", "its", "it") if len(unknown) == 1 else ("have", "their", "them")
        yield (
            f"{who(row, unknown)} {have} too few test examples to know the noise of {their} numbers: whatever is "
            f"judged beyond noise (gained or lost, worse off, the interval of FAA) says nothing of {of}."
        )


def _listed(names: Sequence[str]) -> str:
    *rest, last = map(visible, names)
    return " and ".join([", ".join(rest), last] if rest else [last])
