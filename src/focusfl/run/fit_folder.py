"""The folder of one run from Python: `ff.fit(out=...)`.

OUT/run.json          which run the folder belongs to
OUT/.lock             held by the process that works in this folder
OUT/history.jsonl     one line per round; two checkpoints beside it
OUT/surrogates/       best losses
OUT/result.json       the row of the finished run
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from focusfl.run import results
from focusfl.run.out_folder import require_empty, require_outside_data
from focusfl.run.result import Result, name_and_options
from focusfl.run.setup import Setup
from focusfl.util import files, sealed
from focusfl.util.errors import InputError

MARKER = "run.json"


@contextmanager
def claimed(out: Path, setup: Setup, resume: bool) -> Iterator[None]:
    """Hold the folder for this run, new or resumed.

    Raises:
        InputError: It holds something else, or this run and `resume` is False, or another process works there.
    """
    require_outside_data(out, setup.fed)
    with files.lock(files.make_folder(out) / ".lock", wait=0) as locked:
        if not locked:
            raise InputError(f"{out} is locked by another process: wait for it, or use another folder")
        marker = out / MARKER
        if not marker.exists():
            require_empty(out, "a run of fit")
            about = {"method": name_and_options(setup.algorithm)["algorithm"], "seed": setup.settings.seed}
            sealed.write_json(marker, {**about, "fingerprint": setup.fingerprint})
        elif _fingerprint(marker) != setup.fingerprint:
            raise InputError(f"out = {out} holds another run (method, data, options or seed): use another folder")
        elif not resume:
            state = (
                "finished: resume=True reads"
                if (out / "result.json").exists()
                else "unfinished: resume=True continues"
            )
            raise InputError(f"out = {out} holds this run, {state} it, or use another folder")
        yield


def finish(out: Path, result: Result) -> None:
    """Write the row of the finished run."""
    results.write_row(out, result.row())


def _fingerprint(marker: Path) -> object:
    stored = sealed.read_json(marker)
    return stored.get("fingerprint") if isinstance(stored, dict) else None
