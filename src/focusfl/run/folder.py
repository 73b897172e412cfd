"""A page's section from the folder of a comparison (focusfl.comparing says what is in it)."""

from __future__ import annotations

from pathlib import Path

from focusfl import __version__
from focusfl.report.section import Row, Section
from focusfl.report.tables import title
from focusfl.run import history
from focusfl.run.experiment import Experiment
from focusfl.util import files
from focusfl.util.errors import InputError


def from_folder(folder: Path) -> Section:
    """Finished runs with their histories; those that the experiment asks for and that are not there are missing."""
    if not (folder / "experiment.json").exists():
        raise InputError(f"{folder}: no experiment.json; focusfl run and focusfl compare write one")
    said = files.read_json(folder / "experiment.json")
    rows: list[Row] = files.read_json(path) if (path := folder / "results.json").exists() else []
    left_out = dict(files.read_json(path)) if (path := folder / "left-out.json").exists() else {}
    where = _runs(folder)
    rows = [
        {"part": ""} | row | {"history": history.thin(history.read(where[key])) if key in where else None}
        for row in rows
        if (key := (row["method"], row["seed"]))
    ]
    done = {(row["method"], row["seed"]) for row in rows}
    experiment = Experiment.model_validate(said)
    wanted = [(m, s) for m in experiment.methods if m not in left_out for s in experiment.seeds]
    missing = [f"{title(m)}, seed {s}" for m, s in wanted if (m, s) not in done]
    made = {key: value for key, value in said.items() if value not in (None, {}, [])}
    made |= {"training": rows[0]["train"], "rounds": rows[0]["rounds"]} if rows else {}
    name = folder.resolve().name
    made["page made by"] = f"focusfl {__version__}"
    return Section(name, name, "", rows, missing=missing, left_out=left_out, absent=_absent(where), made=made)


def _absent(where: dict[tuple[str, int], Path]) -> dict[str, str]:
    """Agents that were left out of rounds: nodes fail. In how many, and why the first time."""
    found: dict[str, str] = {}
    for (method, seed), folder in where.items():
        rounds: dict[str, list[tuple[int, str]]] = {}
        for row in history.read(folder):
            for e, why in row.get("dropped", {}).items():
                rounds.setdefault(e, []).append((row["round"], why))
        for e, missed in sorted(rounds.items(), key=lambda item: int(item[0])):
            first, why = missed[0]
            found[f"{title(method)}, seed {seed}, agent {e}"] = f"{len(missed)} rounds, first {first}: {why}"
    return found


def _runs(folder: Path) -> dict[tuple[str, int], Path]:
    """The folder of each finished run, as its own result says."""
    found = {}
    for path in sorted(folder.glob("runs/*/result.json")):
        row = files.read_json(path)
        found[row["method"], row["seed"]] = path.parent
    return found
