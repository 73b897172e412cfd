"""Draw the figure of benchmarks/scale.py as SVG: time per participating agent, and memory, by number of agents."""

from __future__ import annotations

import math
from typing import Any

WIDTH, HEIGHT, LEFT, TOP = 300, 180, 50, 30
INK, LINE = "#777", "#2f7ed8"  # readable on a white and on a black background


def figure(rows: list[dict[str, Any]]) -> str:
    """Return the SVG for the rows of scale.json."""
    agents = [row["agents"] for row in rows]
    panels = [
        ("microseconds per participating agent", [1e6 * row["seconds_per_agent"] for row in rows]),
        ("peak memory in GB, without the data", [(row["peak"] - row["data"]) / 1e9 for row in rows]),
    ]
    drawn = "".join(_panel(i * (WIDTH + LEFT), name, agents, values) for i, (name, values) in enumerate(panels))
    size = f'width="{2 * (WIDTH + LEFT)}" height="{HEIGHT + TOP + 40}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">{drawn}</svg>\n'


def _panel(x0: float, name: str, agents: list[int], values: list[float]) -> str:
    low, high = math.log10(agents[0]), math.log10(agents[-1])
    top = max(values) * 1.15
    at = [
        (x0 + LEFT + (WIDTH - LEFT) * (math.log10(a) - low) / (high - low), TOP + HEIGHT * (1 - v / top))
        for a, v in zip(agents, values, strict=True)
    ]
    floor = TOP + HEIGHT
    parts = [f'<text x="{x0 + LEFT}" y="16" fill="{INK}">{name}</text>']
    parts.append(f'<path d="M{x0 + LEFT} {TOP}V{floor}H{x0 + WIDTH}" fill="none" stroke="{INK}"/>')
    for (x, y), a, v in zip(at, agents, values, strict=True):
        parts.append(f'<text x="{x}" y="{floor + 16}" text-anchor="middle" fill="{INK}">{a:,}</text>')
        parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{LINE}"/>')
        parts.append(f'<text x="{x}" y="{y - 8}" text-anchor="middle" fill="{INK}">{v:.3g}</text>')
    points = " ".join(f"{x},{y}" for x, y in at)
    parts.append(f'<polyline points="{points}" fill="none" stroke="{LINE}" stroke-width="2"/>')
    parts.append(
        f'<text x="{x0 + (LEFT + WIDTH) / 2}" y="{floor + 34}" text-anchor="middle" fill="{INK}">agents</text>'
    )
    return "".join(parts)
