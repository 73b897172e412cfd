"""The tables of a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from statistics import mean, pstdev
from typing import TypeAlias

from focusfl.algorithms import ALGORITHMS, title
from focusfl.report import certainty, worse_off
from focusfl.report.disclosure import disclosed
from focusfl.report.numbers import compact
from focusfl.report.rows import METRICS, Column, Row, Runs, clusters_right, meaningful_goals
from focusfl.report.rows import columns as columns_of
from focusfl.report.section import JudgedClaim, Measurement, Section

Parts: TypeAlias = dict[str, Runs]  # the runs of each part, by method
Heading: TypeAlias = tuple[str, str, bool]  # name, arrow, whether the paper's number is shown next to ours
EN_DASH, MINUS_SIGN = "\N{EN DASH}", "\N{MINUS SIGN}"
ARROWS = {"higher": "↑", "lower": "↓", "": ""}
VERDICT_MARKS = {"holds": "✓", "holds weakly": "~", "does not hold": "✗", "not measured": "?"}


def known_title(method: str) -> str:
    """Return the method's title, or its name if it is not one of our methods."""
    return title(method) if method.split(":")[0] in ALGORITHMS else method


def parts(section: Section) -> Parts:
    """Group the runs by part and method; methods that only the paper has are listed without runs."""
    found: Parts = {}
    for row in section.rows:
        found.setdefault(row.get("part", ""), {}).setdefault(row["method"], []).append(row)
    for part, method in section.expect:
        found.setdefault(part, {}).setdefault(method, [])
    return found


def results(section: Section) -> str:
    """Means over the seeds, with the paper's numbers beside them; the best of each column and part is bold."""
    paper = [k for k in METRICS if any(expect.get(k) is not None for expect in section.expect.values())]
    columns = [_Column(column, section) for column in columns_of(section.rows, also=paper)]
    body = []
    for part, methods in parts(section).items():
        lines = []
        best = [column.best(methods.values()) for column in columns]
        for method, runs in methods.items():
            expect = section.expect.get((part, method), {})
            cells = [c.cells(runs, expect.get(c.key), b) for c, b in zip(columns, best, strict=True)]
            right = clusters_right(runs, EN_DASH)
            lines.append(f"{_row(method)}{''.join(cells)}<td>{len(runs) or 'not run'}</td><td>{right}</td></tr>")
        body.append((part, lines))
    headings = [(c.column.heading, ARROWS[c.column.better], c.paper) for c in columns]
    caption = "Mean ± standard deviation over the seeds; ↑ higher is better, ↓ lower is better; the best of each "
    caption += "column is bold" + "; diff.: here minus the paper" * any(c.paper for c in columns)
    return _block_table(caption, headings, ["seeds", "clusters right"], body)


def rounds_to_accuracy(section: Section) -> str:
    """Rounds until the average accuracy first reached each goal; nothing in regression."""
    goals = meaningful_goals(section.rows)
    paper = {g: any(f"rounds_{g}" in expect for expect in section.expect.values()) for g in goals}
    body = []
    for part, methods in parts(section).items():
        lines = []
        for method, runs in methods.items():
            expect = section.expect.get((part, method), {})
            line = ""
            for g in goals:
                seeds = [to for row in runs if (to := row.get("rounds_to"))]
                reached = [t for to in seeds if (t := to.get(g)) is not None]
                here = f"{mean(reached):.1f}" if reached else "never" if seeds else "not run"
                line += f"<td>{here} <small>{f'({len(reached)} of {len(seeds)})' if seeds else ''}</small></td>"
                if paper[g]:
                    line += _paper_cells(mean(reached) if reached else None, expect.get(f"rounds_{g}"), 1)
            lines.append(f"{_row(method)}{line}</tr>")
        body.append((part, lines))
    caption = "First round with that average accuracy: the mean over the seeds that reached it, and how many did"
    headings = [(f"{float(g):.0%}", "", paper[g]) for g in goals]
    return _block_table(caption, headings, [], body) if goals else ""


def faa_intervals(section: Section) -> str:
    """Intervals of FAA, one table for each part that has them."""
    tables = []
    for part, methods in parts(section).items():
        made = certainty.faa_table({known_title(method): runs for method, runs in methods.items() if runs})
        if made is not None:
            head, lines = made
            html = []
            for name, *cells in lines:
                shown = [EN_DASH if cell == certainty.UNKNOWN else _minus(cell) for cell in cells]
                html.append(_row(name) + "".join(f"<td class='number'>{cell}</td>" for cell in shown) + "</tr>")
            tables.append(_plain_table(": ".join(filter(None, [part, certainty.TITLE])), head, html))
    return "".join(tables)


def worse_off_table(section: Section) -> str:
    """How many agents are worse off than alone, and than under FedAvg: one table for each part."""
    tables = []
    for part, methods in parts(section).items():
        named = {known_title(method): runs for method, runs in methods.items() if runs}
        made = worse_off.table(named)
        if made is not None:
            html = [
                _row(name) + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>" for name, *cells in made[1]
            ]
            tables.append(_plain_table(": ".join(filter(None, [part, worse_off.heading(named)])), made[0], html))
    return "".join(tables)


def claims(judged: Sequence[JudgedClaim]) -> str:
    """The paper's claims, with verdicts."""
    lines = [
        f"<tr><td>{escape(c.text)}</td><td class='verdict {escape(c.verdict.replace(' ', '-'))}'>"
        f"<span aria-hidden='true'>{VERDICT_MARKS.get(c.verdict, '')}</span> {escape(c.verdict)}</td>"
        f"<td>{escape(c.numbers)}</td></tr>"
        for c in judged
    ]
    return _plain_table("The paper's claims, and whether they hold here", ["claim", "verdict", "numbers"], lines)


def methods(rows: Sequence[Row]) -> str:
    """What each method discloses to the server, its options, and how long it took."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        runs = [row for row in rows if row["method"] == method]
        algorithm = runs[0]["algorithm"]
        seen = disclosed(algorithm, runs[0]["params"])
        options = ", ".join(f"{k} = {v}" for k, v in runs[0]["params"].items()) or "none"
        seconds = f"{mean(row['seconds'] for row in runs):.1f}"
        lines.append(
            f"{_row(method)}<td>{escape(seen)}</td><td>{escape(options)}</td><td class='number'>{seconds}</td></tr>"
        )
    caption = "What the server sees, the options, and the mean seconds of training in a run"
    return _plain_table(caption, ["method", "the server sees", "options", "seconds"], lines)


def excess_risks(runs: Runs, who: list[str], order: list[int]) -> str:
    """The numbers behind the bars."""
    lines = []
    for name, e in zip(who, order, strict=True):
        risks = (mean(row["excess_risk"][e] for row in rows) for rows in runs.values())
        cells = "".join(f"<td class='number'>{_minus(compact(v))}</td>" for v in risks)
        lines.append(f"<tr><th scope='row'>{escape(name)}</th>{cells}</tr>")
    return _plain_table("Excess risk, mean over the seeds", ["agent", *runs], lines)


def measured(lines: Sequence[Measurement]) -> str:
    """Table of what was measured and not trained, with its own columns."""

    def cell(value: object) -> str:
        number = _minus(f"{value:.3g}") if isinstance(value, float) else escape(str(value))
        return f"<td>{EN_DASH if value is None else number}</td>"

    headings = [name.replace("_", " ") for name in lines[0]]
    return _plain_table("Measured", headings, [f"<tr>{''.join(map(cell, line.values()))}</tr>" for line in lines])


class _Column:
    """One column of the results: as many digits as its least mean needs, and the paper's number if it is known."""

    def __init__(self, column: Column, section: Section) -> None:
        self.column, self.key = column, "" if column.asked else column.key  # the paper has none of those asked for
        self.paper = any(self.key in expect for expect in section.expect.values())
        means = [self.mean(runs) for methods in parts(section).values() for runs in methods.values()]
        least = min((abs(v) for v in means if v), default=1.0)
        self.digits = min(max(2 - math.floor(math.log10(least)), 3), 5)

    def mean(self, runs: Sequence[Row]) -> float | None:
        numbers = self.column.values(runs)
        return mean(numbers) if numbers else None

    def best(self, methods: Iterable[Sequence[Row]]) -> str:
        return self.text(self.column.best(v for runs in methods if (v := self.mean(runs)) is not None))

    def text(self, v: float | None) -> str:
        return EN_DASH if v is None else _minus(compact(v, self.digits))

    def cells(self, runs: Sequence[Row], expect: float | None, best: str) -> str:
        numbers = self.column.values(runs)
        here = self.text(self.mean(runs))
        shown = f"<strong>{here}</strong>" if numbers and here == best else here
        spread = f" <small>± {compact(pstdev(numbers), self.digits)}</small>" if len(numbers) > 1 else ""
        return f"<td>{shown}{spread}</td>" + _paper_cells(self.mean(runs), expect, self.digits) * self.paper


def _paper_cells(here: float | None, paper: float | None, digits: int) -> str:
    """The paper's number as it is printed there, and ours minus it."""
    if paper is None:
        return f"<td class='theirs'>{EN_DASH}</td>" * 2
    gap = EN_DASH if here is None else _minus(f"{here - paper:+.{digits}f}")
    return f"<td class='theirs'>{_minus(f'{paper:g}')}</td><td class='theirs'>{gap}</td>"


def _row(method: str) -> str:
    return f"<tr><th scope='row'>{escape(known_title(method))}</th>"


def _minus(text: str) -> str:
    return text.replace("-", MINUS_SIGN)


# --- markup: captions and headings are escaped here, rows by their makers


def _plain_table(caption: str, headings: list[str], lines: list[str]) -> str:
    head = "".join(f"<th scope='col'>{escape(h)}</th>" for h in headings)
    rows = "".join(lines)
    return _scroll(caption, f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>", "plain")


def _block_table(caption: str, headings: list[Heading], more: list[str], body: list[tuple[str, list[str]]]) -> str:
    """Columns of numbers, three wide if the paper's number is shown next to ours; one block of rows per part."""
    deep = " rowspan='2'" if any(paper for *_, paper in headings) else ""
    top = f"<th scope='col'{deep}>method</th>"
    for name, arrow, paper in headings:
        wide = " scope='colgroup' colspan='3'" if paper else f" scope='col'{deep}"
        top += f"<th{wide}>{escape(name)}{arrow and f'&nbsp;{arrow}'}</th>"
    top += "".join(f"<th scope='col'{deep}>{escape(name)}</th>" for name in more)
    names = ("here", "paper", "diff.")
    second = "".join(f"<th scope='col'>{name}</th>" for *_, paper in headings if paper for name in names)
    inner, width = "", 1 + sum(3 if paper else 1 for *_, paper in headings) + len(more)
    for part, lines in body:
        name = f"<tr class='part'><th scope='rowgroup' colspan='{width}'>{escape(part)}</th></tr>" if part else ""
        inner += f"<tbody>{name}{''.join(lines)}</tbody>"
    head = f"<thead><tr>{top}</tr>{f'<tr>{second}</tr>' if second else ''}</thead>"
    return _scroll(caption, head + inner, "results")


def _scroll(caption: str, inner: str, kind: str) -> str:
    """A table that is wider than a phone scrolls by itself."""
    table = f"<table class='{kind}'><caption><span>{escape(caption)}</span></caption>{inner}</table>"
    return f"<div class='scroll' tabindex='0' role='region' aria-label='{escape(caption)}'>{table}</div>"
