"""Results as tables and sentences in the terminal."""

from __future__ import annotations

from collections import Counter
from statistics import mean, pstdev

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from focusfl.algorithms import title
from focusfl.report import certainty, sentences
from focusfl.report import worse_off as worse
from focusfl.report.names import not_shown, who
from focusfl.report.notes import notes
from focusfl.report.numbers import compact
from focusfl.report.rows import (
    Row,
    Runs,
    agent_numbers,
    by_method,
    clusters_right,
    columns,
    meaningful_goals,
    shared_agents,
)

MAX_BAR_METHODS = 4  # methods whose bars fit side by side
BAR_WIDTH = 16  # characters
MAX_AGENTS = 40  # lines of the table of agents: of more agents the first and the last are shown


def show(rows: list[Row], left_out: dict[str, str], console: Console) -> None:
    """Print all tables, then the sentences.

    Args:
        rows: The rows of results.json.
        left_out: The methods that could not run, and why.
        console: Where to print. Names come from files: with `markup=False` they are shown as they are.
    """
    runs = by_method(rows)
    absent = [f"{title(method)}: left out. {why}" for method, why in left_out.items()]
    remarks = [Text(f"Note: {line}") for line in notes(rows)]
    console.print(Group(methods(runs), *remarks, *absent, faa_intervals(runs), worse_off(runs)))
    console.print(
        Group(excess_risks(runs), negative(runs), clusters(runs), rounds_to_accuracy(runs), in_words(runs))
    )


def methods(runs: Runs) -> Table:
    """Mean and standard deviation over the seeds; the best mean of each column is bold."""
    first = next(iter(runs.values()))
    shown = columns([row for rows in runs.values() for row in rows])
    about = f"{first[0]['data']}: mean±standard deviation over {len(first)} seed(s)"
    table = Table(title=about, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    each = {name: [column.values(rows) for column in shown] for name, rows in runs.items()}
    digits = [3 if column.key == "avg_acc" else 4 for column in shown]
    lines = {name: list(map(_mean_and_spread, numbers, digits)) for name, numbers in each.items()}
    table.add_column("method", overflow="fold")
    for i, column in enumerate(shown):  # a narrow terminal folds the names, never the numbers
        width = max(len(line[i]) for line in lines.values())
        table.add_column(column.heading, justify="right", min_width=width)
    table.add_column("clusters right", justify="right", width=8)
    means = {name: [mean(found) if found else None for found in numbers] for name, numbers in each.items()}
    best = [
        column.best(v for numbers in means.values() if (v := numbers[i]) is not None)
        for i, column in enumerate(shown)
    ]
    for name, cells in lines.items():
        bold = [v is not None and v == b for v, b in zip(means[name], best, strict=True)]
        marked = [Text(cell, "bold" if is_best else "") for cell, is_best in zip(cells, bold, strict=True)]
        table.add_row(name, *marked, clusters_right(runs[name]))
    return table


def _mean_and_spread(numbers: list[float], digits: int) -> str:
    if not numbers:
        return "-"
    return compact(mean(numbers), digits) + (f"±{pstdev(numbers):.1g}" if len(numbers) > 1 else "")


def faa_intervals(runs: Runs) -> RenderableType:
    """Intervals of FAA, and which methods are less fair than the fairest by more than noise."""
    made = certainty.faa_table(runs)
    if made is None:
        return Group()
    head, lines = made
    table = Table(title=certainty.TITLE, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for i, heading in enumerate(head):
        folds = i in (0, len(head) - 2)  # the name and the difference; other columns would lose digits or "yes"
        width = None if folds else max(len(line[i]) for line in lines)
        table.add_column(heading, justify="right" if i else "left", overflow="fold", min_width=width)
    for line in lines:
        table.add_row(*line)
    return table


def worse_off(runs: Runs) -> RenderableType:
    """How many agents are worse off than alone, and than under FedAvg."""
    made = worse.table(runs)
    if made is None:
        return Group()
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for i, heading in enumerate(made[0]):
        table.add_column(heading, justify="right" if i else "left", overflow="fold")
    for line in made[1]:
        table.add_row(*line)
    return Group(Text(worse.heading(runs), style="italic"), table)


def negative(runs: Runs) -> RenderableType:
    """How many excess risks are negative, and what that means."""
    lines = certainty.negative_risks(runs)
    return Group(Text(" ".join(lines)), "") if lines else Group()


def excess_risks(runs: Runs) -> RenderableType:
    """Each agent's excess risk, for the agents that all runs have; the others are named below."""
    runs, missing = shared_agents(runs)
    first = next(iter(runs.values()))[0]
    if not first["loss"]:
        return sentences.NO_SHARED_AGENT
    risks = {
        name: [mean(each) for each in zip(*(row["excess_risk"] for row in rows), strict=True)]
        for name, rows in runs.items()
    }
    table = agent_bars(first, risks) if len(runs) <= MAX_BAR_METHODS else profiles(first, risks)
    table.title = "Each agent's excess risk, mean over the seeds"
    table.caption = not_shown(missing) if missing else None
    return table


def agent_bars(first: Row, risks: dict[str, list[float]]) -> Table:
    """One line per agent, one bar per method: the shorter and the more alike the bars, the fairer."""
    table = Table(box=SIMPLE_HEAD)
    true, number, E = first["true_clusters"], agent_numbers(first), len(first["loss"])
    table.add_column("agent", justify="left" if first.get("names") else "right")
    if true is not None:
        table.add_column("true cluster", justify="right")
    for name in risks:
        table.add_column(name)
    longest = max((abs(v) for values in risks.values() for v in values), default=0) or 1
    for e in range(E):
        if E > MAX_AGENTS and MAX_AGENTS // 2 <= e < E - MAX_AGENTS // 2:
            if e == MAX_AGENTS // 2:
                table.add_row("...", *("" for _ in range(len(risks) + (true is not None))))
            continue
        bars = [
            f"{compact(values[e], sign='+')} {'█' * round(BAR_WIDTH * abs(values[e]) / longest)}"
            for values in risks.values()
        ]
        agent = Text(who(first, [number[e]]).removeprefix("agent "))
        table.add_row(agent, *([] if true is None else [str(true[e])]), *bars)
    return table


def profiles(first: Row, risks: dict[str, list[float]]) -> Table:
    """One line per method, one small bar per agent, all to the same scale: the square root."""
    table = Table("method", "one bar per agent", box=SIMPLE_HEAD)
    table.add_column("smallest", justify="right")
    table.add_column("largest", justify="right")
    top = max(max(values) for values in risks.values()) or 1
    for name, values in risks.items():
        bars = "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * (max(v, 0) / top) ** 0.5))] for v in values[:100])
        worst = agent_numbers(first)[values.index(max(values))]
        largest = Text(f"{compact(max(values), sign='+')} ({who(first, [worst])})")
        table.add_row(name, bars, compact(min(values), sign="+"), largest)
    return table


def clusters(runs: Runs) -> RenderableType:
    """How many agents of each true cluster c are in which learned cluster m."""
    table = Table(title="Learned clusters and true clusters (c → m x number of agents)", box=SIMPLE_HEAD)
    for heading in ("method", "seed", "true → learned", "adjusted Rand index"):
        table.add_column(heading)
    for name, rows in runs.items():
        for row in rows:
            true = row["true_clusters"]
            if row["pi"] is None or true is None:
                continue
            pairs = Counter(zip(true, row["clusters"], strict=True))
            parts = [
                f"{c} → " + " + ".join(f"{m}x{n}" for (t, m), n in sorted(pairs.items()) if t == c)
                for c in sorted(set(true))
            ]
            table.add_row(name, str(row["seed"]), "   ".join(parts), f"{row['ari']:.2f}")
    return table if table.row_count else Group()


def rounds_to_accuracy(runs: Runs) -> RenderableType:
    """The first round whose average accuracy reaches each goal, seed by seed.

    There is nothing to show in regression, or where no run reached a goal, or all reached every one at once. Goals
    that a constant prediction reaches are left out.
    """
    goals = meaningful_goals(row for rows in runs.values() for row in rows)
    reached = {
        name: [{k: t for k, t in (row.get("rounds_to") or {}).items() if k in goals} for row in rows]
        for name, rows in runs.items()
    }
    rounds = {t for seeds in reached.values() for each in seeds for t in each.values()}
    if not all(each for seeds in reached.values() for each in seeds) or rounds <= {None, 1}:
        return Group()
    table = Table(title="First round with that average accuracy, one value per seed", box=SIMPLE_HEAD)
    table.add_column("method")
    for goal in goals:
        table.add_column(f"{float(goal):.0%}", justify="right")
    for name, seeds in reached.items():
        table.add_row(name, *(" ".join(str(each.get(goal) or "-") for each in seeds) for goal in goals))
    return table


def in_words(runs: Runs) -> RenderableType:
    """What the methods that group agents found; warnings are coloured."""
    parts: list[RenderableType] = []
    for name, lines in sentences.explain_methods(runs).items():
        bullets = Table.grid(padding=(0, 1))
        for line in lines:
            bullets.add_row(" -", Text(line, "yellow" if line.startswith(sentences.WARNING) else ""))
        parts += [Text(name, "bold"), bullets, ""]
    if not parts:
        return Group()
    hint = sentences.baseline_hint(runs)
    parts += [Text(hint), ""] if hint else []
    return Group(Text.assemble(("In words", "bold"), f" ({sentences.what_counts(runs)})"), "", *parts)
