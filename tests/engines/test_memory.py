"""The memory of a round: a small agent does not enlarge the plan, and many agents share the server's tensors."""

from __future__ import annotations

import hashlib
import os
import tracemalloc

import numpy as np
import pytest
import torch
from torch import nn

import focusfl as ff
from focusfl.core import Algorithm, State, row
from focusfl.core.tree import flatten
from focusfl.engines import plan
from focusfl.models.task import InitialWeights, Task

if not os.environ.get("CI"):
    pytest.importorskip("flwr")

import flwr.app.message.message as flower_message

from focusfl.flower.protocol.exchange import Exchange
from focusfl.flower.protocol.roster import Roster
from focusfl.flower.protocol.wire import to_arrays
from focusfl.run.settings import Settings

RAGGED = np.array([1, 300, 5, 64, 33, 1, 2, 32, 100])


@pytest.mark.parametrize("batch", [1, 4, 32, 500])
@pytest.mark.parametrize(
    "length", [{"steps": 1}, {"steps": 7}, {"steps": 60}, {"epochs": 1}, {"epochs": 4}], ids=str
)
def test_the_batches_of_an_agent_do_not_depend_on_the_other_agents(batch: int, length: dict[str, int]) -> None:
    train, agents = ff.Train(batch=batch, **length), 10 + np.arange(len(RAGGED))  # type: ignore[arg-type]
    together = plan.batches(3, 2, agents, RAGGED, train)
    for c, n in enumerate(RAGGED):
        alone = plan.batches(3, 2, agents[c : c + 1], RAGGED[c : c + 1], train)
        K = alone.size.shape[1]
        assert plan.steps(train, int(n)) == K and not together.size[c, K:].any()
        for k in range(K):
            assert np.array_equal(together.step(c, k), alone.step(0, k))
        assert together.rows[c].min() >= 0 and together.rows[c].max() < n  # also beyond `size`


@pytest.mark.parametrize(
    ("length", "digest"),
    [({"steps": 60}, "204fa938e126cb1d"), ({"epochs": 4}, "4c204bbf016ce3b8")],
    ids=["steps", "epochs"],
)
def test_the_plan_is_that_of_earlier_versions(length: dict[str, int], digest: str) -> None:
    """Results and checkpoints depend on every row, so the bits are pinned."""
    drawn = plan.batches(3, 2, np.arange(len(RAGGED)), RAGGED, ff.Train(batch=16, **length))  # type: ignore[arg-type]
    bits = b"".join(v.astype("<i8").tobytes() for v in drawn)
    assert hashlib.sha256(bits).hexdigest()[:16] == digest


def test_an_additional_small_agent_needs_hardly_any_memory() -> None:
    def peak(n: list[int]) -> int:
        tracemalloc.start()
        try:
            plan.batches(0, 0, np.arange(len(n)), np.array(n), ff.Train(batch=32, steps=50))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak([2000] * 10 + [5]) < 1.5 * peak([2000] * 11)


E = 40


class FixedIdentity:
    run_id = node_id = task_id = 1


class TemporaryTensors(ff.FedAvg):
    """Each view has a new tensor of the same size, freed soon after: the next may have the same address."""

    def downlink(self, server: State, e: torch.Tensor) -> State:
        return {**server, "own": row({"e": torch.arange(E).repeat_interleave(64).reshape(E, 64)}, e)}


@pytest.mark.parametrize(
    "algorithm",
    [
        ff.FedAvg(),
        ff.IFCA(M=3),
        ff.Focus(M=3, init="tied"),
        ff.Focus(M=3, init="split"),
        ff.AFL(),
        ff.HardCluster(M=3, clusters=(0, 1, 2, 1) * 10),
        ff.CFL(),
        ff.CGSV(),
        TemporaryTensors(),
    ],
    ids=lambda a: a.name,
)
def test_messages_to_many_agents_share_the_tensors_of_the_server(
    algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_message, "TaskIdentity", FixedIdentity)
    roster = Roster(None, algorithm, Settings(rounds=10, train=ff.Train()), 100, E, "ab" * 16)  # type: ignore[arg-type]
    roster.nodes = {e: 100 + e for e in range(E)}
    server = algorithm.start(InitialWeights(lambda: nn.Linear(100, 100), 0), E)
    messages = Exchange(roster, Task(nn.Linear(100, 100), 100)).messages("train", server, 0, np.arange(E))
    views = {e: message.content.array_records["view"] for e, message in messages.items()}
    assert list(views) == list(range(E))
    for e, view in views.items():
        assert view == to_arrays(algorithm.downlink(server, torch.tensor(e)))

    own = {id(v) for v in flatten(server).values()}
    seen = flatten(algorithm.downlink(server, torch.tensor(0)))
    for k in (k for k, v in seen.items() if id(v) in own):
        assert len({id(view[k]) for view in views.values()}) == 1
    if algorithm.name in ("CFL", "CGSV"):  # each agent receives a model of its own
        return
    sizes = {id(array.data): len(array.data) for view in views.values() for array in view.values()}
    assert sum(sizes.values()) < 2 * sum(v.nbytes for v in flatten(server).values())
