"""Flower's simulation: real Ray workers, real messages. The serial engine's numbers, and faults that do no harm."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import focusfl as ff
from focusfl.core import Algorithm
from focusfl.core.tree import Tree, flatten
from focusfl.run import history
from focusfl.run.loop import Round, run
from focusfl.run.settings import Settings
from focusfl.run.setup import Setup
from focusfl.util.errors import InputError, Interrupted

if not os.environ.get("CI"):
    pytest.importorskip("flwr")

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from helpers.flower_people import SIZES, TRAIN, model, people

from focusfl.flower import Deployment, serve
from focusfl.flower.deployment import DeploymentEngine
from focusfl.flower.protocol.exchange import TooFewReplies
from focusfl.flower.protocol.node import STAGES, Job, client, number
from focusfl.flower.simulation import Simulation


def last(setup: Setup, **options: object) -> Round:
    *_, done = run(setup, **options)  # type: ignore[arg-type]
    return done


def close(a: Tree, b: Tree) -> None:
    one, other = flatten(a), flatten(b)
    assert one.keys() == other.keys()
    for k in one:
        torch.testing.assert_close(one[k], other[k], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("algorithm", "fraction"),
    [
        (ff.FedAvg(), 1.0),
        (ff.Focus(M=2, init="independent"), 1.0),
        (ff.Ditto(), 0.5),
        (ff.AFL(), 1.0),
        (ff.CGSV(), 1.0),
    ],
    ids=lambda v: getattr(v, "name", str(v)),
)
def test_the_simulation_gives_the_serial_engines_numbers(algorithm: Algorithm, fraction: float) -> None:
    """Agents with 5 to 12 examples, five rounds; also where half of them rest."""
    serial, flower = (
        last(Setup.of(algorithm, people(SIZES), 5, train=TRAIN, engine=engine, fraction=fraction))
        for engine in ("serial", "flower")
    )
    close(serial.server, flower.server)
    close(serial.states, flower.states)
    assert serial.scores is not None and flower.scores is not None
    torch.testing.assert_close(serial.scores.loss, flower.scores.loss, rtol=0, atol=1e-5)


def test_stopped_and_resumed_it_is_the_same_run(tmp_path: Path) -> None:
    """New nodes know nothing of the rounds before: they are given the agents' states back."""
    setup = Setup.of(ff.Focus(M=2, warmup=1), people(SIZES), 4, train=TRAIN, engine="flower")
    with pytest.raises(Interrupted):
        last(setup, folder=tmp_path, stop=lambda: len(history.read(tmp_path)) >= 2)
    resumed = last(setup, folder=tmp_path, resume=True)
    whole = last(Setup.of(ff.Focus(M=2, warmup=1), people(SIZES), 4, train=TRAIN, engine="serial"))
    close(whole.server, resumed.server)
    close(whole.states, resumed.states)


def test_serve_in_a_server_app_of_ones_own() -> None:
    """The loop of every run, over the grid of a real simulation; twice, as another app would use it again."""
    fed = people(SIZES)

    def job(context: Context) -> Job:
        e = number(context)
        return Job(ff.Focus(M=2, warmup=1), model, Settings(train=TRAIN), fed.train(e), fed.test(e), 3)

    simulation = Simulation(client(job), 4)
    try:
        logging.getLogger("flwr").setLevel(logging.ERROR)
        deployment = Deployment.of(ff.Focus(M=2, warmup=1), model, 4, 3, rounds=3, train=TRAIN, bayes="none")
        rows = [serve(simulation.grid, deployment, lambda _: None) for _ in range(2)]
    finally:
        simulation.close()
    whole = last(Setup.of(ff.Focus(M=2, warmup=1), fed, 3, train=TRAIN, engine="serial"))
    assert whole.scores is not None and rows[0]["loss"] == rows[1]["loss"]
    torch.testing.assert_close(torch.tensor(rows[0]["loss"]), whole.scores.loss, rtol=0, atol=1e-5)


def test_a_secure_run_is_the_plain_one_but_for_fixed_point() -> None:
    """Two rounds of FOCUS; in the second, agent 3 falls out after it has shared its keys."""
    fed, algorithm = people(SIZES), ff.Focus(M=2, init="independent")

    def job(context: Context) -> Job:
        e = number(context)
        return Job(algorithm, model, Settings(train=TRAIN, secure=True), fed.train(e), fed.test(e), 3)

    good, app = client(job), ClientApp()
    seen: list[str] = []
    for kind in ("query.enroll", "evaluate", "train", *(f"train.{stage}" for stage in STAGES)):
        category, _, action = kind.partition(".")

        @getattr(app, category)(action or "default")
        def _(message: Message, context: Context, kind: str = kind) -> Message:
            if kind == "train.masked" and number(context) == 3 and message.content["ask"]["t"] == 1:
                raise ValueError("out of memory")
            return good(message, context)

    simulation = Simulation(app, 4)
    try:
        task = Deployment.of(algorithm, model, 4, 3, rounds=2, train=TRAIN, secure=True, bayes="none", timeout=60)
        engine = DeploymentEngine(task, simulation.grid, task.key("nonce"), seen.append)
        server = algorithm.start(task.networks, 4)
        for t in range(2):
            replies = engine.round(algorithm, server, {}, t, np.arange(4))
            server = algorithm.aggregate(server, replies.add, replies.each, torch.from_numpy(replies.cohort))
        with pytest.raises(TooFewReplies):  # without masks such nodes do not reply
            engine.exchange.round(server, 2, np.arange(4))
        engine.evaluate(algorithm, server, {})
        labels = engine.labels(algorithm, server, {})
    finally:
        simulation.close()
    assert labels is None
    assert replies.cohort.tolist() == [0, 1, 2] and "out of memory" in replies.dropped[3]
    plain = Setup.of(algorithm, fed, 2, train=TRAIN, engine="serial")
    wanted, states = plain.start()
    for t, cohort in enumerate(([0, 1, 2, 3], [0, 1, 2])):
        there = plain.engine.round(algorithm, wanted, states, t, np.array(cohort))
        wanted = algorithm.aggregate(wanted, there.add, there.each, torch.tensor(cohort))
    close(wanted, server)


def test_a_method_that_reveals_individuals_cannot_be_secure() -> None:
    task = Deployment.of(ff.AFL(), model, 4, 3, rounds=2, train=TRAIN, secure=True)
    with pytest.raises(InputError, match="AFL shows the server"):
        serve(None, task)  # type: ignore[arg-type]


def test_a_model_of_ninety_megabytes_goes_through() -> None:
    """Two ResNet-18, 2 x 11,173,962 weights: as M = 2 models of FOCUS, to two agents and back."""
    draws = torch.Generator().manual_seed(0)
    pictures = [(torch.randn(4, 3, 32, 32, generator=draws), torch.tensor([0, 1, 2, 3])) for _ in range(2)]
    fed = ff.Federation.from_agents(pictures, test=pictures, classes=10, model=ff.models.resnet18)
    both = [
        last(Setup.of(ff.Focus(M=2, init="tied"), fed, 1, train=ff.Train(lr=0.01, steps=1), engine=engine))
        for engine in ("serial", "flower")
    ]
    assert sum(v.numel() * v.element_size() for v in flatten(both[1].server).values()) > 89e6
    close(both[0].server, both[1].server)
