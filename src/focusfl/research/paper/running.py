"""focusfl reproduce: compute the cells of the paper's tables and figures, in parallel."""

from __future__ import annotations

import multiprocessing
import os
import queue as queues
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from focusfl.research.paper import keeping, surrogates, timing
from focusfl.research.paper.cells import Cell
from focusfl.research.paper.reproduction import Part, Reproduction
from focusfl.research.theory.check import check_all, summary
from focusfl.util import files
from focusfl.util.errors import InputError, Interrupted, LockedError
from focusfl.util.interrupt import graceful_stop
from focusfl.util.machine import provenance
from focusfl.util.progress import TotalProgress


def reproduce(
    wanted: list[Reproduction],
    cells: Path,
    results: Path,
    jobs: int = 1,
    progress: bool | None = None,
    precision: str = "float32",
) -> list[str]:
    """Compute what is missing, the first seed of everything first; returns what failed, and why.

    precision  bf16: what is missing is computed in bfloat16, where the processor has units for it
    """
    files.make_folder(cells)
    files.make_folder(results)
    known = keeping.kept(results)
    every = sorted((place for one in wanted for place in keeping.cells_of(one)), key=_turn)
    missing = [cell for _, cell in every if keeping.status(cell, known, cells, precision) != "done"]
    todo = {cell.key: cell for cell in (c if precision == "float32" else c.fast for c in missing)}
    save = partial(keeping.write, wanted, cells, results)
    if todo:
        _compute(list(todo.values()), cells, results, jobs, progress, save)
    save()
    for one in wanted:
        if one.kind != "experiment":
            _measure(one, cells, results, progress, precision)
    return [f"{cell.method} seed {cell.seed}: {why}" for cell in todo.values() if (why := _failure(cell, cells))]


def _measure(one: Reproduction, cells: Path, results: Path, progress: bool | None, precision: str) -> None:
    """Times, bounds and other surrogates: measured here and now, unless they have been."""
    path = results / f"{one.name}.{one.scale}.json"
    if path.exists():
        return
    with TotalProgress(1, progress, "steps") as bar:

        def watch(done: int, total: int) -> None:
            bar(done / total, 0, 1)

        if one.kind == "runtime":
            rows = timing.runtime(one.options.get("n"), repeats=5, watch=watch)
        elif one.kind == "metric-time":
            rows = timing.metric_time()
        elif one.kind == "surrogates":
            rows = surrogates.against_others(one, keeping.kept(results), cells, precision, watch)
        elif one.kind == "theory":
            rows = [{k: v.strip("*") for k, v in line.items()} for line in summary(check_all(watch=watch))]
        else:
            raise InputError(f"{one.name}: unknown kind {one.kind!r}")
    page = {
        "name": one.name,
        "scale": one.scale,
        "settings": one.options,
        "written_by": provenance(),
        "table": rows,
    }
    files.write_json(path, page)


def _compute(
    todo: list[Cell], cells: Path, results: Path, jobs: int, progress: bool | None, save: Callable[[], None]
) -> None:
    """Worker processes take cell after cell; this one watches, and saves the results as they come."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    queue.cancel_join_thread()  # stopped early, nobody will take the rest: do not wait for that
    for cell in todo:
        queue.put(cell)
    asked, here = context.Event(), os.getpid()
    about = (queue, cells, results, jobs, asked, here)
    workers = [context.Process(target=_work, args=about, daemon=True) for _ in range(jobs)]
    with graceful_stop() as stop, TotalProgress(sum(_length(cell) for cell in todo), progress) as bar:
        for worker in workers:
            worker.start()
        finished = -1
        try:
            while any(worker.is_alive() for worker in workers):
                time.sleep(0.5)
                done = [cell for cell in todo if cell.done(cells)]
                bar(sum(min(cell.rounds_done(cells), _length(cell)) for cell in todo), len(done), len(todo))
                if len(done) != finished:
                    finished = len(done)
                    save()
                if stop():
                    asked.set()
        except KeyboardInterrupt:  # the second: at once; cells go on from their checkpoints
            for worker in workers:
                worker.kill()
            raise
        finally:  # whatever went wrong here, nobody computes on without being watched
            asked.set()
    if stop():
        raise Interrupted("stopped; the same command goes on where it was")
    if any(worker.exitcode for worker in workers):
        raise OSError("a worker died (out of memory or disk?); the same command goes on where it was")


def _work(queue: Any, cells: Path, results: Path, jobs: int, asked: Any, parent: int) -> None:
    """A worker: until there are no more cells, or it is asked to stop, or the parent is gone."""
    import torch

    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C reaches all; the parent says when to stop
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
    cell_after_cell(queue, cells, results, lambda: bool(asked.is_set()) or os.getppid() != parent)


def cell_after_cell(queue: Any, cells: Path, results: Path, stop: Callable[[], bool]) -> None:
    """Until there are none; one that needs what another process is computing waits for it, then goes first."""
    waiting: list[tuple[Cell, Callable[[], bool]]] = []  # and what is true as long
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
            if _first_runs(cell, cells):
                waiting.append((cell, partial(_first_runs, cell, cells)))
                continue
        try:
            row = cell.first and keeping.row_of(cell.first, keeping.kept(results), cells)
            cell.run(cells, stop, row["clusters"] if row else None)
        except Interrupted:
            return
        except LockedError as other:
            waiting.append((cell, partial(_held, other.lock)))
        except OSError:  # a full disk would meet every cell
            raise
        except Exception as error:
            files.write_text(cell.folder(cells) / "error.txt", f"{type(error).__name__}: {error}")


def _first_runs(cell: Cell, cells: Path) -> bool:
    """Is the cell that it builds on being computed?"""
    first = cell.first
    return first is not None and "running" in (first.status(cells), first.fast.status(cells))


def _held(lock: Path) -> bool:
    with files.lock(lock, wait=0) as free:
        return not free


def _turn(place: tuple[Part, Cell]) -> int:
    """Which of its seeds it is."""
    part, cell = place
    return part.experiment.seeds.index(cell.seed)


def _length(cell: Cell) -> int:
    return cell.experiment.settings.rounds or 1


def _failure(cell: Cell, cells: Path) -> str | None:
    path = cell.folder(cells) / "error.txt"
    return path.read_text(encoding="utf-8") if path.exists() and not cell.done(cells) else None
