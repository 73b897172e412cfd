"""focusfl reproduce: compute the cells of the paper's tables and figures in worker processes."""

from __future__ import annotations

import queue as queues
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from focusfl.report.section import Measurement
from focusfl.research.paper import stored_results, surrogates, timing
from focusfl.research.paper.cells import Cell
from focusfl.research.paper.reproduction import Part, Reproduction
from focusfl.research.theory.check import check_all, summary
from focusfl.util import files, sealed
from focusfl.util.errors import InputError, Interrupted, LockedError
from focusfl.util.machine import provenance
from focusfl.util.progress import TotalProgress
from focusfl.util.workers import run_in_processes


def reproduce(
    wanted: list[Reproduction],
    cells: Path,
    results: Path,
    jobs: int = 1,
    progress: bool | None = None,
    precision: str = "float32",
) -> list[str]:
    """Compute what is missing, the first seed of everything first.

    Args:
        wanted: The tables and figures.
        cells: The folder of the cells and their checkpoints.
        results: The folder of the results.
        jobs: How many cells to compute at the same time.
        progress: Whether to show a progress bar on stderr; by default if stderr is a terminal.
        precision: With bf16, what is missing is computed in bfloat16, on processors with bfloat16 support.

    Returns:
        What failed, and why.

    Raises:
        Interrupted: Ctrl-C. The same command resumes.
    """
    files.make_folder(cells)
    files.make_folder(results)
    stored = stored_results.stored_rows(results)
    every = sorted((place for one in wanted for place in stored_results.cells_of(one)), key=_seed_position)
    missing = [cell for _, cell in every if stored_results.cell_status(cell, stored, cells, precision) != "done"]
    todo = {cell.key: cell for cell in (c if precision == "float32" else c.in_bf16 for c in missing)}
    save = partial(stored_results.write_results, wanted, cells, results)
    if todo:
        _compute(list(todo.values()), cells, results, jobs, progress, save)
    save()
    for one in wanted:
        if one.kind != "experiment":
            _measure(one, cells, results, progress, precision)
    return [f"{cell.method} seed {cell.seed}: {why}" for cell in todo.values() if (why := _failure(cell, cells))]


def _measure(one: Reproduction, cells: Path, results: Path, progress: bool | None, precision: str) -> None:
    """Times, bounds and other surrogates are measured in this process, unless their file is there."""
    path = results / f"{one.name}.{one.scale}.json"
    if path.exists():
        return
    with TotalProgress(1, progress, "steps") as bar:

        def watch(done: int, total: int) -> None:
            bar(done / total, 0, 1)

        table: list[Measurement]
        if one.kind == "runtime":
            table = timing.runtime(one.options.get("n"), repeats=5, watch=watch)
        elif one.kind == "metric-time":
            table = timing.metric_time()
        elif one.kind == "surrogates":
            stored = stored_results.stored_rows(results)
            table = surrogates.against_other_best_losses(one, stored, cells, precision, watch)
        elif one.kind == "theory":
            table = [{k: v.strip("*") for k, v in line.items()} for line in summary(check_all(watch=watch))]
        else:
            raise InputError(f"{one.name}: unknown kind {one.kind!r}")
    page = {
        "name": one.name,
        "scale": one.scale,
        "settings": one.options,
        "written_by": provenance(),
        "table": table,
    }
    sealed.write_json(path, page)


def _compute(
    todo: list[Cell], cells: Path, results: Path, jobs: int, progress: bool | None, save: Callable[[], None]
) -> None:
    """Compute the cells in worker processes; this process shows progress and saves results as they arrive."""
    finished = -1
    with TotalProgress(sum(_rounds(cell) for cell in todo), progress) as bar:

        def watch() -> None:
            nonlocal finished
            done = [cell for cell in todo if cell.done(cells)]
            bar(sum(min(cell.rounds_done(cells), _rounds(cell)) for cell in todo), len(done), len(todo))
            if len(done) != finished:
                finished = len(done)
                save()

        work = partial(run_cells, cells=cells, results=results)
        run_in_processes(work, todo, jobs, watch, "run the same command again to resume")


def run_cells(queue: Any, cells: Path, results: Path, stop: Callable[[], bool]) -> None:
    """Run the cells of a queue until it is empty.

    A cell that needs a result of another process waits for it, and is then run before all others.

    Args:
        queue: The cells.
        cells: The folder of the cells.
        results: The folder of the results, where prerequisites may be stored.
        stop: Asked whether to stop.
    """
    waiting: list[tuple[Cell, Callable[[], bool]]] = []  # each waits while its condition is true
    while not stop():
        ready = next((each for each in waiting if not each[1]()), None)
        if ready is not None:
            waiting.remove(ready)
            cell = ready[0]
        else:
            try:
                cell = queue.get(timeout=1)
            except queues.Empty:
                if waiting:
                    continue
                return
            if _prerequisite_runs(cell, cells):
                waiting.append((cell, partial(_prerequisite_runs, cell, cells)))
                continue
        try:
            first = cell.prerequisite
            row = first and stored_results.find_row(first, stored_results.stored_rows(results), cells)
            cell.run(cells, stop, row["clusters"] if row else None)
        except Interrupted:
            return
        except LockedError as other:
            waiting.append((cell, partial(_is_locked, other.lock)))
        except OSError:  # a full disk would meet every cell
            raise
        except Exception as error:
            files.write_text(cell.folder(cells) / "error.txt", f"{type(error).__name__}: {error}")


def _prerequisite_runs(cell: Cell, cells: Path) -> bool:
    """Is another process computing the cell that this one needs?"""
    first = cell.prerequisite
    return first is not None and "running" in (first.status(cells), first.in_bf16.status(cells))


def _is_locked(lock: Path) -> bool:
    with files.lock(lock, wait=0) as free:
        return not free


def _seed_position(place: tuple[Part, Cell]) -> int:
    """Which of its part's seeds the cell has."""
    part, cell = place
    return part.experiment.seeds.index(cell.seed)


def _rounds(cell: Cell) -> int:
    return cell.experiment.settings.rounds or 1


def _failure(cell: Cell, cells: Path) -> str | None:
    path = cell.folder(cells) / "error.txt"
    return path.read_text(encoding="utf-8") if path.exists() and not cell.done(cells) else None
