"""Break runs in every way that a machine can, resume them, and compare the bits with a run that nothing disturbed.

    python tests/faults/campaign.py                    every n-th write, every fault, 200 kills, small disks
    python tests/faults/campaign.py --every 60 --kills 3 --disks 100 --scenarios tied     what CI does

For each fault, the n-th operation that writes goes wrong, for n = 1, 2, ... until a run gets through
(`injector.py`); `kills` are SIGKILL at random times, up to three in a row; `disks` are real ones (tmpfs, if it may
be mounted) that grow from nothing until a run fits. Each time a run that nothing disturbs resumes. It must exit
with 0 and leave the same files as the reference: results and history (without seconds), checkpoints, examples and
best losses to the bit, and no others. The disturbed run must end by the kill, or with exit code 0 or 1, and show no
traceback.

Processes are forked from this one, which imports everything once and computes nothing itself.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from injector import FAULTS, Injector

from focusfl.cli import app as cli

IMPORTED_ONCE = ("focusfl.run.compare", "focusfl.report.terminal", "sklearn.metrics", "scipy.stats")
IN_MEMORY = Path("/dev/shm")  # there fsync costs nothing
COMMON = "compare --data synthetic --rounds 3 --seeds 0 --set checkpoint_every=1 --set bayes='true' --set data.n=20"
SCENARIOS = {  # what is run
    "tied": f"{COMMON} --algorithms focus:init=tied,fedavg",
    "split": f"{COMMON} --algorithms focus,local",
    "first": f"{COMMON} --algorithms hardcluster",  # it runs FOCUS first, with a checkpoint of its own
}
KILLED = -signal.SIGKILL


@dataclass
class Tally:
    """What happened to the runs of one fault."""

    disturbed: int = 0
    killed: int = 0
    failed: int = 0  # ended with exit code 1
    finished: int = 0  # in spite of the fault
    different: list[str] = field(default_factory=list)  # what is not as it must be, and where

    def add(self, code: int, said: str, where: str) -> None:
        self.disturbed += 1
        self.killed += code == KILLED
        self.failed += code == 1
        self.finished += code == 0
        if code not in (0, 1, KILLED) or "Traceback" in said or len(said.strip().splitlines()) > 4:
            self.different.append(f"{where}: exit code {code}: {said}")


class Scenario:
    """One experiment, and what it leaves if nothing disturbs it."""

    def __init__(self, words: str, work: Path) -> None:
        self.words, self.work = words.split(), work
        started = time.perf_counter()
        code, said = self.run(work / "reference")
        self.seconds = time.perf_counter() - started
        assert code == 0, said
        self.reference = contents(work / "reference")

    def start(self, folder: Path, fault: str = "", at: int = 0, resume: bool = False) -> int:
        """Start it in a child process; return its id."""
        sys.stdout.flush()
        child = os.fork()
        if child:
            return child
        code = 99
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            os.dup2(os.open(self.work / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), sys.stderr.fileno())
            sys.argv = ["focusfl", *self.words, "--out", str(folder), *["--resume"] * resume]
            injector = Injector(folder, fault, at)
            if fault:
                injector.install()
            try:
                cli.main()
            finally:
                (self.work / "operations").write_text(str(injector.count))
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else 98
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def run(self, folder: Path, fault: str = "", at: int = 0, resume: bool = False) -> tuple[int, str]:
        """Run it in a child process; return the exit code, and what it said on stderr."""
        return self.wait(self.start(folder, fault, at, resume))

    def wait(self, child: int) -> tuple[int, str]:
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        return code, "" if code == 0 else (self.work / "said").read_text(errors="replace")

    def resume_and_compare(self, folder: Path, tally: Tally, where: str) -> None:
        code, said = self.run(folder, resume=True)
        if code != 0:
            tally.different.append(f"{where}: resuming: exit code {code}: {said}")
            shutil.rmtree(folder)
            return
        found = contents(folder)
        for name in sorted(found.keys() | self.reference.keys()):
            if found.get(name) != self.reference.get(name):
                how = "missing" if name not in found else "left over" if name not in self.reference else "different"
                tally.different.append(f"{where}: {name} is {how}")
        shutil.rmtree(folder)


def contents(folder: Path) -> dict[str, Any]:
    """What must be the same in every run: bits, or rows without seconds."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_dir() or name.match("surrogates/*/*"):  # the run of a best loss is deleted if possible
            continue
        if path.name == "history.jsonl":
            found[str(name)] = [timeless(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.name in ("result.json", "results.json"):
            rows = json.loads(path.read_text())
            found[str(name)] = [timeless(row) for row in (rows if isinstance(rows, list) else [rows])]
        else:
            found[str(name)] = path.read_bytes()
    return found


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k not in ("seconds", "digest")}


def every_write(one: Scenario, fault: str, every: int, first: int) -> Tally:
    """Let the n-th operation go wrong, for n = first, first + every, ..., until a run gets through."""
    tally, at, folder = Tally(), first, one.work / "disturbed"
    while True:
        (one.work / "operations").unlink(missing_ok=True)
        code, said = one.run(folder, fault, at)
        counted = one.work / "operations"
        if code == 0 and counted.exists() and int(counted.read_text()) < at:  # the fault never came
            shutil.rmtree(folder)
            return tally
        tally.add(code, said, f"{fault} at {at}")
        one.resume_and_compare(folder, tally, f"{fault} at {at}")
        at += every


def random_kills(one: Scenario, times: int, rng: random.Random) -> Tally:
    """Kill runs at random times; a resumed run may be killed again."""
    tally, folder = Tally(), one.work / "disturbed"
    while tally.killed < times:
        for again in range(rng.randint(1, 3)):
            child = one.start(folder, resume=bool(again))
            time.sleep(rng.uniform(0, one.seconds))
            os.kill(child, signal.SIGKILL)
            tally.add(*one.wait(child), where=f"kill {tally.killed}")
        one.resume_and_compare(folder, tally, f"kill {tally.killed}")
    return tally


def small_disks(one: Scenario, step: int) -> Tally | None:
    """Run on disks of `step`, 2 `step`, ... kB until a run fits; None if no disk may be mounted."""
    tally, disk, size = Tally(), one.work / "disk", step
    disk.mkdir(exist_ok=True)
    while True:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", disk]
        if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
            return None
        try:
            code, said = one.run(disk / "run")
            if code == 0:
                return tally
            tally.add(code, said, f"disk of {size} kB")
            subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
            one.resume_and_compare(disk / "run", tally, f"disk of {size} kB")
        finally:
            subprocess.run(["umount", disk], check=True)
        size += step


def campaigns(options: argparse.Namespace, work: Path) -> Iterator[tuple[str, str, Tally | None]]:
    rng = random.Random(options.seed)
    names = options.scenarios.split(",")
    for name in names:
        one = Scenario(SCENARIOS[name], Path(tempfile.mkdtemp(dir=work)))
        for fault in options.faults.split(",") if options.faults else []:
            yield name, fault, every_write(one, fault, options.every, rng.randint(1, options.every))
        if options.kills:
            yield name, "kills", random_kills(one, -(-options.kills // len(names)), rng)
        if options.disks:
            yield name, "disks", small_disks(one, options.disks)


def main() -> None:
    parser = argparse.ArgumentParser(description="Break runs, resume them, compare the bits")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help=", ".join(SCENARIOS))
    parser.add_argument(
        "--faults", default=",".join(FAULTS), help="; ".join(f"{k}: {v}" for k, v in FAULTS.items())
    )
    parser.add_argument("--every", type=int, default=1, help="only every so many-th operation goes wrong")
    parser.add_argument("--kills", type=int, default=200, help="SIGKILL at random times, over all scenarios")
    parser.add_argument("--disks", type=int, default=4, help="kB by which the small disks grow; 0: none")
    parser.add_argument("--seed", type=int, default=0, help="of the random times, and where --every starts")
    options = parser.parse_args()
    wrong = 0
    print("scenario  fault   disturbed killed failed finished different", flush=True)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as work:
        for name, fault, tally in campaigns(options, Path(work)):
            if tally is None:
                print(f"{name:9} {fault:7} no disk may be mounted here", flush=True)
                continue
            numbers = (tally.disturbed, tally.killed, tally.failed, tally.finished, len(tally.different))
            print(f"{name:9} {fault:7} {'{:9} {:6} {:6} {:8} {:9}'.format(*numbers)}", flush=True)
            for line in tally.different[:20]:
                print(f"  {line}", flush=True)
            wrong += len(tally.different)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    for module in IMPORTED_ONCE:
        importlib.import_module(module)
    torch.set_num_threads(1)
    main()
