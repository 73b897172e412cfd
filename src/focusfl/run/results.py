"""The rows of finished runs on disk: result.json of one run, results.json of a folder of runs."""

from __future__ import annotations

import re
from pathlib import Path

from focusfl.report import rows
from focusfl.report.rows import Row
from focusfl.run import history
from focusfl.util import files, sealed
from focusfl.util.errors import InputError


def run_folder(out: Path, method: str, seed: int) -> Path:
    """Return the folder of a run: OUT/runs/qffl-q0.1-seed0 for the method "qffl:q=0.1" and seed 0."""
    return out / "runs" / run_name(method, seed)


def run_name(method: str, seed: int | None = None) -> str:
    """Return a name for a run, or for all runs of a method, which a folder can have: qffl-q0.1-seed0."""
    name = re.sub(r"[^\w.-]+", "-", method.replace("=", ""))
    return name if seed is None else f"{name}-seed{seed}"


def write_row(folder: Path, row: Row, goals: tuple[float, ...] = history.GOALS) -> Row:
    """Write a run's result.json, with the rounds in which accuracies were reached; return that row."""
    row["rounds_to"] = history.rounds_to(history.read(folder), goals)
    sealed.write_json(folder / "result.json", row)
    return row


def read_row(folder: Path) -> Row | None:
    """Read the row of a finished run; None if it has not finished.

    Raises:
        InputError: If result.json is damaged or was not written by focusfl.
    """
    path = folder / "result.json"
    if not path.exists():
        return None
    return rows.read_row(sealed.read_json(path), path)


def read_left_out(out: Path) -> dict[str, str]:
    """Return the methods of "all" that could not run, and why.

    Args:
        out: Folder of the experiment.

    Raises:
        InputError: left-out.json was not written by focusfl.
    """
    path = out / "left-out.json"
    found = files.read_json(path) if path.exists() else {}
    if not isinstance(found, dict) or not all(isinstance(why, str) for why in found.values()):
        raise InputError(
            f"{path}: expected a reason for each method: delete it and run the experiment with --resume"
        )
    return {files.visible(method): files.visible(why) for method, why in found.items()}


def write_rows(out: Path, every: list[Row]) -> None:
    """Write results.json."""
    files.write_json(out / "results.json", every)


def read_finished(out: Path) -> dict[tuple[str, int], tuple[Path, Row]]:
    """Return the folder and the row of every finished run, by method and seed."""
    folders = [path.parent for path in sorted(out.glob("runs/*/result.json"))]
    found = [(folder, row) for folder in folders if (row := read_row(folder)) is not None]
    return {(row["method"], row["seed"]): (folder, row) for folder, row in found}


def check_rows(out: Path, every: list[Row]) -> None:
    """Check the rows of results.json, which has no digest, against those of the finished runs, which have one.

    Raises:
        InputError: A row is not that of its run.
    """
    finished = read_finished(out)
    for row in every:
        folder, known = finished.get((row["method"], row["seed"]), (out, row))
        if row != known:
            key = next(k for k in (*row, *known) if row.get(k) != known.get(k))
            raise InputError(
                f"{out / 'results.json'}: {row['method']}, seed {row['seed']}: {key} is not that of "
                f"{folder / 'result.json'}: damaged or edited. Delete it and run the experiment with --resume"
            )


def add_row(out: Path, row: Row) -> None:
    """Add a row to a folder's results.json and experiment.json; rows of other methods and seeds stay."""
    path = out / "results.json"
    others = rows.read_rows(path) if path.exists() else []
    every = [other for other in others if (other["method"], other["seed"]) != (row["method"], row["seed"])] + [row]
    write_rows(out, every)
    methods, seeds = list(dict.fromkeys(r["method"] for r in every)), list(dict.fromkeys(r["seed"] for r in every))
    experiment = {"data": {"name": row["data"]}, "algorithms": methods, "seeds": seeds, "rounds": row["rounds"]}
    files.write_json(out / "experiment.json", experiment)
