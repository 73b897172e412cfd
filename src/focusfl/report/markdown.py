"""Results as Markdown: the table of methods, what each discloses to the server, and how it was made."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import mean, pstdev
from typing import Any

from focusfl import __version__
from focusfl.algorithms import title
from focusfl.report import certainty, sentences, worse_off
from focusfl.report.disclosure import disclosed
from focusfl.report.names import agent_names
from focusfl.report.notes import notes
from focusfl.report.numbers import compact
from focusfl.report.rows import Row, by_method, clusters_right, columns, values
from focusfl.report.section import Section
from focusfl.util.files import visible


def report(name: str, experiment: dict[str, Any], section: Section) -> str:
    """Make one page about the results in one folder.

    Args:
        name: The heading.
        experiment: The settings, as experiment.json has them.
        section: The results. There is at least one row.

    Returns:
        The page.
    """
    rows = section.rows
    first, seeds = rows[0], sorted({row["seed"] for row in rows})
    head = [f"{plain(first['data'])}, {first['rounds']} rounds, {len(first['loss'])} agents;"]
    head += ["mean ± standard deviation"]
    head += [f"over {len(seeds)} seed(s): {', '.join(map(str, seeds))}."]
    head += [f"Best loss of an agent: {plain(first['bayes_kind'])}."]
    head += [f"{plain(names)}."] if (names := agent_names(first.get("names", []))) else []
    parts = [f"# {plain(name)}", " ".join(head), *in_words(rows), results_table(rows)]
    parts += ["\n".join(f"- {plain(line)}" for line in lines)] if (lines := notes(rows)) else []
    parts += [*faa_intervals(rows), *worse_off_table(rows), *negative_risks(rows)]
    if section.missing:
        missing = [f"- {plain(each)}" for each in section.missing]
        parts += ["Not computed yet, and in no number here:", "\n".join(missing)]
    parts += [f"- {plain(title(method))}: left out. {plain(why)}" for method, why in section.left_out.items()]
    parts += [f"- {plain(who)}, left out of {plain(why)}" for who, why in section.absent.items()]
    methods = {row["method"]: row for row in rows}
    seen = [[plain(title(method)), disclosed(row["algorithm"], row["params"])] for method, row in methods.items()]
    parts += ["What the server learns about one agent:", grid(["method", "the server sees"], seen)]
    settings = [f"- {plain(k)}: {code(v)}" for k, v in experiment.items() if v not in (None, {}, [])]
    settings += [f"- training: {code(first['train'])}", f"- focusfl {__version__}"]
    return "\n\n".join([*parts, "\n".join(["Settings:", "", *settings])]) + "\n"


def results_table(rows: Sequence[Row]) -> str:
    """One line per method, the one with the best FAA first."""
    shown = columns(rows)
    lines = []
    for name, runs in sorted(by_method(rows).items(), key=lambda item: mean(values(item[1], "faa"))):
        each = [column.values(runs) for column in shown]
        cells = [compact(mean(v)) + (f" ± {compact(pstdev(v))}" if len(v) > 1 else "") if v else "-" for v in each]
        lines.append([plain(name), *cells, clusters_right(runs), f"{mean(r['seconds'] for r in runs):.1f}"])
    return grid(["method", *(plain(column.heading) for column in shown), "clusters right", "seconds"], lines)


def faa_intervals(rows: Sequence[Row]) -> list[str]:
    """Intervals of FAA, if the results have them."""
    table = certainty.faa_table(by_method(rows))
    if table is None:
        return []
    head, lines = table
    return [f"{certainty.TITLE}:", grid([*map(plain, head)], [[*map(plain, line)] for line in lines])]


def worse_off_table(rows: Sequence[Row]) -> list[str]:
    """How many agents are worse off than alone, and than under FedAvg, if that is known."""
    table = worse_off.table(by_method(rows))
    if table is None:
        return []
    return [
        f"{worse_off.heading(by_method(rows))}:",
        grid(table[0], [[plain(cell) for cell in line] for line in table[1]]),
    ]


def negative_risks(rows: Sequence[Row]) -> list[str]:
    """How many excess risks are negative, and what that means."""
    lines = certainty.negative_risks(by_method(rows))
    return [plain(" ".join(lines))] if lines else []


def in_words(rows: Sequence[Row]) -> list[str]:
    """What the methods that group agents found."""
    runs = by_method(rows)
    explained = sentences.explain_methods(runs)
    parts = []
    for name, lines in explained.items():
        parts += [f"{plain(name)}:", "\n".join(f"- {plain(line)}" for line in lines)]
    hint = sentences.baseline_hint(runs)
    return [f"In words ({sentences.what_counts(runs)}).", *parts, *([hint] if hint else [])] if explained else []


def grid(head: list[str], lines: list[list[str]]) -> str:
    """Make a table.

    >>> print(grid(["a", "b"], [["1", "x|y"]]))
    | a | b |
    | --- | --- |
    | 1 | x\\|y |
    """
    safe = [[cell.replace("|", "\\|") for cell in line] for line in [head, ["---"] * len(head), *lines]]
    return "\n".join("| " + " | ".join(line) + " |" for line in safe)


def plain(text: str) -> str:
    r"""Return text that Markdown shows as it is: names come from files, and may look like HTML or Markdown.

    >>> print(plain("<b>[bern](x)"))
    &lt;b>\[bern\](x)
    """
    return re.sub(r"([\\`*_\[\]~])", r"\\\1", visible(text).replace("&", "&amp;").replace("<", "&lt;"))


def code(value: object) -> str:
    """Return a value as code: between more backticks than it has in a row.

    >>> print(code("a"), code("a`b"))
    `a` ``a`b``
    """
    text = visible(str(value))
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " * (text.startswith("`") or text.endswith("`"))
    return f"{fence}{space}{text}{space}{fence}"
