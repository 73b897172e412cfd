"""A figure of a run: each agent's loss, the curves over the rounds, and which agent is in which cluster.

It is drawn with matplotlib's objects, never with pyplot: no window opens, and no global state changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from math import isfinite
from typing import TYPE_CHECKING, Any

from focusfl.algorithms import title
from focusfl.report.gains import BASELINES, compare_losses
from focusfl.report.names import CONFIDENT_LABEL, groups
from focusfl.report.rows import Row, agent_numbers
from focusfl.util.errors import InputError
from focusfl.util.files import visible
from focusfl.util.html import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_AGENTS = 40  # lines: of more agents those with the largest losses are shown
MAX_NAME = 24  # characters of an agent's name
LOG_RATIO = 20  # of the largest loss to the least: from here on the axis is logarithmic
MARKERS = "osD^vP"  # beside colours: they differ in print, too
NO_CURVES = "No curves over the rounds, as they were not evaluated: fit with eval_every=1 to have them."
CURVES = {  # columns of a history, and how they look
    "avg_loss": ("mean of the agents", "-", COLOURS[0]),
    "agnostic_loss": ("worst agent", "--", COLOURS[4]),
    "validation_loss": ("mean on validation data", ":", COLOURS[2]),
}


def figure(row: Row, others: Sequence[Row] = (), history: Mapping[str, Sequence[Any]] | None = None) -> Figure:
    """Draw a run.

    Args:
        row: The run.
        others: Other runs on the same agents with the same seed.
        history: One list per quantity, `round` and `avg_loss` at least; without it there are no curves.

    Returns:
        The figure. Its titles say what was found. `figure.savefig("run.png")` writes it.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError('plot: matplotlib is not installed: pip install "focusfl[plot]"') from error

    class NotebookFigure(Figure):
        """A figure that a notebook shows without pyplot."""

        def _repr_png_(self) -> bytes:
            png = BytesIO()
            self.savefig(png, format="png")
            return png.getvalue()

    panels: list[tuple[float, Callable[[Axes], None]]] = [(1.5, lambda axes: _losses(axes, row, others))]
    curves = {name: _points(history or {}, name) for name in CURVES}
    if len(curves["avg_loss"]) > 1:
        panels.append((1.3, lambda axes: _curves(axes, curves)))
    if row["pi"] is not None:
        panels.append((1.0, lambda axes: _cluster_map(axes, row)))
    E = min(len(row["loss"]), MAX_AGENTS)
    widths = [width for width, _ in panels]
    made = NotebookFigure(
        figsize=(4.2 * sum(widths), max(3.6, 1.6 + 0.26 * E)), layout="constrained", facecolor="white"
    )
    all_axes = made.subplots(1, len(panels), squeeze=False, width_ratios=widths)[0]
    for axes, (_, draw) in zip(all_axes, panels, strict=True):
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_horizontalalignment("left")
        axes.title.set_x(0)
    handles, labels = (each[::-1] for each in all_axes[0].get_legend_handles_labels())  # the run itself first
    made.legend(handles, labels, loc="outside lower left", ncols=len(labels), fontsize="small", frameon=False)
    about = _plain(f"{title(row['method'])} on {row['data']}, seed {row['seed']}")
    if len(curves["avg_loss"]) < 2 <= len((history or {}).get("round", ())):
        about += f"\n{NO_CURVES}"
    made.suptitle(about, fontsize="medium", x=0.01, ha="left")
    return made


def _plain(text: str) -> str:
    """Text from outside: control characters are visible, and a dollar sign begins no formula."""
    return visible(text).replace("$", r"\$")


def _names(row: Row, places: Sequence[int]) -> list[str]:
    numbers, names = agent_numbers(row), row.get("names")
    full = [str(names[numbers[i]]) if names else str(numbers[i]) for i in places]
    return [
        _plain(name if len(name) <= MAX_NAME else name[: MAX_NAME - 1] + "\N{HORIZONTAL ELLIPSIS}") for name in full
    ]


def _shown(row: Row) -> list[int]:
    """The places of the agents shown, grouped by cluster and from the largest loss to the least."""
    worst = sorted(range(len(row["loss"])), key=lambda i: -row["loss"][i])[:MAX_AGENTS]
    return sorted(worst, key=lambda i: (row["clusters"][i] if row["pi"] is not None else 0, -row["loss"][i]))


def _agent_axis(axes: Axes, row: Row, places: Sequence[int]) -> None:
    axes.set_yticks(range(len(places)), _names(row, places), fontsize="small")
    axes.set_ylim(len(places) - 0.5, -0.5)
    some = f"\n{MAX_AGENTS} of {len(row['loss'])} shown" if len(row["loss"]) > len(places) else ""
    axes.set_ylabel(f"agent{some}")


def _losses(axes: Axes, row: Row, others: Sequence[Row]) -> None:
    """One line per agent, one mark per method; a bar joins the marks of an agent."""
    places = _shown(row)
    series = {title(row["method"]): row["loss"]} | {title(other["method"]): other["loss"] for other in others}
    if row["bayes_kind"] != "none" and not any(other["algorithm"] == "local" for other in others):
        alone = row["bayes_kind"] == "agent"
        series["training alone" if alone else "best loss"] = row["bayes"]
    for y, i in enumerate(places):
        each = [values[i] for values in series.values()]
        axes.plot([min(each), max(each)], [y, y], color="#d1d5db", linewidth=3, zorder=1, solid_capstyle="round")
    for k, (name, values) in reversed(list(enumerate(series.items()))):  # the run itself on top
        look: dict[str, Any] = {
            "color": COLOURS[k % len(COLOURS)],
            "marker": MARKERS[k % len(MARKERS)],
            "zorder": 3 if k == 0 else 2,
        }
        axes.scatter(
            [values[i] for i in places], range(len(places)), s=46 if k == 0 else 30, label=_plain(name), **look
        )
    _agent_axis(axes, row, places)
    marked = [v for values in series.values() for v in values]
    if min(marked) > 0 and max(marked) > LOG_RATIO * min(marked):
        axes.set_xscale("log")
    axes.set_xlabel("loss on the agent's test data (lower is better)")
    axes.grid(axis="x", color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_title(_plain(_losses_title(row, others)), fontsize="medium")


def _losses_title(row: Row, others: Sequence[Row]) -> str:
    """Who gains over FedAvg, or over the first of the others; without any, who is worst off."""
    rivals = sorted(others, key=lambda other: other["algorithm"] != "fedavg")
    gains = compare_losses([row], rivals[:1])
    if gains is None:
        risk = row["excess_risk"]
        worst = risk.index(max(risk))
        return f"Worst off: agent {_names(row, [worst])[0]}, excess risk {risk[worst]:.2g}"
    against = BASELINES.get(rivals[0]["algorithm"], title(rivals[0]["method"]))
    lose = "loses" if len(gains.lost) == 1 else "lose"
    gain = "gains" if len(gains.gained) == 1 else "gain"
    few = f"{len(gains.lost) or 'none'} {lose}"
    return f"{len(gains.gained)} of {len(gains.pairs)} agents {gain} over {against}, {few}"


def _points(history: Mapping[str, Sequence[Any]], name: str) -> list[tuple[int, float]]:
    """The rounds in which a quantity was measured, and its values."""
    pairs = zip(history.get("round", ()), history.get(name, ()), strict=False)
    return [(t, v) for t, v in pairs if v is not None and isfinite(v)]


def _curves(axes: Axes, curves: Mapping[str, list[tuple[int, float]]]) -> None:
    """The mean loss and the worst agent's loss, round by round."""
    for (label, style, colour), points in zip(CURVES.values(), curves.values(), strict=True):
        if points:
            axes.plot(*zip(*points, strict=True), style, color=colour, label=label, linewidth=1.8)
    drawn = [v for points in curves.values() for _, v in points]
    if min(drawn) > 0 and max(drawn) > LOG_RATIO * min(drawn):
        axes.set_yscale("log")
    axes.set_xlabel("round")
    axes.set_ylabel("loss")
    axes.grid(color="#e5e7eb", linewidth=0.8)
    axes.legend(fontsize="small", frameon=False)
    (first, before), (last, now) = curves["avg_loss"][0], curves["avg_loss"][-1]
    axes.set_title(f"Mean loss {before:.3g} after round {first}, {now:.3g} after {last}", fontsize="medium")


def _cluster_map(axes: Axes, row: Row) -> None:
    """Agents by clusters: the darker, the larger the label."""
    pi, places = row["pi"] or [], _shown(row)
    M = len(pi[0])
    labels = [[pi[i][m] for m in range(M)] for i in places]
    axes.imshow(labels, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    if M <= 8:
        for y, each in enumerate(labels):
            for m, p in enumerate(each):
                axes.text(
                    m,
                    y,
                    f"{p:.2f}",
                    ha="center",
                    va="center",
                    fontsize="x-small",
                    color="white" if p > 0.55 else "#374151",
                )
    axes.set_xticks(range(M), [str(m) for m in range(M)])
    axes.set_xlabel("cluster")
    _agent_axis(axes, row, places)
    unsure = sum(max(each) < CONFIDENT_LABEL for each in pi)
    count = len(groups(row))
    sure = "all labels confident" if not unsure else f"{unsure} agent{'s' * (unsure > 1)} uncertain"
    axes.set_title(f"{count} group{'s' * (count > 1)}, {sure}", fontsize="medium")
