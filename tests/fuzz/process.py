"""Run cases in a process of their own: one that hangs where Python cannot interrupt it, or that kills its process,
costs a new process and not the whole run.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

START = 120.0  # seconds that a process may take to prepare the sound files
Case = tuple[str, int, int]  # kind, seed, number
Found = list[tuple[str, str]]  # the name of a fault, and its description


def serve(cases: list[Case], seconds: float, to: Connection) -> None:
    """Run the cases one after the other, and send the faults of each."""
    from . import harness, kinds, replies, sound  # noqa: F401  # replies adds its kinds

    sound.prepare()
    harness.SECONDS = seconds
    for one in cases:
        with tempfile.TemporaryDirectory(prefix="focusfl-fuzz-") as folder:
            faults = kinds.case(*one, Path(folder))
        to.send([(fault.name, str(fault).replace(folder, "FOLDER")) for fault in faults])


def outcomes(cases: list[Case], seconds: float) -> Iterator[tuple[Case, Found]]:
    """Yield each case with its faults."""
    context = multiprocessing.get_context("spawn")
    left = iter(range(len(cases)))
    for begin in left:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=serve, args=(cases[begin:], seconds, theirs), daemon=True)
        process.start()
        theirs.close()
        found, answered = _receive(ours, START + seconds)
        yield cases[begin], found
        while answered and (i := next(left, None)) is not None:
            found, answered = _receive(ours, 3 * seconds)
            yield cases[i], found
        process.kill()
        process.join()


def _receive(ours: Connection, patience: float) -> tuple[Found, bool]:
    """Return the faults of the next case, and whether the process goes on."""
    try:
        if ours.poll(patience):
            return ours.recv(), True
        return [("hang", "hang: cannot be interrupted")], False
    except EOFError:
        return [("traceback", "traceback: the process ended")], False
