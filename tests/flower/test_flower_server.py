"""The server's and the nodes' rules in trouble: lost answers, restarts, rounds asked for twice, lying replies.

The nodes' real apps, called in this process: what happens between messages is played exactly. The real transports
are in test_flower.py and test_deployment.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import focusfl as ff
from focusfl.core import Agent, Algorithm, State, Upload
from focusfl.core.tree import tree_map
from focusfl.run import history
from focusfl.run.best_loss import Surrogates
from focusfl.run.setup import Setup
from focusfl.util.errors import InputError

if not os.environ.get("CI"):
    pytest.importorskip("flwr")

import flwr.app.message.message as flower_message
from flwr.app import Array, Context, Message, RecordDict
from helpers.flower_people import SIZES, TRAIN, model, people
from helpers.hall import Call, FakeIdentity, Hall, go, serial

from focusfl.deploy.setup import init
from focusfl.flower import Deployment, serve
from focusfl.flower.protocol.exchange import TooFewReplies
from focusfl.flower.protocol.memory import Memory
from focusfl.flower.protocol.wire import Refused, checked, to_arrays, to_tree


@pytest.fixture(autouse=True)
def sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_message, "TaskIdentity", FakeIdentity)


@pytest.mark.parametrize("name", [n for n in ff.algorithms.ALGORITHMS if n != "hardcluster"])
def test_every_method_gives_the_serial_engines_numbers(name: str) -> None:
    algorithm = ff.algorithms.ALGORITHMS[name]()
    row = go(Hall(algorithm), algorithm)
    assert row["loss"] == pytest.approx(serial(algorithm), abs=1e-5)


@pytest.mark.parametrize("algorithm", [ff.Focus(M=2, warmup=1), ff.Ditto(), ff.FedEM(M=2)], ids=lambda a: a.name)
def test_agents_that_rest_are_those_of_the_serial_engine(algorithm: Algorithm) -> None:
    row = go(Hall(algorithm), algorithm, fraction=0.5)
    assert row["loss"] == pytest.approx(serial(algorithm, fraction=0.5), abs=1e-5)


@pytest.mark.parametrize("algorithm", [ff.Focus(M=2, warmup=1), ff.Ditto(), ff.FedSoft(M=2)], ids=lambda a: a.name)
def test_nodes_that_connect_late_and_stop_early_are_agents_that_join_and_leave(algorithm: Algorithm) -> None:
    """Agent 1 from round 3 on, agent 2 up to round 3: as the serial engine simulates it."""
    hall = Hall(algorithm)
    hall.here = {100, 102, 103}

    def after(call: Call, _: Message) -> None:
        if call[0] == "train":
            t = call[2] + 1  # the next round
            hall.here = {100, 103} | ({101} if t >= 2 else set()) | ({102} if t < 3 else set())

    hall.after = after
    row = go(hall, algorithm, rounds=5)
    assert row["agents"] == [0, 1, 3]
    simulated = serial(algorithm, rounds=5, joins={1: 3}, leaves={2: 4})
    assert row["loss"] == pytest.approx([simulated[e] for e in row["agents"]], abs=1e-5)


def test_a_nodes_job_is_made_once_per_run() -> None:
    """Its data are loaded once, however many messages it gets; also for a node that restarts in this process."""
    hall = Hall(ff.Ditto())
    hall.after = lambda call, _: hall.restart(2) if call == ("train", 3, 1) else None
    go(hall, ff.Ditto(), rounds=4, bayes="agent")
    assert len(hall.calls) > 30 and sorted(hall.loads) == [0, 1, 2, 3]


def test_history_has_scores_of_evaluated_rounds_alone(tmp_path: Path) -> None:
    go(Hall(ff.Focus(M=2)), ff.Focus(M=2), rounds=5, eval_every=2, out=tmp_path)
    rows = history.read(tmp_path / "runs" / "focus-seed0")
    assert ["avg_loss" in row for row in rows] == [False, True, False, True, True]


def test_excess_risk_is_against_what_each_agent_reaches_alone() -> None:
    row = go(Hall(ff.FedAvg()), ff.FedAvg(), bayes="agent")
    alone = Surrogates().best(Setup.of(ff.FedAvg(), people(SIZES), 4, train=TRAIN, engine="serial", bayes="agent"))
    assert row["bayes"] == pytest.approx(alone.loss.tolist(), abs=1e-5)
    assert row["faa"] == pytest.approx(float(np.ptp(np.array(row["loss"]) - alone.loss.numpy())), abs=1e-5)


@pytest.mark.parametrize("algorithm", [ff.Focus(M=2, warmup=1), ff.Ditto()], ids=lambda a: a.name)
@pytest.mark.parametrize("after", ["answers", "checkpoint"])
def test_killed_anywhere_and_resumed_it_is_the_same_run(tmp_path: Path, algorithm: Algorithm, after: str) -> None:
    """Also when the nodes have done a round that the server never wrote down: it is asked for again."""

    class Killed(BaseException): ...

    hall = Hall(algorithm, keep=tmp_path / "keep")

    def kill(call: Call, _: Message) -> None:
        if call == (("train", 3, 2) if after == "answers" else ("train", 0, 2)):
            raise Killed

    hall.after = kill
    with pytest.raises(Killed):
        go(hall, algorithm, out=tmp_path / "out")
    hall.after = lambda *_: None
    hall.restart()  # a resumed run is a new one at Flower: contexts are empty
    row = go(hall, algorithm, out=tmp_path / "out", resume=True)
    assert row["loss"] == pytest.approx(serial(algorithm), abs=1e-6)


def test_a_finished_folder_is_not_overwritten(tmp_path: Path) -> None:
    go(Hall(ff.FedAvg()), ff.FedAvg(), rounds=1, out=tmp_path)
    with pytest.raises(InputError, match="resume"):
        go(Hall(ff.FedAvg()), ff.FedAvg(), rounds=1, out=tmp_path)
    go(Hall(ff.Ditto()), ff.Ditto(), rounds=1, out=tmp_path)
    assert [row["method"] for row in json.loads((tmp_path / "results.json").read_text())] == ["fedavg", "ditto"]


def test_a_partly_copied_folder_is_not_started_over(tmp_path: Path) -> None:
    """Without the nonce the nodes would not know the run, and round 1 would replace the checkpoint."""
    go(Hall(ff.FedAvg()), ff.FedAvg(), rounds=2, out=tmp_path)
    folder = tmp_path / "runs" / "fedavg-seed0"
    (folder / "nonce.json").unlink()
    before = (folder / "checkpoint.safetensors").read_bytes()
    with pytest.raises(InputError, match=r"no nonce\.json.*copy it"):
        go(Hall(ff.FedAvg()), ff.FedAvg(), rounds=2, out=tmp_path, resume=True)
    assert (folder / "checkpoint.safetensors").read_bytes() == before and not (folder / "nonce.json").exists()


def test_another_run_with_the_same_settings_leaves_nothing_behind(tmp_path: Path) -> None:
    """A node that comes late must not take up what it kept of an earlier run."""
    first = Hall(ff.Ditto(), keep=tmp_path)
    go(first, ff.Ditto())

    def late(keep: Path | None) -> list[float]:
        hall = Hall(ff.Ditto(), keep=keep)
        hall.here.discard(103)
        hall.after = lambda call, _: hall.here.add(103) if call[2] == 1 else None
        loss: list[float] = go(hall, ff.Ditto())["loss"]
        return loss

    assert late(tmp_path) == late(None)


def test_a_lost_first_answer_is_asked_for_again() -> None:
    hall = Hall(ff.FedAvg())
    hall.lost = lambda call: call[:2] == ("query.enroll", 1) and hall.count("query.enroll", 1) == 1
    row = go(hall, ff.FedAvg())
    assert row["agents"] == [0, 1, 2, 3] and hall.count("query.enroll", 1) == 2


@pytest.mark.parametrize("name", ["focus", "fedma"])
def test_a_node_that_restarts_continues(name: str) -> None:
    """FOCUS: a label from its own data. FedMA: its first state comes from the server, so it misses one round."""
    algorithm = ff.algorithms.ALGORITHMS[name]()
    hall = Hall(algorithm)

    def forget(call: Call, _: Message) -> None:
        if call == ("train", 3, 1):
            hall.restart(2)

    hall.after = forget
    row = go(hall, algorithm, rounds=5)
    assert row["agents"] == [0, 1, 2, 3]
    assert hall.count("query.enroll", 2) == (1 if name == "focus" else 2)


def test_a_round_asked_for_twice_begins_from_the_same_state() -> None:
    """Too few answer, so it is asked for again: FOCUS's E step must not count twice."""
    hall = Hall(ff.Focus(M=2))
    hall.lost = lambda call: call == ("train", 0, 1) and hall.count("train", 0) == 2
    row = go(hall, ff.Focus(M=2), minimum=4)
    assert hall.count("train", 3) == 5
    assert row["loss"] == pytest.approx(serial(ff.Focus(M=2)), abs=1e-6)


def test_a_node_does_not_go_back() -> None:
    hall = Hall(ff.Ditto())
    go(hall, ff.Ditto())
    context = hall.contexts[100]
    key = str(context.state["focusfl.memory"]["key"])
    memory = Memory(context, key)
    assert memory.t == 3 and memory.recall(2) is None
    with pytest.raises(Refused, match="hex"):
        Memory(context, "../../etc")


def test_a_damaged_file_is_as_good_as_none(tmp_path: Path) -> None:
    context = Context(1, 1, {"agent": 0, "keep": str(tmp_path)}, RecordDict(), {})
    memory = Memory(context, "0" * 8)
    memory.keep(4, {}, {"w": torch.ones(2)})
    fresh = Context(1, 1, {"agent": 0, "keep": str(tmp_path)}, RecordDict(), {})
    recalled = Memory(fresh, "0" * 8).recall(5)
    assert recalled is not None and torch.equal(recalled["w"], torch.ones(2))
    (tmp_path / "00000000.safetensors").write_bytes(b"x")
    assert Memory(Context(1, 1, dict(fresh.node_config), RecordDict(), {}), "0" * 8).recall(5) is None


def lie(make: Callable[[Array], Array]) -> str:
    record = to_arrays({"w": torch.ones(2, 3)})
    record["w"] = make(record["w"])
    with pytest.raises(Refused) as error:
        checked(RecordDict({"add": record}), "add", {"w": torch.zeros(2, 3)})
    return str(error.value)


def test_false_replies_are_refused() -> None:
    import io

    packed = io.BytesIO()
    np.savez(packed, a=np.ones((2, 3), np.float32))
    pickled = io.BytesIO()
    np.save(pickled, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert "not readable" in lie(lambda a: Array("float32", (2, 3), "numpy.ndarray", b""))
    assert "something else" in lie(lambda a: Array("float32", (2, 3), "numpy.ndarray", packed.getvalue()))
    assert "not readable" in lie(lambda a: Array("float32", (2, 3), "numpy.ndarray", pickled.getvalue()))
    assert "bytes" in lie(lambda a: Array("float32", (2, 3), "numpy.ndarray", b"0" * 9000))
    assert "something else" in lie(lambda a: Array("float32", (2, 3), a.stype, Array(np.ones(6, np.float32)).data))
    assert "NaN" in lie(lambda a: Array(np.full((2, 3), np.nan, np.float32)))
    assert "'float64'" in lie(lambda a: Array(np.ones((2, 3))))
    tree = {"w": torch.ones(2), "deep": {"x": torch.zeros(1)}}
    back = to_tree(RecordDict({"add": to_arrays(tree)}), "add")
    assert torch.equal(back["w"], tree["w"]) and torch.equal(back["deep"]["x"], tree["deep"]["x"])


def test_labels_that_are_no_labels_are_left_out() -> None:
    hall = Hall(ff.Focus(M=2))

    def spoil(call: Call, reply: Message) -> None:
        if call[0] == "evaluate" and call[1] == 1:
            reply.content["scores"]["label"] = [float("nan"), 1.0]
        if call[0] == "evaluate" and call[1] == 2:
            reply.content["scores"]["label"] = [1.0]

    hall.after = spoil
    row = go(hall, ff.Focus(M=2))
    assert row["agents"] == [0, 3] and np.isfinite(row["pi"]).all()


@pytest.mark.parametrize("t", ["x", 3.0])
def test_what_a_node_says_of_the_round_does_not_end_the_server(t: object) -> None:
    hall = Hall(ff.FedAvg())

    def spoil(call: Call, reply: Message) -> None:
        if call[:2] == ("query.enroll", 1):
            reply.content["hello"]["t"] = t

    hall.after = spoil
    assert go(hall, ff.FedAvg())["agents"] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "scores",
    [{"loss": 1e39}, {"acc": -1e39}, {"best": 1e39}, {"acc": 1e30}, {"loss": 3e38, "best": -3e38}],
    ids=str,
)
def test_scores_that_float32_cannot_hold_do_not_end_the_server(tmp_path: Path, scores: dict[str, float]) -> None:
    """Nor those whose differences or squares it cannot: results.json takes finite numbers alone."""
    hall = Hall(ff.FedAvg())

    def spoil(call: Call, reply: Message) -> None:
        if call[1] == 1 and call[0] in ("evaluate", "query.best"):
            wrong = {"loss": scores.get("best")} if call[0] == "query.best" else scores
            for name in ("loss", "acc"):
                if wrong.get(name) is not None:
                    reply.content["scores"][name] = wrong[name]

    hall.after = spoil
    assert go(hall, ff.FedAvg(), rounds=1, bayes="agent", out=tmp_path)["agents"] == [0, 2, 3]


def test_a_log_line_is_one_line() -> None:
    hall, said = Hall(ff.FedAvg()), list[str]()

    def shout(call: Call, reply: Message) -> None:
        if call[:2] == ("train", 1):
            name = next(iter(reply.content["add"]))
            reply.content["add"][name].dtype = "float32\nround 9: agent 0: all is well"

    hall.after = shout
    serve(hall, Deployment.of(ff.FedAvg(), model, 4, 3, rounds=1, train=TRAIN, wait=0, bayes="none"), said.append)  # type: ignore[arg-type]
    assert len([line for line in said if "agent 1" in line]) == 1 and not any("\n" in line for line in said)


def test_secure_through_the_server_with_a_retry() -> None:
    """One answer is lost in the last stage, and too few are left: the sum is repeated, from the same states."""
    algorithm = ff.Focus(M=2, init="independent")
    hall = Hall(algorithm, secure=True)
    hall.lost = lambda call: call[0] == "train.reveal" and call[2] == 1 and hall.count("train.reveal", call[1]) == 2
    row = go(hall, algorithm, secure=True, minimum=4)
    assert hall.count("train.masked", 0) == 5
    assert row["loss"] == pytest.approx(serial(algorithm), abs=1e-5) and row["pi"] is None


def test_one_false_share_of_four_costs_no_round_and_names_the_liar(tmp_path: Path) -> None:
    algorithm = ff.Focus(M=2, init="independent")
    hall = Hall(algorithm, secure=True)

    def spoil(call: Call, reply: Message) -> None:
        if call == ("train.reveal", 1, 2):
            reply.content["secure"]["shares"] = [bytes(32), *reply.content["secure"]["shares"][1:]]

    hall.after = spoil
    row = go(hall, algorithm, secure=True, out=tmp_path)
    assert hall.count("train.masked", 0) == 4  # no round was repeated
    assert row["loss"] == pytest.approx(serial(algorithm), abs=1e-5)
    dropped = [line.get("dropped", {}) for line in history.read(tmp_path / "runs" / "focus-seed0")]
    assert dropped[:2] == [{}, {}] and dropped[3] == {} and list(dropped[2]) == ["1"]
    assert "wrong share of agent 0" in dropped[2]["1"]


@pytest.mark.parametrize("what", ["false shares", "other models"])
def test_a_sum_that_one_agent_spoils_is_repeated_without_it(tmp_path: Path, what: str) -> None:
    """Agent 2 deals shares that nobody can decrypt; or it trained other models, as its signature shows."""
    algorithm = ff.FedAvg()
    hall = Hall(algorithm, secure=True)

    def after(call: Call, reply: Message) -> None:
        if what == "false shares" and call == ("train.shares", 2, 1):
            reply.content["secure"]["sealed"] = [bytes(len(v)) for v in reply.content["secure"]["sealed"]]

    def before(call: Call, message: Message) -> None:
        if what == "other models" and call == ("train.masked", 2, 1):
            message.content["view"] = to_arrays({"w": to_tree(message.content, "view")["w"], "x": torch.ones(1)})

    hall.after, hall.before = after, before
    row = go(hall, algorithm, secure=True, out=tmp_path)
    assert hall.count("train.masked", 0) == 5 and hall.count("train.masked", 2) == 4
    dropped = [line.get("dropped", {}) for line in history.read(tmp_path / "runs" / "fedavg-seed0")]
    assert [list(one) for one in dropped] == [[], ["2"], [], []]
    assert ("wrong shares" if what == "false shares" else "signed something else") in dropped[1]["2"]
    assert row["loss"] == pytest.approx(serial(algorithm), abs=0.2)


def test_a_nodes_own_minimum_and_its_wish_for_secure_runs_bind_the_server() -> None:
    algorithm, said = ff.FedAvg(), list[str]()

    def run_with(masked: bool, here: set[int], **rules: Any) -> dict[str, Any]:
        hall = Hall(algorithm, secure=masked)
        hall.rules, hall.here = rules, here
        hall.restart()
        options = {"rounds": 1, "train": TRAIN, "wait": 0, "bayes": "none", "secure": masked, "minimum": 2}
        return serve(hall, Deployment.of(algorithm, model, 4, 3, **options), said.append)  # type: ignore[arg-type]

    everyone = {100, 101, 102, 103}
    assert run_with(True, everyone, minimum=4)["agents"] == [0, 1, 2, 3]
    with pytest.raises(TooFewReplies, match="0 of 3 agents"):
        run_with(True, everyone - {103}, minimum=4)
    assert any("agent 0: shares" in line and "of 4 to 1024 agents" in line for line in said)
    assert run_with(True, everyone - {103}, minimum=3)["agents"] == [0, 1, 2]
    with pytest.raises(TooFewReplies, match="0 of 0 agents"):
        run_with(True, everyone - {103}, minimum="2")
    assert any("minimum" in line and "2 or more" in line for line in said)
    assert run_with(True, everyone, secure=True)["agents"] == [0, 1, 2, 3]
    with pytest.raises(TooFewReplies):
        run_with(False, everyone, secure=True)
    assert any("secure runs only" in line for line in said)


def test_nodes_use_the_keys_that_they_were_installed_with(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Three nodes of one deployment, and one with another deployment's certificate, whom the others refuse."""
    init(tmp_path / "site", 4)
    init(tmp_path / "other", 4)
    algorithm, said = ff.FedAvg(), list[str]()

    def run_with(folders: list[str]) -> Any:
        hall = Hall(algorithm, secure=True)
        for e, folder in enumerate(folders):
            hall.rules = {"identity": str(tmp_path / folder / f"nodes/agent-{e}")}
            hall.restart(e)
        options = {"rounds": 1, "train": TRAIN, "wait": 0, "bayes": "none", "secure": True}
        return serve(hall, Deployment.of(algorithm, model, 4, 3, **options), said.append)  # type: ignore[arg-type]

    assert run_with(["site"] * 4)["agents"] == [0, 1, 2, 3] and not caplog.records
    with pytest.raises(TooFewReplies):  # this server does not know the authority, and so does not leave agent 3 out
        run_with(["site", "site", "site", "other"])
    assert any("agent 0: shares" in line and "not certified the signing key of agent 3" in line for line in said)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FOCUSFL_AUTHORITY", str(tmp_path / "site/server/ca.pem"))
        said.clear()
        assert run_with(["site", "site", "site", "other"])["agents"] == [0, 1, 2, 3]  # all are evaluated
        assert [line for line in said if "left out" in line and "agent 3: keys" in line]
    go(Hall(algorithm, secure=True), algorithm, rounds=1, secure=True)
    assert "no certificate" in caplog.text


def test_the_server_cannot_choose_a_nodes_first_state_in_a_secure_run() -> None:
    """By first labels of its choice it could take all agents but one out of a cluster, and read its model."""
    algorithm = ff.Focus(M=2, init="independent")
    hall = Hall(algorithm, secure=True)

    def choose(call: Call, message: Message) -> None:
        if call[0] == "query.enroll":
            label = torch.tensor([0.0, -1e9] if call[1] else [-1e9, 0.0])
            message.content["state"] = to_arrays({"log_pi": label})

    hall.before = choose
    row = go(hall, algorithm, secure=True)
    assert row["loss"] == pytest.approx(serial(algorithm), abs=1e-5)


def test_a_secure_sum_too_small_to_divide_by_ends_the_run_and_says_why() -> None:
    """q-FFL's h is F^q: with small losses a sum would be taken for 0, and training would stand still."""

    class Small(ff.QFFL):
        def local(self, server: State, state: State, agent: Agent) -> tuple[State, Upload]:
            state, upload = super().local(server, state, agent)
            return state, Upload(tree_map(lambda v: 1e-10 * v, upload.add), {})  # as with losses near 0.01

    plain, small = ff.QFFL(q=5), Small(q=5)
    row = go(Hall(plain, secure=True), plain, secure=True)
    assert row["loss"] == pytest.approx(serial(plain), abs=1e-5)
    with pytest.raises(InputError, match="q = 5"):
        go(Hall(small, secure=True), small, secure=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fraction": 0.5, "minimum": 3}, "from 1 to the 2 agents of a round"),
        ({"fraction": 0.25, "secure": True}, "from 2 to the 1 agents"),
        ({"bayes": "true"}, "bayes = true"),
        ({"resume": True}, "resume = true: set out"),
    ],
)
def test_impossible_runs_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Deployment.of(ff.FedAvg(), model, 4, 3, rounds=1, train=TRAIN, **change)


def test_a_run_without_final_scores_fails_with_a_message() -> None:
    hall = Hall(ff.FedAvg())
    hall.lost = lambda call: call[0] == "query.best"
    with pytest.raises(TooFewReplies, match="no agent"):
        go(hall, ff.FedAvg(), rounds=1, bayes="agent")


def test_a_nodes_folder_holds_the_latest_runs_only(tmp_path: Path) -> None:
    """Three runs and a limit of two; a file that is no run's stays."""
    (tmp_path / "mine.safetensors").touch()
    config: dict[str, Any] = {"keep": str(tmp_path), "keep-runs": 2}
    for time, key in enumerate("abc"):
        memory = Memory(Context(1, 1, config, RecordDict(), {}), key * 8)
        for t in range(2):
            memory.keep(t, {}, {"x": torch.zeros(1)})
        os.utime(tmp_path / f"{key * 8}.safetensors", (time, time))
    names = {"bbbbbbbb.safetensors", "cccccccc.safetensors", "mine.safetensors"}
    assert {path.name for path in tmp_path.iterdir()} == names
    with pytest.raises(InputError, match="keep-runs"):
        Memory(Context(1, 1, {"keep-runs": 0}, RecordDict(), {}), "a" * 8)


@pytest.mark.parametrize("kind", ["query.enroll", "train", "evaluate", "train.shares", "train.masked"])
def test_a_reply_with_a_record_that_nobody_asked_for_is_refused(kind: str, tmp_path: Path) -> None:
    """Agent 3 adds a record in one stage of the protocol; it is left out there, and named. The others continue."""
    algorithm, secure = ff.Focus(M=2, init="tied"), kind.startswith("train.")
    hall, log = Hall(algorithm, secure=secure), list[str]()

    def add_record(call: Call, reply: Message) -> None:
        if call[:2] == (kind, 3):
            reply.content["extra"] = to_arrays({"x": torch.zeros(3)})

    hall.after = add_record
    options: dict[str, Any] = {"wait": 0, "bayes": "none", "minimum": 3, "secure": secure, "out": tmp_path}
    deployment = Deployment.of(algorithm, model, 4, 3, rounds=2, train=TRAIN, **options)
    row = serve(hall, deployment, log.append)  # type: ignore[arg-type]
    named = [line for line in log if "'extra'" in line]
    assert named and all("agent 3" in line or "node 103" in line for line in named)
    assert row["agents"] == ([0, 1, 2] if kind in ("query.enroll", "evaluate") else [0, 1, 2, 3])
    if kind not in ("query.enroll", "evaluate"):
        left_out = [set(line["dropped"]) for line in history.read(tmp_path / "runs/focus-seed0")]
        assert left_out == [{"3"}, {"3"}]
