"""The rows of finished runs on disk: result.json of one run, results.json of a folder of runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from focusfl.run import history
from focusfl.util import files
from focusfl.util.errors import InputError

Row = dict[str, Any]
REQUIRED = {"algorithm", "seed", "faa", "excess_risk"}


def run_folder(out: Path, method: str, seed: int) -> Path:
    """runs/qffl-q0.1-seed0 for the method "qffl:q=0.1"."""
    name = re.sub(r"[^\w.-]+", "-", method.replace("=", ""))
    return out / "runs" / f"{name}-seed{seed}"


def write_row(folder: Path, row: Row, goals: tuple[float, ...] = history.GOALS) -> Row:
    """Write a run's result.json, with the rounds it took to reach accuracies; returns the row as written."""
    row = {"version": 1} | row | {"rounds_to": history.rounds_to(history.read(folder), goals)}
    files.write_json(folder / "result.json", row)
    return row


def read_row(folder: Path) -> Row | None:
    """A finished run's row; None: it has not finished.

    Raises:
        InputError: If result.json is not one of focusfl.
    """
    path = folder / "result.json"
    if not path.exists():
        return None
    row = files.read_json(path)
    if not isinstance(row, dict) or not row.keys() >= REQUIRED:
        raise InputError(f"{path}: not the result of a run; delete it, and --resume computes it again")
    return row


def write_rows(out: Path, rows: list[Row]) -> None:
    """Write results.json."""
    files.write_json(out / "results.json", rows)


def add_row(out: Path, row: Row) -> None:
    """Add a row to a folder's results.json and experiment.json, beside those of other methods and seeds."""
    path = out / "results.json"
    others = files.read_json(path) if path.exists() else []
    rows = [other for other in others if (other["method"], other["seed"]) != (row["method"], row["seed"])] + [row]
    write_rows(out, rows)
    methods, seeds = (list(dict.fromkeys(one[name] for one in rows)) for name in ("method", "seed"))
    said = {"data": {"name": row["data"]}, "algorithms": methods, "seeds": seeds, "rounds": row["rounds"]}
    files.write_json(out / "experiment.json", said)
