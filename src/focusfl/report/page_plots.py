"""The plots of one part of a section, with what a reader must know to read them."""

from __future__ import annotations

from collections.abc import Iterator

from focusfl.report import page_tables as tables
from focusfl.report.axes import order
from focusfl.report.figures import Plots, Runs
from focusfl.report.present import NOBODY, missed, present

NOTHING = "<p class='empty'>{}</p>"
RISKS = """Excess risk: an agent's loss minus the best loss its own data allows; mean over the seeds. The lower and
the more alike the bars, the fairer. Below zero, an agent does better than the best loss as it was measured."""
LINES = """Mean over the seeds, round by round. Point at a line for its value and the range of the seeds; a name in
the legend picks out its line."""
LABELS = """A row for each agent, rounds from left to right, with more room for the early ones. Colour: the
cluster with the largest label pi; the fainter, the less sure."""
STRIPES = "On the left the true clusters: where they are found, a row has the colour of its stripe."


def figures(every: Runs, plots: Plots) -> Iterator[str]:
    """Each with its heading, and with a sentence in its place where there is nothing to draw."""
    runs = present(every)
    first = next(iter(runs.values()))[0]
    known = first["true_clusters"] is not None
    yield "<h3>Each agent's excess risk</h3>"
    if first["loss"]:
        bars = plots.bars(runs)
        numbers = tables.risks(runs, bars["who"], order(first))
        below = "Below the bars: the true cluster." if known else "The true clusters are not known."
        caption = " ".join(filter(None, [RISKS, below, missed(every)]))
        yield f"<figure><figcaption>{caption}</figcaption>{plots.place(bars)}"
        yield f"<details class='numbers'><summary>The numbers</summary>{numbers}</details></figure>"
    else:
        yield NOTHING.format(NOBODY)
    yield "<h3>Over the rounds</h3>"
    lines = plots.lines(runs)
    said = f"<figure><figcaption>{LINES}</figcaption>{plots.place(lines)}</figure>" if lines else ""
    yield said or NOTHING.format("No history of the rounds was kept.")
    yield "<h3>Labels</h3>"
    labels = plots.labels(runs) if first["loss"] else None
    caption = f"{LABELS} {STRIPES * known}"
    said = f"<figure><figcaption>{caption}</figcaption>{plots.place(labels)}</figure>" if labels else ""
    yield said or NOTHING.format("None of these methods labels agents, or the labels are too many to show.")
