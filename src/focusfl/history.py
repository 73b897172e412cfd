"""history.jsonl: one line a round, readable while the run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from focusfl import files
from focusfl.engines import Scores
from focusfl.metrics import agnostic_loss, average

NAME = "history.jsonl"
GOALS = (0.7, 0.8, 0.85, 0.9)  # average accuracies of the paper's rounds-to-accuracy tables
PER_AGENT = 1000  # up to so many agents, their own numbers are kept for every round


class History:
    """Appends to the file in `folder`, after dropping what a killed run wrote beyond its last checkpoint."""

    def __init__(self, folder: Path, begun: int) -> None:
        self.path = folder / NAME
        kept = [row for row in read(folder) if row["round"] <= begun] if begun else []
        self.seconds = sum(row["seconds"] for row in kept)
        files.write_text(self.path, "".join(json.dumps(row) + "\n" for row in kept))

    def write(self, t: int, scores: Scores | None, pi: Tensor | None, seconds: float) -> None:
        row: dict[str, Any] = {"round": t, "seconds": round(seconds, 6)}
        if scores is not None:
            row |= {"avg_loss": average(scores.loss), "agnostic_loss": agnostic_loss(scores.loss)}
            row |= {"avg_acc": None if scores.acc is None else average(scores.acc)}
            if len(scores.loss) <= PER_AGENT:
                row |= {
                    "loss": scores.loss.tolist(),
                    "acc": None if scores.acc is None else scores.acc.tolist(),
                }
                row |= {"pi": None if pi is None else pi.tolist()}
        with self.path.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(row) + "\n")


def rounds_to(rows: list[dict[str, Any]], goals: tuple[float, ...] = GOALS) -> dict[str, int | None] | None:
    """The first round whose average accuracy reaches each goal; None: never. None at all in regression.

    >>> rounds_to([{"round": 1, "avg_acc": 0.6}, {"round": 2, "avg_acc": 0.83}])
    {'0.7': 2, '0.8': 2, '0.85': None, '0.9': None}
    """
    seen = [(row["round"], row["avg_acc"]) for row in rows if row.get("avg_acc") is not None]
    if not seen:
        return None
    return {str(goal): next((t for t, acc in seen if acc >= goal), None) for goal in goals}


def read(folder: Path) -> list[dict[str, Any]]:
    """The rounds written so far; a last line cut short by a kill is left out."""
    path = folder / NAME
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def thin(rows: list[dict[str, Any]], most: int = 40) -> dict[str, Any]:
    """The same, small enough for git and for a page.

    Averages to five digits: of the first 60 evaluations, then of every fifth. Labels of at most `most` rounds,
    evenly spread in logs, since they move early. The first and the last are always there.
    """
    every = [row for row in rows if "avg_loss" in row]
    seen = [row for i, row in enumerate(every) if i < 60 or i % 5 == 4 or i == len(every) - 1]
    names = ("avg_loss", "avg_acc", "agnostic_loss")
    out: dict[str, Any] = {"round": [row["round"] for row in seen]}
    for name in names:
        values = [row[name] for row in seen]
        out[name] = None if not values or values[0] is None else [float(f"{v:.5g}") for v in values]
    labelled = [row for row in every if row.get("pi") is not None]
    out["pi"] = None
    if labelled and len(labelled[0]["pi"]) * len(labelled[0]["pi"][0]) <= 400:
        last = len(labelled) - 1
        steps = {round((last + 1) ** (i / (most - 1))) - 1 for i in range(most)} if last else {0}
        picked = [labelled[i] for i in sorted(steps)]
        pi = [[[round(p, 3) for p in agent] for agent in row["pi"]] for row in picked]
        out["pi"] = {"round": [row["round"] for row in picked], "pi": pi}
    return out
