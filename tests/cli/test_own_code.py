"""Methods, data sets and networks of the user's own files on the command line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from focusfl.cli.app import app
from focusfl.util.errors import InputError

METHOD = Path(__file__).parents[1] / "helpers" / "own_method.py"
DATA = """
import focusfl as ff
from torch import nn

def make_federation(seed, agents=3, shift=0.0):
    fed = ff.data.synthetic(seed=seed)
    pairs, tests = ([(d.x, d.y + shift) for d in map(get, range(agents))] for get in (fed.train, fed.test))
    return ff.Federation.from_agents(pairs, test=tests, name="mine")

def make_network():
    return nn.Sequential(nn.Linear(10, 4), nn.Tanh(), nn.Linear(4, 1))

def hospitals(seed=0):
    return ff.data.folder("hospitals", seed=seed)

def largest_error(values, y):
    return (values - y).abs().max()

def tokens(seed=0):
    return ff.Federation.from_agents([([[1, 2], [3, 4]], [0, 1])] * 2, test=0.5, tokens=True)

def no_federation():
    return 3

CONSTANT = 3
"""


@pytest.fixture
def here(tmp_path):
    shutil.copy(METHOD, tmp_path / "my_methods.py")
    (tmp_path / "my_data.py").write_text(DATA)
    return tmp_path


def write_hospitals(here):
    (here / "hospitals").mkdir()
    for name in ("bern", "genf", "chur"):
        rows = "".join(f"{i / 40},{(i * 7) % 11},{i % 2}\n" for i in range(40))
        (here / "hospitals" / f"{name}.csv").write_text(f"a,b,label\n{rows}")


def focusfl(here, *words):
    source = "from focusfl.cli.app import main; main()"
    environment = {**os.environ, "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", source, *words], cwd=here, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_method_of_ones_own_file_is_compared_with_seeds_resumed_and_reported(here):
    method = "my_methods:FedMedian"
    words = ["compare", "--data", "synthetic", "--algorithms", f"{method},{method}:step=0.5,fedavg"]
    words += ["--seeds", "0,1", "--rounds", "3", "--out", "out"]
    shown = focusfl(here, *words)
    assert "Federated median step=0.5" in shown
    rows = json.loads((here / "out/results.json").read_text())
    assert [(r["method"], r["algorithm"], r["params"], r["seed"]) for r in rows if r["seed"] == 1] == [
        (method, method, {"step": 1.0}, 1),
        (f"{method}:step=0.5", method, {"step": 0.5}, 1),
        ("fedavg", "fedavg", {"weight_by_n": None}, 1),
    ]
    assert rows[0]["avg_loss"] != rows[1]["avg_loss"] != rows[2]["avg_loss"]

    (here / "out/runs/my_methods-FedMedian-seed1/result.json").unlink()
    kept = (here / "out/runs/my_methods-FedMedian-seed0/result.json").stat().st_mtime_ns
    focusfl(here, *words, "--resume")
    again = json.loads((here / "out/results.json").read_text())
    assert (here / "out/runs/my_methods-FedMedian-seed0/result.json").stat().st_mtime_ns == kept
    for row in rows + again:
        row.pop("seconds")
    assert again == rows

    (here / "my_methods.py").write_text("raise ValueError('a report runs no code of an experiment')\n")
    focusfl(here, "report", "out")
    assert method in (here / "out/report.html").read_text()


def test_data_and_network_of_ones_own_in_toml_with_options(here):
    text = 'algorithms = ["my_methods:FedMedian"]\nseeds = [0]\nrounds = 2\nbayes = "agent"\n'
    text += 'model = "my_data:make_network"\n[data]\nname = "my_data:make_federation"\nshift = 1.0\n'
    text += '["my_methods:FedMedian"]\nstep = 0.5\n'
    (here / "mine.toml").write_text(text)
    changes = ["--set", "data.agents=4", "--set", "my_methods:FedMedian.step=0.25"]
    focusfl(here, "run", "mine.toml", "--out", "out", *changes)
    (row,) = json.loads((here / "out/results.json").read_text())
    assert (row["data"], len(row["loss"]), row["params"]) == ("mine", 4, {"step": 0.25})
    assert json.loads((here / "out/experiment.json").read_text())["model"] == "my_data:make_network"


def test_metrics_of_ones_own_and_several_by_name(here):
    words = ["compare", "--data", "synthetic", "--seeds", "0", "--rounds", "1"]
    words += ["--set", "algorithms=fedavg,local", "--set", "metrics=mae,my_data:largest_error"]
    focusfl(here, *words, "--out", "out")
    rows = json.loads((here / "out/results.json").read_text())
    assert [row["method"] for row in rows] == ["fedavg", "local"]
    for row in rows:
        mae, largest = row["metrics"]["mae"], row["metrics"]["my_data:largest_error"]
        assert all(a < b for a, b in zip(mae, largest, strict=True))

    (here / "my_data.py").write_text("raise ValueError('a report runs no code of an experiment')\n")
    focusfl(here, "report", "out")


def test_data_of_ones_own_may_be_a_folder_and_results_stay_out_of_it(here, monkeypatch):
    monkeypatch.chdir(here)
    write_hospitals(here)
    words = ["compare", "--data", "my_data:hospitals", "--algorithms", "fedavg", "--rounds", "1", "--seeds", "0"]
    app([*words, "--out", "out"], standalone_mode=False)
    [row] = json.loads((here / "out/results.json").read_text())
    assert row["names"] == ["bern", "chur", "genf"]
    with pytest.raises(InputError, match="folder of the data"):
        app([*words, "--out", "hospitals/out"], standalone_mode=False)
    assert not (here / "hospitals/out").exists()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--algorithms my_method:FedMedian", "no module 'my_method'"),
        ("--algorithms my_methods:FedMedan", "did you mean 'FedMedian'"),
        ("--algorithms my_methods:Upload", "inherits from focusfl.core.Algorithm"),
        ("--algorithms my_methods:Algorithm", "missing"),
        ("--algorithms my_methods:FedMedian:stepp=1", "unknown key 'my_methods:FedMedian.stepp'"),
        ("--algorithms fedavg --set my_methods:FedMedian.step=1", "unknown key 'my_methods:FedMedian'"),
        ("--data my_data:no_federation", "returned int"),
        ("--data my_data:CONSTANT", "expected a function"),
        ("--data my_data:make_federation --set data.agent=3", "did you mean 'agents'"),
        ("--data my_data:tokens", "--set model=mlp:64"),
        ("--set metrics=my_data:CONSTANT", "not a function"),
        ("--set model=mpl:64", "did you mean 'mlp'"),
        ("--set model=mlp", "mlp:64,32"),
        ("--set model=mlp:0", "mlp:64,32"),
        ("--set model=resnet18:4", "images"),
        ("--set model=my_data:CONSTANT", "expected a function"),
        ("--set model=my_data:no_federation", "returned int"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(here, monkeypatch, words, found):
    monkeypatch.chdir(here)
    rest = words.split()
    defaults = [("--data", "synthetic"), ("--algorithms", "fedavg")]
    options = [word for pair in defaults if pair[0] not in rest for word in pair]
    with pytest.raises(InputError) as error:
        app(["compare", *options, *rest, "--rounds", "1", "--seeds", "0"], standalone_mode=False)
    assert found in str(error.value)
    assert not (here / "runs").exists()
