"""The plots of a page as plain data, means over the seeds taken: what page.js draws. Runs have the same agents.

A plotting library's script would put five megabytes into every page. Ours is 150 lines, and its colours are the
style sheet's, so that plots follow light and dark, and print, by themselves.
"""

from __future__ import annotations

import json
import math
from statistics import mean, pstdev
from typing import Any

import numpy as np

from focusfl.report.axes import axis, order, side_by_side
from focusfl.report.labels import shown
from focusfl.report.section import Row

Plot = dict[str, Any]
Runs = dict[str, list[Row]]  # of one part, by the method's title
CURVES = {"avg_acc": "accuracy", "avg_loss": "loss", "agnostic_loss": "agnostic loss"}
POINTS = 250  # of a curve: more than a screen has room for
SCALES = {"linear": "linear", "square root": "root"}
RATIO = 20  # of the largest loss to the least, from which on the axis is logarithmic


class Plots:
    """The plots of one page, and the look of each method, the same on the whole page: 8 colours, then dashes."""

    def __init__(self, methods: list[str]) -> None:
        self.look = {method: f"c{i % 8} d{i // 8 % 4}" for i, method in enumerate(dict.fromkeys(methods))}
        self.plots: list[Plot] = []

    def place(self, plot: Plot) -> str:
        """Where page.js puts it."""
        self.plots.append(plot)
        return f'<div class="plot {plot["kind"]}" data-plot="{len(self.plots) - 1}"></div>'

    def json(self) -> str:
        """For a script element: nothing in it can end the element."""
        text = json.dumps(self.plots, separators=(",", ":"), allow_nan=False)
        return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")

    def bars(self, runs: Runs) -> Plot:
        """Each agent's excess risk: a panel for each method, agents in the groups of their true clusters."""
        first = next(iter(runs.values()))[0]
        panels: list[Plot] = []
        for name, rows in runs.items():
            risks = [[row["excess_risk"][e] for row in rows] for e in order(first)]
            over = f"mean ± standard deviation over {len(rows)} seed{'s' * (len(rows) > 1)}"
            numbers = {"mean": [short(mean(r)) for r in risks], "sd": [short(pstdev(r)) for r in risks]}
            panels.append({"name": name, "look": self.look[name], "over": over} | numbers)
        values = [0.0, *(v for panel in panels for v in panel["mean"])]
        axes = [{"name": name} | axis(kind, values, 4) for name, kind in SCALES.items()]
        return {"kind": "bars", "axes": axes, "panels": panels} | side_by_side(first)

    def lines(self, runs: Runs) -> Plot | None:
        """Accuracy and losses over the rounds: mean and range of the seeds. None: no history was kept."""
        kept = {name: [row["history"] for row in rows if row.get("history")] for name, rows in runs.items()}
        kept = {name: histories for name, histories in kept.items() if any(h["round"] for h in histories)}
        x = sorted({t for histories in kept.values() for h in histories for t in h["round"]})
        if not x:
            return None
        x = [x[round(i)] for i in np.linspace(0, len(x) - 1, min(len(x), POINTS)).tolist()]
        panels = []
        for key, label in CURVES.items():
            series = [_curve(histories, key, x) for histories in kept.values()]
            seen = [v for s in series for v in s["low"] + s["high"] if v is not None]
            if seen:
                log = key != "avg_acc" and min(seen) > 0 and max(seen) / min(seen) > RATIO
                panel = {"name": label + " (logarithmic)" * log, "axis": axis("log" if log else "linear", seen, 6)}
                panels.append(panel | {"series": series})
        methods = [{"name": name, "look": self.look[name]} for name in kept]
        across = axis("linear", [float(x[0]), float(x[-1])], 6)
        across["ticks"] = [t for t in across["ticks"] if isinstance(t, int)]
        return {"kind": "lines", "x": x, "axis": across, "methods": methods, "panels": panels}

    def labels(self, runs: Runs) -> Plot | None:
        """pi over the rounds, for every seed of every method that has labels."""
        methods = []
        for name, rows in runs.items():
            found = [run for row in rows if (run := shown(row)) is not None]
            if found and rows[0]["true_clusters"] is not None:
                right = sum(run["right"] for run in found)
                name += f" (right at the end: {right} of {len(found)} seed{'s' * (len(found) > 1)})"
            if found:
                methods.append({"name": name, "runs": found})
        if not methods:
            return None
        first, none = next(iter(runs.values()))[0], {"kind": "linear", "lo": 0, "hi": 1, "ticks": []}
        plot = {"kind": "labels", "axis": none, "methods": methods} | side_by_side(first)
        return plot | ({"groups": []} if first["true_clusters"] is None else {})


def _curve(histories: list[dict[str, Any]], key: str, x: list[int]) -> dict[str, list[float | None]]:
    by_round = [dict(zip(h["round"], h[key], strict=True)) for h in histories if h.get(key)]
    there = [[v for seen in by_round if (v := seen.get(t)) is not None and math.isfinite(v)] for t in x]
    made: dict[str, list[float | None]] = {"y": [], "low": [], "high": []}
    for values in there:
        three = (mean(values), min(values), max(values)) if values else None
        for i, name in enumerate(made):
            made[name].append(short(three[i]) if three else None)
    return made


def short(v: float) -> float:
    """Five digits are more than anyone sees in a plot."""
    return float(f"{v:.5g}")
