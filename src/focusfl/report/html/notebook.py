"""One run, or several on the same data, in a notebook: the verdict first, then a table with a line per agent."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from focusfl.algorithms import title
from focusfl.report import sentences
from focusfl.report.gains import MIN_RELATIVE_GAP, Gains
from focusfl.report.notes import notes as notes_of
from focusfl.report.numbers import compact
from focusfl.report.rows import Row, Runs, agent_numbers, by_method, columns
from focusfl.util.html import COLOURS, Html, bar, bold, card, chip, join, paragraph, table

MAX_AGENTS = 40  # rows of a table: of more agents those with the largest and the least excess risk are shown
SMALLER, LARGER = (
    "\N{BLACK DOWN-POINTING TRIANGLE}",
    "\N{BLACK UP-POINTING TRIANGLE}",
)  # a loss than the first method's


def names_of(row: Row) -> list[str]:
    """Return what each agent of a row is called: its number, with its name if it has one."""
    names = row.get("names")
    return [f"{e} {names[e]}" if names else str(e) for e in agent_numbers(row)]


def faa_text(row: Row) -> str:
    """Return FAA, with its interval where that is known."""
    known = row.get("faa_interval")
    noise = f" (95 % interval {known['low']:.3g} to {known['high']:.3g})" if known else ""
    return f"FAA {row['faa']:.3g}{noise}"


def verdict(row: Row) -> Html:
    """Say how fair the run is: FAA, and the two agents between which it lies."""
    who = [f"agent {name}" for name in names_of(row)]
    if row["bayes_kind"] == "none":
        worst = row["worst_agent"]
        return join(
            bold(f"Mean loss {row['avg_loss']:.3g}"), f"; largest for {who[worst]}: {row['loss'][worst]:.3g}."
        )
    risk = row["excess_risk"]
    most, least = risk.index(max(risk)), risk.index(min(risk))
    between = f"{who[most]} ends {_above(risk[most])}, {who[least]} {_above(risk[least])}."
    return join(bold(faa_text(row)), f": {between}")


def _above(risk: float) -> str:
    return f"{abs(risk):.3g} {'above' if risk >= 0 else 'below'} its best loss"


def result_card(row: Row) -> Html:
    """Show one run."""
    means = f"Mean loss {row['avg_loss']:.3g}, worst agent's loss {row['agnostic_loss']:.3g}"
    means += "" if row["avg_acc"] is None else f", mean accuracy {row['avg_acc']:.3f}"
    about = f"{means}. {row['rounds']} rounds, seed {row['seed']}, {row['seconds']:.1f} s of training."
    heading = f"{title(row['method'])} on {row['data']}"
    remarks = map(paragraph, notes_of([row]))
    return card(heading, paragraph(verdict(row)), *_explained([row]), _agents(row), *remarks, paragraph(about))


def _explained(runs: Sequence[Row], others: Sequence[Row] = ()) -> list[Html]:
    return [paragraph(_emphasised(line)) for line in sentences.explain(runs, others)]


def _emphasised(line: str) -> Html:
    rest = line.removeprefix(sentences.WARNING)
    return join(rest) if rest == line else join(bold(sentences.WARNING), rest)


def _shown(row: Row) -> list[int]:
    """The places of the agents that a table shows, in their order."""
    E = len(row["loss"])
    by_risk = sorted(range(E), key=lambda i: row["excess_risk"][i])
    return sorted(by_risk[: MAX_AGENTS // 2] + by_risk[-MAX_AGENTS // 2 :]) if E > MAX_AGENTS else list(range(E))


def _left_out(row: Row) -> list[Html]:
    if len(row["loss"]) <= MAX_AGENTS:
        return []
    some = f"The {MAX_AGENTS // 2} agents with the largest and with the least excess risk"
    return [paragraph(f"{some} of {len(row['loss'])} are shown.")]


def _agents(row: Row) -> Html:
    """One line per agent: its loss, accuracy, excess risk as a bar, and its cluster."""
    acc, n, pi, measured = row["acc"], row.get("n"), row["pi"], row["bayes_kind"] != "none"
    longest = max((abs(v) for v in row["excess_risk"]), default=0.0)
    head = ["agent", "excess risk" if measured else "loss"] + ["examples"] * bool(n) + ["loss"] * measured
    head += (
        ["accuracy"] * (acc is not None)
        + list(row.get("metrics", {}))
        + ["cluster", "largest label"] * (pi is not None)
    )
    rows, names = [], names_of(row)
    for i in _shown(row):
        risk = row["excess_risk"][i]
        number = compact(risk, sign="+") if measured else compact(risk)
        cells: list[object] = [names[i], join(bar(risk, longest), " ", number)]
        cells += [n[i]] if n else []
        cells += [compact(row["loss"][i])] if measured else []
        cells += [] if acc is None else [f"{acc[i]:.3f}"]
        each = (values[i] for values in row.get("metrics", {}).values())
        cells += ["-" if value is None else f"{value:.3f}" for value in each]
        if pi is not None:
            m = row["clusters"][i]
            cells += [chip(m, COLOURS[m % len(COLOURS)]), f"{max(pi[i]):.2f}"]
        rows.append(cells)
    return join(table(head, rows, left=2), *_left_out(row))


def comparison_card(rows: Sequence[Row], gains: dict[str, Gains], notes: Sequence[str] = ()) -> Html:
    """Show several methods on the same data with the same seeds; the first is compared with the others.

    Args:
        rows: The runs, with the same agents, one per method and seed.
        gains: Who gained and who lost under the first method, by the other's `method`.
        notes: Sentences that precede the tables.
    """
    runs = by_method(rows)
    methods, first = list(runs), rows[0]
    seeds = len(runs[methods[0]])
    heading = f"{methods[0]} on {first['data']}, compared with {', '.join(methods[1:])}"
    said = [*map(paragraph, notes), *_explained(runs[methods[0]], rows[seeds:])]
    beyond = f"beyond noise and {100 * MIN_RELATIVE_GAP:g} % of the loss"
    mean = f", mean over {seeds} seeds" if seeds > 1 else ""
    legend = f"Loss of each agent{mean}. {SMALLER} smaller, {LARGER} larger than with {methods[0]}, {beyond}."
    judged = [paragraph(verdict(first))] if seeds == 1 else []
    remarks = map(paragraph, notes_of(rows))
    return card(heading, *judged, *said, _methods(runs), *remarks, paragraph(legend), _losses(runs, gains))


def _methods(runs: Runs) -> Html:
    """One line per method, means over its seeds; the best of each column is bold."""
    shown = columns([row for each in runs.values() for row in each])
    means = [[fmean(v) if (v := column.values(each)) else None for column in shown] for each in runs.values()]
    known_means = [[m[i] for m in means if m[i] is not None] for i in range(len(shown))]
    best = [column.best(v for v in each if v is not None) for column, each in zip(shown, known_means, strict=True)]
    lines = []
    for (method, each), numbers in zip(runs.items(), means, strict=True):
        texts = ["-" if value is None else compact(value) for value in numbers]
        bold_at = [value is not None and value == b for value, b in zip(numbers, best, strict=True)]
        cells = [bold(text) if is_best else text for text, is_best in zip(texts, bold_at, strict=True)]
        known = each[0].get("faa_interval") if len(each) == 1 else None
        lines.append([method, *cells, f"{known['low']:.3g} to {known['high']:.3g}" if known else "-"])
    return table(["method", *(column.heading for column in shown), "95 % interval of FAA"], lines)


def _losses(runs: Runs, gains: dict[str, Gains]) -> Html:
    """One line per agent, one bar per method: means over its seeds."""
    losses = {
        method: [fmean(seeds) for seeds in zip(*(row["loss"] for row in rows), strict=True)]
        for method, rows in runs.items()
    }
    longest, first = max(abs(v) for each in losses.values() for v in each), next(iter(runs.values()))[0]
    names, lines = names_of(first), []
    for i in _shown(first):
        cells: list[object] = [names[i]]
        for k, (method, rows) in enumerate(runs.items()):
            found, e = gains.get(rows[0]["method"]) if k else None, agent_numbers(rows[0])[i]
            mark = "" if found is None else LARGER * (e in found.gained) + SMALLER * (e in found.lost)
            loss = losses[method][i]
            cells.append(join(bar(loss, longest, COLOURS[k % len(COLOURS)]), f" {compact(loss)} {mark}"))
        lines.append(cells)
    head = ["agent", *runs]
    return join(table(head, lines, left=len(head)), *_left_out(first))
