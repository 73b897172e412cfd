"""Early stopping and train.lr = "auto" across machines: the serial engine's numbers, whoever restarts or lies.

The nodes' real apps, called in this process.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import focusfl as ff
from focusfl.core import Agent, Algorithm, State, Upload
from focusfl.core.train import AUTO_LR
from focusfl.core.tree import tree_map
from focusfl.run.loop import run

if not os.environ.get("CI"):
    pytest.importorskip("flwr")

import flwr.app.message.message as flower_message
from flwr.app import Context, Message, RecordDict
from helpers.flower_people import model
from helpers.hall import Call, FakeIdentity, Hall, go, quiet, serial

from focusfl.flower import Deployment, serve
from focusfl.flower.deployment import DeployedRun, DeploymentEngine
from focusfl.flower.protocol.course import Course
from focusfl.flower.protocol.memory import Memory
from focusfl.flower.protocol.wire import Refused, to_arrays

SIZES, ROUNDS = [30, 40, 20, 25], 12
AUTO = ff.Train(lr="auto", optimiser="adam", steps=5, batch=16)
OPTIONS: dict[str, Any] = {"train": AUTO, "validation": 0.2, "patience": 6}
DITTO = ff.Ditto()


@pytest.fixture(autouse=True)
def sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_message, "TaskIdentity", FakeIdentity)
    monkeypatch.setitem(AUTO_LR, "adam", 0.1)  # so high that a short run has to return


def people_here(algorithm: Algorithm, **options: Any) -> tuple[Hall, list[Course]]:
    """Nodes with validation data, and the courses that they were told of in rounds of training."""
    hall = Hall(algorithm, sizes=SIZES, **{"train": AUTO, "validation": 0.2} | options)
    told: list[Course] = []

    def note(call: Call, message: Message) -> None:
        if call[0] in ("train", "train.masked") and "part" not in message.content["ask"]:
            told.append(Course.read(message.content["ask"], auto=True))

    hall.before = note
    return hall, told


def test_a_run_that_returns_is_the_serial_engines() -> None:
    hall, told = people_here(DITTO)
    row = go(hall, DITTO, ROUNDS, **OPTIONS)
    assert told[-1].returns and told[-1].rate <= 0.5 and told[0] == Course(best=0)
    assert row["loss"] == pytest.approx(serial(DITTO, ROUNDS, SIZES, **OPTIONS), abs=1e-6)


@dataclass(frozen=True)
class Explodes(ff.Ditto):
    """Diverges in each agent's fourth round while the rate is above 0.05; the agent's state counts rounds."""

    def enroll(self, server: State) -> State:
        return {**super().enroll(server), "rounds": torch.tensor(0.0)}

    def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
        new, upload = super().local(server, {k: v for k, v in state.items() if k != "rounds"}, agent)
        wrong = torch.nan if state["rounds"] == 3 and agent.lr > 0.05 else 1.0
        add = upload.add | {"theta": tree_map(lambda v: v * wrong, upload.add["theta"])}
        return {**new, "rounds": state["rounds"] + 1}, Upload(add, upload.each)


@pytest.mark.parametrize("secure", [False, True])
def test_a_divergence_is_taken_back_and_the_rate_quartered(secure: bool) -> None:
    """Rate 0.1 diverges in round 4; a quarter of it does not. The agents' states go back, too."""
    algorithm, rounds = Explodes(), 6
    hall, told = people_here(algorithm, secure=secure)
    row = go(hall, algorithm, rounds, secure=secure, **OPTIONS)
    back = told[-1]
    assert back.rate == 0.25 and len(back.returns) == 1 and 0 < back.returns[0] <= 3
    assert row["loss"] == pytest.approx(serial(algorithm, rounds, SIZES, **OPTIONS), abs=1e-5)


def test_one_agent_alone_cannot_call_a_round_diverged() -> None:
    hall, told = people_here(DITTO)

    def lie(call: Call, reply: Message) -> None:
        if call[:2] == ("train", 1):
            reply.content = RecordDict({"diverged": to_arrays({})})

    def lie_well(call: Call, reply: Message) -> None:
        from flwr.app import ConfigRecord

        if call[:2] == ("train", 1):
            reply.content = RecordDict({"diverged": ConfigRecord()})

    for hall.after in (lie, lie_well):
        told.clear()
        go(hall, DITTO, 3, **OPTIONS)
        assert told[-1] == told[-1]._replace(rate=1.0, returns=())


@pytest.mark.parametrize("keep", [True, False], ids=["folder", "no folder"])
def test_a_node_restarted_between_best_round_and_return_continues(tmp_path: Path, keep: bool) -> None:
    """With a folder the run is the serial engine's; without one, the node starts over and the run goes on."""
    hall, told = people_here(DITTO, keep=tmp_path if keep else None)
    note, restarted = hall.before, list[int]()

    def restart(call: Call, message: Message) -> None:
        note(call, message)
        if call[:2] == ("train", 2) and told[-1].returns and not restarted:
            hall.restart(2)
            restarted.append(call[2])

    hall.before = restart
    row = go(hall, DITTO, ROUNDS, **OPTIONS)
    assert restarted and row["agents"] == [0, 1, 2, 3]
    if keep:
        assert row["loss"] == pytest.approx(serial(DITTO, ROUNDS, SIZES, **OPTIONS), abs=1e-6)


@pytest.mark.parametrize("after", ["return", "divergence"])
def test_killed_after_a_return_and_resumed_it_is_the_same_run(tmp_path: Path, after: str) -> None:
    """Also in the round after the return, when some nodes have gone back and others have not."""

    class Killed(BaseException): ...

    algorithm, rounds = (DITTO, ROUNDS) if after == "return" else (Explodes(), 6)
    hall, told = people_here(algorithm, keep=tmp_path / "keep")

    def kill(call: Call, _: Message) -> None:
        if call[:2] == ("train", 1) and told[-1].returns:
            raise Killed

    hall.after = kill
    with pytest.raises(Killed):
        go(hall, algorithm, rounds, out=tmp_path / "out", **OPTIONS)
    hall.after = lambda *_: None
    hall.restart()
    row = go(hall, algorithm, rounds, out=tmp_path / "out", resume=True, **OPTIONS)
    assert row["loss"] == pytest.approx(serial(algorithm, rounds, SIZES, **OPTIONS), abs=1e-6)


@pytest.mark.parametrize("seed", range(40))
def test_a_node_has_the_state_that_an_engine_in_one_process_has(seed: int) -> None:
    """Random runs: the node is away, its answers get lost, it restarts; the run returns and the server is killed.

    Its state is the set of rounds that it took part in. In one process, a return copies the best state back.
    """
    draw = random.Random(seed)
    context = Context(1, 1, {}, RecordDict(), {})
    first = {"x": torch.zeros(1)}
    Memory(context, "a" * 8).keep(-1, {}, first, Course(best=0))
    state, best_state, best, returns, rounds = first, first, 0, list[int](), 0
    for stamp in range(1, 60):
        course = Course(best=best, returns=tuple(returns))
        memory = Memory(context, "a" * 8)
        before = state
        for _ in range(draw.choice([0, 1, 1, 1, 2])):  # away; or asked once, or twice as the first answer got lost
            recalled = memory.recall(rounds, course)
            assert recalled is not None and torch.equal(recalled["x"], before["x"])
            state = {"x": 2 * before["x"] + stamp}
            memory.keep(rounds, recalled, state, course)
        if draw.random() < 0.1:  # all diverged: the round is repeated after the return
            returns.append(best)
            state = best_state
            continue
        rounds += 1
        if draw.random() < 0.3:
            best, best_state = rounds, state
        elif draw.random() < 0.2:
            returns.append(best)
            state = best_state
    assert len(returns) > 3


@pytest.mark.parametrize(
    ("field", "value", "lr"),
    [
        ("rate", 7.0, "auto"),
        ("rate", 0.0, "auto"),
        ("rate", float("nan"), "auto"),
        ("rate", "0.5", "auto"),
        ("rate", 0.5, 0.1),
        ("best", -1, "auto"),
        ("returns", [1.5], "auto"),
        ("last", "x", "auto"),
    ],
)
def test_a_course_that_no_run_has_is_refused_by_the_node(field: str, value: Any, lr: Any) -> None:
    algorithm, train = ff.FedAvg(), ff.Train(lr=lr)
    hall, said = Hall(algorithm, train=train), list[str]()

    def lie(call: Call, message: Message) -> None:
        if call[:2] == ("train", 1):
            message.content["ask"][field] = value

    hall.before = lie
    options: dict[str, Any] = {"train": train, "wait": 0, "bayes": "none"}
    serve(hall, Deployment.of(algorithm, model, 4, 3, rounds=1, **options), said.append)  # type: ignore[arg-type]
    left_out = [line for line in said if "left out" in line]
    assert len(left_out) == 1 and "agent 1" in left_out[0] and field in left_out[0]


def validating(change: Callable[[dict[str, torch.Tensor]], None], **options: Any) -> tuple[Hall, list[str]]:
    """A run in which agent 1 sends another validation loss than it has; and the log."""
    hall, said = Hall(DITTO, sizes=SIZES, train=AUTO, validation=0.2), list[str]()

    def after(call: Call, reply: Message) -> None:
        if call[:2] == ("evaluate.validation", 1):
            found = {"loss": torch.tensor(0.7), "agents": torch.tensor(1.0)}
            change(found)
            reply.content["add"] = to_arrays(found)

    hall.after = after
    deployment = Deployment.of(DITTO, model, 4, 3, rounds=2, wait=0, bayes="none", **OPTIONS | options)
    serve(hall, deployment, said.append)  # type: ignore[arg-type]
    return hall, said


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ({"loss": torch.tensor(torch.nan)}, "NaN"),
        ({"loss": torch.tensor(-1.0)}, "-1"),
        ({"loss": torch.tensor(3e38)}, "loss"),
        ({"loss": torch.tensor(500.0)}, "times as large"),
        ({"agents": torch.tensor(5.0)}, "5 times"),
        ({"more": torch.tensor(5.0)}, "more"),
    ],
    ids=str,
)
def test_a_lying_validation_loss_is_refused_by_name(lie: dict[str, torch.Tensor], why: str) -> None:
    _, said = validating(lambda found: found.update(lie))
    named = [line for line in said if "not validated" in line]
    assert named and all("agent 1:" in line and why in line for line in named)
    _, said = validating(lambda found: None)
    assert not [line for line in said if "not validated" in line]


def test_a_false_count_in_a_secure_sum_of_validation_losses_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from focusfl.flower.protocol.node import Node

    honest = Node._validation_loss

    def lie(node: Node) -> State:
        return honest(node) | ({"agents": torch.tensor(5.0)} if node.e == 1 else {})

    monkeypatch.setattr(Node, "_validation_loss", lie)
    hall, said = Hall(DITTO, secure=True, sizes=SIZES, train=AUTO, validation=0.2), list[str]()
    deployment = Deployment.of(DITTO, model, 4, 3, rounds=1, wait=0, bayes="none", secure=True, **OPTIONS)
    serve(hall, deployment, said.append)  # type: ignore[arg-type]
    assert [line for line in said if "count 8 times" in line and "not compared" in line]


@pytest.mark.parametrize(
    ("silent", "best"),
    [({5: {3}}, 3), ({5: {3}, 6: {3}, 7: {3}, 8: {3}}, 8), ({}, 3)],
    ids=["once", "for good", "never"],
)
def test_rounds_are_compared_by_the_losses_of_the_same_agents(silent: dict[int, set[int]], best: int) -> None:
    """Agent 3 has a loss of 10, so that the mean falls in a round to which it does not answer.

    The others have their lowest loss, 0.8, in round 3, and 0.7 in round 8 if all judges are the same by then.
    """
    losses = [1.0, 0.9, 0.8, 0.85, 0.85, 0.85, 0.85, 0.7 if len(silent) > 1 else 0.85]
    hall, now = Hall(DITTO, sizes=SIZES, train=AUTO, validation=0.2), {"round": 0, "best": False}

    def before(call: Call, message: Message) -> None:
        if call[0] == "train":
            now["round"] = call[2] + 1
        now["best"] = bool(message.content["ask"].get("returns"))  # it has not returned: this judges the best

    def after(call: Call, reply: Message) -> None:
        if call[0] == "evaluate.validation":
            loss = 0.8 if now["best"] else losses[now["round"] - 1]
            found = {"loss": torch.tensor(10.0 if call[1] == 3 else loss), "agents": torch.tensor(1.0)}
            reply.content["add"] = to_arrays(found)

    hall.before, hall.after = before, after
    hall.lost = lambda call: call[0] == "evaluate.validation" and call[1] in silent.get(now["round"], ())
    options = OPTIONS | {"patience": 9, "train": ff.Train(lr=0.01)}
    hall.app = Hall(DITTO, sizes=SIZES, train=options["train"], validation=0.2).app
    deployment = Deployment.of(DITTO, model, 4, 3, rounds=8, wait=0, bayes="none", **options)
    engine = DeploymentEngine(deployment, hall, "a" * 8, quiet)  # type: ignore[arg-type]
    *_, last = run(DeployedRun(deployment, engine, "a" * 8))
    assert last.t == best and last.trained == 8


def test_a_message_of_another_run_does_not_bring_a_state_back() -> None:
    context = Context(1, 1, {}, RecordDict(), {})
    memory = Memory(context, "a" * 8)
    memory.keep(2, {"x": torch.zeros(1)}, {"x": torch.ones(1)}, Course(best=1, returns=(1,)))
    assert memory.recall(3, Course(best=1)) is None  # the server knows fewer returns than the node: a copied folder
    assert memory.recall(3, Course(best=2, returns=(1, 2))) is None  # it keeps no state of round 2
    with pytest.raises(Refused, match="returns"):
        Course.read({"returns": list(range(20_000))}, auto=True)
