"""Agents that adapt across machines: the serial engine's numbers, with the defaults of a user's own data."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import focusfl as ff
from focusfl.algorithms import Adapted
from focusfl.algorithms.adapt import REFIT, TRY
from focusfl.core import Algorithm, Upload
from focusfl.engines import audit
from focusfl.run.setup import Setup

if not os.environ.get("CI"):
    pytest.importorskip("flwr")

import flwr.app.message.message as flower_message
from flwr.app import Message
from helpers.flower_people import model, people
from helpers.hall import Call, FakeIdentity, Hall, go, serial

SIZES, ROUNDS = [30, 40, 20, 25], 4
OPTIONS: dict[str, Any] = {"validation": 0.2, "patience": 6}
OPTIONS["train"] = ff.Train(lr="auto", optimiser="adam", steps=5, batch=16)
FEDAVG = Adapted(ff.FedAvg(weight_by_n=False), steps=64)  # nodes have data of their own
TIED = Adapted(ff.Focus(M=2, init="tied", adapt=False), steps=64)


@pytest.fixture
def nodes_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_message, "TaskIdentity", FakeIdentity)


def hall(algorithm: Algorithm, keep: Path | None = None, secure: bool = False) -> Hall:
    return Hall(algorithm, keep, secure, SIZES, train=OPTIONS["train"], validation=0.2)


@pytest.mark.parametrize("regression", [False, True], ids=["classes", "regression"])
def test_the_simulation_has_the_serial_engines_numbers_by_default(regression: bool) -> None:
    """FOCUS and data of one's own, with few rounds and steps of adaptation; the amounts have a mean of 500."""
    draws = torch.Generator().manual_seed(1)
    agents = []
    for e in range(3):
        x = torch.randn(24, 3, generator=draws)
        signal = x[:, 0] * (1 if e else -1) + 0.3 * torch.randn(24, generator=draws)
        agents.append((x, 500 + 40 * signal if regression else (signal > 0).long()))
    fed = ff.Federation.from_agents(agents, test=0.3)
    fed = replace(fed, recipe=replace(fed.recipe, train=replace(fed.recipe.train, steps=5)))
    few = {"rounds": 3, "bayes": "none"}
    serial, flower = (
        ff.fit(Adapted(ff.Focus(), steps=64), fed, engine=engine, **few) for engine in ("serial", "flower")
    )
    torch.testing.assert_close(flower.loss, serial.loss, rtol=1e-4, atol=1e-5)
    assert flower.validation is not None and serial.validation is not None
    torch.testing.assert_close(flower.validation.loss, serial.validation.loss, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("nodes_here")
@pytest.mark.parametrize(
    ("algorithm", "secure"),
    [(Adapted(ff.Focus(adapt=False), steps=64), False), (TIED, True)],
    ids=["split", "tied secure"],
)
def test_a_deployment_has_the_serial_engines_numbers(algorithm: Algorithm, secure: bool) -> None:
    row = go(hall(algorithm, secure=secure), algorithm, ROUNDS, secure=secure, **OPTIONS)
    assert row["loss"] == pytest.approx(serial(algorithm, ROUNDS, SIZES, **OPTIONS), rel=1e-4, abs=1e-5)


@pytest.mark.usefixtures("nodes_here")
def test_killed_while_agents_adapt_and_resumed_it_is_the_same_run(tmp_path: Path) -> None:
    """Killed twice: the resumed run begins with the first round after training, from the states before it."""

    class Killed(BaseException): ...

    here = hall(FEDAVG, tmp_path / "keep")

    def kill(call: Call, _: Message) -> None:
        if call == ("train", 1, ROUNDS + REFIT - 1):
            raise Killed

    here.after = kill
    for resume in (False, True):
        with pytest.raises(Killed):
            go(here, FEDAVG, ROUNDS, out=tmp_path / "out", resume=resume, **OPTIONS)
        here.restart()
    here.after = lambda *_: None
    row = go(here, FEDAVG, ROUNDS, out=tmp_path / "out", resume=True, **OPTIONS)
    assert row["loss"] == pytest.approx(serial(FEDAVG, ROUNDS, SIZES, **OPTIONS), abs=1e-6)


@pytest.mark.usefixtures("nodes_here")
def test_a_node_that_misses_the_last_round_predicts_with_the_shared_model() -> None:
    """It has weighed networks that it could not train on all its examples; the others adapt all the same."""
    here = hall(FEDAVG)

    def fail(call: Call, message: Message) -> None:
        if call == ("train", 3, ROUNDS + REFIT - 1):
            del message.content["view"]

    here.before = fail
    row = go(here, FEDAVG, ROUNDS, **OPTIONS)
    shared = serial(ff.FedAvg(weight_by_n=False), ROUNDS, SIZES, **OPTIONS)
    adapted = serial(FEDAVG, ROUNDS, SIZES, **OPTIONS)
    assert row["loss"] == pytest.approx([*adapted[:3], shared[3]], abs=1e-6)
    assert abs(adapted[3] - shared[3]) > 1e-3


@pytest.mark.usefixtures("nodes_here")
def test_a_nodes_own_model_is_the_adapted_one(tmp_path: Path) -> None:
    """What it predicts from its folder, without the server, has the loss of the run on the serial engine."""
    go(hall(FEDAVG, tmp_path), FEDAVG, ROUNDS, **OPTIONS)
    expected = serial(FEDAVG, ROUNDS, SIZES, **OPTIONS)
    for e in range(4):
        x, y = people(SIZES).test(e)
        kept = ff.load(tmp_path / str(e) / "model", network=model)
        assert kept.about.adapted
        p = kept.predict(f"agent-{e}", x)
        assert float(-p.gather(1, y[:, None]).log().mean()) == pytest.approx(expected[e], abs=1e-5)
    assert sum(path.stat().st_size for path in (tmp_path / "0").glob("*.safetensors")) < 2**20


def test_uploads_that_no_adapting_agent_sends_are_refused() -> None:
    """The shares of the candidates add up to 1; validation examples are not many times the training examples."""
    made = Setup.of(FEDAVG, people(SIZES), 1, engine="serial", **OPTIONS)
    server, _ = made.start()

    def claim(add: dict[str, torch.Tensor], phase: int, agents: int = 1) -> str:
        view = server | {"adapt": server["adapt"] | {"phase": torch.tensor(phase)}}
        claims = FEDAVG.contribution(view, Upload(add, {}), torch.tensor(20.0 * agents), agents)
        found = audit.false_claim(claims, agents)
        counted = torch.zeros(audit.BINS).index_fill(0, torch.tensor(0), float(agents))
        return found or (audit.false_sum(claims, counted, agents, ("w",)) if agents > 1 else "")

    one, G = torch.tensor(1.0), FEDAVG.G
    even = torch.full((G,), 1 / G)
    for agents in (1, 3):
        assert not claim({"pi": agents * even, "agents": agents * one}, TRY + 1, agents)
        assert "weight" in claim({"pi": agents * 6 * even, "agents": agents * one}, TRY + 1, agents)
        assert not claim({"least": 2.5 * agents * one, "n": 5.0 * agents * one}, TRY, agents)
        assert "validation" in claim({"least": one, "n": 1e9 * one}, TRY, agents)
        assert not claim({"agents": agents * one}, REFIT, agents)
    liars = {e: Upload({"least": 5.0 * one, "n": 5.0 * one}, {}) for e in range(3)}
    liars[3] = Upload({"least": 1e9 * one, "n": 5.0 * one}, {})
    view = server | {"adapt": server["adapt"] | {"phase": torch.tensor(TRY)}}
    named = audit.suspects(FEDAVG, liars, lambda _: view, dict.fromkeys(range(4), 20), ("w",))
    assert list(named) == [3]


def test_a_method_is_wrapped_once_and_alike_at_server_and_nodes() -> None:
    from focusfl.flower import Deployment

    options = {"rounds": 2, "validation": 0.2}
    made = Deployment.of(ff.Focus(adapt=True), model, 4, 3, **options)
    assert made.algorithm == Adapted(ff.Focus(adapt=True))
    assert Deployment.of(made.algorithm, model, 4, 3, **options).algorithm == made.algorithm
    assert Deployment.of(ff.Focus(), model, 4, 3, **options).algorithm == ff.Focus()
    assert made.key("0") != replace(made, settings=made.settings.updated(validation=0.3)).key("0")
