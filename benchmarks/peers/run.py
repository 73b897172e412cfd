"""focusfl's FedAvg beside other libraries' and a plain torch loop: one round, as ratios measured in turn.

    make bench-peers
    python benchmarks/peers/run.py --work small --only pfl,fedjax --repeat 9 --out peers.json

    mnist  10 agents x 6000 examples of rotated MNIST, MLP 784-200-10, 10 full-batch steps
    small  1000 agents x 60 examples of 64 numbers, MLP 64-32-10, 5 steps of 20 examples

Each peer has a virtual environment (PEER.txt says what is in it) and a process that is kept for the whole run; it
does its rounds by the library's own loop (PEER.py). Rounds of all peers alternate; printed are medians of the
seconds, and of the ratios within a turn. Only training and averaging are timed. The first round is a check: from
the same first weights a full-batch round must end at focusfl's, and every agent must take its number of steps.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

sys.path[:1] = []  # this folder: its files are named like the libraries
sys.path.append(str(Path(__file__).resolve().parents[1]))

from peers.process import Failed, Process, environment  # noqa: E402
from peers.work import WORKS, Array, Work  # noqa: E402

PEERS = ("focusfl", "plain", "pfl", "fluke", "fedjax", "fedlab", "flgo", "flower")
ALONE = {"flower": "small"}  # peers that do one work alone
CLOSE = 1e-4  # largest difference between weights that should be equal


@dataclass
class Row:
    """What was found about a peer."""

    peer: str
    version: str = ""
    wall: list[float] = field(default_factory=list)  # seconds, one a turn
    cpu: list[float] = field(default_factory=list)
    differs: float | None = None  # weights after the first round: largest difference from focusfl's
    wrong: str = ""  # other work than it should be
    failed: str = ""


def measure(work: Work, pythons: dict[str, Path | Failed], threads: int, repeat: int) -> list[Row]:
    rows = {peer: Row(peer) for peer in pythons}
    processes: dict[str, Process] = {}
    after: dict[str, list[Array]] = {}  # weights after the first round

    def take(peer: str, turn: int, file: Path) -> None:
        row, python = rows[peer], pythons[peer]
        if isinstance(python, Failed):
            raise python
        if turn == 0:
            processes[peer] = Process(peer, python, file, threads)
            after[peer] = check(row, processes[peer], work)
        else:
            said = processes[peer].ask("round")
            row.wall.append(said["wall"])
            row.cpu.append(said["cpu"])

    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        file = Path(folder) / "work.npz"
        work.write(file)
        try:
            for turn in range(repeat + 1):
                for peer, row in rows.items():
                    try:
                        if not row.failed:
                            take(peer, turn, file)
                    except Failed as error:
                        row.failed = str(error)
                print(f"turn {turn} of {repeat}", file=sys.stderr, flush=True)
        finally:
            for process in processes.values():
                process.close()
    if work.full:
        compare(rows, after)
    return list(rows.values())


def check(row: Row, process: Process, work: Work) -> list[Array]:
    """One round to warm up and to see that the work is what it should be; the weights after it."""
    file = process.folder / "weights.npz"
    said = process.ask(f"check {file}")
    row.version = said["version"]
    should = {str(work.batch): len(work.x) * work.steps}
    if said["rows"] != should:
        row.wrong = f"steps by their size {said['rows']}, should be {should}"
    with np.load(file) as weights:
        return [weights[f"w{i}"] for i in range(4)]


def compare(rows: dict[str, Row], after: dict[str, list[Array]]) -> None:
    for peer, found in after.items() if "focusfl" in after else ():
        gap = max(float(abs(a - b).max()) for a, b in zip(found, after["focusfl"], strict=True))
        rows[peer].differs = gap
        if not gap <= CLOSE:
            rows[peer].wrong += f" weights differ from focusfl's by {gap:.0e}"


def ratio(ours: list[float], theirs: list[float]) -> float:
    return median(b / a for a, b in zip(ours, theirs, strict=True))


def table(rows: list[Row]) -> str:
    ours = next(row for row in rows if row.peer == "focusfl")
    lines = [f"{'':22} {'seconds a round':>19}   {'times focusfl':>17}"]
    lines += [f"{'peer':22} {'wall':>9} {'CPU':>9}   {'wall':>8} {'CPU':>8}   first round"]
    for row in rows:
        name = f"{row.peer} {row.version}"
        if row.failed or ours.failed:
            lines.append(f"{name:22} not measured: {row.failed or 'focusfl was not'}")
            continue
        right = "same steps" if row.differs is None else f"same steps, same weights to {row.differs:.0e}"
        numbers = f"{median(row.wall):9.3f} {median(row.cpu):9.3f}"
        ratios = f"{ratio(ours.wall, row.wall):8.2f} {ratio(ours.cpu, row.cpu):8.2f}"
        lines.append(f"{name:22} {numbers}   {ratios}   {'WRONG: ' + row.wrong if row.wrong else right}")
    return "\n".join(lines)


def environments(peers: set[str], venvs: Path) -> dict[str, Path | Failed]:
    venvs.mkdir(parents=True, exist_ok=True)
    (venvs / ".gitignore").write_text("*\n")
    pythons: dict[str, Path | Failed] = {}
    for peer in PEERS:
        if peer in peers:
            try:
                pythons[peer] = environment(peer, venvs)
            except Failed as error:
                pythons[peer] = error
    return pythons


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--work", choices=("both", *WORKS), default="both")
    options.add_argument("--only", default=",".join(PEERS), help="some of " + ", ".join(PEERS))
    options.add_argument("--repeat", type=int, default=5, help="turns that are timed")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--venvs", type=Path, default=Path(".bench-peers"), help="folder of the environments")
    options.add_argument("--tiny", action="store_true", help="little data: does everything run?")
    options.add_argument("--out", type=Path, help="write all that was measured as JSON")
    chosen = options.parse_args()
    peers = set(chosen.only.split(","))
    if unknown := peers - set(PEERS):
        options.error(f"--only {', '.join(sorted(unknown))}: expected some of {', '.join(PEERS)}")
    pythons = environments(peers | {"focusfl"}, chosen.venvs)
    load, works = os.getloadavg()[0], {}
    for name in WORKS if chosen.work == "both" else (chosen.work,):
        work = WORKS[name](chosen.tiny)
        who = {peer: python for peer, python in pythons.items() if ALONE.get(peer, name) == name}
        rows = measure(work, who, chosen.threads, chosen.repeat)
        E, n, d = work.x.shape
        print(f"\n{name}: {E} agents x {n} examples of {d} numbers, {work.steps} steps of {work.batch};", end=" ")
        print(f"{chosen.threads} thread(s), median of {chosen.repeat} turns, load before {load:.1f}")
        print(table(rows), flush=True)
        works[name] = [asdict(row) for row in rows]
    if chosen.out:
        about = {"python": platform.python_version(), "machine": platform.platform(), "cpus": os.cpu_count()}
        about |= {"threads": chosen.threads, "load_before": load, "tiny": chosen.tiny}
        chosen.out.write_text(json.dumps({"about": about, "works": works}, indent=1) + "\n")
    found = [row for rows in works.values() for row in rows]
    return any(row["wrong"] or (row["failed"] and row["peer"] == "focusfl") for row in found)


if __name__ == "__main__":
    sys.exit(main())
