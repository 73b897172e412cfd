"""Read the folder of a comparison for a report (run.compare lists its files)."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from focusfl import __version__
from focusfl.algorithms import title
from focusfl.report.rows import RoundHistory, Row, agent_numbers, check_history, read_rows
from focusfl.report.section import Section
from focusfl.run import history, results
from focusfl.run.experiment import Experiment
from focusfl.util import files
from focusfl.util.errors import InputError


def from_folder(folder: Path) -> Section:
    """Read the results of a comparison.

    Args:
        folder: Where `focusfl run` or `focusfl compare` wrote them.

    Returns:
        The finished runs with their histories. Runs that have not finished are listed as missing.

    Raises:
        InputError: The folder holds no experiment, or one of its files cannot be used.
    """
    if not (folder / "experiment.json").exists():
        raise InputError(f"{folder}: no experiment.json; focusfl run and focusfl compare write one")
    settings = files.read_json(folder / "experiment.json")
    left_out = results.read_left_out(folder)
    folders = {key: run for key, (run, _) in results.read_finished(folder).items()}
    stored = read_rows(path) if (path := folder / "results.json").exists() else []
    results.check_rows(folder, stored)
    rows: list[Row] = []
    for row in stored:
        run = folders.get((row["method"], row["seed"]))
        rows.append(row | {"part": row.get("part", ""), "history": None if run is None else _history(run, row)})
    done = {(row["method"], row["seed"]) for row in rows}
    try:
        if isinstance(settings, dict):  # the package of a metric need not be installed here
            experiment = Experiment.model_validate({k: v for k, v in settings.items() if k != "metrics"})
        else:
            experiment = Experiment.model_validate(settings)
    except ValueError as error:  # pydantic's, or our own
        advice = "run the experiment again with --overwrite"
        raise InputError(f"{folder / 'experiment.json'}: not an experiment of focusfl; {advice}") from error
    wanted = [(m, s) for m in experiment.methods if m not in left_out for s in experiment.seeds]
    missing = [f"{title(m)}, seed {s}" for m, s in wanted if (m, s) not in done]
    order = {(m, s): i for i, (s, m) in enumerate((s, m) for s in experiment.seeds for m in experiment.methods)}
    rows.sort(key=lambda row: order.get((row["method"], row["seed"]), len(order)))
    made = {key: value for key, value in settings.items() if value not in (None, {}, [])}
    made |= {"training": rows[0]["train"], "rounds": rows[0]["rounds"]} if rows else {}
    made["page made by"] = f"focusfl {__version__}"
    name, absent = folder.resolve().name, _missed_rounds(folders)
    return Section(name, name, "", rows, missing=missing, left_out=left_out, absent=absent, made=made)


def _history(run: Path, row: Row) -> RoundHistory | None:
    """Return the thinned history of a finished run; its rounds and agents must be those of the row."""
    rounds = history.read(run)
    thinned = cast(RoundHistory | None, history.thin(rounds))
    try:
        last = rounds[-1]["round"] if rounds else 0
        if (run / history.NAME).exists() and last != row["rounds"]:
            raise ValueError(f"it ends with round {last} of {row['rounds']}")
        if thinned is not None:
            check_history(thinned, max(agent_numbers(row)) + 1)
    except ValueError as error:
        raise InputError(f"{run / history.NAME}: {error}. It is not that of this run: delete it") from error
    return thinned


def _missed_rounds(folders: dict[tuple[str, int], Path]) -> dict[str, str]:
    """Return the agents that missed rounds, with the number of rounds and the reason for the first."""
    found: dict[str, str] = {}
    for (method, seed), folder in folders.items():
        rounds: dict[str, list[tuple[int, str]]] = {}
        for line in history.read(folder):
            for e, why in line.get("dropped", {}).items():
                rounds.setdefault(e, []).append((line["round"], why))
        for e, missed in sorted(rounds.items(), key=lambda item: int(item[0])):
            first, why = missed[0]
            found[f"{title(method)}, seed {seed}, agent {e}"] = f"{len(missed)} rounds, first {first}: {why}"
    return found
