"""A federation in a notebook: its agents, examples, classes and columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from focusfl.util.html import Html, bar, card, columns, paragraph, table

if TYPE_CHECKING:
    from focusfl.data.federation import Federation

MAX_AGENTS = 40  # rows of the table
MAX_CLASSES = 30  # small bars beside each other
MAX_COLUMNS = 20  # names of columns


def overview(
    fed: Federation, agents: Sequence[str] = (), labels: Sequence[str] = (), features: Sequence[str] = ()
) -> Html:
    """Describe a federation.

    Args:
        fed: The federation.
        agents: The agents' names, [E]; empty: they have numbers.
        labels: The names of the classes; empty: they have numbers.
        features: The names of the columns.

    Returns:
        One line about all, and a table with a line per agent; of many agents the first are shown.
    """
    n, held = fed.training.sizes, fed.testing.sizes
    about = [summary(fed)]
    if features:
        more = f" and {len(features) - MAX_COLUMNS} more" if len(features) > MAX_COLUMNS else ""
        about.append(f"Columns: {', '.join(features[:MAX_COLUMNS])}{more}.")
    if labels:
        about.append(f"Classes: {', '.join(labels[:MAX_CLASSES])}{', ...' * (len(labels) > MAX_CLASSES)}.")
    head = ["agent", "training examples", "", "test examples"]
    head += ["true cluster"] * (fed.clusters is not None) + ["labels"]
    rows: list[list[object]] = []
    for e in range(min(fed.E, MAX_AGENTS)):
        cells: list[object] = [f"{e} {agents[e]}" if agents else e, int(n[e]), bar(int(n[e]), int(n.max()))]
        cells += [int(held[e]), *([int(fed.clusters[e])] if fed.clusters is not None else [])]
        rows.append([*cells, _labels(fed.training.of(e).y, fed.classes, labels)])
    left = [f"The first {MAX_AGENTS} of {fed.E} agents are shown."] * (fed.E > MAX_AGENTS)
    return card(f"Federation {fed.name}", *map(paragraph, about), table(head, rows), *map(paragraph, left))


def summary(fed: Federation) -> str:
    """Say in a sentence how large a federation is."""
    kind = "regression" if fed.classes is None else f"{fed.classes} classes"
    shape = " x ".join(map(str, fed.training.x.shape[1:]))
    n, held = int(fed.training.sizes.sum()), int(fed.testing.sizes.sum())
    return f"{fed.E} agents, {n} training and {held} test examples of shape {shape}, {kind}."


def _labels(y: Tensor, classes: int | None, names: Sequence[str]) -> Html | str:
    """The share of each class among an agent's labels as small bars; the range of the values in regression."""
    if classes is None:
        values = y.double()
        return f"{values.min():.3g} to {values.max():.3g}, mean {values.mean():.3g}"
    counts = (
        y.sum(0).long() if y.dim() > 1 else torch.bincount(y.long(), minlength=classes)
    )  # several labels, or one
    if classes > MAX_CLASSES:
        return f"{int((counts > 0).sum())} of {classes} classes"
    titles = [f"{names[c] if names else f'class {c}'}: {int(counts[c])}" for c in range(classes)]
    shares = (counts / counts.sum().clamp(min=1)).tolist()
    return columns(shares, max(shares), titles)
