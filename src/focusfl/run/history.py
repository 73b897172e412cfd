"""history.jsonl: one line per round, readable while the run continues."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from focusfl.engines import Scores
from focusfl.fairness.metrics import agnostic_loss, average
from focusfl.util import files

NAME = "history.jsonl"
GOALS = (0.7, 0.8, 0.85, 0.9)  # average accuracies of the paper's rounds-to-accuracy tables
MAX_LABELLED_ROUNDS = 40  # rounds for which labels are kept in a thin history ...
MAX_LABELS = 400  # ... if one round has no more labels than this
MAX_AGENTS = 1000  # up to this many agents, each agent's own numbers are kept for every round


class History:
    """Appends to the file in `folder`, after dropping what a killed run wrote beyond its last checkpoint.

    Without a folder only the seconds of training are counted.
    """

    def __init__(self, folder: Path | None, begun: int) -> None:
        self.path, self.seconds = None if folder is None else folder / NAME, 0.0
        if folder is not None and self.path is not None:
            earlier = [row for row in read(folder) if row["round"] <= begun] if begun else []
            self.seconds = sum(row["seconds"] for row in earlier)
            files.write_text(self.path, "".join(json.dumps(row) + "\n" for row in earlier))

    def write(
        self, t: int, scores: Scores | None, pi: Tensor | None, seconds: float, dropped: Mapping[int, str]
    ) -> None:
        """Add a round. Scores that some agents did not send are left out."""
        self.seconds += seconds
        if self.path is None:
            return
        row: dict[str, Any] = {"round": t, "seconds": round(seconds, 6)}
        if dropped:
            row["dropped"] = {str(e): why for e, why in dropped.items()}
        if scores is not None and not scores.dropped:
            row |= {"avg_loss": average(scores.loss), "agnostic_loss": agnostic_loss(scores.loss)}
            row |= {"avg_acc": None if scores.acc is None else average(scores.acc)}
            if len(scores.loss) <= MAX_AGENTS:
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
    """The rounds written so far, without a last line that a kill cut short."""
    path = folder / NAME
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def thin(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The same, small enough for git and for a page; None where no round was evaluated.

    Averages to five digits: of the first 60 evaluations, then of every fifth. Labels of at most 40 rounds, more of
    the early ones, since then they move. The first and the last are always there.

    >>> thin([{"round": 1, "seconds": 1, "avg_loss": 0.1234567, "agnostic_loss": 2.0, "avg_acc": None, "pi": None}])
    {'round': [1], 'avg_loss': [0.12346], 'agnostic_loss': [2.0], 'avg_acc': None, 'pi': None}
    """
    every = [row for row in rows if "avg_loss" in row]
    if not every:
        return None
    seen = [row for i, row in enumerate(every) if i < 60 or i % 5 == 4 or i == len(every) - 1]
    out: dict[str, Any] = {"round": [row["round"] for row in seen]}
    for name in ("avg_loss", "agnostic_loss", "avg_acc"):
        known = every[0].get(name) is not None
        out[name] = [float(f"{row[name]:.5g}") for row in seen] if known else None
    labelled = [row for row in every if row.get("pi")]
    small = labelled and max(len(row["pi"]) * len(row["pi"][0]) for row in labelled) <= MAX_LABELS
    kept = [labelled[i] for i in early(len(labelled), MAX_LABELLED_ROUNDS)] if small else []
    pi = [[[round(p, 3) for p in agent] for agent in row["pi"]] for row in kept]
    return out | {"pi": {"round": [row["round"] for row in kept], "pi": pi} if kept else None}


def early(n: int, most: int) -> list[int]:
    """At most so many of 0 ... n - 1, even on the scale of the square root, with the first and the last.

    >>> early(100, 6), early(3, 6)
    ([0, 4, 16, 36, 63, 99], [0, 1, 2])
    """
    if n <= most:
        return list(range(n))
    return sorted({round((n - 1) * (i / (most - 1)) ** 2) for i in range(most)})
