"""Raw tables at the nodes: a deployment gives the numbers of one process that has all files.

The real app, called in this process (helpers/hall.py has the grid without it).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import focusfl as ff
from focusfl.data.own.folder import folder
from focusfl.run.loop import run
from focusfl.run.setup import Setup

if not os.environ.get("CI"):
    pytest.importorskip("flwr")

import flwr.app.message.message as flower_message
from flwr.app import Context, Error, Message, RecordDict
from helpers.hall import FakeIdentity

from focusfl.flower import serve
from focusfl.flower.apps.configured import RunConfig, app

TRAIN = {"train.lr": 0.1, "train.steps": 3, "train.batch": 16, "train.optimiser": "sgd"}
CONFIG: dict[str, Any] = {
    "algorithm": "focus",
    "focus.M": 2,
    "focus.adapt": False,
    "rounds": 3,
    "wait": 0.0,
} | TRAIN
CONFIG |= {"best": "none", "label": "outcome"}


@pytest.fixture(autouse=True)
def sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_message, "TaskIdentity", FakeIdentity)


def write_site(path: Path, e: int, n: int = 60, regression: bool = False, **columns: list[object]) -> None:
    """A table as hospitals have them: identifiers, dates, numbers of any size, categories, missing cells."""
    rng = np.random.default_rng(e)
    age, dose = rng.normal(60 + e, 10, n), rng.normal(1e6, 1e3, n)
    sex, ward = rng.choice(["f", "m"], n), rng.choice(["A", "B", "C é", f"only at {e}"], n)
    tiny = rng.lognormal(-7, 1, n)
    z = (age - 60) / 10 + (sex == "f") + (ward == "A") + rng.normal(size=n) / 2
    table: dict[str, list[object]] = {
        "patient_id": [1000 * e + i for i in range(n)],
        "seen": [f"2024-01-{i % 28 + 1:02}" for i in range(n)],
        "ward": ["" if i % 11 == e else w for i, w in enumerate(ward)],
        "age": ["NA" if i % 9 == e else round(a, 1) for i, a in enumerate(age)],
        "dose": [round(d, 2) for d in dose],
        "sex": list(sex),
        "tiny": list(tiny),
        "country": ["CH"] * n,
        "outcome": list((1e4 * z + 3e5).round(1)) if regression else ["ill" if v > 1 else "well" for v in z],
    }
    table |= columns
    rows = zip(*table.values(), strict=True)
    path.write_text("\n".join([",".join(table), *(",".join(map(str, row)) for row in rows)]) + "\n")


class Machines:
    """Flower's Grid, with a node for each of these files in this process."""

    def __init__(self, config: dict[str, Any], *places: Path, run_id: int = 1) -> None:
        self.config = CONFIG | {"agents": len(places)} | config
        self.nodes = {
            100 + e: Context(run_id, 100 + e, {"agent": e, "data": str(place)}, RecordDict(), self.config)
            for e, place in enumerate(places)
        }
        self.change: Callable[[int, Message], None] = lambda *_: None
        self.said: list[str] = []
        self.replies: list[Message] = []
        self.count = 0

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        for message in messages:
            self.count += 1
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = str(self.count)
            try:
                reply = app(message, self.nodes[node])
            except Exception as error:  # as Flower does
                reply = Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
            self.change(node - 100, reply)
            replies.append(reply)
        self.replies += replies
        return replies

    def serve(self) -> dict[str, Any]:
        return serve(self, RunConfig(self.config).deployment(), self.said.append)  # type: ignore[arg-type,return-value]


def in_one_process(root: Path, method: ff.Algorithm | None = None, **options: Any) -> Any:
    fed = folder(root, label="outcome", scale=options.pop("scale", True), **options)
    train = ff.Train(lr=0.1, steps=3, batch=16, optimiser="sgd")
    method = method or ff.Focus(M=2, adapt=False)
    made = Setup.of(method, fed, 3, train=train, engine="serial", bayes="none", validation=0, patience=0)
    *_, last = run(made)
    return made, last


@pytest.mark.parametrize("regression", [False, True])
def test_a_deployment_on_raw_tables_gives_the_numbers_of_one_process(tmp_path: Path, regression: bool) -> None:
    root = tmp_path / "sites"
    root.mkdir()
    for e in range(3):
        write_site(root / f"{e}.csv", e, 50 + 20 * e, regression)
    hall = Machines({"out": str(tmp_path / "out")}, *(root / f"{e}.csv" for e in range(3)))
    row = hall.serve()
    made, last = in_one_process(root)
    print(hall.said)
    assert row["loss"] == last.scores.loss.tolist()
