"""Losses, metrics, validation and callbacks on Flower: the serial engine's numbers."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import nn

import focusfl as ff
from focusfl.core import Algorithm
from focusfl.util.errors import InputError

if not os.environ.get("CI"):
    pytest.importorskip("flwr")

import flwr.app.message.message as flower_message
from flwr.app import Message
from helpers.flower_people import SIZES, TRAIN, model, people
from helpers.hall import Call, FakeIdentity, Hall, go

from focusfl.flower import Deployment
from focusfl.flower.protocol.exchange import TooFewReplies

METRICS = ["auc", "f1", "calibration-error", "skill"]


@pytest.fixture
def nodes_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes in this process: their messages need a sender."""
    monkeypatch.setattr(flower_message, "TaskIdentity", FakeIdentity)


def largest(p: torch.Tensor, y: torch.Tensor) -> float:
    """A metric of the user's own."""
    return float(p.max())


def test_a_simulation_has_the_serial_engines_loss_metrics_and_best_round() -> None:
    """A torch loss with weights, a function of one's own, early stopping that returns to an earlier round."""
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))
    options: dict[str, Any] = {
        "loss": loss,
        "metrics": {"auc": "auc", "skill": "skill", "largest": largest},
        "bayes": "none",
    }
    options |= {"validation": 0.3, "patience": 2, "train": ff.Train(lr=2.0, steps=10), "rounds": 12}
    seen: dict[str, list[int]] = {"serial": [], "flower": []}
    serial, flower = (
        ff.fit(
            ff.Ditto(),
            people(SIZES),
            engine=engine,
            callbacks=[lambda setup, done: seen[setup.engine.name].append(done.t)],
            **options,
        )
        for engine in ("serial", "flower")
    )
    assert serial.t < serial.rounds < 12  # it did stop early, and its last round is not the best
    assert (flower.t, flower.rounds) == (serial.t, serial.rounds)
    assert seen["flower"] == seen["serial"] == list(range(1, serial.rounds + 1))
    torch.testing.assert_close(flower.loss, serial.loss, rtol=0, atol=1e-4)
    assert flower.validation is not None and serial.validation is not None
    torch.testing.assert_close(flower.validation.loss, serial.validation.loss, rtol=0, atol=1e-4)
    for name in ("auc", "skill", "largest"):
        torch.testing.assert_close(flower.metrics[name], serial.metrics[name], rtol=0, atol=1e-4, equal_nan=True)


def test_a_simulation_with_several_labels_per_example() -> None:
    draws = torch.Generator().manual_seed(0)
    agents = [(x := torch.randn(n, 6, generator=draws), (x[:, :3] > 0).long()) for n in (9, 14)]
    fed = ff.Federation.from_agents(agents, test=0.4, model=model, train=TRAIN)
    serial, flower = (
        ff.fit(ff.FedAvg(), fed, rounds=2, engine=engine, metrics=METRICS, bayes="none")
        for engine in ("serial", "flower")
    )
    torch.testing.assert_close(flower.loss, serial.loss, rtol=0, atol=1e-5)
    for name in METRICS:
        torch.testing.assert_close(flower.metrics[name], serial.metrics[name], rtol=0, atol=1e-5, equal_nan=True)


@pytest.mark.usefixtures("nodes_here")
def test_nodes_of_a_deployment_send_the_numbers_of_metrics_and_no_predictions() -> None:
    options: dict[str, Any] = {"loss": "focal:gamma=1", "metrics": METRICS}
    hall, records = Hall(ff.Focus(M=2), **options), set[str]()

    def note(call: Call, reply: Message) -> None:
        if call[0] == "evaluate":
            records.update(reply.content)

    hall.after = note
    row = go(hall, ff.Focus(M=2), **options)
    assert records == {"scores"}
    serial = ff.fit(ff.Focus(M=2), people(SIZES), rounds=4, train=TRAIN, engine="serial", bayes="none", **options)
    assert row["loss"] == pytest.approx(serial.loss.tolist(), abs=1e-5)
    assert set(row["metrics"]) == set(METRICS)
    for name in METRICS:
        there = [float("nan") if value is None else value for value in row["metrics"][name]]
        assert there == pytest.approx(serial.metrics[name].tolist(), abs=1e-5, nan_ok=True)


@pytest.mark.usefixtures("nodes_here")
def test_a_node_with_another_loss_is_refused() -> None:
    with pytest.raises(TooFewReplies):
        go(Hall(ff.FedAvg(), loss="focal"), ff.FedAvg(), rounds=1)


@pytest.mark.usefixtures("nodes_here")
def test_what_a_metric_raises_stays_at_the_node() -> None:
    def quotes(p: torch.Tensor, y: torch.Tensor) -> float:
        raise ValueError(f"labels {y.tolist()}")

    hall, errors = Hall(ff.FedAvg(), metrics={"auc": quotes}), list[str]()
    hall.after = lambda call, reply: errors.append(str(reply.error.reason)) if reply.has_error() else None
    with pytest.raises(TooFewReplies):
        go(hall, ff.FedAvg(), rounds=1, metrics=["auc"])
    assert errors and all("log" in why and "labels" not in why for why in errors)


@pytest.mark.parametrize(("algorithm", "patience"), [(ff.FedAvg(), 3), (ff.Focus(adapt=True), None)])
def test_what_decides_on_validation_data_needs_some(algorithm: Algorithm, patience: int | None) -> None:
    with pytest.raises(InputError, match="validation"):
        Deployment.of(algorithm, model, 4, 3, rounds=2, patience=patience)


def test_the_identity_of_a_deployment_changes_with_the_loss() -> None:
    plain, focal = (Deployment.of(ff.FedAvg(), model, 4, 3, rounds=2, loss=loss) for loss in (None, "focal"))
    assert plain.key("0") != focal.key("0")
