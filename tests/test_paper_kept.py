"""What focusfl reproduce keeps: nothing is lost, nothing goes on unwatched, reasons stand where they are true."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from focusfl import files
from focusfl.paper import keeping, running
from focusfl.paper import results as kept
from focusfl.paper.cells import Cell
from focusfl.paper.claims import judge
from focusfl.paper.off import off
from focusfl.paper.readme import markdown
from focusfl.paper.reproduction import Saying, catalogue, load

TABLE = """
title = "A table"
algorithms = ["focus", "fedavg"]
rounds = 3
checkpoint_every = 1
[data]
name = "synthetic"
n = 20
n_test = 20
[scale.small]
seeds = [0]
[scale.paper]
seeds = [0]
"""
MAIN = "from focusfl.cli import main; main()"
REPRODUCE = [sys.executable, "-c", MAIN, "reproduce", "table1-a", "--cells", "cells"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, TABLE)
    return tmp_path


def write(here, text, name="table1-a"):
    folder = here / "experiments/paper"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.toml").write_text(text)


def rows(here):
    return json.loads((here / "results/table1-a.small.json").read_text())["rows"]


# --- folders that several processes share


def make(path: str, start, failed):
    start.wait()
    for _ in range(200):
        try:
            files.make_folder(Path(path))
        except Exception:
            failed.set()


def test_a_folder_is_made_by_several_processes_at_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    start, failed = context.Event(), context.Event()
    both = [context.Process(target=make, args=(str(tmp_path / "shared"), start, failed)) for _ in range(2)]
    for each in both:
        each.start()
    time.sleep(1)
    start.set()
    for each in both:
        each.join(60)
    assert not failed.is_set() and [each.exitcode for each in both] == [0, 0]


def test_a_lock_is_waited_for_as_long_as_asked(tmp_path):
    with files.lock(tmp_path / "lock") as mine, files.lock(tmp_path / "lock", wait=0.2) as other:
        assert mine and not other
    with files.lock(tmp_path / "lock", wait=0) as again:
        assert again


# --- rows


def test_rows_of_settings_that_changed_are_set_aside_and_come_back(here):
    assert running.reproduce([load("table1-a", "small")], here / "cells", here / "results") == []
    first = rows(here)
    write(here, TABLE.replace("n = 20", "n = 25"))
    assert running.reproduce([load("table1-a", "small")], here / "other", here / "results") == []
    assert [row["key"] for row in rows(here)] != [row["key"] for row in first]
    old = json.loads((here / "results/table1-a.small.old.json").read_text())["rows"]
    assert old == first
    write(here, TABLE)
    todo = load("table1-a", "small")
    assert all(cell.key in keeping.kept(here / "results") for _, cell in keeping.cells_of(todo))
    assert running.reproduce([todo], here / "none", here / "results") == []
    assert rows(here) == first


def test_rows_that_another_process_added_meanwhile_stay(here):
    one = load("table1-a", "small")
    (_, focus), (_, fedavg) = keeping.cells_of(one)
    focus.run(here / "mine", lambda: False)
    fedavg.run(here / "theirs", lambda: False)
    files.make_folder(here / "results")
    keeping.write([one], here / "theirs", here / "results")
    keeping.write([one], here / "mine", here / "results")
    assert [row["method"] for row in rows(here)] == ["focus", "fedavg"]


def test_other_files_in_the_folder_are_no_matter(here):
    files.make_folder(here / "results")
    (here / "results/results.json").write_text("[]")
    assert running.reproduce([load("table1-a", "small")], here / "cells", here / "results") == []
    write(here, TABLE, name="mine-b")  # no name of the paper: after those
    assert list(catalogue()) == ["table1-a", "mine-b"]


def test_a_cell_that_another_process_computed_in_the_end_has_not_failed(here, monkeypatch):
    def run(cell, cells, stop):
        folder = files.make_folder(cell.folder(cells))
        (folder / "error.txt").write_text("one process had no memory for it")
        files.write_json(folder / "result.json", {"key": cell.key})

    one = load("table1-a", "small")
    monkeypatch.setattr(running, "_compute", lambda todo, cells, *_: [run(cell, cells, None) for cell in todo])
    assert running.reproduce([one], here / "cells", here / "results") == []


def test_numbers_of_another_precision_are_another_cell(here):
    (part,) = load("table1-a", "small").parts
    half = part.experiment.model_copy(update={"precision": "bf16"})
    assert Cell(half, "fedavg", 0).key != Cell(part.experiment, "fedavg", 0).key


# --- stopping


@pytest.fixture
def endless(here):
    write(here, TABLE.replace("rounds = 3", "rounds = 1000000"))
    return here


def started(process, here):
    until = time.monotonic() + 60
    while not list((here / "cells").glob("*/checkpoint.safetensors")) and time.monotonic() < until:
        time.sleep(0.05)
    assert process.poll() is None


def test_a_second_ctrl_c_stops_at_once(endless):
    process = subprocess.Popen(REPRODUCE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    started(process, endless)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.05)
    process.communicate(timeout=30)
    assert process.returncode == 130
    (path,) = (endless / "cells").glob("*/history.jsonl")
    size = path.stat().st_size
    time.sleep(1)
    assert path.stat().st_size == size  # no worker is left that computes


FULL = """
import time
from pathlib import Path
import focusfl.paper.keeping as keeping
def full(*_):
    while not list(Path("cells").glob("*/checkpoint.safetensors")):
        time.sleep(0.05)
    raise OSError(28, "No space left on device")
keeping.write = full
"""


def test_where_results_cannot_be_saved_nobody_computes_on(endless):
    command = [sys.executable, "-c", FULL + MAIN, *REPRODUCE[3:]]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        _, err = process.communicate(timeout=60)  # it waits for its workers to end
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 1 and "No space left" in err


# --- what is said of them


def test_reasons_of_a_shared_file_are_for_its_own_data(here):
    folder = here / "experiments/paper/shared"
    folder.mkdir()
    (folder / "base.toml").write_text(TABLE.replace('title = "A table"\n', "") + '[why]\nfedavg = "shared"\n')
    own = 'title = "Parts"\nuse = "base"\n[[part]]\nname = "same"\nexpect.fedavg = { faa = 0.1 }\n'
    own += '[[part]]\nname = "other"\ndata.R = 2.0\nexpect.fedavg = { faa = 0.1 }\n'
    own += '[[part]]\nname = "own"\ndata.R = 3.0\nwhy.fedavg = "its own"\nexpect.fedavg = { faa = 0.1 }\n'
    write(here, own, "table2-b")
    row = {"method": "fedavg", "seed": 0, "avg_acc": None, "avg_loss": 1.0, "agnostic_loss": 1.0, "faa": 0.5}
    found = off(load("table2-b", "paper"), [row | {"part": name} for name in ("same", "other", "own")])
    assert [each.why for each in found] == ["shared", "Not explained", "its own"]


def test_times_stand_beside_the_papers(here):
    write(
        here,
        'title = "Times"\nkind = "runtime"\n[scale.small]\n[[printed]]\nmethod = "focus"\nratio = 1.06\n',
        "runtime",
    )
    table = [{"method": "focus", "seconds": 2.0, "ratio": 3.0}, {"method": "afl", "seconds": 1.0, "ratio": 1.5}]
    section = kept.section(load("runtime", "small"), {"table": table})
    assert section.table == [table[0] | {"ratio, paper": 1.06}, table[1] | {"ratio, paper": None}]
    files.make_folder(here / "results")
    files.write_json(here / "results/runtime.small.json", {"table": table})
    assert "| focus | 2 | 3 | 1.06 |" in markdown(here / "results")
    assert "| afl | 1 | 1.5 | - |" in markdown(here / "results")


def test_the_commits_are_those_that_computed_the_rows(here):
    assert running.reproduce([load("table1-a", "small")], here / "cells", here / "results") == []
    path = here / "results/table1-a.small.json"
    page = json.loads(path.read_text())
    for row, commit in zip(page["rows"], ("abc", None), strict=True):
        row["made"]["commit"] = commit
    section = kept.section(load("table1-a", "small"), page)
    assert section.made["commit"] == "abc, one not recorded"


def test_a_claim_about_rounds_counts_a_goal_never_reached_as_all_rounds():
    """FOCUS (3 + 10) / 2, FedAvg (4 + 20) / 2 of 20 rounds."""
    both = [("focus", {"0.7": 3, "0.9": 10}), ("fedavg", {"0.7": 4, "0.9": None})]
    table = [{"part": "", "method": m, "seed": 0, "rounds": 20, "rounds_to": to} for m, to in both]
    claim = judge(Saying(says="", metric="rounds", better="focus"), table)
    assert claim.verdict == "holds" and "FOCUS 6.5" in claim.numbers and "(FedAvg) 12.0" in claim.numbers


def test_what_a_claim_waits_for_is_named():
    table = [{"part": "", "method": "fedavg", "seed": 0, "faa": 0.1}]
    claim = judge(Saying(says="", metric="faa", better="focus", than=["fedavg"]), table)
    assert (claim.verdict, claim.numbers) == ("not measured", "missing: FOCUS")
    assert judge(Saying(says="", metric="faa", better="focus"), []).numbers == "missing: all"
