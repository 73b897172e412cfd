"""Results as tables in the terminal: methods, agents, clusters, speed."""

from __future__ import annotations

from collections import Counter
from statistics import mean, pstdev
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from focusfl.algorithms import ALGORITHMS
from focusfl.report import certainty, words
from focusfl.report.explain.groups import numbers
from focusfl.report.present import NOBODY, missed, present

Row = dict[str, Any]
SIDE_BY_SIDE = 4  # methods whose bars fit a terminal
COLUMNS = {"avg_acc": "accuracy", "avg_loss": "loss", "faa": "FAA", "agnostic_loss": "agnostic loss"}


def show(rows: list[Row], left_out: dict[str, str], console: Console) -> None:
    """All of them."""
    by_method = group(rows)
    console.print(Group(methods(by_method), *absent(left_out), certain(by_method)))
    console.print(Group(each_agent(by_method), clusters(by_method), speed(by_method), in_words(by_method)))


def group(rows: list[Row]) -> dict[str, list[Row]]:
    """By the method's name, as in papers, with the options behind it: "q-FFL q=0.1"."""
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(title(row["method"]), []).append(row)
    return by_method


def title(method: str) -> str:
    """
    >>> title("qffl:q=0.1")
    'q-FFL q=0.1'
    """
    name, *options = method.split(":")
    return " ".join([ALGORITHMS[name].name, *options])


def right(runs: list[Row], unknown: str = "-") -> str:
    """In how many of them the clusters found are the true ones."""
    known = [row for row in runs if row["pi"] is not None and row["ari"] is not None]
    return f"{sum(row['ari'] == 1 for row in known)} of {len(known)}" if known else unknown


def absent(left_out: dict[str, str]) -> list[str]:
    """What did not run, and why."""
    return [f"{title(method)}: left out. {why}" for method, why in left_out.items()]


def methods(by_method: dict[str, list[Row]]) -> Table:
    """Mean and spread over the seeds; the best mean of each column in bold."""
    first = next(iter(by_method.values()))
    columns = {k: v for k, v in COLUMNS.items() if first[0][k] is not None}
    said = f"{first[0]['data']}: mean±standard deviation over {len(first)} seed(s)"
    table = Table(title=said, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    means = {name: {k: mean(r[k] for r in rows) for k in columns} for name, rows in by_method.items()}
    lines = []
    for name, rows in by_method.items():
        cells = []
        for k in columns:
            digits = 3 if k == "avg_acc" else 4
            spread = f"±{pstdev(r[k] for r in rows):.1g}" if len(rows) > 1 else ""
            cells.append(f"{means[name][k]:.{digits}f}{spread}")
        lines.append([name, *cells, right(rows)])
    table.add_column("method", overflow="fold")
    for i, heading in enumerate(columns.values(), 1):  # a narrow terminal folds the names, never the numbers
        table.add_column(heading, justify="right", min_width=max(len(line[i]) for line in lines))
    table.add_column("clusters right", justify="right", width=8)
    best = {k: (max if k == "avg_acc" else min)(m[k] for m in means.values()) for k in columns}
    for name, *cells, right_cell in lines:
        marked = [
            f"[bold]{cell}[/bold]" if means[name][k] == best[k] else cell
            for k, cell in zip(columns, cells, strict=True)
        ]
        table.add_row(name, *marked, right_cell)
    return table


def certain(by_method: dict[str, list[Row]]) -> RenderableType:
    """Intervals of FAA, and who is less fair than the fairest by more than noise."""
    made = certainty.table(by_method)
    if made is None:
        return Group()
    table = Table(title=certainty.SAYS, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for i, heading in enumerate(made[0]):
        folds = i in (0, len(made[0]) - 2)  # the name and the gap; all else would lose digits or its "yes"
        wide = None if folds else max(len(line[i]) for line in made[1])
        table.add_column(heading, justify="right" if i else "left", overflow="fold", min_width=wide)
    for line in made[1]:
        table.add_row(*line)
    return table


def each_agent(by_method: dict[str, list[Row]]) -> RenderableType:
    """Excess risks of the agents that all runs have; who else there is, is said."""
    kept = present(by_method)
    if not next(iter(kept.values()))[0]["loss"]:
        return NOBODY
    table = agents(kept) if len(kept) <= SIDE_BY_SIDE else profiles(kept)
    table.caption = missed(by_method) or None
    return table


def agents(by_method: dict[str, list[Row]], width: int = 16) -> Table:
    """Each agent's excess risk, mean over the seeds, as a bar: the shorter and the more alike, the fairer."""
    table = Table(title="Each agent's excess risk, mean over the seeds", box=SIMPLE_HEAD)
    table.add_column("agent", justify="right")
    table.add_column("true cluster", justify="right")
    for name in by_method:
        table.add_column(name)
    risks = _mean_risks(by_method)
    longest = max((abs(v) for values in risks.values() for v in values), default=0) or 1
    first = next(iter(by_method.values()))[0]
    true, number, E = first["true_clusters"], numbers(first), len(first["loss"])
    for e in range(E):
        if E > 40 and 20 <= e < E - 20:  # the first and last will do
            if e == 20:
                table.add_row("...", "", *("" for _ in risks))
            continue
        cells = [f"{values[e]:+.4f} {'█' * round(width * abs(values[e]) / longest)}" for values in risks.values()]
        table.add_row(str(number[e]), "-" if true is None else str(true[e]), *cells)
    return table


def profiles(by_method: dict[str, list[Row]]) -> Table:
    """The same for many methods: a block for each agent, all to one scale, that of the square root."""
    table = Table(title="Each agent's excess risk, mean over the seeds", box=SIMPLE_HEAD)
    for heading, side in (
        ("method", "left"),
        ("a block an agent", "left"),
        ("least", "right"),
        ("largest", "right"),
    ):
        table.add_column(heading, justify=side)  # type: ignore[arg-type]
    risks, number = _mean_risks(by_method), numbers(next(iter(by_method.values()))[0])
    top = max(max(values) for values in risks.values()) or 1
    for name, values in risks.items():
        blocks = "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * (max(v, 0) / top) ** 0.5))] for v in values[:100])
        at = values.index(max(values))
        table.add_row(name, blocks, f"{min(values):+.4f}", f"{max(values):+.4f} (agent {number[at]})")
    return table


def _mean_risks(by_method: dict[str, list[Row]]) -> dict[str, list[float]]:
    return {
        name: [mean(values) for values in zip(*(r["excess_risk"] for r in rows), strict=True)]
        for name, rows in by_method.items()
    }


def clusters(by_method: dict[str, list[Row]]) -> RenderableType:
    """Learned clusters against the true ones: how many agents of each true cluster went where."""
    table = Table(title="Learned clusters against the true ones (c → m x how many agents)", box=SIMPLE_HEAD)
    for heading in ("method", "seed", "true → learned", "adjusted Rand index"):
        table.add_column(heading)
    for name, rows in by_method.items():
        for row in rows:
            if row["pi"] is None or row["true_clusters"] is None:
                continue
            pairs = Counter(zip(row["true_clusters"], row["clusters"], strict=True))
            parts = [
                f"{c} → " + " + ".join(f"{m}x{n}" for (t, m), n in sorted(pairs.items()) if t == c)
                for c in sorted(set(row["true_clusters"]))
            ]
            table.add_row(name, str(row["seed"]), "   ".join(parts), f"{row['ari']:.2f}")
    return table if table.row_count else Group()


def speed(by_method: dict[str, list[Row]]) -> RenderableType:
    """Rounds until the average accuracy first reached a goal, seed by seed."""
    if any(row.get("rounds_to") is None for rows in by_method.values() for row in rows):
        return Group()
    goals = list(next(iter(by_method.values()))[0]["rounds_to"])
    table = Table(title="First round with that average accuracy, one number a seed", box=SIMPLE_HEAD)
    table.add_column("method")
    for goal in goals:
        table.add_column(f"{float(goal):.0%}", justify="right")
    for name, rows in by_method.items():
        table.add_row(name, *(" ".join(str(row["rounds_to"][goal] or "-") for row in rows) for goal in goals))
    return table


def in_words(by_method: dict[str, list[Row]]) -> RenderableType:
    """What the methods that group agents found; warnings stand out."""
    parts: list[RenderableType] = []
    for name, lines in words.each(by_method).items():
        bullets = Table.grid(padding=(0, 1))
        for line in lines:
            bullets.add_row(" -", Text(line, "yellow" if words.warns(line) else ""))
        parts += [Text(name, "bold"), bullets, ""]
    if not parts:
        return Group()
    hints = [part for line in words.hint(by_method) for part in (Text(line), "")]
    return Group(Text.assemble(("In words", "bold"), f" ({words.SAYS})"), "", *parts, *hints)
