"""RESULTS/README.md: every table, ours beside the paper's."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, pstdev
from typing import Any

from focusfl.report import below
from focusfl.report.markdown import certain, grid
from focusfl.report.section import OFF, Section
from focusfl.report.tables import COLUMNS, right, title
from focusfl.research.paper.reproduction import catalogue
from focusfl.research.paper.results import sections

ABOUT = """Made by `focusfl reproduce`; `focusfl report` shows the same as a page with plots.

Numbers are means over the seeds ± their standard deviation, the paper's number behind them in brackets. A cell is
one method on one data set with one seed. FAA is as measured, and claims are judged by it, over the seeds that all
methods of a table have; few test examples make it too large, so a second table has it corrected, with intervals."""


def markdown(results: Path) -> str:
    """The whole page."""
    every = sections(results)
    parts = ["# Results", ABOUT]
    parts += ["## The paper's claims", grid(["table", "scale", "claim", "verdict", "numbers"], _claims(every))]
    shown = {section.name for section in every}
    undone = [name for name in catalogue() if name not in shown]
    parts += [f"Not computed yet: {', '.join(undone)}."] if undone else []
    for one in every:
        parts += [f"## {one.title} ({one.scale} scale)"]
        parts += ["Differs from the paper: " + "; ".join(one.deviations) + "."] if one.deviations else []
        parts += [_results(one), *_certain(one), *_below(one)] if one.rows else []
        parts += (
            [grid(list(one.table[0]), [[_cell(v) for v in row.values()] for row in one.table])] if one.table else []
        )
        if one.off:
            parts += [OFF, "\n".join(f"- {each}" for each in one.off)]
        parts += (
            [f"Missing: {len(one.missing)} of the cells, for instance {one.missing[0]}."] if one.missing else []
        )
        parts += [f"`{one.name}.{one.scale}.json`, commit {one.made.get('commit')}, {one.made.get('machine')}."]
    return "\n\n".join(parts) + "\n"


def _claims(every: list[Section]) -> list[list[str]]:
    return [[s.name, s.scale, c.says, c.verdict, c.numbers] for s in every for c in s.claims]


def _results(one: Section) -> str:
    """Ours, mean and spread over the seeds, with the paper's number behind it in brackets."""
    columns = {k: v for k, v in COLUMNS.items() if one.rows[0][k] is not None}
    goals = _goals(one)
    several = any(row["part"] for row in one.rows)
    lines = []
    for part, method in dict.fromkeys((row["part"], row["method"]) for row in one.rows):
        runs = [row for row in one.rows if (row["part"], row["method"]) == (part, method)]
        paper = one.expect.get((part, method), {})
        cells = [_with_paper([r[k] for r in runs], paper.get(k)) for k in columns]
        cells += [
            _rounds([(r["rounds_to"] or {}).get(goal) for r in runs])
            + goals[goal] * _in_paper(paper.get(f"rounds_{goal}"))
            for goal in goals
        ]
        lines.append([part] * several + [title(method), *cells, str(len(runs)), right(runs)])
    head = ["setting"] * several + ["method", *columns.values()]
    head += [f"{float(goal):.0%}" for goal in goals] + ["seeds", "clusters right"]
    return grid(head, lines)


def _certain(one: Section) -> list[str]:
    """Intervals of FAA by part, where the rows have them."""
    parts = dict.fromkeys(row["part"] for row in one.rows)
    each = {part: certain([row for row in one.rows if row["part"] == part]) for part in parts}
    return [
        f"{part}: {text}" if part and i == 0 else text
        for part, found in each.items()
        for i, text in enumerate(found)
    ]


def _below(one: Section) -> list[str]:
    """Where agents end below their best losses, which FAA is reckoned from."""
    by_part: dict[str, dict[str, list[Any]]] = {}
    for row in one.rows:
        by_part.setdefault(row["part"], {}).setdefault(title(row["method"]), []).append(row)
    found = below.lines(by_part)
    return [below.SAYS, "\n".join(f"- {each}." for each in found)] if found else []


def _with_paper(values: list[float], paper: float | None) -> str:
    spread = f" ± {pstdev(values):.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{spread}" + (f" ({paper:.3f})" if paper is not None else "")


def _goals(one: Section) -> dict[str, bool]:
    """The accuracies of a table of rounds, and whether the paper has them: a scale may have its own."""
    paper = {k.removeprefix("rounds_") for expect in one.expect.values() for k in expect if k.startswith("rounds_")}
    return {goal: goal in paper for goal in one.rows[0].get("rounds_to") or {}} if paper else {}


def _rounds(reached: list[int | None]) -> str:
    return " ".join("-" if t is None else str(t) for t in reached)


def _in_paper(rounds: float | None) -> str:
    return " (never)" if rounds is None else f" ({rounds:.0f})"


def _cell(v: Any) -> str:
    return "-" if v is None else f"{v:.3g}" if isinstance(v, float) else str(v)
