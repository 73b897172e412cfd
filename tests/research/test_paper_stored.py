"""What focusfl reproduce stores: nothing is lost, no worker runs unwatched, reasons appear where they are true."""

import json
import multiprocessing
import os
import queue as queues
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from focusfl.cli import app as cli
from focusfl.research.paper import stored_results, workers
from focusfl.research.paper.cells import Cell
from focusfl.research.paper.claims import judge
from focusfl.research.paper.differences import differences
from focusfl.research.paper.readme import markdown
from focusfl.research.paper.reproduction import Claim, catalogue, load
from focusfl.research.paper.sections import section
from focusfl.util import files
from focusfl.util.errors import InputError

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


def test_waiting_for_a_lock_takes_as_long_as_asked(tmp_path):
    with files.lock(tmp_path / "lock") as mine, files.lock(tmp_path / "lock", wait=0.2) as other:
        assert mine and not other
    with files.lock(tmp_path / "lock", wait=0) as again:
        assert again


# --- rows


def test_rows_of_settings_that_changed_are_set_aside_and_come_back(here):
    assert workers.reproduce([load("table1-a", "small")], here / "cells", here / "results") == []
    first = rows(here)
    write(here, TABLE.replace("n = 20", "n = 25"))
    assert workers.reproduce([load("table1-a", "small")], here / "other", here / "results") == []
    assert [row["key"] for row in rows(here)] != [row["key"] for row in first]
    old = json.loads((here / "results/table1-a.small.old.json").read_text())["rows"]
    assert old == first
    write(here, TABLE)
    todo = load("table1-a", "small")
    assert all(
        cell.key in stored_results.stored_rows(here / "results") for _, cell in stored_results.cells_of(todo)
    )
    assert workers.reproduce([todo], here / "none", here / "results") == []
    assert rows(here) == first


def test_an_edited_page_or_cell_is_noticed(here):
    assert workers.reproduce([load("table1-a", "small")], here / "cells", here / "results") == []
    page = here / "results/table1-a.small.json"
    cell = next((here / "cells").glob("*/result.json"))
    whole = page.read_text()
    page.write_text(whole.replace('"seed":0', '"seed":1', 1))
    with pytest.raises(InputError, match=f"{page.name}.*edited"):
        workers.reproduce([load("table1-a", "small")], here / "cells", here / "results")
    page.unlink()
    cell.write_text(cell.read_text().replace('"seed": 0', '"seed": 1', 1))
    with pytest.raises(InputError, match=r"result\.json.*edited"):
        workers.reproduce([load("table1-a", "small")], here / "cells", here / "results")


def test_rows_that_another_process_has_added_stay(here):
    one = load("table1-a", "small")
    (_, focus), (_, fedavg) = stored_results.cells_of(one)
    focus.run(here / "mine", lambda: False)
    fedavg.run(here / "theirs", lambda: False)
    files.make_folder(here / "results")
    stored_results.write_results([one], here / "theirs", here / "results")
    stored_results.write_results([one], here / "mine", here / "results")
    assert [row["method"] for row in rows(here)] == ["focus", "fedavg"]


def test_other_files_in_the_folder_are_ignored(here):
    files.make_folder(here / "results")
    (here / "results/results.json").write_text("[]")
    assert workers.reproduce([load("table1-a", "small")], here / "cells", here / "results") == []
    write(here, TABLE, name="mine-b")  # no name of the paper: after those
    assert list(catalogue()) == ["table1-a", "mine-b"]


def test_a_cell_that_another_process_computed_in_the_end_has_not_failed(here, monkeypatch):
    def run(cell, cells):
        cell.run(cells, lambda: False)
        (cell.folder(cells) / "error.txt").write_text("one process had no memory for it")

    one = load("table1-a", "small")
    monkeypatch.setattr(workers, "_compute", lambda todo, cells, *_: [run(cell, cells) for cell in todo])
    assert workers.reproduce([one], here / "cells", here / "results") == []


def test_another_precision_is_another_cell(here):
    (part,) = load("table1-a", "small").parts
    half = part.experiment.with_settings(precision="bf16")
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
    assert path.stat().st_size == size  # no worker is left


FULL = """
import time
from pathlib import Path
import focusfl.research.paper.stored_results as stored_results
def full(*_):
    while not list(Path("cells").glob("*/checkpoint.safetensors")):
        time.sleep(0.05)
    raise OSError(28, "No space left on device")
stored_results.write_results = full
"""


def test_workers_stop_if_results_cannot_be_saved(endless):
    command = [sys.executable, "-c", FULL + MAIN, *REPRODUCE[3:]]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        _, err = process.communicate(timeout=60)  # it waits for its workers to end
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 1 and "No space left" in err


# --- what the pages say


def test_reasons_of_a_shared_file_count_for_its_own_data(here):
    folder = here / "experiments/paper/shared"
    folder.mkdir()
    (folder / "base.toml").write_text(TABLE.replace('title = "A table"\n', "") + '[why]\nfedavg = "shared"\n')
    own = 'title = "Parts"\nuse = "base"\n[[part]]\nname = "same"\nexpect.fedavg = { faa = 0.1 }\n'
    own += '[[part]]\nname = "other"\ndata.R = 2.0\nexpect.fedavg = { faa = 0.1 }\n'
    own += '[[part]]\nname = "own"\ndata.R = 3.0\nwhy.fedavg = "its own"\nexpect.fedavg = { faa = 0.1 }\n'
    write(here, own, "table2-b")
    row = {"method": "fedavg", "seed": 0, "avg_acc": None, "avg_loss": 1.0, "agnostic_loss": 1.0, "faa": 0.5}
    found = differences(load("table2-b", "paper"), [row | {"part": name} for name in ("same", "other", "own")])
    assert [each.why for each in found] == ["shared", "Not explained", "its own"]


def test_measured_times_have_the_papers_beside_them(here):
    write(
        here,
        'title = "Times"\nkind = "runtime"\n[scale.small]\n[[printed]]\nmethod = "focus"\nratio = 1.06\n',
        "runtime",
    )
    table = [{"method": "focus", "seconds": 2.0, "ratio": 3.0}, {"method": "afl", "seconds": 1.0, "ratio": 1.5}]
    made = section(load("runtime", "small"), {"table": table})
    assert made.table == [table[0] | {"ratio, paper": 1.06}, table[1] | {"ratio, paper": None}]
    files.make_folder(here / "results")
    files.write_json(here / "results/runtime.small.json", {"table": table})
    assert "| focus | 2 | 3 | 1.06 |" in markdown(here / "results")
    assert "| afl | 1 | 1.5 | - |" in markdown(here / "results")


def test_the_commits_are_those_that_computed_the_rows(here):
    assert workers.reproduce([load("table1-a", "small")], here / "cells", here / "results") == []
    path = here / "results/table1-a.small.json"
    page = json.loads(path.read_text())
    for row, commit in zip(page["rows"], ("abc", None), strict=True):
        row["made"]["commit"] = commit
    made = section(load("table1-a", "small"), page)
    assert made.made["commit"] == "abc, one not recorded"


def test_a_claim_about_rounds_counts_a_goal_never_reached_as_all_rounds():
    """FOCUS (3 + 10) / 2, FedAvg (4 + 20) / 2 of 20 rounds."""
    both = [("focus", {"0.7": 3, "0.9": 10}), ("fedavg", {"0.7": 4, "0.9": None})]
    table = [{"part": "", "method": m, "seed": 0, "rounds": 20, "rounds_to": to} for m, to in both]
    claim = judge(Claim(says="", metric="rounds", better="focus"), table)
    assert claim.verdict == "holds" and "FOCUS 6.5" in claim.numbers and "(FedAvg) 12.0" in claim.numbers


def test_what_a_claim_waits_for_is_named():
    table = [{"part": "", "method": "fedavg", "seed": 0, "faa": 0.1}]
    claim = judge(Claim(says="", metric="faa", better="focus", than=["fedavg"]), table)
    assert claim.verdict == "not measured" and "FOCUS" in claim.numbers and "FedAvg" not in claim.numbers
    assert "all" in judge(Claim(says="", metric="faa", better="focus"), []).numbers


# --- bfloat16 where float32 takes too long; clusters that another cell has found


PRECISIONS = ("float32", "bf16")


@pytest.fixture
def unit(monkeypatch):
    monkeypatch.setattr("focusfl.util.device.supports_bf16", lambda place: True)


def computed(here, precision, scale="small"):
    """In this process, as the workers do."""
    one, cells = load("table1-a", scale), here / "cells"
    known = stored_results.stored_rows(here / "results") if (here / "results").exists() else {}
    for _, cell in stored_results.cells_of(one):
        if stored_results.cell_status(cell, known, cells, precision) != "done":
            (cell if precision == "float32" else cell.in_bf16).run(cells, lambda: False)
    stored_results.write_results([one], cells, files.make_folder(here / "results"))


def test_results_in_bfloat16_say_so_and_are_replaced_by_float32(here, unit):
    computed(here, "bf16")
    fast = {row["method"]: row for row in rows(here)}
    assert all(row["precision"] == "bf16" for row in fast.values())
    page = markdown(here / "results")
    assert "bfloat16" in page and "(FOCUS, FedAvg)" in page and "Missing" not in page
    states = {
        p: stored_results.overview([load("table1-a", "small")], here / "cells", here / "results", p)
        for p in PRECISIONS
    }
    assert [list(states[p].columns[2].cells) for p in PRECISIONS] == [["0"], ["2"]]
    computed(here, "float32")
    exact = {row["method"]: row for row in rows(here)}
    assert not any("precision" in row for row in exact.values()) and "bfloat16" not in markdown(here / "results")
    for method, row in exact.items():
        assert row["avg_loss"] != fast[method]["avg_loss"]
        assert row["avg_loss"] == pytest.approx(fast[method]["avg_loss"], rel=0.05)


def test_without_bfloat16_support_it_is_float32_and_says_so(here, monkeypatch, capsys):
    monkeypatch.setattr("focusfl.util.device.supports_bf16", lambda place: False)
    cli.app(["reproduce", "table1-a", "--precision", "bf16", "--cells", "cells"], standalone_mode=False)
    assert "float32" in capsys.readouterr().err
    (part,) = load("table1-a", "small").parts
    assert {row["key"] for row in rows(here)} == {Cell(part.experiment, m, 0).key for m in ("focus", "fedavg")}


def test_results_in_float32_are_not_computed_in_bfloat16(here, unit):
    computed(here, "float32")
    before = (here / "results/table1-a.small.json").read_text()
    computed(here, "bf16")
    assert (here / "results/table1-a.small.json").read_text() == before
    assert not any(
        (cell.in_bf16.folder(here / "cells")).exists()
        for _, cell in stored_results.cells_of(load("table1-a", "small"))
    )


HARD = (
    TABLE.replace('"focus", "fedavg"', '"focus", "hardcluster"')
    + """
[focus]
M = 2
init = "tied"
[hardcluster]
M = 2
init = "tied"
"""
)


def test_hard_clusters_are_those_of_the_cell_of_focus(here):
    """FedAvg-HardCluster runs FOCUS itself only if no cell has done so, with the same result."""
    write(here, HARD)
    (_, focus), (_, hard) = stored_results.cells_of(load("table1-a", "small"))
    assert (
        hard.prerequisite.key == focus.key
        and hard.in_bf16.prerequisite.key == focus.key
        and focus.prerequisite is None
    )
    hard.run(here / "own", lambda: False)
    assert (hard.folder(here / "own") / "first").exists()
    workers.reproduce([load("table1-a", "small")], here / "cells", here / "results", progress=False)
    assert not (hard.folder(here / "cells") / "first").exists()
    kept_row, own = rows(here)[1], hard.result(here / "own")
    assert kept_row["clusters"] == own["clusters"] == rows(here)[0]["clusters"]
    assert kept_row["avg_loss"] == pytest.approx(own["avg_loss"], rel=1e-5)


def test_a_cell_waits_for_its_prerequisite(here):
    """While another process computes FOCUS, its hard clusters wait, but the next cell is computed."""
    write(here, HARD.replace('"hardcluster"', '"hardcluster", "fedavg", "local"'))
    focus, hard, fedavg, local = (cell for _, cell in stored_results.cells_of(load("table1-a", "small")))
    cells, queue = here / "cells", queues.Queue()
    focus.run(here / "elsewhere", lambda: False)
    folder = files.make_folder(focus.folder(cells))
    files.make_folder(here / "results")
    with files.lock(folder / "lock"):
        queue.put(hard)
        queue.put(fedavg)
        worker = start_worker(queue, cells, here / "results")
        until(lambda: fedavg.done(cells))
        assert worker.is_alive() and not hard.folder(cells).exists()
        queue.put(local)
        shutil.copy(focus.folder(here / "elsewhere") / "result.json", folder)
    worker.join(60)
    assert not worker.is_alive() and hard.done(cells) and local.done(cells)
    assert not (hard.folder(cells) / "first").exists()


def test_a_cell_waits_for_best_losses_of_another_process_and_the_next_is_computed(here):
    """Both are trained; another process computes the best losses of the first."""
    write(here, TABLE.replace("rounds = 3", 'rounds = 3\nbayes = "true"'))
    write(here, TABLE, "table2-b")  # best losses are known there
    (_, focus), (_, other) = (
        next(stored_results.cells_of(load(name, "small"))) for name in ("table1-a", "table2-b")
    )
    focus.run(here / "elsewhere", lambda: False)
    (lock,) = (here / "elsewhere/surrogates").glob("*.lock")
    cells, queue = here / "cells", queues.Queue()
    files.make_folder(here / "results")
    files.make_folder(cells / "surrogates")
    with files.lock(cells / "surrogates" / lock.name):
        queue.put(focus)
        queue.put(other)
        worker = start_worker(queue, cells, here / "results")
        until(lambda: other.done(cells))
        assert worker.is_alive() and focus.rounds_done(cells) == 3 and focus.status(cells) == "started"
    worker.join(60)
    assert not worker.is_alive()
    mine, theirs = focus.result(cells), focus.result(here / "elsewhere")
    assert mine["excess_risk"] == theirs["excess_risk"] and mine["loss"] == theirs["loss"]


def start_worker(queue, cells, results):
    worker = threading.Thread(target=workers.run_cells, args=(queue, cells, results, lambda: False))
    worker.start()
    return worker


def until(happens, seconds=60):
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_first_seed_of_everything_comes_first(here, monkeypatch):
    seeds = TABLE.replace("seeds = [0]", "seeds = [1, 0]", 1)
    write(here, seeds)
    write(here, seeds.replace("n = 20", "n = 30"), "table2-b")
    order = []
    monkeypatch.setattr(workers, "_compute", lambda todo, *_: order.extend(cell.seed for cell in todo))
    both = [load("table1-a", "small"), load("table2-b", "small")]
    workers.reproduce(both, here / "cells", here / "results", progress=False)
    assert order == [1, 1, 1, 1, 0, 0, 0, 0]
