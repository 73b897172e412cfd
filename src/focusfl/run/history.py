"""history.jsonl: one line per round, readable while the run continues."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import (
    Annotated,
    Any,
    NotRequired,  # pydantic needs this TypedDict before Python 3.12
)

from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor
from typing_extensions import TypedDict

from focusfl.engines import Scores
from focusfl.fairness.metrics import agnostic_loss, average
from focusfl.fairness.scores import defined, mean
from focusfl.report.rows import Count, Number, describe_error
from focusfl.util import files, sealed
from focusfl.util.errors import InputError

NAME = "history.jsonl"
AVERAGES = ("avg_loss", "agnostic_loss", "avg_acc")  # of a round that was evaluated
GOALS = (0.7, 0.8, 0.85, 0.9)  # average accuracies of the paper's rounds-to-accuracy tables
MAX_LABELLED_ROUNDS = 40  # a thinned history has labels of at most this many rounds ...
MAX_LABELS = 400  # ... and of none if one round has more labels than this
MAX_AGENTS = 1000  # with more agents, a round's line has only averages


class RoundRow(TypedDict):
    """One line. E agents, M clusters."""

    round: Count  # from 1
    seconds: Number  # of training
    dropped: NotRequired[dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], str]]  # agents left out, and why
    avg_loss: NotRequired[Number]  # this and the following: if the round was evaluated
    agnostic_loss: NotRequired[Number]
    avg_acc: NotRequired[Number | None]  # None in regression
    loss: NotRequired[list[Number]]  # [E]
    acc: NotRequired[list[Number] | None]  # [E]
    pi: NotRequired[list[list[Number]] | None]  # [E][M] soft labels
    avg_metrics: NotRequired[dict[str, Number | None]]  # by name, over the agents for whom it is defined
    metrics: NotRequired[dict[str, list[Number | None]]]  # [E] by name; None where it is not defined
    validation_loss: NotRequired[Number]  # the mean over the agents that have validation data
    validation_losses: NotRequired[list[Number | None]]  # [E]


_ROUND = TypeAdapter(RoundRow)


class History:
    """Collects the rounds and appends them to history.jsonl.

    What a killed run wrote after its last checkpoint is deleted first.

    Args:
        folder: The run's folder; with None nothing is written.
        rounds_done: Rounds of the checkpoint that the run resumes from; 0 for a new run.

    Attributes:
        rows: All rounds so far, as `read` returns them.
        seconds: Of training, in all of them.
    """

    def __init__(self, folder: Path | None, rounds_done: int) -> None:
        self.path, self.seconds = None if folder is None else folder / NAME, 0.0
        self.rows: list[dict[str, Any]] = []
        if folder is not None and self.path is not None:
            earlier = [row for row in read(folder) if row["round"] <= rounds_done] if rounds_done else []
            self.seconds = sum(row["seconds"] for row in earlier)
            self.rows = list(earlier)
            lines = (json.dumps(sealed.add_digest(row)) + "\n" for row in earlier)
            files.write_text(self.path, "".join(lines))

    def write(
        self,
        t: int,
        scores: Scores | None,
        pi: Tensor | None,
        seconds: float,
        dropped: Mapping[int, str],
        validation: Scores | None = None,
    ) -> None:
        """Append a round.

        Args:
            t: The round, from 1.
            scores: Losses and accuracies, if the round was evaluated. If some agents did not send theirs, none are
                written.
            pi: [E, M] the soft labels, if the method has them.
            seconds: The duration of training in this round.
            dropped: Agents that were left out of the round, and why.
            validation: Scores on validation data, if there are any.
        """
        self.seconds += seconds
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
            row |= _metrics(scores)
        if validation is not None:
            row["validation_loss"] = mean(validation.loss)
            if 1 < len(validation.loss) <= MAX_AGENTS:  # one: only the mean is known
                row["validation_losses"] = defined(validation.loss)
        self.rows.append(row)
        if self.path is not None:
            sealed.append_line(self.path, row, sync=False)

    def sync(self) -> None:
        """Wait until all rounds are on the disk."""
        if self.path is not None:
            files.sync_file(self.path)


def _metrics(scores: Scores) -> dict[str, Any]:
    """Return the metrics of a round: their averages, and with few agents all values."""
    if not scores.metrics:
        return {}
    row: dict[str, Any] = {"avg_metrics": {name: mean(values) for name, values in scores.metrics.items()}}
    if len(scores.loss) <= MAX_AGENTS:
        row["metrics"] = {name: defined(values) for name, values in scores.metrics.items()}
    return row


def rounds_to(rows: list[dict[str, Any]], goals: tuple[float, ...] = GOALS) -> dict[str, int | None] | None:
    """Return the first round whose average accuracy reaches each goal.

    Args:
        rows: The rounds, as `read` returns them.
        goals: Average accuracies.

    Returns:
        For each goal a round, or None if it was not reached. None if there are no accuracies, as in regression.

    Example:
        >>> rounds_to([{"round": 1, "avg_acc": 0.6}, {"round": 2, "avg_acc": 0.83}])
        {'0.7': 2, '0.8': 2, '0.85': None, '0.9': None}
    """
    evaluated = [(row["round"], row["avg_acc"]) for row in rows if row.get("avg_acc") is not None]
    if not evaluated:
        return None
    return {str(goal): next((t for t, acc in evaluated if acc >= goal), None) for goal in goals}


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the rounds written so far, without a last line that is incomplete because the run was killed.

    Args:
        folder: The run's folder.

    Raises:
        InputError: A line is damaged or edited, or a round is missing between two others.
    """
    path = folder / NAME
    rows: list[dict[str, Any]] = []
    for number, row in enumerate(sealed.read_lines(path), start=1):
        try:
            _ROUND.validate_python(row, strict=True)
        except ValidationError as error:
            raise _damaged(path, number, describe_error(error)) from error
        if rows and row["round"] != rows[-1]["round"] + 1:
            raise _damaged(path, number, f"round: expected {rows[-1]['round'] + 1}, found {row['round']}")
        if len({key in row for key in AVERAGES}) > 1:
            raise _damaged(path, number, f"expected {', '.join(AVERAGES)}, or none of them")
        rows.append(row)
    if len({row["avg_acc"] is None for row in rows if "avg_acc" in row}) > 1:
        raise _damaged(path, len(rows), "avg_acc: expected one in all rounds, or in none")
    return rows


def _damaged(path: Path, line: int, why: str) -> InputError:
    return InputError(f"{path}: line {line}: {why}. This is not the history of a run: delete the file")


def thin(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return a history that is small enough for git and for a page.

    Averages have five digits; they are of the first 60 evaluations, then of every fifth. Labels are of at most 40
    rounds, more of the early ones, when labels change most. The first and the last evaluation are always included.

    Args:
        rows: The rounds, as `read` returns them.

    Returns:
        One list per quantity; None if no round was evaluated.

    Example:
        >>> row = {"round": 1, "seconds": 1, "avg_loss": 0.1234567, "agnostic_loss": 2.0, "avg_acc": None}
        >>> thin([row | {"pi": None}])
        {'round': [1], 'avg_loss': [0.12346], 'agnostic_loss': [2.0], 'avg_acc': None, 'pi': None}
    """
    evaluated = [row for row in rows if "avg_loss" in row]
    if not evaluated:
        return None
    shown = [row for i, row in enumerate(evaluated) if i < 60 or i % 5 == 4 or i == len(evaluated) - 1]
    thinned: dict[str, Any] = {"round": [row["round"] for row in shown]}
    for name in AVERAGES:
        known = evaluated[0].get(name) is not None
        thinned[name] = [float(f"{row[name]:.5g}") for row in shown] if known else None
    labelled = [row for row in evaluated if row.get("pi")]
    small = labelled and max(len(row["pi"]) * len(row["pi"][0]) for row in labelled) <= MAX_LABELS
    shown = [labelled[i] for i in early_indices(len(labelled), MAX_LABELLED_ROUNDS)] if small else []
    pi = [[[round(p, 3) for p in agent] for agent in row["pi"]] for row in shown]
    return thinned | {"pi": {"round": [row["round"] for row in shown], "pi": pi} if shown else None}


def early_indices(n: int, limit: int) -> list[int]:
    """Return at most `limit` of the indices 0 ... n - 1, more of the early ones, with the first and the last.

    They are evenly spaced on the scale of the square root.

    Example:
        >>> early_indices(100, 6), early_indices(3, 6)
        ([0, 4, 16, 36, 63, 99], [0, 1, 2])
    """
    if n <= limit:
        return list(range(n))
    return sorted({round((n - 1) * (i / (limit - 1)) ** 2) for i in range(limit)})
