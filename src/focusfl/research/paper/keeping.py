"""What has been computed: RESULTS/NAME.SCALE.json, small enough for git; what is in there is not computed again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.table import Table

from focusfl.research.paper.cells import Cell, Status
from focusfl.research.paper.reproduction import Part, Reproduction
from focusfl.util import files
from focusfl.util.machine import provenance

Row = dict[str, Any]


def cells_of(one: Reproduction) -> Iterator[tuple[Part, Cell]]:
    """Seed after seed, so that there is early something of everything."""
    for seed in dict.fromkeys(seed for part in one.parts for seed in part.experiment.seeds):
        for part in one.parts:
            if seed in part.experiment.seeds:
                yield from ((part, Cell(part.experiment, method, seed)) for method in part.experiment.methods)


def kept(results: Path) -> dict[str, Row]:
    """Rows computed before, here or elsewhere, by the key of their cell."""
    found: dict[str, Row] = {}
    for path in sorted(results.glob("*.json")):
        page = files.read_json(path)
        for row in page.get("rows", []) if isinstance(page, dict) else []:
            if "key" in row:
                found[row["key"]] = {k: v for k, v in row.items() if k != "part"}
    return found


def row_of(cell: Cell, known: dict[str, Row], cells: Path) -> Row | None:
    """In float32, as the paper's setting is; else in bfloat16, where that is all there is."""
    return known.get(cell.key) or cell.result(cells) or known.get(cell.fast.key) or cell.fast.result(cells)


def status(cell: Cell, known: dict[str, Row], cells: Path, precision: str) -> Status:
    """Of the cell in float32; with bf16, of the one in bfloat16 where there is none in float32."""
    if cell.key in known or cell.done(cells):
        return "done"
    if precision == "float32":
        return cell.status(cells)
    return "done" if cell.fast.key in known else cell.fast.status(cells)


def write(wanted: list[Reproduction], cells: Path, results: Path) -> None:
    """A file for each table or figure that has rows; rows of settings that changed go to NAME.SCALE.old.json."""
    made = provenance()
    with files.lock(results / ".lock"):  # rows that another process has added stay
        known = kept(results)
        for one in wanted:
            rows = []
            for part, cell in cells_of(one):
                row = row_of(cell, known, cells)
                if row is not None:
                    rows.append({"part": part.name} | row | {"method": cell.method})
            if rows:
                settings = {part.name or one.name: part.experiment.model_dump(mode="json") for part in one.parts}
                head = {"name": one.name, "scale": one.scale, "settings": settings, "written_by": made}
                path = results / f"{one.name}.{one.scale}.json"
                _set_aside(path, {row["key"] for row in rows})
                files.write_rows(path, head, [_short(row) for row in rows])


def _set_aside(path: Path, stay: set[str]) -> None:
    """Keep the rows of the file that will not be in it: they took hours, and settings may change by mistake."""
    page = files.read_json(path) if path.exists() else {}
    gone = [row for row in page.get("rows", []) if row.get("key") not in stay]
    if gone:
        old = path.with_suffix(".old.json")
        before = files.read_json(old)["rows"] if old.exists() else []
        files.write_rows(old, {k: v for k, v in page.items() if k != "rows"}, [*before, *gone])


def _short(value: Any) -> Any:
    """Numbers to six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    return [_short(v) for v in value] if isinstance(value, list) else value


def overview(wanted: list[Reproduction], cells: Path, results: Path, precision: str = "float32") -> Table:
    """How many cells of each are done, running, begun, failed, missing; with bf16, what is done in it counts."""
    known = kept(results)
    states: tuple[Status, ...] = ("done", "running", "begun", "failed", "missing")
    table = Table("table or figure", "scale", *states)
    for one in wanted:
        if one.kind != "experiment":
            there = (results / f"{one.name}.{one.scale}.json").exists()
            table.add_row(one.name, one.scale, *("1" if there else "0", "0", "0", "0", "0" if there else "1"))
            continue
        each = [status(cell, known, cells, precision) for _, cell in cells_of(one)]
        table.add_row(one.name, one.scale, *(str(each.count(state)) for state in states))
    return table
