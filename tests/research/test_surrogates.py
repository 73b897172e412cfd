"""FAA with other best losses: drawn as theory says, trained as the options say, for the runs that are stored."""

import json

import numpy as np
import pytest
import torch

import focusfl as ff
from focusfl.research.paper.reproduction import load
from focusfl.research.paper.surrogates import OtherBestLosses, faa_columns, resampled_means
from focusfl.research.paper.workers import reproduce
from focusfl.util.errors import InputError

TABLE = """
title = "A table"
algorithms = ["focus", "fedavg"]
rounds = 4
bayes = "true"
[data]
name = "synthetic"
n = 20
n_test = 20
[train]
lr = 0.1
[scale.small]
seeds = [1, 0]
[expect]
fedavg = { faa = 0.8 }
"""
STUDY = """
title = "Other best losses"
kind = "surrogates"
[scale.small]
tables = ["table1-a", "table2-a"]
epochs = [3, 40]
batch = 1000
lr = 0.1
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "experiments/paper"
    folder.mkdir(parents=True)
    (folder / "table1-a.toml").write_text(TABLE)
    (folder / "table2-a.toml").write_text(TABLE.replace('["focus", "fedavg"]', '["fedavg", "local"]'))
    (folder / "surrogates-a.toml").write_text(STUDY)
    return tmp_path


def study(here):
    path = here / "results/surrogates-a.small.json"
    path.unlink(missing_ok=True)
    assert reproduce([load("surrogates-a", "small")], here / "cells", here / "results") == []
    return json.loads(path.read_text())["table"]


def people(sizes, clusters):
    some = [(np.zeros((4, 1), "float32"), np.zeros(4, "float32")) for _ in sizes]
    tests = [(np.zeros((n, 1), "float32"), np.zeros(n, "float32")) for n in sizes]
    return ff.Federation.from_agents(some, test=tests, clusters=clusters)


def test_means_of_other_examples_vary_around_the_clusters_mean_by_sigma_over_root_n():
    losses = torch.cat([torch.randn(5000, generator=torch.Generator().manual_seed(0)) * 2 + 7, torch.zeros(25)])
    drawn = resampled_means(losses, people([4000, 1000, 25], [0, 0, 1]), draws=2000)
    assert drawn.shape == (2000, 3)
    one = losses[:5000]
    assert torch.allclose(drawn.mean(0)[:2], one.mean(), atol=0.01)
    sigma = one.std() / torch.tensor([4000.0, 1000.0]).sqrt()
    assert torch.allclose(drawn.std(0)[:2], sigma, rtol=0.1)
    assert (drawn[:, 2] == 0).all()  # nothing of the other cluster


def test_faa_with_other_best_losses_by_hand():
    trained = [torch.tensor([0.5, 0.5, 0.5]), torch.tensor([0.5, 1.0, 2.5])]
    drawn = torch.tensor([[0.0, 0.0, 0.0]] * 11 + [[1.0, 0.0, 0.0]] * 10)  # FAA 2 eleven times, 3 ten times
    found = faa_columns(torch.tensor([1.0, 2.0, 3.0]), OtherBestLosses(trained, drawn), [5, 50])
    assert found == {"5 epochs": 2.0, "50 epochs": 0.5, "other test data": 2.0, "5 %": 2.0, "95 %": 3.0}


def test_surrogates_that_are_trained_as_ours_give_our_faa(here):
    assert reproduce([load("table1-a", "small")], here / "cells", here / "results") == []
    rows = json.loads((here / "results/table1-a.small.json").read_text())["rows"]
    table = study(here)
    assert [(r["table"], r["method"]) for r in table] == [("table1-a", "FOCUS"), ("table1-a", "FedAvg")]
    for line, row in zip(table, rows[:2], strict=True):  # seed 1: the first
        assert row["seed"] == 1 and line["FAA"] == row["faa"]
        assert line["40 epochs"] == pytest.approx(row["faa"], rel=1e-4)  # 4 rounds of 10 steps are 40 full steps
        assert line["3 epochs"] != pytest.approx(row["faa"], rel=1e-3)
        assert line["5 %"] < line["other test data"] < line["95 %"]
    assert [r["FAA, paper"] for r in table] == [None, 0.8]


def test_later_results_are_added_and_shared_runs_come_once(here):
    with pytest.raises(InputError, match="focusfl reproduce table1-a"):
        study(here)
    for name in ("table1-a", "table2-a"):
        assert reproduce([load(name, "small")], here / "cells", here / "results") == []
    lines = [(r["table"], r["method"]) for r in study(here)]
    assert lines == [("table1-a", "FOCUS"), ("table1-a", "FedAvg"), ("table2-a", "Local")]
    (here / "experiments/paper/table2-a.toml").write_text(TABLE.replace("lr = 0.1", "lr = 0.2"))  # other runs
    assert reproduce([load("table2-a", "small")], here / "cells", here / "results") == []
    lines = [(r["table"], r["method"]) for r in study(here)]
    assert lines == [(table, method) for table in ("table1-a", "table2-a") for method in ("FOCUS", "FedAvg")]


def test_best_losses_of_an_older_version_are_refused(here):
    assert reproduce([load("table1-a", "small")], here / "cells", here / "results") == []
    for path in (here / "cells/surrogates").glob("*.safetensors"):
        path.unlink()
    with pytest.raises(InputError, match=r"surrogates.*delete"):
        study(here)
