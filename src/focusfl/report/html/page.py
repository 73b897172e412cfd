"""The page: sections with tables, plots, sentences, what is missing, and how it was made."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files
from typing import Any

from focusfl.report import certainty, sentences
from focusfl.report.html import tables
from focusfl.report.html.plots import Plots, agent_order
from focusfl.report.names import agent_names, not_shown
from focusfl.report.notes import notes
from focusfl.report.rows import Runs, shared_agents
from focusfl.report.section import DIFFERENCES, Section

WARNING_CLASS = " class='caution'"
EMPTY = "<p class='empty'>{}</p>"
SCALES = {"paper": "paper scale", "small": "small scale"}
BEST_LOSS_KINDS = {
    "exact": "known exactly",
    "true": "that of a network trained on the pooled data of its true cluster",
    "validated": "that of the best of several models, chosen for each agent by cross-validation",
    "learned": "that of a network trained on the pooled data of the cluster found",
    "agent": "that of a network trained on its data alone",
}
RISKS_CAPTION = """Excess risk: an agent's loss minus the best loss that its own data allows; mean over the seeds.
The lower and the more alike the bars, the fairer. Below zero, an agent does better than its measured best loss."""
LINES_CAPTION = """Mean over the seeds, round by round. Point at a line for its value and the range of the seeds;
click a name in the legend to highlight its line."""
LABELS_CAPTION = """One row per agent, rounds from left to right, with more room for the early ones. Colour: the
cluster with the largest label pi; the fainter, the less certain."""
TRUE_CLUSTERS_CAPTION = "The stripes on the left are the true clusters: where they are found, rows match them."


def page(heading: str, sections: list[Section]) -> str:
    """Make the document.

    Args:
        heading: Its title.
        sections: What it shows, in this order.

    Returns:
        HTML. Script and style are inline and allowed by their hashes: nothing else runs, nothing is fetched.
    """
    plots = Plots([tables.known_title(row["method"]) for section in sections for row in section.rows])
    ids = {i: f"s{i}-{_slug(section.name)}" for i, section in enumerate(sections, 1)}
    body = "".join(
        f'<section id="{ids[i]}">{"".join(_section(section, ids[i], plots))}</section>'
        for i, section in enumerate(sections, 1)
    )
    css, js = (files("focusfl.report.html").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
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


def _section(section: Section, id: str, plots: Plots) -> Iterator[str]:
    yield f"<h2>{escape(section.title)}</h2><p class='badges'>{_badges(section, id)}</p>"
    if section.deviations:
        yield f"<p>Where this is not the paper's setting:</p><ul>{_items(section.deviations)}</ul>"
    if section.rows:
        yield f"<p>{escape(_facts(section))}</p>"
    if section.claims:
        yield "<h3>Claims</h3>" + tables.claims(section.claims)
    shown = {p: {tables.known_title(m): r for m, r in ms.items() if r} for p, ms in tables.parts(section).items()}
    shown = {part: runs for part, runs in shown.items() if runs}
    for part, runs in shown.items():
        yield _in_words(part, runs, hint=not section.scale)
    yield "<h3>Results</h3>"
    if section.table:
        yield tables.measured(section.table)
    elif not section.rows:
        yield EMPTY.format("No run has finished yet.")
    if section.rows or section.expect:
        yield tables.results(section)
        if lines := notes(section.rows):
            yield f"<ul>{_items(lines)}</ul>"
        yield tables.faa_intervals(section) + tables.rounds_to_accuracy(section)
    if section.rows and not section.scale:  # of the user's own results, not of the paper's
        yield tables.worse_off_table(section)
        yield from (f"<p>{escape(line)}</p>" for runs in shown.values() for line in certainty.negative_risks(runs))
    if below := certainty.below_best_loss_lines(shown):
        yield f"<p>{escape(certainty.BELOW_BEST_LOSS)}</p><ul>{_items(below)}</ul>"
    if section.differences:
        yield f"<p>{escape(DIFFERENCES)}</p><ul>{_items(map(str, section.differences))}</ul>"
    yield from _gaps(section, id)
    for i, (part, runs) in enumerate(shown.items()):
        inner = "".join(_figures(runs, plots))
        opened = " open" if i == 0 else ""
        yield f"<details{opened}><summary>Plots: {escape(part)}</summary>{inner}</details>" if part else inner
    if section.rows:
        yield "<h3>The methods</h3>" + tables.methods(section.rows)
    if section.made:
        terms = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in _flat(section.made))
        yield f"<details><summary>How it was made</summary><dl>{terms}</dl></details>"


def _gaps(section: Section, id: str) -> Iterator[str]:
    """List what is missing: runs, methods, agents."""
    if section.missing:
        yield f'<aside class="missing" id="{id}-missing"><p>Not computed yet, and in no number on this page:</p>'
        yield f"<ul>{_items(section.missing)}</ul></aside>"
    if section.left_out:
        lines = [f"{tables.known_title(method)}: {why}" for method, why in section.left_out.items()]
        yield f'<aside class="missing"><p>Left out, and why:</p><ul>{_items(lines)}</ul></aside>'
    if section.absent:
        lines = [f"{who}: {why}" for who, why in section.absent.items()]
        yield f'<aside class="missing"><p>Agents left out of rounds:</p><ul>{_items(lines)}</ul></aside>'


def _in_words(part: str, runs: Runs, hint: bool) -> str:
    """What the methods that group agents found; folded if there are several parts."""
    explained = sentences.explain_methods(runs)
    if not explained:
        return ""
    inner = f"<p>{sentences.what_counts(runs).capitalize()}.</p>"
    for name, lines in explained.items():
        items = [f"<li{WARNING_CLASS * line.startswith(sentences.WARNING)}>{escape(line)}</li>" for line in lines]
        inner += f"<h4>{escape(name)}</h4><ul>{''.join(items)}</ul>"
    if hint and (line := sentences.baseline_hint(runs)):
        inner += f"<p>{line}</p>"
    folded = f"<details><summary>In words: {escape(part)}</summary>{inner}</details>"
    return folded if part else f"<h3>In words</h3>{inner}"


def _figures(runs: Runs, plots: Plots) -> Iterator[str]:
    """The plots of one part, each with its heading; a sentence in its place if there is nothing to draw."""
    runs, missing = shared_agents(runs)
    first = next(iter(runs.values()))[0]
    known = first["true_clusters"] is not None
    yield "<h3>Each agent's excess risk</h3>"
    if first["loss"]:
        bars = plots.bars(runs)
        numbers = tables.excess_risks(runs, bars["who"], agent_order(first))
        clusters = "Below the bars: the true cluster." if known else "The true clusters are not known."
        caption = f"{RISKS_CAPTION} {clusters}" + (f" {not_shown(missing)}" if missing else "")
        yield f"<figure><figcaption>{caption}</figcaption>{plots.place(bars)}"
        yield f"<details class='numbers'><summary>The numbers</summary>{numbers}</details></figure>"
    else:
        yield EMPTY.format(sentences.NO_SHARED_AGENT)
    yield "<h3>Over the rounds</h3>"
    if lines := plots.lines(runs):
        yield f"<figure><figcaption>{LINES_CAPTION}</figcaption>{plots.place(lines)}</figure>"
    else:
        yield EMPTY.format("No history of the rounds was kept.")
    yield "<h3>Labels</h3>"
    if first["loss"] and (labels := plots.labels(runs)):
        caption = f"{LABELS_CAPTION} {TRUE_CLUSTERS_CAPTION * known}"
        yield f"<figure><figcaption>{caption}</figcaption>{plots.place(labels)}</figure>"
    else:
        yield EMPTY.format("None of these methods labels agents, or there are too many labels to show.")


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
    best = each(BEST_LOSS_KINDS.get(row["bayes_kind"], row["bayes_kind"]) for row in rows)
    names = agent_names(rows[0].get("names", []))
    return f"{'; '.join(facts)}. Best loss of an agent: {best}." + f" {names}." * bool(names)


def _items(lines: Iterable[str]) -> str:
    return "".join(f"<li>{escape(line)}</li>" for line in lines)


def _flat(table: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield the values of nested tables by their dotted names."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        elif value is not None:
            yield f"{before}{key}", ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
