"""Agents that lie to the server of a deployment: each is refused by name, and the others train as if it were away.

The nodes' real apps answer; a lie changes one node's reply on its way.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import focusfl as ff
from focusfl.core import Algorithm, State, Upload
from focusfl.core.tree import tree_map

if not os.environ.get("CI"):
    pytest.importorskip("flwr")

import flwr.app.message.message as flower_message
from flwr.app import Array, ArrayRecord, Message
from helpers.flower_people import TRAIN, model
from helpers.hall import Call, FakeIdentity, Hall, go

from focusfl.flower import Deployment, serve
from focusfl.flower.protocol.exchange import FalseSum, TooFewReplies
from focusfl.flower.protocol.node import Node
from focusfl.flower.protocol.wire import to_arrays, to_tree
from focusfl.research.studies.lies import LIES, Lie
from focusfl.run import history

LIAR = 1


@pytest.fixture(autouse=True)
def sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_message, "TaskIdentity", FakeIdentity)


def lying(algorithm: Algorithm, kind: str, lie: Callable[[Message], None]) -> Hall:
    hall = Hall(algorithm)

    def after(call: Call, reply: Message) -> None:
        if call[:2] == (kind, LIAR):
            lie(reply)

    hall.after = after
    return hall


def run(hall: Hall, algorithm: Algorithm, **options: Any) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    settings: dict[str, Any] = {"rounds": 4, "train": TRAIN, "wait": 0, "bayes": "none"} | options
    row = serve(hall, Deployment.of(algorithm, model, 4, 3, **settings), said.append)  # type: ignore[arg-type]
    return row, said


def without_the_liar(algorithm: Algorithm) -> dict[str, Any]:
    hall = Hall(algorithm)
    hall.lost = lambda call: call[:2] == ("train", LIAR)
    return go(hall, algorithm)


FOCUS = ff.Focus(M=2, init="tied")


@pytest.mark.parametrize("lie", ["share-6", "share-1e9", "share-negative", "upload-1e30"])
@pytest.mark.parametrize("algorithm", [ff.FedAvg(), FOCUS, ff.Focus(M=2, init="tied", robust="trim")], ids=repr)
def test_a_liar_changes_nothing_for_the_others(algorithm: Algorithm, lie: str) -> None:
    def change(reply: Message) -> None:
        upload = LIES[lie](Upload(to_tree(reply.content, "add"), to_tree(reply.content, "each")))
        reply.content["add"], reply.content["each"] = to_arrays(upload.add), to_arrays(upload.each)

    row, said = run(lying(algorithm, "train", change), algorithm)
    honest = [e for e in range(4) if e != LIAR]
    expected = without_the_liar(algorithm)["loss"]
    assert [row["loss"][e] for e in honest] == [expected[e] for e in honest]
    assert sum(f"left out: agent {LIAR}" in line for line in said) == 4  # one line a round


@pytest.mark.parametrize(
    ("scores", "word"),
    [
        ({"acc": 7.0}, "accuracy"),
        ({"acc": -0.1}, "accuracy"),
        ({"loss": -1e18}, "loss"),
        ({"loss": float("inf")}, "loss"),
        ({"label": [1e9, -5.0]}, "label"),
        ({"label": [0.9, 0.9]}, "label"),
        ({"label": [0.5]}, "label"),
    ],
)
def test_impossible_scores_are_refused_by_name(scores: dict[str, Any], word: str) -> None:
    row, said = run(lying(FOCUS, "evaluate", lambda reply: reply.content["scores"].update(scores)), FOCUS)
    assert row["agents"] == [0, 2, 3]
    assert any(f"agent {LIAR}" in line and word in line for line in said)


def test_a_negative_best_loss_is_refused() -> None:
    hall = lying(ff.FedAvg(), "query.best", lambda reply: reply.content["scores"].update({"loss": -1.0}))
    row, said = run(hall, ff.FedAvg(), bayes="agent")
    assert row["agents"] == [0, 2, 3] and any("best loss: agent 1" in line for line in said)


def test_the_majority_decides_about_the_columns_even_if_the_liar_comes_first() -> None:
    hall = lying(ff.FedAvg(), "query.enroll", lambda reply: reply.content["hello"].update({"columns": "lie"}))
    hall.get_node_ids = lambda: sorted(hall.here, key=lambda node: node != 100 + LIAR)  # type: ignore[method-assign]
    row, said = run(hall, ff.FedAvg())
    assert row["agents"] == [0, 2, 3]
    assert any("refused: agent 1" in line and "columns" in line for line in said)


def test_a_liar_that_was_there_first_alone_has_to_leave_when_the_others_come() -> None:
    hall = lying(ff.FedAvg(), "query.enroll", lambda reply: reply.content["hello"].update({"columns": "lie"}))
    hall.here = {100 + LIAR}
    change = hall.after

    def after(call: Call, reply: Message) -> None:
        change(call, reply)
        if call[0] == "train" and call[2] == 0:
            hall.here = set(range(100, 104))

    hall.after = after
    row, said = run(hall, ff.FedAvg(), minimum=1)
    assert row["agents"] == [0, 2, 3]
    assert any("refused: agent 1" in line and "columns" in line for line in said)


def test_without_a_minimum_more_than_half_of_the_agents_must_reply() -> None:
    hall = Hall(ff.FedAvg())
    hall.here = {100, 101}
    with pytest.raises(TooFewReplies, match="2 of 4 agents replied, at least 3"):
        run(hall, ff.FedAvg())
    hall.here = {100, 101, 102}
    row, _ = run(hall, ff.FedAvg())
    assert row["agents"] == [0, 1, 2]


def test_an_agent_that_claims_most_examples_is_named() -> None:
    """Whether it has them, a server cannot know."""
    by_n = ff.FedAvg(weight_by_n=True)
    hall = lying(by_n, "query.enroll", lambda reply: reply.content["hello"].update({"n": 10**9}))
    _, said = run(hall, by_n)
    assert any(f"agent {LIAR} says it has 100.0%" in line for line in said)
    assert sum(f"left out: agent {LIAR}" in line for line in said) == 4  # its uploads claim its true number


def test_an_agent_that_starts_over_late_is_named() -> None:
    hall = Hall(ff.FedAvg())

    def after(call: Call, _: Message) -> None:
        if call == ("train", 3, 1):
            hall.here.discard(103)
        if call == ("train", 0, 2):
            hall.restart(3)
            hall.here.add(103)

    hall.after = after
    _, said = run(hall, ff.FedAvg())
    assert any("agent 3 joins late" in line for line in said)


def long_model(upload: Upload) -> Upload:
    add = {k: tree_map(lambda v: v + 1e5, v) if isinstance(v, dict) else v for k, v in upload.add.items()}
    return Upload(add, {})


FOCUS1 = ff.Focus.algorithm1(2)
SECURE = [
    (ff.FedAvg(), LIES["share-6"]),
    (ff.FedAvg(), LIES["share-negative"]),
    (ff.FedAvg(), long_model),
    (FOCUS1, LIES["share-6"]),
    (FOCUS1, LIES["share-all"]),
    (FOCUS1, long_model),
]


@pytest.mark.parametrize(("algorithm", "lie"), SECURE)
def test_a_secure_sum_shows_that_one_of_the_agents_lies(
    algorithm: Algorithm, lie: Lie, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hall, honest = Hall(algorithm, secure=True), Node._local

    def local(self: Node) -> tuple[State, Upload]:
        state, upload = honest(self)
        return state, lie(upload) if (self.e, self.t) == (LIAR, 2) else upload

    monkeypatch.setattr(Node, "_local", local)
    with pytest.raises(FalseSum, match=r"round 3: .*agents \[0, 1, 2, 3\].*secure = false"):
        run(hall, algorithm, secure=True, out=tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    assert len(history.read(folder)) == 2  # the rounds before it are saved


def test_two_to_the_sixty_added_to_a_masked_upload_is_noticed() -> None:
    hall = Hall(ff.FedAvg(), secure=True)

    def add(call: Call, reply: Message) -> None:
        if call[:2] == ("train.masked", LIAR):
            masked = {k: array.numpy().copy() for k, array in reply.content["masked"].items()}
            name = next(k for k in masked if k.startswith("theta"))
            masked[name].reshape(-1)[:1] += np.uint64(2**60)  # mod 2^64, as masks are
            reply.content["masked"] = ArrayRecord(OrderedDict((k, Array(v)) for k, v in masked.items()))

    hall.after = add
    with pytest.raises(FalseSum, match="round 1"):
        run(hall, ff.FedAvg(), secure=True)


def test_labels_of_honest_agents_add_up() -> None:
    """The check of labels must not refuse those that are only nearly 1 in total."""
    row, said = run(Hall(ff.Focus()), ff.Focus())
    assert row["agents"] == [0, 1, 2, 3] and torch.isfinite(torch.tensor(row["loss"])).all()
    assert not any("not evaluated" in line for line in said)
