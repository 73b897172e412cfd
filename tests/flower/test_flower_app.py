"""The app that is configured, not programmed; a node's own data; and the example for apps of your own."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import focusfl as ff
from focusfl.algorithms import Adapted
from focusfl.deploy.flower_app import parse_settings, write_app
from focusfl.util.errors import InputError

if not os.environ.get("CI"):
    pytest.importorskip("flwr")

from helpers.own_data import alone

from focusfl.flower import serve
from focusfl.flower.apps.configured import RunConfig, parse_model
from focusfl.flower.simulation import Simulation

OWN: dict[str, Any] = {"agents": 3, "model": "mlp:4,3,2", "classes": 2, "rounds": 2, "focus.M": 2}


def test_settings_are_those_of_the_data_where_they_say_nothing() -> None:
    made = RunConfig({"data.name": "rotated-digits", "algorithm": "qffl:q=0.5", "train.lr": 0.2}).deployment()
    recipe = ff.data.rotated_digits(seed=0).recipe
    assert made.algorithm == ff.QFFL(q=0.5)
    assert (
        made.settings.rounds == recipe.rounds
        and made.settings.train.steps == recipe.train.steps
        and made.settings.train.lr == 0.2
    )
    assert made.agents == ff.data.rotated_digits(seed=0).E and made.classes == 10


def test_nodes_with_data_of_their_own_need_a_number_of_agents() -> None:
    made = RunConfig(OWN).deployment()
    assert made.agents == 3 and made.algorithm == Adapted(ff.Focus(M=2))
    assert [tuple(p.shape) for p in made.networks.network().parameters()] == [(3, 4), (3,), (2, 3), (2,)]
    assert RunConfig({**OWN, "classes": 0, "labels": "ill,well"}).deployment().classes == 2
    with pytest.raises(InputError, match="agents = 0: expected two or more"):
        RunConfig({k: v for k, v in OWN.items() if k != "agents"}).deployment()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rouns": 3}, "rouns: did you mean 'rounds'"),
        ({"train.lrr": 3}, "lrr"),
        ({"algorithm": "hardcluster"}, "needs the clusters of another run"),
        ({"secure": "yes"}, "expected true or false"),
        ({"rounds": "many"}, "rounds = 'many': expected a number"),
        ({"minimum": 9}, "from 1 to the 3 agents"),
        ({"model": "mpl:3,4"}, "did you mean 'mlp'"),
        ({"model": "mlp:a,b"}, "expected its sizes as whole numbers"),
        ({"model": "mlp"}, "expected its sizes as whole numbers"),
        ({"best": "agnet"}, "best = agnet"),
        ({"test": 7.0}, "a share between 0 and 1"),
        ({"rounds": 2.7}, "rounds = 2.7: expected a whole number"),
        ({"data.nmae": "x"}, "data.name: options of the data are set"),
        ({"labels": "a,b,c"}, "classes = 2"),
        ({"resume": True}, "resume = true: set out"),
        ({"algorithm": "fedavgg"}, "did you mean 'fedavg'"),
    ],
)
def test_bad_settings_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RunConfig({**OWN, **change}).deployment()


@pytest.mark.parametrize("key", ["algorithm", "data.name", "model", "metrics", "this:function.option"])
def test_a_run_configuration_cannot_make_a_node_import_a_module(key: str) -> None:
    import sys

    with pytest.raises(InputError):
        RunConfig({**OWN, key: "this:function"}).deployment()
    assert "this" not in sys.modules


def test_what_is_set_on_the_command_line_is_what_the_app_gets(tmp_path: Path) -> None:
    import tomllib

    config = parse_settings(["agents=3", "model=mlp:4,3,2", "classes=2", "train.lr=0.25", "resume=true", "out=a b"])
    assert config == {
        **{"agents": 3, "model": "mlp:4,3,2", "classes": 2},
        **{"train.lr": 0.25, "resume": True, "out": "a b"},
    }
    written = tomllib.loads((write_app(tmp_path, config) / "pyproject.toml").read_text())
    settings = written["tool"]["flwr"]["app"]["config"]
    assert settings["train"] == {"lr": 0.25} and settings["out"] == "a b" and settings["resume"] is True
    assert written["project"]["dependencies"] == []  # else Flower would install torch with CUDA
    with pytest.raises(InputError, match="--set rounds: expected KEY=VALUE"):
        parse_settings(["rounds"])


def test_a_model_by_name() -> None:
    assert sum(p.numel() for p in parse_model("resnet18:10,64")().parameters()) == 11_173_962


def test_own_data_as_words_are_numbered_by_the_runs_list(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("a,b,label\n" + "".join(f"{i},{-i},{'well' if i % 2 else 'ill'}\n" for i in range(10)))
    training, testing = alone(path, labels=("well", "ill"), test=0.3, scale=False)
    assert len(training.y) == 7 and len(testing.y) == 3
    for x, y in (training, testing):
        assert torch.equal(y, (x[:, 0] % 2 == 0).long())  # "ill", the even ones, is class 1 of ("well", "ill")
    again = alone(path, labels=("well", "ill"), test=0.3, scale=False)
    assert torch.equal(again[0].x, training.x)
    by_letter = alone(path, test=0.3, scale=False)
    assert torch.equal(by_letter.training.y, 1 - training.y)  # nobody names them: ill, well
    with pytest.raises(InputError, match="label 'ill' is a word: name all classes"):
        alone(path, classes=2)
    with pytest.raises(InputError, match="no such folder or file"):
        alone(tmp_path / "other.csv")


def test_own_data_brings_its_test_data_along(tmp_path: Path) -> None:
    x, y = np.eye(4, dtype="float32"), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    training, testing = alone(tmp_path)
    assert training.y.tolist() == [0, 1, 0, 1] and torch.equal(testing.x, torch.eye(4)[:2])


def test_the_example_app_finds_its_two_clusters() -> None:
    path = Path(__file__).parents[2] / "examples" / "your_flower_app.py"
    spec = importlib.util.spec_from_file_location("your_flower_app", path)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    simulation = Simulation(example.client, example.AGENTS)
    try:
        row = serve(simulation.grid, example.DEPLOYMENT, lambda _: None)
    finally:
        simulation.close()
    first, second = row["clusters"][:2], row["clusters"][2:]
    assert len(set(first)) == len(set(second)) == 1 and first != second
    assert row["avg_acc"] > 0.9
