"""Work in several processes: each takes items from one queue, and stops if it is asked to or the parent is gone."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable
from multiprocessing.connection import wait
from typing import Any

from focusfl.util.errors import Interrupted
from focusfl.util.interrupt import graceful_stop, ignored


def run_in_processes(
    work: Callable[..., None], items: Iterable[Any], jobs: int, watch: Callable[[], None], hint: str
) -> None:
    """Run `work(queue, stop=...)` in separate processes until all of them return.

    Args:
        work: What each process does: take items from the queue until it is empty, or `stop()` is true. It can be
            pickled: a function of a module, or a partial of one.
        items: What is put into the queue.
        jobs: The number of processes; they share the threads of torch.
        watch: Called in this process twice a second and at the end, to show and save what has been done.
        hint: Says how to resume, for messages.

    Raises:
        Interrupted: Ctrl-C. Every process stopped after a complete round.
        OSError: A process died.
    """
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    queue.cancel_join_thread()  # if stopped early, do not wait until the rest of the queue is read
    for item in items:
        queue.put(item)
    stopping = context.Event()
    arguments = (work, queue, jobs, stopping, os.getpid())
    workers = [context.Process(target=_work, args=arguments, daemon=True) for _ in range(jobs)]
    with graceful_stop() as stop:
        with ignored():  # Ctrl-C reaches all processes of a terminal: these inherit that they ignore it
            for worker in workers:
                worker.start()
        try:
            while running := [worker.sentinel for worker in workers if worker.is_alive()]:
                wait(running, timeout=0.5)
                watch()
                if stop():
                    stopping.set()
        except KeyboardInterrupt:  # the second Ctrl-C stops at once; runs resume from their checkpoints
            for worker in workers:
                worker.kill()
            raise
        finally:  # even after an error here, no worker may continue unsupervised
            stopping.set()
    if stop():
        raise Interrupted(f"stopped; {hint}")
    if any(worker.exitcode for worker in workers):
        raise OSError(f"a worker process died (out of memory or disk?); {hint}")


def _work(work: Callable[..., None], queue: Any, jobs: int, stopping: Any, parent: int) -> None:
    """One process: until there is nothing left, or it is asked to stop, or the parent is gone."""
    import torch

    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C reaches all; the parent says when to stop
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
    work(queue, stop=lambda: bool(stopping.is_set()) or os.getppid() != parent)
