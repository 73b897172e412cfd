"""One run after another, each kept as a line of JSON as soon as it is done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from focusfl import files
from focusfl.errors import Diverged, Interrupted
from focusfl.interrupt import graceful
from focusfl.machine import commit
from focusfl.metrics import adjusted_rand_index, agnostic_loss, average
from focusfl.studies.cases import Case
from focusfl.training import Setup, labels, run

NAME = "start.jsonl"
Row = dict[str, Any]
Key = tuple[str, str, int]  # case, start, seed


def wanted(case: Case, seeds: int) -> list[Key]:
    return [(case.name, start, seed) for seed in range(seeds) for start in case.starts]


def read(cells: Path, results: Path, cases: list[Case]) -> dict[Key, Row]:
    """The runs there are: of the results, then of the cells. A line cut short by a kill is no run."""
    page, lines = results / "start.json", cells / NAME
    found: list[Row] = files.read_json(page)["rows"] if page.exists() else []
    for line in lines.read_text(encoding="utf-8").splitlines() if lines.exists() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    settings = {case.name: json.loads(json.dumps(case.settings)) for case in cases}
    return {
        (row["case"], row["start"], row["seed"]): row
        for row in found
        if row["settings"] == settings.get(row["case"])
    }


def missing(
    cases: list[Case],
    seeds: int,
    known: dict[Key, Row],
    cells: Path,
    watch: Callable[[float, int, int], None] = lambda seconds, done, runs: None,
) -> None:
    """Run what is not known and keep it; `watch(seconds, done, runs)` hears of the work done, in seconds."""
    left = [(case, key) for case in cases for key in wanted(case, seeds) if key not in known]
    source, before = commit(), 0.0
    with graceful() as stop:
        for done, (case, (_, start, seed)) in enumerate(left):

            def step(
                share: float, case: Case = case, before: float = before, done: int = done, runs: int = len(left)
            ) -> None:
                watch(before + share * case.seconds, done, runs)

            keep(cells, one(case, start, seed, step, stop) | {"commit": source})
            before += case.seconds
            watch(before, done + 1, len(left))


def one(
    case: Case,
    start: str,
    seed: int,
    step: Callable[[float], None] = lambda share: None,
    stop: Callable[[], bool] = lambda: False,
) -> Row:
    """A run's row: its clusters, since which round they are right (None: not at the end), how good its models are.

    A run that diverges has no right clusters and no losses.
    """
    clock = time.perf_counter()
    row: Row = {"case": case.name, "start": start, "seed": seed, "settings": case.settings}
    setup = case.setup(start, seed)
    try:
        row |= _measured(setup, step, stop)
    except Diverged:
        row |= dict.fromkeys(("ari", "since", "clusters", "loss", "worst", "acc"))
    except Interrupted as stopped:
        raise Interrupted(f"{stopped}, {case.name}, {start}, seed {seed}") from stopped
    return row | {"seconds": round(time.perf_counter() - clock, 2)}


def keep(cells: Path, row: Row) -> None:
    """Append it. What a kill cut short stays a line of its own."""
    path = cells / NAME
    with files.lock(cells / "lock"), path.open("a+b") as handle:
        if handle.tell() and path.read_bytes()[-1:] != b"\n":
            handle.write(b"\n")
        handle.write((json.dumps(row, allow_nan=False) + "\n").encode())


def _measured(setup: Setup, step: Callable[[float], None], stop: Callable[[], bool]) -> Row:
    ari, since, found, scores = 0.0, None, 0, None
    for done in run(setup, eval_every=setup.rounds, stop=stop):
        pi = labels(setup.algorithm, done.server, done.states, setup.fed.E)
        assert pi is not None and setup.fed.clusters is not None
        group, scores = pi.argmax(1), done.scores
        ari, found = adjusted_rand_index(group, setup.fed.clusters), len(group.unique())
        since = (since or done.t) if ari == 1 else None
        step(done.t / setup.rounds)
    assert scores is not None
    row = {"ari": round(ari, 6), "since": since, "clusters": found}
    row |= {"loss": average(scores.loss), "worst": agnostic_loss(scores.loss)}
    return row | {"acc": None if scores.acc is None else average(scores.acc)}
