"""The benchmark on natural federations: linear baselines by hand, and the command from start to table."""

from __future__ import annotations

import json
from math import log
from pathlib import Path
from typing import Any

import pytest
from helpers.data import need_natural

import focusfl as ff
from focusfl.research.natural import baselines, report
from focusfl.research.natural.benchmark import Findings, LeftOut, Score


def lines_of(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"| {start}")]


def test_in_regression_own_models_follow_each_agent_and_the_pooled_model_shares_the_slope() -> None:
    agents = [([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0]), ([[0.0], [1.0], [2.0]], [5.0, 8.0, 11.0])]
    fed = ff.Federation.from_agents(agents, test=[([[3.0]], [4.0]), ([[3.0], [0.0]], [14.0, 6.0])])
    own = baselines.own(fed)  # y = x and y = 3 x + 5: predictions 3; 14 and 5
    assert own.loss == pytest.approx([1.0, 0.5])
    assert own.loss_se == pytest.approx([0.0, 0.5])
    assert own.acc is None
    pooled = baselines.pooled(fed)  # slope 2, intercepts -1 and 6: predictions 5; 12 and 6
    assert pooled.loss == pytest.approx([1.0, 2.0])


def test_in_classification_a_class_that_training_has_not_seen_has_a_large_but_finite_loss() -> None:
    flat = [[0.0]] * 4  # without information the prediction is the share of each class
    agents = [(flat, [0, 0, 0, 1]), (flat, [0, 0, 0, 0])]
    fed = ff.Federation.from_agents(agents, test=[(flat[:2], [1, 0]), (flat[:2], [1, 0])])
    own = baselines.own(fed)
    assert own.loss == pytest.approx([(log(4) + log(4 / 3)) / 2, log(1e6) / 2], rel=1e-3)
    assert own.acc == [0.5, 0.5]


def score(method: str, seed: int, loss: list[float]) -> Score:
    return Score(
        data="heart", method=method, seed=seed, avg_loss=sum(loss) / 2, avg_acc=0.5, loss=loss, acc=[0.5, 0.5]
    )


def test_the_table_marks_the_lowest_loss_and_counts_the_agents_that_lose() -> None:
    scores = [score("local", s, [1.0 + 0.01 * s, 1.0]) for s in range(3)]
    scores += [score("fedavg", s, [0.5, 2.0 + 0.01 * s]) for s in range(3)]
    found = {"heart": Findings(scores, {"fedma": LeftOut("cannot run", "no")})}
    losses = report.losses(found)
    assert lines_of(losses, "Local") == ["| Local | **1.005 ± 0.003** |"]
    assert lines_of(losses, "FedMA") == ["| FedMA | cannot run |"]
    assert lines_of(report.worse_than(found, "local"), "FedAvg") == ["| FedAvg | 1 of 2 |"]
    assert report.worse_than(found, "ditto") == ""


def test_run_natural_writes_the_table_and_can_be_run_again(focusfl: Any) -> None:
    need_natural("heart")
    words = ("run", "natural", "--seeds", "0", "--algorithms", "fedavg,local", "--data", "heart", "--rounds", "2")
    code, out, _ = focusfl(*words)
    assert code == 0
    assert "FLamby" in out
    rows = json.loads(Path("runs/natural/natural.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["fedavg", "local", "linear:pooled", "linear:own"]
    assert all(len(row["loss"]) == 4 and row["avg_acc"] > 0.6 for row in rows)
    page = Path("runs/natural/natural.md").read_text()
    assert all(lines_of(page, name) for name in ("FedAvg", "Local", "Linear model, pooled", "Linear model, own"))
    code, again, err = focusfl(*words, "--resume")
    assert (code, again) == (0, out)
    assert "nothing to do" in err


def test_a_method_that_diverges_or_cannot_run_is_listed(focusfl: Any) -> None:
    need_natural("parkinsons")
    words = ("run", "natural", "--seeds", "0", "--algorithms", "fedavg,fedma", "--data", "parkinsons")
    code, out, _ = focusfl(*words, "--rounds", "2", "--set", "train.lr=1e20")
    assert code == 0
    assert lines_of(out, "FedAvg")[0] == "| FedAvg | diverged |"
    assert lines_of(out, "FedMA")[0] == "| FedMA | cannot run |"
    code, again, _ = focusfl(*words, "--rounds", "2", "--set", "train.lr=1e20")
    assert (code, again) == (0, out)


def test_wrong_options_and_missing_data_are_said_before_anything_runs(
    focusfl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = focusfl("run", "natural", "--data", "hart")
    assert code == 2
    assert "heart" in err
    monkeypatch.setenv("FOCUSFL_FROM", "")
    code, _, err = focusfl("run", "natural", "--data", "exam")
    assert code == 2
    assert "mlmrev" in err
    assert not Path("runs").exists()


def test_natural_is_listed_and_options_replace_those_of_a_toml_file(
    focusfl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert " natural " in focusfl("list", "experiments")[1]
    words = ("run", "demo", "--algorithms", "fedavg", "--seeds", "3", "--rounds", "1", "--json")
    code, out, _ = focusfl(*words)
    assert code == 0
    assert [(row["method"], row["seed"], row["rounds"]) for row in json.loads(out)] == [("fedavg", 3, 1)]
    code, _, err = focusfl("run", "demo", "--data", "heart")
    assert code == 2
    assert "data.name" in err
