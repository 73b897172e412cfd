"""focusfl reproduce: compute the cells of the paper's tables and figures, in parallel, and keep the results.

RESULTS/NAME.SCALE.json holds the rows and is small enough for git; what is in there is not computed again.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.table import Table

from focusfl import files
from focusfl.errors import CannotRun, Diverged, InputError, Interrupted
from focusfl.interrupt import graceful
from focusfl.machine import describe
from focusfl.paper import timing
from focusfl.paper.cells import Cell, Status
from focusfl.paper.reproduction import Part, Reproduction
from focusfl.progress import Whole
from focusfl.theory.check import check_all
from focusfl.theory.table import summary

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
        for row in files.read_json(path).get("rows", []):
            if "key" in row:
                found[row["key"]] = {k: v for k, v in row.items() if k != "part"}
    return found


def reproduce(
    wanted: list[Reproduction], cells: Path, results: Path, jobs: int = 1, progress: bool | None = None
) -> list[str]:
    """Compute what is missing; returns what failed, and why."""
    files.make_folder(cells)
    files.make_folder(results)
    known = kept(results)
    todo = {c.key: c for one in wanted for _, c in cells_of(one) if c.key not in known}
    todo = {key: cell for key, cell in todo.items() if cell.result(cells) is None}
    for one in wanted:
        if one.kind != "experiment":
            _measure(one, results, progress)
    if todo:
        _compute(list(todo.values()), cells, jobs, progress, lambda: _write_all(wanted, cells, results, known))
    _write_all(wanted, cells, results, known)
    return [f"{cell.method} seed {cell.seed}: {why}" for cell in todo.values() if (why := _failure(cell, cells))]


def _measure(one: Reproduction, results: Path, progress: bool | None) -> None:
    """Times and bounds: measured here and now, unless they have been."""
    path = results / f"{one.name}.{one.scale}.json"
    if path.exists():
        return
    with Whole(1, progress, "steps") as bar:

        def watch(done: int, total: int) -> None:
            bar(done / total, 0, 1)

        if one.kind == "runtime":
            rows = timing.runtime(one.options.get("n"), repeats=5, watch=watch)
        elif one.kind == "metric-time":
            rows = timing.metric_time()
        elif one.kind == "theory":
            rows = [{k: v.strip("*") for k, v in line.items()} for line in summary(check_all(watch=watch))]
        else:
            raise InputError(f"{one.name}: unknown kind {one.kind!r}")
    page = {"name": one.name, "scale": one.scale, "settings": one.options, "written_by": describe(), "table": rows}
    files.write_json(path, page)


def _compute(todo: list[Cell], cells: Path, jobs: int, progress: bool | None, save: Callable[[], None]) -> None:
    """Worker processes take cell after cell; this one watches, and saves the results as they come."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    queue.cancel_join_thread()  # stopped early, nobody will take the rest: do not wait for that
    for cell in todo:
        queue.put(cell)
    workers = [context.Process(target=_work, args=(queue, cells, jobs), daemon=True) for _ in range(jobs)]
    with graceful() as stop, Whole(sum(_length(cell) for cell in todo), progress) as bar:
        for worker in workers:
            worker.start()
        finished = -1
        while any(worker.is_alive() for worker in workers):
            time.sleep(0.5)
            done = [cell for cell in todo if cell.result(cells) is not None]
            bar(sum(min(cell.rounds_done(cells), _length(cell)) for cell in todo), len(done), len(todo))
            if len(done) != finished:
                finished = len(done)
                save()
            if stop():
                _halt(workers)
    if stop():
        raise Interrupted("stopped; the same command goes on where it was")


def _halt(workers: list[Any]) -> None:
    """Ask every worker to finish its round; wait for them."""
    for worker in workers:
        if worker.is_alive():
            os.kill(worker.pid, signal.SIGTERM)
    for worker in workers:
        worker.join()


def _work(queue: Any, cells: Path, jobs: int) -> None:
    import queue as queues

    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
    with graceful() as stop:
        while not stop():
            try:
                cell: Cell = queue.get(timeout=1)
            except queues.Empty:
                return
            try:
                cell.run(cells, stop)
            except Interrupted:
                return
            except (InputError, CannotRun, Diverged) as error:
                files.write_text(cell.folder(cells) / "error.txt", str(error))


def _write_all(wanted: list[Reproduction], cells: Path, results: Path, known: dict[str, Row]) -> None:
    for one in wanted:
        rows = []
        for part, cell in cells_of(one):
            row = known.get(cell.key) or cell.result(cells)
            if row is not None:
                rows.append({"part": part.name} | row | {"method": cell.method})
        if rows:
            settings = {part.name or one.name: part.experiment.model_dump(mode="json") for part in one.parts}
            head = {"name": one.name, "scale": one.scale, "settings": settings, "written_by": describe()}
            files.write_rows(results / f"{one.name}.{one.scale}.json", head, [_short(row) for row in rows])


def _short(value: Any) -> Any:
    """Numbers to six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    return [_short(v) for v in value] if isinstance(value, list) else value


def _length(cell: Cell) -> int:
    return cell.experiment.rounds or 1


def _failure(cell: Cell, cells: Path) -> str | None:
    path = cell.folder(cells) / "error.txt"
    return path.read_text(encoding="utf-8") if path.exists() else None


def overview(wanted: list[Reproduction], cells: Path, results: Path) -> Table:
    """How many cells of each are done, running, begun, failed, missing."""
    known = kept(results)
    states: tuple[Status, ...] = ("done", "running", "begun", "failed", "missing")
    table = Table("table or figure", "scale", *states)
    for one in wanted:
        if one.kind != "experiment":
            there = (results / f"{one.name}.{one.scale}.json").exists()
            table.add_row(one.name, one.scale, *("1" if there else "0", "0", "0", "0", "0" if there else "1"))
            continue
        each: list[Status] = ["done" if cell.key in known else cell.status(cells) for _, cell in cells_of(one)]
        table.add_row(one.name, one.scale, *(str(each.count(state)) for state in states))
    return table
