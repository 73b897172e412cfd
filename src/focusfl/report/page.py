"""Results as one HTML page that needs nothing else: tables, plots, what is missing, how it was made."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from typing import Any

from focusfl.report import below, words
from focusfl.report import page_tables as tables
from focusfl.report.explain.groups import who
from focusfl.report.figures import Plots, Runs
from focusfl.report.page_plots import NOTHING, figures
from focusfl.report.section import OFF, Section

CAUTION = " class='caution'"
SCALES = {"paper": "paper scale", "small": "small scale"}
BEST = {
    "exact": "known exactly",
    "true": "that of a network trained on the pooled data of its true cluster",
    "learned": "that of a network trained on the pooled data of the cluster found",
    "agent": "that of a network trained on its data alone",
}


def page(heading: str, sections: list[Section]) -> str:
    """The document. Script and style are inline and named by hash: nothing else runs, nothing is fetched."""
    plots = Plots([tables.named(row["method"]) for section in sections for row in section.rows])
    ids = {i: f"s{i}-{_slug(section.name)}" for i, section in enumerate(sections, 1)}
    body = "".join(_section(section, ids[i], plots) for i, section in enumerate(sections, 1))
    css, js = (files("focusfl.report").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    policy = f"default-src 'none'; img-src data:; style-src {_hash(css)}; script-src {_hash(js)}"
    return f"""<!DOCTYPE html>
<html lang="en-GB">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(heading)}</title>
<link rel="icon" href="data:,">
<style>{css}</style>
</head>
<body>
<header><h1>{escape(heading)}</h1>{_contents(sections, ids)}</header>
<noscript><p class="empty">The plots need JavaScript; the tables do not.</p></noscript>
<main>{body}</main>
<div id="tip" role="status" hidden></div>
<script type="application/json" id="plots">{plots.json()}</script>
<script>{js}</script>
</body>
</html>
"""


def _contents(sections: list[Section], ids: dict[int, str]) -> str:
    if len(sections) < 2:
        return ""
    lines = [
        f'<li><a href="#{ids[i]}">{escape(section.title)}</a> {_badges(section, ids[i])}</li>'
        for i, section in enumerate(sections, 1)
    ]
    return f'<nav aria-label="Contents"><ol>{"".join(lines)}</ol></nav>'


def _section(section: Section, id: str, plots: Plots) -> str:
    return f'<section id="{id}">{"".join(_pieces(section, id, plots))}</section>'


def _pieces(section: Section, id: str, plots: Plots) -> Iterator[str]:
    yield f"<h2>{escape(section.title)}</h2><p class='badges'>{_badges(section, id)}</p>"
    if section.deviations:
        yield f"<p>Where this is not the paper's setting:</p><ul>{_items(section.deviations)}</ul>"
    if section.rows:
        yield f"<p>{escape(_facts(section))}</p>"
    if section.claims:
        yield "<h3>Claims</h3>" + tables.claims(section.claims)
    shown = {p: {tables.named(m): r for m, r in ms.items() if r} for p, ms in tables.parts(section).items()}
    shown = {part: runs for part, runs in shown.items() if runs}
    for part, runs in shown.items():
        yield _in_words(part, runs, hint=not section.scale)
    yield "<h3>Results</h3>"
    if section.table:
        yield tables.timed(section.table)
    elif not section.rows:
        yield NOTHING.format("No run has finished yet.")
    if section.rows or section.expect:
        yield tables.results(section) + tables.certain(section) + tables.rounds(section)
    if beaten := below.lines(shown):
        yield f"<p>{escape(below.SAYS)}</p><ul>{_items(beaten)}</ul>"
    if section.off:
        yield f"<p>{escape(OFF)}</p><ul>{_items([str(each) for each in section.off])}</ul>"
    if section.missing:
        yield f'<aside class="missing" id="{id}-missing"><p>Not computed yet, and in no number on this page:</p>'
        yield f"<ul>{_items(section.missing)}</ul></aside>"
    if section.left_out:
        lines = [f"{tables.named(method)}: {why}" for method, why in section.left_out.items()]
        yield f'<aside class="missing"><p>Left out, and why:</p><ul>{_items(lines)}</ul></aside>'
    if section.absent:
        lines = [f"{who}: {why}" for who, why in section.absent.items()]
        yield f'<aside class="missing"><p>Agents left out of rounds:</p><ul>{_items(lines)}</ul></aside>'
    for i, (part, runs) in enumerate(shown.items()):
        inner = "".join(figures(runs, plots))
        opened = " open" if i == 0 else ""
        yield f"<details{opened}><summary>Plots: {escape(part)}</summary>{inner}</details>" if part else inner
    if section.rows:
        yield "<h3>The methods</h3>" + tables.methods(section.rows)
    if section.made:
        terms = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in _flat(section.made))
        yield f"<details><summary>How it was made</summary><dl>{terms}</dl></details>"


def _in_words(part: str, runs: Runs, hint: bool) -> str:
    """What the methods that group agents found; folded where there are several parts."""
    said = words.each(runs)
    if not said:
        return ""
    inner = f"<p>{words.SAYS.capitalize()}.</p>"
    for name, lines in said.items():
        items = [f"<li{CAUTION * words.warns(line)}>{escape(line)}</li>" for line in lines]
        inner += f"<h4>{escape(name)}</h4><ul>{''.join(items)}</ul>"
    inner += "".join(f"<p>{line}</p>" for line in words.hint(runs) if hint)
    folded = f"<details><summary>In words: {escape(part)}</summary>{inner}</details>"
    return folded if part else f"<h3>In words</h3>{inner}"


def _badges(section: Section, id: str) -> str:
    badges = []
    if section.scale in SCALES:
        badges.append(f'<span class="badge {section.scale}">{SCALES[section.scale]}</span>')
    if section.missing:
        badges.append(f'<a class="badge gap" href="#{id}-missing">{len(section.missing)} missing</a>')
    if section.left_out:
        badges.append(f'<span class="badge gap">{len(section.left_out)} left out</span>')
    return " ".join(badges)


def _facts(section: Section) -> str:
    def each(values: Any) -> str:
        return ", ".join(str(v) for v in dict.fromkeys(values))

    rows = section.rows
    facts = [each(row["data"] for row in rows), each(len(row["loss"]) for row in rows) + " agents"]
    facts += [each(row["rounds"] for row in rows) + " rounds", "seeds " + each(sorted(row["seed"] for row in rows))]
    best = each(BEST.get(row["bayes_kind"], row["bayes_kind"]) for row in rows)
    names = who(rows[0].get("names", []))
    return f"{'; '.join(facts)}. Best loss of an agent: {best}." + f" {names}." * bool(names)


def _items(lines: list[str]) -> str:
    return "".join(f"<li>{escape(line)}</li>" for line in lines)


def _flat(made: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Tables within tables as dotted names."""
    for key, value in made.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        elif value is not None:
            yield f"{before}{key}", ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
