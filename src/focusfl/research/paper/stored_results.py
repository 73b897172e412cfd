"""Results that are stored: RESULTS/NAME.SCALE.json, small enough for git. What is stored is not computed again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.table import Table

from focusfl.report.rows import Row, read_row
from focusfl.research.paper.cells import Cell, Status
from focusfl.research.paper.reproduction import Part, Reproduction
from focusfl.util import files, sealed
from focusfl.util.machine import provenance


def cells_of(one: Reproduction) -> Iterator[tuple[Part, Cell]]:
    """List the cells of a table, seed after seed, so that early on there is something of everything."""
    for seed in dict.fromkeys(seed for part in one.parts for seed in part.experiment.seeds):
        for part in one.parts:
            if seed in part.experiment.seeds:
                yield from ((part, Cell(part.experiment, method, seed)) for method in part.experiment.methods)


def stored_rows(results: Path) -> dict[str, Row]:
    """Read the rows that were computed before, here or elsewhere.

    Args:
        results: The folder of the results. Files of other kinds in it are ignored.

    Returns:
        The rows by the key of their cell.
    """
    found: dict[str, Row] = {}
    for path in sorted(results.glob("*.json")):
        page = sealed.read_json(path)
        for value in page.get("rows", []) if isinstance(page, dict) else []:
            if "key" in value:
                row = read_row(value, path)
                row.pop("part", None)
                found[row["key"]] = row
    return found


def find_row(cell: Cell, stored: dict[str, Row], cells: Path) -> Row | None:
    """Find the result of a cell in float32, the paper's setting; otherwise in bfloat16, if that is all there is."""
    half = cell.in_bf16
    return stored.get(cell.key) or cell.result(cells) or stored.get(half.key) or half.result(cells)


def cell_status(cell: Cell, stored: dict[str, Row], cells: Path, precision: str) -> Status:
    """Return the status of a cell in float32; with precision bf16, in bfloat16 if there is none in float32."""
    if cell.key in stored or cell.done(cells):
        return "done"
    if precision == "float32":
        return cell.status(cells)
    return "done" if cell.in_bf16.key in stored else cell.in_bf16.status(cells)


def write_results(wanted: list[Reproduction], cells: Path, results: Path) -> None:
    """Write one file for each table or figure that has rows.

    Rows of settings that have changed since are moved to NAME.SCALE.old.json.

    Args:
        wanted: The tables and figures.
        cells: The folder of the computed cells.
        results: The folder of the results.
    """
    written_by = provenance()
    with files.lock(results / ".lock"):  # rows that another process has added stay
        stored = stored_rows(results)
        for one in wanted:
            rows: list[Row] = []
            for part, cell in cells_of(one):
                row = find_row(cell, stored, cells)
                if row is not None:
                    rows.append({"part": part.name, **row, "method": cell.method})
            if rows:
                settings = {part.name or one.name: part.experiment.model_dump(mode="json") for part in one.parts}
                head = {"name": one.name, "scale": one.scale, "settings": settings, "written_by": written_by}
                path = results / f"{one.name}.{one.scale}.json"
                _set_aside(path, {row["key"] for row in rows})
                sealed.write_rows(path, head, [_short(row) for row in rows])


def _set_aside(path: Path, keys: set[str]) -> None:
    """Keep the rows of the file with other keys: they took hours, and settings may change by mistake."""
    page = sealed.read_json(path) if path.exists() else {}
    replaced = [row for row in page.get("rows", []) if row.get("key") not in keys]
    if replaced:
        old = path.with_suffix(".old.json")
        before = sealed.read_json(old)["rows"] if old.exists() else []
        sealed.write_rows(old, {k: v for k, v in page.items() if k != "rows"}, [*before, *replaced])


def _short(value: Any) -> Any:
    """Numbers to six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    return [_short(v) for v in value] if isinstance(value, list) else value


def overview(wanted: list[Reproduction], cells: Path, results: Path, precision: str = "float32") -> Table:
    """Count the cells of each table by status.

    Args:
        wanted: The tables and figures.
        cells: The folder of the computed cells.
        results: The folder of the results.
        precision: With bf16, cells that are done in bfloat16 count as done.

    Returns:
        A table for the terminal.
    """
    stored = stored_rows(results)
    states: tuple[Status, ...] = ("done", "running", "started", "failed", "missing")
    table = Table("table or figure", "scale", *states)
    for one in wanted:
        if one.kind != "experiment":
            there = (results / f"{one.name}.{one.scale}.json").exists()
            table.add_row(one.name, one.scale, *("1" if there else "0", "0", "0", "0", "0" if there else "1"))
            continue
        each = [cell_status(cell, stored, cells, precision) for _, cell in cells_of(one)]
        table.add_row(one.name, one.scale, *(str(each.count(state)) for state in states))
    return table
