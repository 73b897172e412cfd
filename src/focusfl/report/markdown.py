"""Results as Markdown: the table of methods, what each tells the server, and how it was made."""

from __future__ import annotations

from statistics import mean, pstdev
from typing import Any

from focusfl import __version__
from focusfl.algorithms import ALGORITHMS
from focusfl.report import certainty, words
from focusfl.report.explain.groups import who
from focusfl.report.section import Section
from focusfl.report.tables import COLUMNS, group, right, title
from focusfl.report.tells import tells

Row = dict[str, Any]


def report(name: str, experiment: dict[str, Any], section: Section) -> str:
    """One page about the results of one experiment folder."""
    rows = section.rows
    first, seeds = rows[0], sorted({row["seed"] for row in rows})
    head = [
        f"{first['data']}, {first['rounds']} rounds, {len(first['loss'])} agents; mean ± standard deviation over"
    ]
    head += [f"{len(seeds)} seed(s): {', '.join(map(str, seeds))}. Best loss of an agent: {first['bayes_kind']}."]
    head += [f"{said}."] if (said := who(first.get("names", []))) else []
    parts = [f"# {name}", " ".join(head), *in_words(rows), table(rows), *certain(rows)]
    if section.missing:
        parts += ["Not computed yet, and in no number here:", "\n".join(f"- {each}" for each in section.missing)]
    parts += [f"- {title(method)}: left out. {why}" for method, why in section.left_out.items()]
    parts += [f"- {who}, left out of {why}" for who, why in section.absent.items()]
    parts += ["What the server learns of one agent:", told(rows), settings(experiment, first)]
    return "\n\n".join(parts) + "\n"


def table(rows: list[Row]) -> str:
    """Methods, best FAA first."""
    columns = {k: v for k, v in COLUMNS.items() if rows[0][k] is not None}
    by_method = sorted(group(rows).items(), key=lambda item: mean(r["faa"] for r in item[1]))
    lines = [["method", *columns.values(), "clusters right", "seconds"]]
    for name, runs in by_method:
        cells = [_spread([r[k] for r in runs]) for k in columns]
        lines.append([name, *cells, right(runs), f"{mean(r['seconds'] for r in runs):.1f}"])
    return grid(lines[0], lines[1:])


def _spread(values: list[float]) -> str:
    return f"{mean(values):.4f}" + (f" ± {pstdev(values):.4f}" if len(values) > 1 else "")


def certain(rows: list[Row]) -> list[str]:
    """Intervals of FAA, where the results have them."""
    made = certainty.table(group(rows))
    return [] if made is None else [f"{certainty.SAYS}:", grid(*made)]


def in_words(rows: list[Row]) -> list[str]:
    """What the methods that group agents found."""
    by_method = group(rows)
    said = words.each(by_method)
    parts = [part for name, lines in said.items() for part in (f"{name}:", "\n".join(f"- {v}" for v in lines))]
    return [f"In words ({words.SAYS}).", *parts, *words.hint(by_method)] if said else []


def told(rows: list[Row]) -> str:
    names = dict.fromkeys(row["algorithm"] for row in rows)
    return grid(["method", "the server sees"], [[ALGORITHMS[name].name, tells(name)] for name in names])


def settings(experiment: dict[str, Any], first: Row) -> str:
    said = {k: v for k, v in experiment.items() if v not in (None, {}, [])}
    lines = [f"- {k}: `{v}`" for k, v in said.items()]
    return "\n".join(["Settings:", "", *lines, f"- training: `{first['train']}`", f"- focusfl {__version__}"])


def grid(head: list[str], lines: list[list[str]]) -> str:
    """A table."""
    safe = [[cell.replace("|", "\\|") for cell in line] for line in [head, ["---"] * len(head), *lines]]
    return "\n".join("| " + " | ".join(line) + " |" for line in safe)
