"""focusfl reproduce: the paper's tables as data, computed once, resumed and judged."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from focusfl.research.paper.cells import Cell
from focusfl.research.paper.claims import judge
from focusfl.research.paper.differences import differences
from focusfl.research.paper.readme import markdown
from focusfl.research.paper.reproduction import SCALES, Claim, catalogue, load
from focusfl.research.paper.sections import section
from focusfl.research.paper.stored_results import cells_of
from focusfl.research.paper.workers import reproduce
from focusfl.util.errors import InputError

NAMES = [
    "table1-synthetic",
    "table1-mnist",
    "table1-cifar",
    "table1-text",
    "table2-mnist",
    "table2-cifar",
    "table3-mnist",
    "table3-cifar",
    "fair-mnist",
    "fair-cifar",
    "sota-mnist",
    "sota-cifar",
    "clients100",
    "metric-time",
    "rounds-mnist",
    "rounds-cifar",
    "runtime",
    "hard-cluster",
    "fig-excess-mnist",
    "fig-excess-text",
    "fig-excess-cifar",
    "fig-convergence",
    "fig-convergence-cifar",
    "theory",
    "readings-mnist",
    "surrogates-mnist",
]

SMALL = """
title = "A table of nothing"
algorithms = ["focus", "fedavg"]
rounds = 4
checkpoint_every = 1
[data]
name = "synthetic"
n = 20
n_test = 20
[scale.small]
seeds = [0, 1]
deviations = ["everything"]
[scale.paper]
seeds = [0]
[expect]
fedavg = { faa = 0.8, "rounds_0.7" = 3 }
[[claim]]
says = "FOCUS is fairer"
metric = "faa"
better = "focus"
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with two tables that share a cell."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "experiments/paper"
    folder.mkdir(parents=True)
    (folder / "table1-a.toml").write_text(SMALL)
    (folder / "table2-b.toml").write_text(
        'title = "Parts"\nalgorithms = ["fedavg"]\nrounds = 4\n[data]\nname = "synthetic"\nn = 20\n'
        "[scale.small]\nseeds = [0]\n"
        '[[part]]\nname = "same"\ndata.n_test = 20\n[[part]]\nname = "other"\ndata.R = 2.0\ndata.n_test = 30\n'
    )
    return tmp_path


def test_every_name_of_the_paper_is_there_at_both_scales():
    assert set(catalogue()) == set(NAMES)
    for name in NAMES:
        small, paper = (load(name, scale) for scale in SCALES)
        assert small.title == paper.title
        for one in (small, paper):
            if one.kind == "experiment":
                assert one.parts and all(part.experiment.settings.rounds for part in one.parts)
                for part in one.parts:  # the paper's numbers are of methods that are computed
                    assert set(part.expect) <= set(part.experiment.methods), (name, part.name)
        assert one.kind != "experiment" or small.deviations


def test_paper_scale_is_the_papers_setting():
    data = load("table1-mnist", "paper").parts[0].experiment
    assert data.settings.rounds == 300 and "n" not in data.data and not data.train
    fed = Cell(data, "fedavg", 0).spec
    assert fed["data"]["n"] is None and fed["data"]["outliers"] == 3
    assert load("table1-text", "paper").parts[0].experiment.data["mode"] == "tuned"


@pytest.mark.parametrize("scale", SCALES)
def test_fedavg_on_rotated_mnist_is_one_cell_of_many_tables(scale):
    keys = Counter()
    for name in NAMES:
        for key in {cell.key for part, cell in cells_of(load(name, scale)) if cell.method == "fedavg"}:
            keys[key] += 1
    assert keys.most_common(1)[0][1] >= 6


def test_a_cell_is_identified_by_its_settings_with_all_defaults(here):
    a, b = load("table1-a", "small"), load("table2-b", "small")
    shared = {c.key for _, c in cells_of(a)} & {c.key for _, c in cells_of(b)}
    assert len(shared) == 1  # FedAvg, seed 0: n_test is set for all parts in one table, for one part in the other
    assert len({c.key for _, c in cells_of(a)}) == 4


def test_mistakes_in_a_table_are_named(here):
    with pytest.raises(InputError, match="table1-a"):
        load("table1-aa", "small")
    with pytest.raises(InputError, match="small"):
        load("table1-a", "smal")
    (here / "experiments/paper/table3-c.toml").write_text(SMALL.replace("n = 20", "nn = 20", 1))
    with pytest.raises(InputError, match="nn"):
        load("table3-c", "small")


def test_stored_results_are_not_computed_again(here, monkeypatch):
    wanted = [load(name, "small") for name in ("table1-a", "table2-b")]
    assert reproduce(wanted, here / "cells", here / "results", jobs=2) == []
    first = json.loads((here / "results/table1-a.small.json").read_text())
    assert len(first["rows"]) == 4 and first["rows"][0]["made"]["torch"] and first["settings"]
    parts = json.loads((here / "results/table2-b.small.json").read_text())["rows"]
    assert [row["part"] for row in parts] == ["same", "other"]
    fedavg = next(row for row in first["rows"] if row["method"] == "fedavg" and row["seed"] == 0)
    assert fedavg["loss"] == parts[0]["loss"] and fedavg["loss"] != parts[1]["loss"]
    monkeypatch.setattr(Cell, "run", lambda *_: pytest.fail("computed again"))
    again = here / "elsewhere"  # another machine, that has the results and not the cells
    assert reproduce(wanted, again, here / "results") == []
    assert json.loads((here / "results/table1-a.small.json").read_text())["rows"] == first["rows"]


def test_the_page_of_results_has_the_papers_number_beside_ours(here):
    assert reproduce([load("table1-a", "small")], here / "cells", here / "results") == []
    rows = json.loads((here / "results/table1-a.small.json").read_text())["rows"]
    faa = sum(row["faa"] for row in rows if row["method"] == "fedavg") / 2
    page = markdown(here / "results")
    assert f"| {faa:.3f} ± " in page and "(0.800)" in page and "everything" in page
    assert "Not computed yet: table2-b" in page
    assert "| table1-a | small | FOCUS is fairer |" in page


def test_rounds_are_counted_to_a_scales_own_accuracies():
    history = {"round": [4, 8], "avg_acc": [0.25, 0.31], "avg_loss": [2.0, 1.9], "agnostic_loss": [2.1, 2.0]}
    row = {"part": "", "method": "focus", "seed": 0, "rounds": 8, "avg_acc": 0.31, "avg_loss": 1.9, "faa": 0.1}
    row |= {"agnostic_loss": 2.0, "history": history, "rounds_to": {"0.55": None, "0.7": None}}
    small = section(load("rounds-cifar", "small"), {"rows": [row]})
    assert small.rows[0]["rounds_to"] == {"0.2": 4, "0.3": 8, "0.35": None, "0.4": None}
    paper = section(load("rounds-cifar", "paper"), {"rows": [row]})
    assert paper.rows[0]["rounds_to"] == {"0.55": None, "0.7": None}


def test_numbers_that_differ_from_the_papers_are_listed_with_the_reason(here):
    path = here / "experiments/paper/table1-a.toml"
    path.write_text(SMALL + '[why]\nfedavg = "its noise is another"\n')
    row = {"part": "", "method": "fedavg", "seed": 0, "avg_acc": None, "avg_loss": 1.0, "agnostic_loss": 1.0}
    for faa, said in ((0.57, []), (0.55, ["FedAvg"]), (1.03, []), (1.05, ["FedAvg"])):  # 0.8, and 30 % of it: 0.24
        assert [o.where for o in differences(load("table1-a", "paper"), [row | {"faa": faa}])] == said
        assert differences(load("table1-a", "small"), [row | {"faa": faa}]) == []  # other settings, other numbers
    (found,) = differences(load("table1-a", "paper"), [row | {"faa": 1.0}, row | {"faa": 1.2, "seed": 1}])
    assert "1.100" in found.numbers and "0.800" in found.numbers and found.why == "its noise is another"
    path.write_text(SMALL)
    assert differences(load("table1-a", "paper"), [row | {"faa": 1.1}])[0].why == "Not explained"


def test_missing_cells_are_shown_as_missing(here):
    one = load("table1-a", "small")
    assert reproduce([one], here / "cells", here / "results") == []
    path = here / "results/table1-a.small.json"
    page = json.loads(path.read_text())
    page["rows"] = page["rows"][:-1]
    assert section(one, page).missing == ["FedAvg, seed 1"]


def test_killed_and_run_again_it_resumes(here):
    text = SMALL.replace("rounds = 4", "rounds = 200").replace("seeds = [0, 1]", "seeds = [0]")
    (here / "experiments/paper/table1-a.toml").write_text(text)
    command = [sys.executable, "-c", "from focusfl.cli import main; main()", "reproduce", "table1-a"]
    whole = subprocess.run([*command, "--cells", "whole", "--results", "one"], capture_output=True, text=True)
    assert whole.returncode == 0, whole.stderr
    process = subprocess.Popen([*command, "--cells", "cut", "--results", "two"], start_new_session=True)
    deadline = time.monotonic() + 60
    while not list((here / "cut").glob("*/checkpoint.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.05)
    states = {cell.status(here / "cut") for _, cell in cells_of(load("table1-a", "small"))}
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert "running" in states
    assert not (here / "two/README.md").exists()
    again = subprocess.run([*command, "--cells", "cut", "--results", "two"], capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    one, two = (json.loads((here / d / "table1-a.small.json").read_text())["rows"] for d in ("one", "two"))
    assert [row["loss"] for row in one] == [row["loss"] for row in two]
    assert [row["history"] for row in one] == [row["history"] for row in two]


def test_asked_to_stop_it_stops_after_the_round_and_says_how_to_resume(here):
    text = SMALL.replace("rounds = 4", "rounds = 4000").replace("seeds = [0, 1]", f"seeds = {list(range(300))}")
    (here / "experiments/paper/table1-a.toml").write_text(text)
    command = [sys.executable, "-c", "from focusfl.cli import main; main()", "reproduce", "table1-a"]
    words = [*command, "--cells", "cells", "--results", "two"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while not list((here / "cells").glob("*/checkpoint.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: to all of them
    _, err = process.communicate(timeout=60)  # with 600 cells still in the queue
    assert process.returncode == 130 and "resume" in err and "Traceback" not in err
    assert "Not computed yet" in (here / "two/README.md").read_text()


def test_a_cell_that_fails_is_reported_and_the_rest_is_computed(here):
    text = SMALL.replace('"fedavg"]', '"fedavg", "ditto"]') + "[ditto]\nlam = 1e30\n"
    (here / "experiments/paper/table1-a.toml").write_text(text)
    failed = reproduce([load("table1-a", "paper")], here / "cells", here / "results")
    assert len(failed) == 1 and "ditto seed 0: Diverged" in failed[0]
    rows = json.loads((here / "results/table1-a.paper.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["focus", "fedavg"]


# --- claims


def rows_of(**by_method):
    return [
        {"part": "", "method": method, "seed": seed, "faa": v, "avg_acc": v}
        for method, values in by_method.items()
        for seed, v in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("focus", "fedavg", "verdict"),
    [
        ([0.1, 0.2], [0.3, 0.4], "holds"),
        ([0.1, 0.35], [0.3, 0.3], "holds weakly"),  # in the mean, not in seed 1
        ([0.4, 0.3], [0.3, 0.3], "does not hold"),
    ],
)
def test_verdicts(focus, fedavg, verdict):
    claim = judge(Claim(says="fairer", metric="faa", better="focus"), rows_of(focus=focus, fedavg=fedavg))
    assert claim.verdict == verdict
    assert f"FOCUS {sum(focus) / 2:.4f}" in claim.numbers and f"(FedAvg) {sum(fedavg) / 2:.4f}" in claim.numbers


def test_accuracy_is_better_when_larger_and_within_is_allowed():
    rows = rows_of(focus=[0.89], fedavg=[0.9])
    assert judge(Claim(says="", metric="avg_acc", better="focus"), rows).verdict == "does not hold"
    assert judge(Claim(says="", metric="avg_acc", better="focus", within=0.02), rows).verdict == "holds"
    both = {"": ["focus", "fedavg", "afl"]}
    assert (
        judge(Claim(says="", metric="avg_acc", better="fedavg"), rows, both).verdict == "not measured"
    )  # no AFL yet
    absent = Claim(says="", metric="avg_acc", better="focus", than=["afl"])
    assert judge(absent, rows).verdict == "not measured"


def test_a_claim_may_be_that_a_method_is_worse_than_all_others():
    claimed = Claim(says="the others are fairer than FedAvg", metric="faa", better="fedavg", worse=True)
    claim = judge(claimed, rows_of(fedavg=[0.5], focus=[0.1], afl=[0.4]))
    assert claim.verdict == "holds" and "FedAvg 0.5000" in claim.numbers and "(AFL) 0.4000" in claim.numbers
    assert judge(claimed, rows_of(fedavg=[0.5], focus=[0.1], afl=[0.6])).verdict == "does not hold"


def test_an_faa_of_agents_below_their_best_loss_is_pointed_out():
    """FAA 0.3 here is one agent that does better than its surrogate, by ten standard errors or by two."""
    fairer = Claim(says="fairer", metric="faa", better="focus")
    rows = rows_of(focus=[0.3], fedavg=[0.2])
    for row in rows:
        row["excess_risk"] = [0.0, -0.3] if row["method"] == "focus" else [0.2, 0.0]
    sharp, rough = ([row | {"excess_se": [se, se]} for row in rows] for se in (0.03, 0.15))
    assert "FOCUS has agents below their best loss" in judge(fairer, sharp).numbers
    assert "below" not in judge(fairer, rough).numbers and "below" not in judge(fairer, rows).numbers


def test_a_claim_is_judged_over_the_seeds_that_all_have():
    """Seed 1 is harder. In seed 0, the only one that both have, FOCUS is fairer."""
    fairer = Claim(says="fairer", metric="faa", better="focus")
    claim = judge(fairer, rows_of(focus=[0.1, 0.9], fedavg=[0.2]))
    assert claim.verdict == "holds" and "FOCUS 0.1000" in claim.numbers and "1 of 2 seeds" in claim.numbers
    apart = [row | {"seed": 7} if row["method"] == "fedavg" else row for row in rows_of(focus=[0.1], fedavg=[0.2])]
    assert judge(fairer, apart).verdict == "not measured"


def test_a_claim_over_parts_waits_for_all_of_them():
    rows = rows_of(focus=[0.91], fedavg=[0.9])
    parts = {"": ["focus", "fedavg"], "k = 5": ["focus", "fedavg"]}
    claim = judge(Claim(says="", metric="avg_acc", better="focus"), rows, parts)
    assert claim.verdict == "not measured" and "FOCUS" not in claim.numbers
