"""After a deployment: every node has its own predictor, and the server the models for newcomers."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import focusfl as ff
from focusfl.run.loop import run
from focusfl.run.setup import Setup
from focusfl.util.errors import InputError

if not os.environ.get("CI"):
    pytest.importorskip("flwr")

import flwr.app.message.message as flower_message
from flwr.app import Context, RecordDict
from fuzz.harness import focusfl
from helpers.flower_people import SIZES, TRAIN, model, people
from helpers.hall import FakeIdentity, Hall, go, quiet

from focusfl.flower import serve
from focusfl.flower.apps import configured


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_message, "TaskIdentity", FakeIdentity)


CONFIG: dict[str, Any] = {"agents": 4, "rounds": 15, "algorithm": "focus", "focus.M": 2, "model": "mlp:2,8,2"}
CONFIG |= {"labels": "ill,well", "label": "diagnosis", "best": "none", "wait": 0.0}


def write_hospital(path: Path, e: int, n: int = 80) -> None:
    rng = np.random.default_rng(e)
    with path.open("w", newline="") as handle:
        rows = csv.writer(handle)
        order = ["pressure", "age"] if e % 2 else ["age", "pressure"]
        rows.writerow([*order, "diagnosis"])
        for a, b in rng.normal(size=(n, 2)).round(3).tolist():
            values = {"age": a, "pressure": b}
            rows.writerow([*(values[name] for name in order), "ill" if (b > 0) != (e >= 2) else "well"])


class Hospitals(Hall):
    """Nodes that read their own csv files, by the app that needs no code."""

    def __init__(self, folder: Path) -> None:
        super().__init__(ff.FedAvg())
        self.app = configured.app
        for e in range(4):
            write_hospital(folder / f"{e}.csv", e)
            own = {"agent": e, "data": str(folder / f"{e}.csv"), "keep": str(folder / f"keep-{e}")}
            self.contexts[100 + e] = Context(1, 100 + e, own, RecordDict(), dict(CONFIG))


def test_nodes_predict_from_their_own_folder_and_newcomers_from_the_servers(tmp_path: Path) -> None:
    config = configured.RunConfig(CONFIG | {"out": str(tmp_path / "out")})
    serve(Hospitals(tmp_path), config.deployment(), quiet)  # type: ignore[arg-type]
    new = tmp_path / "new.csv"
    new.write_text("id,pressure,age\n1,2.5,0\n2,-2.5,0\n")
    for e in range(4):
        ended = focusfl("predict", tmp_path / f"keep-{e}" / "model", new)
        assert ended.code == 0, ended.err
        rows = list(csv.DictReader(ended.out.splitlines()))
        expected = ["ill", "well"] if e < 2 else ["well", "ill"]
        assert [row["prediction"] for row in rows] == expected and [row["id"] for row in rows] == ["1", "2"]
    server = tmp_path / "out" / "runs" / "focus-seed0" / "model"
    content = b"".join(path.read_bytes() for path in server.iterdir())
    assert b"pressure" in content and b"diagnosis" in content  # a newcomer's table is read by the same rules
    write_hospital(tmp_path / "newcomer.csv", 3)
    ended = focusfl("assign", server, tmp_path / "newcomer.csv", "--out", tmp_path / "joined", "--name", "gams")
    assert ended.code == 0 and "The newcomer belongs to cluster" in ended.out, ended.err
    new.write_text("pressure,age\n2.5,0\n-2.5,0\n")
    ended = focusfl("predict", tmp_path / "joined", new)
    assert [row["prediction"] for row in csv.DictReader(ended.out.splitlines())] == ["well", "ill"]
    assert "holds no agent's labels" in focusfl("predict", server, new, "--agent", "0").err
    new.write_text("pressure,weight\n2.5,0\n")
    assert "no column age" in focusfl("predict", tmp_path / "joined", new).err
    assert "not known" not in focusfl("show", server).err


@pytest.mark.parametrize("algorithm", [ff.FedAvg(), ff.Ditto(), ff.IFCA(M=2)], ids=lambda a: a.name)
def test_a_nodes_predictor_is_that_of_the_serial_engine(algorithm: Any, tmp_path: Path) -> None:
    go(Hall(algorithm, keep=tmp_path), algorithm)
    setup = Setup.of(algorithm, people(SIZES), 4, model=model, train=TRAIN, engine="serial")
    *_, last = run(setup)
    for e in range(4):
        x, y = people(SIZES).test(e)
        p = ff.load(tmp_path / str(e) / "model", network=model).predict(f"agent-{e}", x)
        loss = -p.gather(1, y[:, None]).log().mean()
        assert last.scores is not None
        torch.testing.assert_close(loss, last.scores.loss[e], rtol=0, atol=1e-5)
    with pytest.raises(InputError, match="agent-0"):
        ff.load(tmp_path / "0" / "model", network=model).predict("agent-1", x)
