"""What is shown of a sweep: the validation loss of every point, and test results of the chosen points alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import mean, pstdev
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from focusfl.algorithms import title
from focusfl.report.html.plots import LOG_RATIO, WARP, axis
from focusfl.report.rows import METRICS, Metric, Row, values

SHOWN: tuple[Metric, ...] = ("avg_loss", "avg_acc", "faa")  # of the test data, for chosen points
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")  # Okabe and Ito
PANEL, HEIGHT, LEFT, TOP, BOTTOM = 300, 240, 60, 30, 50  # of a panel of the plot, in pixels


@dataclass(frozen=True)
class Point:
    """One method with one value for each swept option.

    Attributes:
        method: The method as the user wrote it.
        options: The values of the swept options that apply to it.
        rows: Its finished runs, one per seed.
        diverged: Why a run has no result, by seed.
    """

    method: str
    options: dict[str, Any]
    rows: tuple[Row, ...]
    diverged: dict[int, str]

    @property
    def validation(self) -> float | None:
        """The mean validation loss over the seeds; None if a run diverged or none has finished."""
        return None if self.diverged or not self.rows else mean(row["validation_loss"] for row in self.rows)


def choose(points: Sequence[Point]) -> list[Point]:
    """Return the point of each method with the least validation loss; test data has no say."""
    best: dict[str, tuple[float, Point]] = {}
    for point in points:
        score = point.validation
        if score is not None and (point.method not in best or score < best[point.method][0]):
            best[point.method] = (score, point)
    return [point for _, point in best.values()]


def table(points: Sequence[Point]) -> Table:
    """Show the validation loss of every point, and what the chosen ones reach on the test data."""
    chosen = choose(points)
    keys = list(dict.fromkeys(key for point in points for key in point.options))
    columns = [key for key in SHOWN if any(values(point.rows, key) for point in points)]
    made = Table(title="Mean over the seeds; * is chosen on validation data", box=SIMPLE_HEAD, pad_edge=False)
    lines = []
    for point in points:
        best = any(point is one for one in chosen)
        options = [str(point.options.get(key, "")) for key in keys]
        numbers = [f"{mean(values(point.rows, key)):.4f}" if best else "" for key in columns]
        lines.append([title(point.method), *options, f"{_score(point)} {'*' if best else ' '}", *numbers])
    for i, heading in enumerate(["method", *keys, "validation loss", *(f"test {METRICS[key]}" for key in columns)]):
        folds = i <= len(keys)  # names and options; a number would lose digits
        width = None if folds else max((len(line[i]) for line in lines), default=0)
        made.add_column(heading, justify="right" if i else "left", overflow="fold", min_width=width)
    for line, point in zip(lines, points, strict=True):
        made.add_row(*line, style="bold" if any(point is one for one in chosen) else None)
    return made


def _score(point: Point) -> str:
    """Return the mean validation loss with the standard deviation over the seeds, or why there is none."""
    if point.validation is None:
        return "diverged" if point.diverged else "-"
    spread = f"±{pstdev(row['validation_loss'] for row in point.rows):.1g}" if len(point.rows) > 1 else ""
    return f"{point.validation:.4f}{spread}"


def plot(points: Sequence[Point]) -> str:
    """Draw the validation loss for each value of each swept option, as SVG.

    A dot is a point of the sweep. A line joins the best dots of a method: those with the best other options.
    """
    scored = [(point, score) for point in points if (score := point.validation) is not None]
    keys = list(dict.fromkeys(key for point, _ in scored for key in point.options))
    methods = list(dict.fromkeys(point.method for point in points))
    look = {method: COLOURS[i % len(COLOURS)] for i, method in enumerate(methods)}
    width, height = PANEL * max(len(keys), 1) + LEFT, HEIGHT + 20 * len(methods)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{LEFT}" y="16">Validation loss, mean over the seeds</text>',
    ]
    for i, key in enumerate(keys):
        parts.append(f'<g transform="translate({i * PANEL + LEFT} {TOP})">{_panel(key, scored, look)}</g>')
    for i, method in enumerate(methods):
        y = HEIGHT + 20 * i
        parts.append(f'<circle cx="{LEFT}" cy="{y}" r="4" fill="{look[method]}"/>')
        parts.append(f'<text x="{LEFT + 10}" y="{y + 4}">{escape(title(method))}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _panel(key: str, scored: list[tuple[Point, float]], look: dict[str, str]) -> str:
    """Draw one option: its values side by side, the loss upwards."""
    shown = [(point.method, str(point.options[key]), score) for point, score in scored if key in point.options]
    names, losses = list(dict.fromkeys(name for _, name, _ in shown)), [score for *_, score in shown]
    log = min(losses) > 0 and max(losses) / min(losses) > LOG_RATIO
    scale = axis("log" if log else "linear", losses, 4)
    warp, tall, wide = WARP[scale["kind"]], HEIGHT - TOP - BOTTOM, PANEL - LEFT

    low, high = float(warp(scale["lo"])), float(warp(scale["hi"]))

    def up(loss: float) -> float:
        return round(tall * (high - float(warp(loss))) / (high - low), 1)

    across = {name: round(wide * (i + 0.5) / len(names), 1) for i, name in enumerate(names)}
    parts = [f'<path d="M0 0V{tall}H{wide}" fill="none" stroke="#888"/>']
    for tick in scale["ticks"]:
        parts.append(f'<text x="-5" y="{up(tick) + 4}" text-anchor="end">{tick}</text>')
    for name, x in across.items():
        parts.append(f'<text x="{x}" y="{tall + 16}" text-anchor="middle">{escape(name)}</text>')
    parts.append(f'<text x="{wide / 2}" y="{tall + 34}" text-anchor="middle">{escape(key)}</text>')
    for method, colour in look.items():
        dots = [(name, score) for own, name, score in shown if own == method]
        best = {name: min(score for other, score in dots if other == name) for name, _ in dots}
        line = " ".join(f"{across[name]},{up(best[name])}" for name in names if name in best)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}"/>')
        for name, score in dots:
            what = escape(f"{title(method)}, {key}={name}: {score:.4f}")
            parts.append(f'<circle cx="{across[name]}" cy="{up(score)}" r="3" fill="{colour}">')
            parts.append(f"<title>{what}</title></circle>")
    return "".join(parts)
