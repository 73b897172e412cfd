"""What the tables of a page say."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape
from statistics import mean, pstdev

from focusfl.algorithms import ALGORITHMS
from focusfl.report import certainty
from focusfl.report.markup import NONE, blocks, minus, plain
from focusfl.report.section import Claim, Row, Section
from focusfl.report.tables import COLUMNS, right, title
from focusfl.report.tells import tells

Parts = dict[str, dict[str, list[Row]]]  # part: method: runs
HIGHER = ("avg_acc",)
MARKS = {"holds": "✓", "holds weakly": "~", "does not hold": "✗", "not measured": "?"}


def named(method: str) -> str:
    """Its name in papers, also where a page speaks of a method that is not here."""
    return title(method) if method.split(":")[0] in ALGORITHMS else method


def parts(section: Section) -> Parts:
    """The runs by part and method; those that the paper has and we have not are there, without runs."""
    found: Parts = {}
    for row in section.rows:
        found.setdefault(row.get("part", ""), {}).setdefault(row["method"], []).append(row)
    for part, method in section.expect:
        found.setdefault(part, {}).setdefault(method, [])
    return found


def results(section: Section) -> str:
    """Means over the seeds, the paper's beside them; the best of each column and part in bold."""
    known = [*section.rows, *section.expect.values()]
    columns = [k for k in COLUMNS if any(numbers.get(k) is not None for numbers in known)]
    cells = {k: _Column(k, section) for k in columns}
    body = []
    for part, methods in parts(section).items():
        lines = []
        best = {k: cells[k].best(methods.values()) for k in columns}
        for method, runs in methods.items():
            expect = section.expect.get((part, method), {})
            line = "".join(cells[k].cells(runs, expect.get(k), best[k]) for k in columns)
            lines.append(f"{_row(method)}{line}<td>{len(runs) or 'not run'}</td><td>{right(runs, NONE)}</td></tr>")
        body.append((part, lines))
    headings = [(COLUMNS[k], "↑" if k in HIGHER else "↓", cells[k].paper) for k in columns]
    said = "Mean ± standard deviation over the seeds; ↑ higher, ↓ lower is better; the best of each column in bold"
    said += "; diff.: here minus the paper" * any(cells[k].paper for k in columns)
    return blocks(said, headings, ["seeds", "clusters right"], body)


def rounds(section: Section) -> str:
    """Rounds until the average accuracy first reached a goal; nothing in regression."""
    goals = list(dict.fromkeys(g for row in section.rows for g in row.get("rounds_to") or {}))
    paper = {g: any(f"rounds_{g}" in expect for expect in section.expect.values()) for g in goals}
    body = []
    for part, methods in parts(section).items():
        lines = []
        for method, runs in methods.items():
            expect = section.expect.get((part, method), {})
            line = ""
            for g in goals:
                asked = [row["rounds_to"] for row in runs if row.get("rounds_to")]
                reached = [to[g] for to in asked if to.get(g) is not None]
                here = f"{mean(reached):.1f}" if reached else "never" if asked else "not run"
                line += f"<td>{here} <small>{f'({len(reached)} of {len(asked)})' if asked else ''}</small></td>"
                if paper[g]:
                    line += _beside(mean(reached) if reached else None, expect.get(f"rounds_{g}"), 1)
            lines.append(f"{_row(method)}{line}</tr>")
        body.append((part, lines))
    said = "First round with that average accuracy: the mean over the seeds that reached it, and how many did"
    return blocks(said, [(f"{float(g):.0%}", "", paper[g]) for g in goals], [], body) if goals else ""


def certain(section: Section) -> str:
    """Intervals of FAA, a table for each part that has them."""
    tables = []
    for part, methods in parts(section).items():
        made = certainty.table({named(method): runs for method, runs in methods.items() if runs})
        if made is not None:
            cells = [[NONE if cell == certainty.NONE else minus(cell) for cell in line[1:]] for line in made[1]]
            inner = ["".join(f"<td class='number'>{cell}</td>" for cell in line) for line in cells]
            lines = [f"{_row(line[0])}{rest}</tr>" for line, rest in zip(made[1], inner, strict=True)]
            tables.append(plain(": ".join(filter(None, [part, certainty.SAYS])), made[0], lines))
    return "".join(tables)


def claims(said: list[Claim]) -> str:
    lines = [
        f"<tr><td>{escape(c.says)}</td><td class='verdict {escape(c.verdict.replace(' ', '-'))}'>"
        f"<span aria-hidden='true'>{MARKS.get(c.verdict, '')}</span> {escape(c.verdict)}</td>"
        f"<td>{escape(c.numbers)}</td></tr>"
        for c in said
    ]
    return plain("What the paper says, and how it fared here", ["claim", "verdict", "numbers"], lines)


def methods(rows: list[Row]) -> str:
    """What each tells the server, its options, how long it took."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        runs = [row for row in rows if row["method"] == method]
        told = tells(runs[0]["algorithm"]) if runs[0]["algorithm"] in ALGORITHMS else "unknown"
        options = ", ".join(f"{k} = {v}" for k, v in runs[0]["params"].items()) or "none"
        seconds = f"{mean(row['seconds'] for row in runs):.1f}"
        lines.append(
            f"{_row(method)}<td>{escape(told)}</td><td>{escape(options)}</td><td class='number'>{seconds}</td></tr>"
        )
    said = "What the server sees, the options, and the mean seconds of training in a run"
    return plain(said, ["method", "the server sees", "options", "seconds"], lines)


def risks(runs: dict[str, list[Row]], who: list[str], order: list[int]) -> str:
    """The numbers behind the bars."""
    lines = []
    for name, e in zip(who, order, strict=True):
        values = (mean(row["excess_risk"][e] for row in rows) for rows in runs.values())
        line = "".join(f"<td class='number'>{minus(f'{v:.4f}')}</td>" for v in values)
        lines.append(f"<tr><th scope='row'>{escape(name)}</th>{line}</tr>")
    return plain("Excess risk, mean over the seeds", ["agent", *runs], lines)


class _Column:
    """One number of the results: as many digits as its least mean needs, the paper's where that is known."""

    def __init__(self, key: str, section: Section) -> None:
        self.key = key
        self.paper = any(key in expect for expect in section.expect.values())
        means = [self.mean(runs) for methods in parts(section).values() for runs in methods.values()]
        least = min((abs(v) for v in means if v), default=1.0)
        self.digits = min(max(2 - math.floor(math.log10(least)), 3), 5)

    def mean(self, runs: list[Row]) -> float | None:
        values = self.values(runs)
        return mean(values) if values else None

    def values(self, runs: list[Row]) -> list[float]:
        return [row[self.key] for row in runs if row[self.key] is not None]

    def best(self, methods: Iterable[list[Row]]) -> str:
        pick = max if self.key in HIGHER else min
        return self.text(pick((v for runs in methods if (v := self.mean(runs)) is not None), default=None))

    def text(self, v: float | None) -> str:
        return NONE if v is None else minus(f"{v:.{self.digits}f}")

    def cells(self, runs: list[Row], expect: float | None, best: str) -> str:
        values = self.values(runs)
        here = self.text(self.mean(runs))
        shown = f"<strong>{here}</strong>" if values and here == best else here
        spread = f" <small>± {pstdev(values):.{self.digits}f}</small>" if len(values) > 1 else ""
        return f"<td>{shown}{spread}</td>" + _beside(self.mean(runs), expect, self.digits) * self.paper


def _beside(here: float | None, paper: float | None, digits: int) -> str:
    """The paper's number as it is given there, and ours minus it."""
    if paper is None:
        return f"<td class='theirs'>{NONE}</td>" * 2
    gap = NONE if here is None else minus(f"{here - paper:+.{digits}f}")
    return f"<td class='theirs'>{minus(f'{paper:g}')}</td><td class='theirs'>{gap}</td>"


def _row(method: str) -> str:
    return f"<tr><th scope='row'>{escape(named(method))}</th>"


def timed(lines: list[Row]) -> str:
    """What was measured and not trained: its columns as they are."""

    def cell(value: object) -> str:
        text = NONE if value is None else minus(f"{value:.3g}") if isinstance(value, float) else escape(str(value))
        return f"<td>{text}</td>"

    headings = [name.replace("_", " ") for name in lines[0]]
    return plain("Measured", headings, [f"<tr>{''.join(map(cell, line.values()))}</tr>" for line in lines])
