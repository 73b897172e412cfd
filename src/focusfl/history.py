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
