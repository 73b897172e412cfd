"""Sweeps: which runs there are, which point is chosen and on what, and that nothing finished is computed twice."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from queue import Queue
from xml.etree import ElementTree

import pytest

from focusfl.cli.app import app
from focusfl.report.sweep import Point, choose, plot, table
from focusfl.run.sweep import Sweep, parse_grid, run_all
from focusfl.util import files
from focusfl.util.errors import InputError

RAW = {"data": {"name": "synthetic"}, "algorithms": ["ditto", "fedavg"], "seeds": [0, 1], "rounds": 2}


def test_an_option_of_a_method_multiplies_the_runs_of_that_method_alone():
    made = Sweep(RAW, parse_grid(["train.lr=0.01,0.1", "ditto.lam=0.1,1,2", "train.steps=3"]))
    points = [(run.method, run.seed, *run.point.values()) for run in made.runs]
    ditto = [("ditto", seed, lr, lam) for seed in (0, 1) for lr in (0.01, 0.1) for lam in (0.1, 1, 2)]
    assert sorted(points) == sorted([*ditto, *(("fedavg", seed, lr) for seed in (0, 1) for lr in (0.01, 0.1))])
    assert [seed for _, seed, *_ in points] == [0] * 8 + [1] * 8
    for run in made.runs:
        algorithm = run.experiment.algorithm(run.method)
        assert run.experiment.train == {"lr": run.point["train.lr"], "steps": 3}
        assert run.experiment.settings.validation == 0.2
        assert getattr(algorithm, "lam", None) == run.point.get("ditto.lam")
    assert len({run.folder(Path()) for run in made.runs}) == 16


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["train.lr"], "expected key=value"),
        (["train.lr="], "expected key=value"),
        (["train.lr=0.1,0.1"], "once"),
        (["train.lr=0.1", "train.lr=0.2"], "once"),
        (["train.lr=0.1,-1"], "lr"),
        (["train.lrr=0.1,1"], "did you mean 'lr'"),
        (["focus.M=2,3"], "focus is not one of the algorithms"),
        (["validation=0"], "validation"),
        (["validation=0.1,0.2"], "one value"),
        (["model=mlp:64,32"], r"""--set "model='mlp:64,32'\""""),
        (["loss=huber:delta=1,2"], r"""--set "loss='huber:delta=1,2'\""""),
    ],
)
def test_what_cannot_be_swept_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        Sweep(RAW, parse_grid(changes))


def test_several_metrics_are_one_value():
    made = Sweep(RAW, parse_grid(["metrics=mae,r2", "train.lr=0.01,0.1"]))
    assert made.swept == ["train.lr"] and made.base.settings.metrics == ("mae", "r2")


def row(validation, test):
    return {"validation_loss": validation, "avg_loss": test, "avg_acc": None, "faa": test}


def test_the_least_mean_validation_loss_is_chosen_and_only_its_test_results_are_shown():
    points = [
        Point("ditto", {"a": 1}, (row(0.5, 0.1111), row(0.5, 0.1111)), {}),  # the best on test data
        Point("ditto", {"a": 2}, (row(0.1, 0.2222), row(0.7, 0.2222)), {}),  # mean 0.4: chosen
        Point("ditto", {"a": 3}, (row(0.1, 0.3333),), {1: "diverged"}),
        Point("fedavg", {}, (), {0: "diverged", 1: "diverged"}),
    ]
    assert choose(points) == [points[1]]
    made = table(points)
    cells = [list(column.cells) for column in made.columns]
    assert cells[1] == ["1", "2", "3", ""]
    assert [cell.strip() for cell in cells[2]] == ["0.5000±0", "0.4000±0.3 *", "diverged", "diverged"]
    assert cells[3] == cells[4] == ["", "0.2222", "", ""]


def test_the_plot_is_svg_with_one_dot_per_point_and_text_is_escaped():
    points = [Point(m, {"<key>": v}, (row(v / 10, 1),), {}) for m in ("ditto", "fedavg") for v in (1, 2, 3)]
    root = ElementTree.fromstring(plot(points))
    dots = [dot for dot in root.iter("{http://www.w3.org/2000/svg}circle") if len(dot)]
    assert len(dots) == 6
    heights = {dot[0].text.split(": ")[1]: float(dot.get("cy")) for dot in dots}
    assert heights["0.1000"] > heights["0.2000"] > heights["0.3000"] == 0  # larger losses are higher
    assert abs(heights["0.1000"] - 2 * heights["0.2000"]) < 0.2  # and in proportion
    ElementTree.fromstring(plot([]))


GRID = ["train.lr=0.01,0.03,0.1", "ditto.lam=0.1,1", "train.steps=2"]  # 3 x 2, with 3 seeds
KILLED = {
    "data": {"name": "synthetic"},
    "algorithms": ["ditto"],
    "seeds": [0, 1, 2],
    "rounds": 20,
    "engine": "auto",
}
WORDS = [
    "sweep",
    "--data",
    "synthetic",
    "--algorithms",
    "ditto",
    "--seeds",
    "0,1,2",
    "--rounds",
    "20",
    "--jobs",
    "2",
]
WORDS += [word for change in GRID for word in ("--set", change)]


def start(here, *more):
    code = "from focusfl.cli.app import main; main()"
    command = [sys.executable, "-c", code, *WORDS, *more]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=here, env={**os.environ, "COLUMNS": "120"}, **pipes)


def finish(process):
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


def without_times(rows):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def test_a_sweep_killed_in_the_middle_and_resumed_is_that_of_one_that_was_not(tmp_path):
    process = start(tmp_path, "--out", "killed")
    finished = []
    while len(finished) < 4 and process.poll() is None:
        finished = list((tmp_path / "killed").glob("runs/*/result.json"))
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()  # ends when the workers, which share its pipes, have noticed and stopped
    before = {path: path.stat() for path in (tmp_path / "killed").glob("runs/*/result.json")}
    assert 4 <= len(before) < 18
    with pytest.raises(InputError, match="--resume"):
        app([*WORDS, "--out", str(tmp_path / "killed")], standalone_mode=False)

    shown = finish(start(tmp_path, "--out", "killed", "--resume"))
    assert all(path.stat().st_mtime_ns == old.st_mtime_ns for path, old in before.items())
    assert all(path.stat().st_ino == old.st_ino for path, old in before.items())

    queue = Queue()  # the same runs one after the other, in this process
    for run in (wanted := Sweep(KILLED, parse_grid(GRID))).runs:
        queue.put(run)
    run_all(queue, files.make_folder(tmp_path / "whole"), lambda: False)
    rows = without_times([run.result(tmp_path / "whole") for run in wanted.runs])
    assert len(rows) == 18
    assert without_times(json.loads((tmp_path / "killed/results.json").read_text())) == rows
    ElementTree.parse(tmp_path / "killed/sweep.svg")

    means = {}
    for each in rows:
        means.setdefault(tuple(each["point"].values()), []).append(each["validation_loss"])
    lr, lam = min(means, key=lambda point: sum(means[point]))
    (line,) = (line for line in shown.splitlines() if "*" in line and "Ditto" in line)
    assert line.split()[:3] == ["Ditto", str(lr), str(lam)]
    assert len(means) == 6 and all(len(seeds) == 3 for seeds in means.values())


def test_ctrl_c_stops_a_sweep_gracefully_and_says_how_to_resume(tmp_path):
    process = start(tmp_path, "--out", "out", "--set", "rounds=5000")
    while not list((tmp_path / "out").glob("runs/*/history.jsonl")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130 and "--resume" in err and "Traceback" not in err
    assert json.loads((tmp_path / "out/results.json").read_text()) == []


def test_points_that_diverge_are_shown_and_not_chosen(tmp_path, capsys):
    words = f"sweep --data synthetic --algorithms fedavg --seeds 0 --rounds 3 --jobs 1 --out {tmp_path / 'out'}"
    words += " --set train.lr=0.01,1e30"
    app(words.split(), standalone_mode=False)
    shown = capsys.readouterr().out
    assert "diverged" in shown and shown.count("*") == 2  # the title's, and that of 0.01
    app(words.split(), standalone_mode=False)  # what diverged is not tried again
    assert "nothing to do" in capsys.readouterr().err
    with pytest.raises(InputError, match="holds a sweep"):
        app(["report", str(tmp_path / "out")], standalone_mode=False)
    with pytest.raises(InputError, match="another sweep"):
        app([*words.split(), "--set", "train.steps=3"], standalone_mode=False)


def test_the_last_lines_train_and_save_the_models_of_the_chosen_values(tmp_path, monkeypatch, capsys):
    """The printed commands give the rows of the sweep again, and models."""
    monkeypatch.chdir(tmp_path)
    words = ["sweep", "--data", "synthetic", "--algorithms", "ditto,fedavg", "--seeds", "0", "--rounds", "2"]
    words += ["--out", "s", "--jobs", "1"]
    grid = ["train.lr=0.01,0.1", "ditto.lam=0.1,1", "model='mlp:3,2',linear", "train.steps=3"]
    app([*words, *(word for text in grid for word in ("--set", text))], standalone_mode=False)
    said = capsys.readouterr().out.splitlines()
    commands = [shlex.split(line) for line in said if line.startswith("  focusfl compare")]
    assert said[-3:] == [said[-3], *(f"  {shlex.join(command)}" for command in commands)] and len(commands) == 2
    assert "ditto.lam" in said[-2] and "ditto.lam" not in said[-1]
    swept = files.read_json(tmp_path / "s/results.json")
    for command in commands:
        app(command[1:], standalone_mode=False)
        [row] = files.read_json(tmp_path / command[-1] / "results.json")
        own = [other for other in swept if other["method"] == row["method"]]
        chosen = min(own, key=lambda other: other["validation_loss"])
        assert row["loss"] == chosen["loss"] and row["validation_loss"] == chosen["validation_loss"]
        assert list((tmp_path / command[-1]).glob("runs/*/model/model.json"))
