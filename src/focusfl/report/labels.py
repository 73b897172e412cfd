"""Labels pi of one run over the rounds, ready to draw: who is in which cluster, how surely, since when rightly."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from focusfl.report.axes import order
from focusfl.report.section import Row

CELLS = 4000  # labels of one round up to which the last round is shown where no history was kept
SURE = 8  # steps between "all clusters alike" and "this one for certain"


def shown(row: Row) -> dict[str, Any] | None:
    """`cells` are [agent, from, to, class]: stretches of rounds that look alike. None: no labels."""
    kept = (row.get("history") or {}).get("pi")
    if kept is None:
        if row["pi"] is None or len(row["pi"]) * len(row["pi"][0]) > CELLS:
            return None
        kept = {"round": [row["rounds"]], "pi": [row["pi"]]}
    pi = [[labels[e] for e in order(row)] for labels in kept["pi"]]
    colours = match(row["true_clusters"], most(kept["pi"][-1]), max(len(p) for labels in pi for p in labels))
    cells = []
    for j in range(len(pi[0])):
        looks = enumerate(_look(labels[j], colours) for labels in pi)
        for look, stretch in groupby(looks, key=lambda pair: pair[1]):
            rounds = [t for t, _ in stretch]
            cells.append([j, rounds[0], rounds[-1] + 1, look])
    name, since, right = f"seed {row['seed']}", right_from(row["true_clusters"], kept), row["ari"] == 1
    if right:
        name += f": right from round {since} on" if len(pi) > 1 and since is not None else ": right at the end"
    elif row["ari"] is not None:
        name += f": not right at the end (adjusted Rand index {row['ari']:.2f})"
    numbers = [[[int(p) if p in (0, 1) else round(p, 3) for p in ps] for ps in labels] for labels in pi]
    return {"name": name, "right": right, "rounds": kept["round"], "cells": cells, "pi": numbers}


def most(labels: list[list[float]]) -> list[int]:
    """The cluster with the largest label, agent by agent."""
    return [max(range(len(p)), key=p.__getitem__) for p in labels]


def right_from(true: list[int] | None, kept: dict[str, Any]) -> int | None:
    """The first of the rounds kept from which on the clusters are the true ones, up to their names.

    None: not at the end, or nobody knows.

    >>> right_from([0, 0, 1], {"round": [1, 5, 9], "pi": [[[1, 0]] * 3, *[[[0, 1], [0, 1], [1, 0]]] * 2]})
    5
    """
    since = None
    for t, labels in zip(reversed(kept["round"]), reversed(kept["pi"]), strict=True):
        found = most(labels)
        if true is None or not len(set(zip(true, found, strict=True))) == len(set(true)) == len(set(found)):
            break
        since = int(t)
    return since


def match(true: list[int] | None, found: list[int], M: int) -> list[int]:
    """A colour for each learned cluster: that of the true cluster it shares most agents with, else one of the rest.

    >>> match([0, 0, 1], [2, 2, 0], 3)
    [1, 2, 0]
    """
    if true is None:
        return list(range(M))
    names, pairs = sorted(set(true)), Counter(zip(found, true, strict=True))
    counts = np.array([[pairs[m, c] for c in names] for m in range(M)])
    matched = {int(m): int(c) for m, c in zip(*linear_sum_assignment(-counts), strict=True) if counts[m, c]}
    rest = iter(range(len(names), len(names) + M))
    return [matched[m] if m in matched else next(rest) for m in range(M)]


def _look(p: list[float], colours: list[int]) -> str:
    """Colour k: the largest label's; opacity o: how far it is from all alike (0) to certain (SURE)."""
    m, M = most([p])[0], len(p)
    sure = (M * p[m] - 1) / (M - 1) if M > 1 else 1.0
    return f"k{colours[m] % 6} o{round(SURE * min(max(sure, 0.0), 1.0))}"
