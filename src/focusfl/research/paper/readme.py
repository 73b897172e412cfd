"""RESULTS/README.md: every table, with our numbers beside the paper's."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, pstdev
from typing import Any

from focusfl.algorithms import title
from focusfl.report import certainty
from focusfl.report.markdown import faa_intervals, grid
from focusfl.report.rows import METRICS, Row, Runs, by_method, clusters_right, values
from focusfl.report.section import DIFFERENCES, Section
from focusfl.research.paper.reproduction import catalogue
from focusfl.research.paper.sections import sections

ABOUT = """`focusfl reproduce` makes this page; `focusfl report` shows the same as a page with plots.

Numbers are means over the seeds ± their standard deviation, followed by the paper's number in brackets. A cell is
one method on one data set with one seed. FAA is as measured, and claims are judged by it, over the seeds that all
methods of a table have; few test examples make it too large, so a second table has it corrected, with intervals."""


def markdown(results: Path) -> str:
    """Make the page.

    Args:
        results: The folder of the results.

    Returns:
        Markdown.
    """
    every = sections(results)
    claims = [[s.name, s.scale, c.text, c.verdict, c.numbers] for s in every for c in s.claims]
    parts = ["# Results", ABOUT]
    parts += ["## The paper's claims", grid(["table", "scale", "claim", "verdict", "numbers"], claims)]
    shown = {section.name for section in every}
    undone = [name for name in catalogue() if name not in shown]
    parts += [f"Not computed yet: {', '.join(undone)}."] if undone else []
    for one in every:
        parts += [f"## {one.title} ({one.scale} scale)", *_section(one)]
    return "\n\n".join(parts) + "\n"


def _section(one: Section) -> list[str]:
    parts = ["Differs from the paper: " + "; ".join(one.deviations) + "."] if one.deviations else []
    if one.rows:
        by_part: dict[str, list[Row]] = {}
        for row in one.rows:
            by_part.setdefault(row.get("part", ""), []).append(row)
        parts += [_results(one), *_certainty(by_part)]
    if one.table:
        parts += [grid(list(one.table[0]), [[_cell(v) for v in line.values()] for line in one.table])]
    if one.differences:
        parts += [DIFFERENCES, "\n".join(f"- {each}" for each in one.differences)]
    if one.missing:
        parts += [f"Missing: {len(one.missing)} of the cells, for example {one.missing[0]}."]
    return [*parts, f"`{one.name}.{one.scale}.json`, commit {one.made.get('commit')}, {one.made.get('machine')}."]


def _results(one: Section) -> str:
    """Our means and deviations over the seeds, each followed by the paper's number in brackets."""
    columns = {metric: heading for metric, heading in METRICS.items() if one.rows[0][metric] is not None}
    goals = _goals(one)
    several = any(row.get("part") for row in one.rows)
    lines = []
    for part, method in dict.fromkeys((row.get("part", ""), row["method"]) for row in one.rows):
        runs = [row for row in one.rows if (row.get("part", ""), row["method"]) == (part, method)]
        paper = one.expect.get((part, method), {})
        cells = [_with_paper(values(runs, metric), paper.get(metric)) for metric in columns]
        for goal, in_paper in goals.items():
            reached = [(row.get("rounds_to") or {}).get(goal) for row in runs]
            theirs = paper.get(f"rounds_{goal}")
            printed = " (never)" if theirs is None else f" ({theirs:.0f})"
            cells.append(" ".join("-" if t is None else str(t) for t in reached) + printed * in_paper)
        lines.append([part] * several + [title(method), *cells, str(len(runs)), clusters_right(runs)])
    head = ["setting"] * several + ["method", *columns.values()]
    head += [f"{float(goal):.0%}" for goal in goals] + ["seeds", "clusters right"]
    return grid(head, lines)


def _certainty(by_part: dict[str, list[Row]]) -> list[str]:
    """Intervals of FAA by part, if the rows have them; then the agents that are below their best losses."""
    parts = []
    for part, rows in by_part.items():
        table = faa_intervals(rows)
        parts += [f"{part}: {table[0]}", *table[1:]] if part and table else table
    runs: dict[str, Runs] = {part: by_method(rows) for part, rows in by_part.items()}
    below = certainty.below_best_loss_lines(runs)
    return [*parts, *([certainty.BELOW_BEST_LOSS, "\n".join(f"- {each}." for each in below)] if below else [])]


def _with_paper(numbers: list[float], paper: float | None) -> str:
    spread = f" ± {pstdev(numbers):.3f}" if len(numbers) > 1 else ""
    return f"{mean(numbers):.3f}{spread}" + (f" ({paper:.3f})" if paper is not None else "")


def _goals(one: Section) -> dict[str, bool]:
    """The accuracies of a table of rounds, and whether the paper has them: a scale may have its own."""
    paper = {k.removeprefix("rounds_") for expect in one.expect.values() for k in expect if k.startswith("rounds_")}
    return {goal: goal in paper for goal in one.rows[0].get("rounds_to") or {}} if paper else {}


def _cell(v: Any) -> str:
    return "-" if v is None else f"{v:.3g}" if isinstance(v, float) else str(v)
