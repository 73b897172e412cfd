"""Nodes with tables of their own: columns and labels mean the same at all of them, and what is in them stays there.

The real app, called in this process as in test_flower_server.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import focusfl as ff
from focusfl.data.own.node import read_own_data
from focusfl.util.errors import InputError

if not os.environ.get("CI"):
    pytest.importorskip("flwr")

import flwr.app.message.message as flower_message
from flwr.app import Context, Error, Message, RecordDict
from helpers.own_data import alone, described

from focusfl.flower import client_app, serve
from focusfl.flower.apps.client import checked_pair
from focusfl.flower.apps.configured import RunConfig, app
from focusfl.flower.protocol.exchange import TooFewReplies
from focusfl.flower.protocol.roster import FIRST_REPLY_TIMEOUT

CONFIG: dict[str, Any] = {"algorithm": "fedavg", "rounds": 1, "model": "mlp:2,2", "classes": 2, "wait": 0.0}
ROWS = [(0.1, 3.0, 1), (0.2, 2.0, 0), (0.3, 1.0, 1), (0.4, 5.0, 0), (0.5, 4.0, 1)]  # age, pressure, label


class FakeIdentity:
    """Messages need a sender; in a process of Flower's own it is set."""

    run_id = node_id = task_id = 1


class Machines:
    """Flower's Grid, with a node for each of these files in this process."""

    def __init__(self, config: dict[str, Any], *places: Path) -> None:
        self.config, self.app = CONFIG | {"agents": len(places)} | config, app
        self.nodes = {
            100 + e: Context(1, 100 + e, {"agent": e, "data": str(place)}, RecordDict(), self.config)
            for e, place in enumerate(places)
        }
        self.timeouts: dict[str, float | None] = {}
        self.change: Callable[[int, Message], None] = lambda *_: None
        self.said: list[str] = []

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        for i, message in enumerate(messages):
            node = message.metadata.dst_node_id
            self.timeouts[message.metadata.message_type] = timeout
            message.metadata.__dict__["_message_id"] = f"{message.metadata.message_type}-{i}"
            try:
                reply = self.app(message, self.nodes[node])
            except Exception as error:  # as Flower does
                reply = Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
            self.change(node - 100, reply)
            replies.append(reply)
        return replies

    def serve(self) -> list[int]:
        """Who is in the result."""
        row = serve(self, RunConfig(self.config).deployment(), self.said.append)  # type: ignore[arg-type]
        return list(row["agents"])


@pytest.fixture(autouse=True)
def sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_message, "TaskIdentity", FakeIdentity)


def table(path: Path, header: str = "age,pressure,label", rows: Iterable[tuple[object, ...]] = ROWS) -> Path:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def test_a_column_is_the_same_feature_at_every_node(tmp_path: Path) -> None:
    a = read_own_data(table(tmp_path / "a.csv"))
    b = read_own_data(table(tmp_path / "b.csv", "pressure,age,label", [(q, p, y) for p, q, y in ROWS]))
    description = described(a, b)
    one, other = (node.data(description) for node in (a, b))
    assert torch.equal(one.training.x, other.training.x) and torch.equal(one.testing.x, other.testing.x)
    assert description.inputs.columns == ("age", "pressure")


def test_a_node_with_other_columns_is_refused_and_their_names_do_not_travel(tmp_path: Path) -> None:
    places = [table(tmp_path / f"{e}.csv") for e in range(3)]
    table(places[1], "age,weight,label")
    hall = Machines({}, *places)
    assert hall.serve() == [0, 2]
    assert any("refused: agent 1: its columns differ" in line for line in hall.said)
    assert not any("weight" in line or "pressure" in line for line in hall.said)


def test_a_node_that_says_nothing_of_its_columns_is_refused(tmp_path: Path) -> None:
    def silence(e: int, reply: Message) -> None:
        if e == 0 and "hello" in reply.content:
            del reply.content["hello"]["columns"]

    hall = Machines({}, *(table(tmp_path / f"{e}.csv") for e in range(3)))
    hall.change = silence
    assert hall.serve() == [1, 2]


def test_numbers_are_refused_where_the_run_names_its_classes(tmp_path: Path) -> None:
    """1 may stand for either of them."""
    with pytest.raises(InputError, match=r"labels are numbers.*ill, well"):
        alone(table(tmp_path / "a.csv"), labels=("ill", "well"))


def test_whole_numbers_are_amounts_in_regression_alone(tmp_path: Path) -> None:
    whole = table(tmp_path / "whole.csv", rows=[(p, q, -2 * y) for p, q, y in ROWS])
    broken = table(tmp_path / "broken.csv", rows=[(p, q, p + y) for p, q, y in ROWS])
    assert Machines({"classes": 0, "model": "linear:2,1", "train.lr": 0.01}, broken, whole).serve() == [0, 1]
    with pytest.raises(InputError, match="for regression set"):
        alone(whole)
    pair = ([[1.0], [2.0]], [3, -4]), ([[1.0]], [0.5])
    assert checked_pair(pair, None)[0].y.tolist() == [3.0, -4.0]
    with pytest.raises(InputError, match="label -4 is out of range"):
        checked_pair((pair[0], pair[0]), 4)


def test_classes_that_nobody_names_are_found_and_amounts_do_not_fit_a_network_for_classes(tmp_path: Path) -> None:
    places = [table(tmp_path / f"{e}.csv") for e in range(2)]
    assert Machines({"classes": 0}, *places).serve() == [0, 1]
    hall = Machines({"classes": 0, "target": "number"}, *places)
    with pytest.raises(TooFewReplies):
        hall.serve()
    assert any("regression needs 1 output" in line for line in hall.said)


@pytest.mark.parametrize("row", [("Jane Doe", 1.0, 1), (0.5, 1.0, "Jane Doe"), (0.5, 1.0, 12345)], ids=str)
def test_what_is_in_the_data_stays_at_the_node(
    tmp_path: Path, row: tuple[object, ...], caplog: pytest.LogCaptureFixture
) -> None:
    places = [table(tmp_path / f"{e}.csv") for e in range(3)]
    table(places[1], rows=[*ROWS, row])
    hall = Machines({"out": str(tmp_path / "out")}, *places)
    assert hall.serve() == [0, 2]
    assert any("this node's data cannot be used; its own log says why" in line for line in hall.said)
    written = [path.read_text(errors="replace") for path in (tmp_path / "out").rglob("*.json*")]
    for secret in ("Jane", "12345", "1.csv"):
        assert not any(secret in text for text in hall.said + written)
    assert "Jane Doe" in caplog.text or "12345" in caplog.text


def test_what_an_apps_own_loader_raises_stays_at_the_node(caplog: pytest.LogCaptureFixture) -> None:
    def load(context: Context) -> Any:
        raise ValueError("Jane Doe")

    hall = Machines({}, Path(), Path())
    hall.app = client_app(ff.FedAvg(), ff.models.mlp(2, 2), load, classes=2)
    with pytest.raises(TooFewReplies):
        hall.serve()
    assert not any("Jane" in line for line in hall.said) and "Jane Doe" in caplog.text


def test_a_network_with_too_few_outputs_is_refused_without_naming_a_label(tmp_path: Path) -> None:
    """torch says which label was out of bounds."""
    rows = [(p, q, 7 * y) for p, q, y in ROWS]
    hall = Machines({"classes": 8}, *(table(tmp_path / f"{e}.csv", rows=rows) for e in range(2)))
    with pytest.raises(TooFewReplies):
        hall.serve()
    assert any("the labels need 8 outputs each" in line for line in hall.said)
    assert not any("index 7" in line for line in hall.said)


@pytest.mark.parametrize("wait", [5.0, 900.0])
def test_a_node_has_the_runs_time_to_load_its_data(tmp_path: Path, wait: float) -> None:
    hall = Machines({"timeout": 7.0, "wait": wait, "rounds": 3}, *(table(tmp_path / f"{e}.csv") for e in range(2)))
    assert hall.serve() == [0, 1]
    assert hall.timeouts["query.enroll"] == max(FIRST_REPLY_TIMEOUT, wait)
    assert hall.timeouts["query.best"] == 3 * 7.0
    assert any("waiting up to 21 s" in line for line in hall.said)
