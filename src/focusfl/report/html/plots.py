"""The plots of a page as plain data, with means over the seeds: what page.js draws.

A plotting library's script would put five megabytes into every page. Ours is 150 lines, and its colours are those
of the style sheet, so that plots follow light and dark mode, and print, by themselves.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from statistics import mean, pstdev
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy.optimize import linear_sum_assignment

from focusfl.report.rows import LabelHistory, RoundHistory, Row, Runs, agent_numbers
from focusfl.util.files import visible

Plot: TypeAlias = dict[str, Any]
Curve: TypeAlias = Literal["avg_acc", "avg_loss", "agnostic_loss"]
CURVES: dict[Curve, str] = {"avg_acc": "accuracy", "avg_loss": "loss", "agnostic_loss": "agnostic loss"}
MAX_POINTS = 250  # of a curve: more than a screen has room for
BAR_SCALES = {"linear": "linear", "square root": "root"}
LOG_RATIO = 20  # of the largest loss to the least: from here on the axis is logarithmic
MAX_LABELS = 4000  # labels of one round, up to which the last round is shown where no history was kept
OPACITIES = 8  # steps from "all clusters alike" to "certainly this cluster"
WARP = {"linear": lambda v: v, "root": lambda v: math.copysign(abs(v) ** 0.5, v), "log": math.log10}
GROUP_GAP = 0.6  # between two groups of agents, in units of one agent


class Plots:
    """The plots of one page, and the look of each method, the same on the whole page: 8 colours, then dashes."""

    def __init__(self, methods: list[str]) -> None:
        self.look = {method: f"c{i % 8} d{i // 8 % 4}" for i, method in enumerate(dict.fromkeys(methods))}
        self.plots: list[Plot] = []

    def place(self, plot: Plot) -> str:
        """Add a plot to the page; return the element into which page.js draws it."""
        self.plots.append(plot)
        return f'<div class="plot {plot["kind"]}" data-plot="{len(self.plots) - 1}"></div>'

    def json(self) -> str:
        """All plots, for a script element: nothing in the text can end the element."""
        text = json.dumps(self.plots, separators=(",", ":"), allow_nan=False)
        return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")

    def bars(self, runs: Runs) -> Plot:
        """Each agent's excess risk: one panel per method, agents grouped by their true clusters.

        Args:
            runs: By method, with the same agents in all (rows.shared_agents).
        """
        first = next(iter(runs.values()))[0]
        panels: list[Plot] = []
        for name, rows in runs.items():
            risks = [[row["excess_risk"][e] for row in rows] for e in agent_order(first)]
            over = f"mean ± standard deviation over {len(rows)} seed{'s' * (len(rows) > 1)}"
            numbers = {"mean": [_short(mean(r)) for r in risks], "sd": [_short(pstdev(r)) for r in risks]}
            panels.append({"name": name, "look": self.look[name], "over": over} | numbers)
        values = [0.0, *(v for panel in panels for v in panel["mean"])]
        axes = [{"name": name} | axis(kind, values, 4) for name, kind in BAR_SCALES.items()]
        return {"kind": "bars", "axes": axes, "panels": panels} | agent_layout(first)

    def lines(self, runs: Runs) -> Plot | None:
        """Accuracy and losses over the rounds: mean and range of the seeds. None if no history was kept."""
        histories = {name: [h for row in rows if (h := row.get("history"))] for name, rows in runs.items()}
        histories = {name: each for name, each in histories.items() if any(h["round"] for h in each)}
        x = sorted({t for each in histories.values() for h in each for t in h["round"]})
        if not x:
            return None
        x = [x[round(i)] for i in np.linspace(0, len(x) - 1, min(len(x), MAX_POINTS)).tolist()]
        panels = []
        for key, label in CURVES.items():
            series = [_curve(each, key, x) for each in histories.values()]
            shown = [v for s in series for v in s["low"] + s["high"] if v is not None]
            if shown:
                log = key != "avg_acc" and min(shown) > 0 and max(shown) / min(shown) > LOG_RATIO
                name = label + " (logarithmic)" * log
                panels.append({"name": name, "axis": axis("log" if log else "linear", shown, 6), "series": series})
        methods = [{"name": name, "look": self.look[name]} for name in histories]
        across = axis("linear", [float(x[0]), float(x[-1])], 6)
        across["ticks"] = [t for t in across["ticks"] if isinstance(t, int)]
        return {"kind": "lines", "x": x, "axis": across, "methods": methods, "panels": panels}

    def labels(self, runs: Runs) -> Plot | None:
        """Soft labels over the rounds, for every seed of every method that has labels. None if there are none."""
        methods = []
        for name, rows in runs.items():
            panels = [panel for row in rows if (panel := label_panel(row)) is not None]
            if panels and rows[0]["true_clusters"] is not None:
                right = sum(panel["right"] for panel in panels)
                name += f" (right at the end: {right} of {len(panels)} seed{'s' * (len(panels) > 1)})"
            if panels:
                methods.append({"name": name, "runs": panels})
        if not methods:
            return None
        first, no_axis = next(iter(runs.values()))[0], {"kind": "linear", "lo": 0, "hi": 1, "ticks": []}
        plot = {"kind": "labels", "axis": no_axis, "methods": methods} | agent_layout(first)
        return plot | ({"groups": []} if first["true_clusters"] is None else {})


def _curve(histories: Sequence[RoundHistory], key: Curve, x: list[int]) -> dict[str, list[float | None]]:
    """Mean and range over the seeds in each of the rounds x; None where no seed has a number."""
    seeds = [dict(zip(h["round"], values, strict=True)) for h in histories if (values := h.get(key))]
    curve: dict[str, list[float | None]] = {"y": [], "low": [], "high": []}
    for t in x:
        values = [v for seed in seeds if (v := seed.get(t)) is not None and math.isfinite(v)]
        three = (mean(values), min(values), max(values)) if values else None
        for i, name in enumerate(curve):
            curve[name].append(_short(three[i]) if three else None)
    return curve


def _short(v: float) -> float:
    """Round to five digits, more than a plot can show."""
    return float(f"{v:.5g}")


# --- axes, and the places of agents on them


def axis(kind: str, values: list[float], gaps: int) -> dict[str, Any]:
    """Make an axis from the least to the largest of the values.

    Args:
        kind: linear, root (square root) or log.
        values: What it has to show.
        gaps: The approximate number of gaps between ticks.
    """
    lo, hi = min(values), max(values)
    if hi == lo:
        hi = lo + (abs(lo) or 1) * 1e-3
    return {"kind": kind, "lo": lo, "hi": hi, "ticks": ticks(kind, lo, hi, gaps)}


def ticks(kind: str, lo: float, hi: float, gaps: int) -> list[float]:
    """Choose round numbers for the ticks of an axis.

    >>> ticks("linear", 0.62, 0.97, 4)
    [0.7, 0.8, 0.9]
    >>> ticks("root", -0.1, 4.4, 5), ticks("log", 0.01, 40, 5)
    ([0, 2, 0.5], [10, 1, 0.1, 0.01])
    """
    if kind == "linear":
        raw = (hi - lo) / gaps
        power = 10.0 ** math.floor(math.log10(raw))
        step = power * next(m for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
        return [_tidy(i * step) for i in range(math.ceil(lo / step - 1e-9), math.floor(hi / step + 1e-9) + 1)]
    warp, powers = WARP[kind], [10.0**p for p in range(9, -10, -1)]
    if kind == "root":
        marks = [0.0, *(sign * m * p for p in powers for m in (5, 2, 1) for sign in (1, -1))]
    else:
        marks = [m * p for m in (1, 5, 2) for p in powers]
    chosen: list[float] = []
    apart, slack = (warp(hi) - warp(lo)) / gaps, 1e-9 * (hi - lo)
    for v in marks:
        if lo - slack <= v <= hi + slack and all(abs(warp(v) - warp(u)) >= apart for u in chosen):
            chosen.append(_tidy(v))
    return chosen or [_tidy(hi)]


def _tidy(v: float) -> float:
    short = float(f"{v:.9g}")
    return int(short) if short.is_integer() else short


def agent_order(row: Row) -> list[int]:
    """Return the agents' places in the row, sorted by true cluster where that is known."""
    true = row["true_clusters"]
    return sorted(range(len(row["loss"])), key=lambda e: (true[e] if true else 0, e))


def agent_layout(row: Row) -> dict[str, Any]:
    """Place the agents side by side, grouped by true cluster.

    Returns:
        In units of one agent: `slots`, the middle of each; `groups`, (name, from, to); `units`, the whole width;
        and `who`, the name of each.
    """
    true, agents, number = row["true_clusters"], agent_order(row), agent_numbers(row)
    slots: list[float] = []
    groups: list[tuple[str, float, float]] = []
    at = 0.0
    sizes = {str(c): true.count(c) for c in sorted(set(true))} if true else {"": len(agents)}
    for name, n in sizes.items():
        at += GROUP_GAP if groups else 0
        groups.append((name, round(at, 3), round(at + n, 3)))
        slots += [round(at + i + 0.5, 3) for i in range(n)]
        at += n
    named = row.get("names") or {e: f"agent {e}" for e in number}
    who = [visible(named[number[e]]) + (f", true cluster {true[e]}" if true else "") for e in agents]
    return {"slots": slots, "groups": groups, "units": round(at, 3), "who": who}


# --- soft labels


def label_panel(row: Row) -> dict[str, Any] | None:
    """Show which agent is in which cluster, how certainly, and since which round the clusters are right.

    Returns:
        `cells` are [agent, from, to, class]: ranges of rounds that look alike. None if there are no labels.
    """
    averages, pi = row.get("history"), row["pi"]
    history = averages["pi"] if averages else None
    if history is None:
        if pi is None or len(pi) * len(pi[0]) > MAX_LABELS:
            return None
        history = {"round": [row["rounds"]], "pi": [pi]}
    labels = [[each[e] for e in agent_order(row)] for each in history["pi"]]
    M = max(len(p) for each in labels for p in each)
    colours = match_colours(row["true_clusters"], largest_labels(history["pi"][-1]), M)
    cells = []
    for j in range(len(labels[0])):
        looks = enumerate(_look(each[j], colours) for each in labels)
        for look, same in groupby(looks, key=lambda pair: pair[1]):
            rounds = [t for t, _ in same]
            cells.append([j, rounds[0], rounds[-1] + 1, look])
    name, since, right = f"seed {row['seed']}", right_since(row["true_clusters"], history), row["ari"] == 1
    if right:
        name += f": right since round {since}" if len(labels) > 1 and since is not None else ": right at the end"
    elif row["ari"] is not None:
        name += f": not right at the end (adjusted Rand index {row['ari']:.2f})"
    numbers = [[[int(p) if p in (0, 1) else round(p, 3) for p in ps] for ps in each] for each in labels]
    return {"name": name, "right": right, "rounds": history["round"], "cells": cells, "pi": numbers}


def largest_labels(labels: list[list[float]]) -> list[int]:
    """Return the cluster with the largest label, agent by agent."""
    return [max(range(len(p)), key=p.__getitem__) for p in labels]


def right_since(true: list[int] | None, history: LabelHistory) -> int | None:
    """Find the first of the rounds since which the clusters are the true ones, up to their names.

    Returns:
        The round; None if they are not right at the end, or the true clusters are not known.

    >>> right_since([0, 0, 1], {"round": [1, 5, 9], "pi": [[[1, 0]] * 3, *[[[0, 1], [0, 1], [1, 0]]] * 2]})
    5
    """
    since = None
    for t, labels in zip(reversed(history["round"]), reversed(history["pi"]), strict=True):
        clusters = largest_labels(labels)
        if true is None or not len(set(zip(true, clusters, strict=True))) == len(set(true)) == len(set(clusters)):
            break
        since = int(t)
    return since


def match_colours(true: list[int] | None, clusters: list[int], M: int) -> list[int]:
    """Choose a colour for each learned cluster: that of the true cluster with which it shares most agents.

    >>> match_colours([0, 0, 1], [2, 2, 0], 3)
    [1, 2, 0]
    """
    if true is None:
        return list(range(M))
    names, pairs = sorted(set(true)), Counter(zip(clusters, true, strict=True))
    counts = np.array([[pairs[m, c] for c in names] for m in range(M)])
    matched = {int(m): int(c) for m, c in zip(*linear_sum_assignment(-counts), strict=True) if counts[m, c]}
    rest = iter(range(len(names), len(names) + M))
    return [matched[m] if m in matched else next(rest) for m in range(M)]


def _look(p: list[float], colours: list[int]) -> str:
    """Colour k: that of the largest label; opacity o: from all labels alike (0) to certain (OPACITIES)."""
    m, M = largest_labels([p])[0], len(p)
    certainty = (M * p[m] - 1) / (M - 1) if M > 1 else 1.0
    return f"k{colours[m] % 6} o{round(OPACITIES * min(max(certainty, 0.0), 1.0))}"
