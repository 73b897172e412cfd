"""Faults on Flower: what does not fit is left out, named, and never enters the model."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import focusfl as ff
from focusfl.core import Algorithm, Data
from focusfl.core.tree import Tree, flatten
from focusfl.report.html.page import page
from focusfl.run import history
from focusfl.run.folder import from_folder
from focusfl.run.settings import Settings
from focusfl.run.setup import Setup

if not os.environ.get("CI"):
    pytest.importorskip("flwr")

from flwr.app import Array, Context, Message
from flwr.clientapp import ClientApp
from helpers.flower_people import TRAIN, model, people

from focusfl.flower import Deployment, serve
from focusfl.flower.protocol.exchange import TooFewReplies
from focusfl.flower.protocol.node import Job, client, number
from focusfl.flower.simulation import Simulation


def clumsy(fed: ff.Federation, algorithm: Algorithm, late: Path) -> ClientApp:
    """Agents 0 and 1 do as they should; 2 raises, 3 sends NaN, 4 the wrong shape; 5 waits while `late` exists."""

    def job(context: Context) -> Job:
        e = number(context)
        return Job(algorithm, model, Settings(train=TRAIN), Data(*fed.train(e)), Data(*fed.test(e)), 3)

    good, app = client(job), ClientApp()

    @app.query("enroll")
    def _(message: Message, context: Context) -> Message:
        return good(message, context)

    @app.evaluate()
    def _(message: Message, context: Context) -> Message:
        return good(message, context)

    @app.query("best")
    def _(message: Message, context: Context) -> Message:
        return good(message, context)

    @app.train()
    def _(message: Message, context: Context) -> Message:
        e = number(context)
        if e == 2:
            raise ValueError("the disk is full")
        reply = good(message, context)
        add = reply.content.array_records["add"]
        name = next(iter(add))
        if e == 3:
            add[name] = Array(np.full_like(add[name].numpy(), np.nan))
        if e == 4:
            add[name] = Array(np.zeros((1, 2), np.float32))
        while e == 5 and late.exists():
            time.sleep(0.1)
        return reply

    return app


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file; while it exists, agent 5 does not answer."""
    return tmp_path_factory.mktemp("faults") / "late"


@pytest.fixture(scope="module")
def clumsy_nodes(late: Path) -> Iterator[tuple[Simulation, ff.Federation]]:
    fed = people([7, 12, 5, 9, 6, 8])
    simulation = Simulation(clumsy(fed, ff.FedAvg(weight_by_n=False), late), 6)
    yield simulation, fed
    simulation.close()


def alone(fed: ff.Federation, rounds: int) -> Tree:
    """What agents 0 and 1 make of it without the others."""
    setup = Setup.of(ff.FedAvg(), fed, rounds, train=TRAIN, engine="serial")
    server, states = setup.start()
    for t in range(rounds):
        answers = setup.engine.round(setup.algorithm, server, states, t, np.array([0, 1]))
        server = setup.algorithm.aggregate(server, answers.add, answers.each, torch.tensor([0, 1]))
    return server


def test_what_does_not_fit_is_left_out_and_named(
    clumsy_nodes: tuple[Simulation, ff.Federation], late: Path, tmp_path: Path
) -> None:
    simulation, fed = clumsy_nodes
    said: list[str] = []

    def hear(line: str) -> None:
        said.append(line)
        if "left out: agent 5" in line:  # it takes part in what follows
            late.unlink(missing_ok=True)

    late.touch()
    task = Deployment.of(
        ff.FedAvg(), model, 6, 3, rounds=1, train=TRAIN, timeout=15, minimum=2, wait=0, out=tmp_path, bayes="none"
    )
    row = serve(simulation.grid, task, hear)
    (only,) = history.read(tmp_path / "runs" / "fedavg-seed0")
    why = only["dropped"]
    assert sorted(why) == ["2", "3", "4", "5"]
    assert "the disk is full" in why["2"]
    assert "NaN" in why["3"]
    assert "expected [1, 5, 6] float32, got [1, 2] 'float32'" in why["4"]
    assert why["5"] == "no reply within 15 s"
    for e in (2, 3, 4, 5):
        assert any(f"left out: agent {e}:" in line for line in said)
    from safetensors.torch import load_file

    kept = load_file(tmp_path / "runs" / "fedavg-seed0" / "checkpoint.safetensors")
    wanted = flatten({"server": alone(fed, 1)})
    assert kept.keys() == wanted.keys()
    for k, v in wanted.items():
        torch.testing.assert_close(kept[k], v, rtol=0, atol=1e-6)
    assert row["agents"] == [0, 1, 2, 3, 4, 5]  # all could be evaluated
    shown = page("faults", [from_folder(tmp_path)])
    assert "FedAvg, seed 0, agent 3: 1 rounds, first 1: add/theta/1.weight: NaN or infinite" in shown


def test_too_few_answers_end_the_run_with_advice(clumsy_nodes: tuple[Simulation, ff.Federation]) -> None:
    """Agents 0, 1 and 5 answer as they should."""
    simulation, _ = clumsy_nodes
    task = Deployment.of(ff.FedAvg(), model, 6, 3, rounds=1, train=TRAIN, timeout=100, minimum=4, wait=0, seed=1)
    with pytest.raises(TooFewReplies, match=r"3 of 6 agents.*resume"):
        serve(simulation.grid, task, lambda _: None)


def test_a_node_of_another_run_is_turned_away(clumsy_nodes: tuple[Simulation, ff.Federation]) -> None:
    simulation, _ = clumsy_nodes
    said: list[str] = []
    task = Deployment.of(ff.FedAvg(), model, 6, 3, rounds=1, train=ff.Train(lr=0.1), timeout=20, wait=0)
    with pytest.raises(TooFewReplies):
        serve(simulation.grid, task, said.append)
    assert any("is refused" in line and "FedAvg(" in line for line in said)


def test_one_simulation_at_a_time(clumsy_nodes: tuple[Simulation, ff.Federation]) -> None:
    """Two would wait for each other's workers without end."""
    with pytest.raises(RuntimeError, match="one simulation at a time"):
        Simulation(ClientApp(), 2)
