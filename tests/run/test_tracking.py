"""Tracking: what is written is read back with each tool's own library."""

import ast
import json
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
import torch
from helpers.federations import make_named

import focusfl as ff
from focusfl.run import loop
from focusfl.run.best_loss import BestLoss
from focusfl.run.result import Result
from focusfl.run.setup import Setup
from focusfl.run.tracking import TRACKERS, MLflow, TensorBoard, WandB
from focusfl.run.tracking.trackers import RUN_TAG
from focusfl.util.errors import InputError, Interrupted

ROUNDS = 4


@pytest.fixture(scope="module")
def setup():
    return Setup.of(ff.Focus(M=2), ff.data.synthetic(seed=0), rounds=ROUNDS, seed=3)


@pytest.fixture(scope="module")
def rounds(setup):
    return list(loop.run(setup))


def finish(setup, last):
    best = BestLoss(setup.fed.bayes, "exact")
    measured = last.scores, last.pi, best, last.total_seconds
    return Result(setup, last.server, last.states, *measured, t=last.t, rounds=last.t)


def track(callback, setup, rounds, end=True):
    callback.on_start(setup)
    for done in rounds:
        assert not callback.on_round(setup, done)
    if end:
        callback.on_end(setup, result := finish(setup, rounds[-1]))
        return result


def expected(setup, done):
    """The values of a round, worked out again."""
    loss, pi, E = done.scores.loss.tolist(), done.pi.tolist(), setup.E
    values = {"avg_loss": sum(loss) / E, "agnostic_loss": max(loss)}
    values |= {f"agents/{e}/loss": loss[e] for e in range(E)}
    for m in (0, 1):
        values[f"clusters/{m}/agents"] = sum(p[m] for p in pi)
        values |= {f"labels/{e}/{m}": pi[e][m] for e in range(E)}
        members = [loss[e] for e in range(E) if pi[e][m] > pi[e][1 - m] or (m == 0 and pi[e][0] == pi[e][1])]
        values |= {f"clusters/{m}/loss": sum(members) / len(members)} if members else {}
    return values


def check(setup, rounds, result, series):
    """`series` maps a name to its (step, value) pairs; each round is there once, with its values."""
    for done in rounds:
        for name, value in expected(setup, done).items():
            found = [v for step, v in series[name] if step == done.t]
            assert found == [pytest.approx(value, rel=1e-5, abs=1e-6)], name
    assert series["faa"] == [(ROUNDS, pytest.approx(result.faa, rel=1e-5))]
    for e in range(setup.E):
        risk = pytest.approx(float(result.loss[e] - setup.fed.bayes[e]), rel=1e-5, abs=1e-6)
        assert series[f"agents/{e}/excess_risk"] == [(ROUNDS, risk)]
    assert len(series["avg_loss"]) == ROUNDS


# --- readers: the tools' own


def tensorboard_series(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    series = {tag: [(s.step, s.value) for s in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    (text,) = events.Tensors("parameters/text_summary")[-1:]
    return series, text.tensor_proto.string_val[0].decode()


def mlflow_runs(folder, experiment="focusfl"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
        at = client.get_experiment_by_name(experiment).experiment_id
        found = []
        for run in client.search_runs([at]):
            series = {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
            found.append((run, {key: [(m.step, m.value) for m in each] for key, each in series.items()}))
        return found


def wandb_runs(folder):
    """Every run in the folder as `wandb leet inspect` prints it: a summary, and the series of each value."""
    runs = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        words = [sys.executable, "-m", "wandb", "leet", "inspect", str(path), "--json"]
        env = os.environ | {"WANDB_ERROR_REPORTING": "false"}
        printed = subprocess.run(words, capture_output=True, text=True, check=True, env=env).stdout
        summary = subprocess.run([*words, "--summary"], capture_output=True, text=True, check=True, env=env).stdout
        series = {}
        for record in map(json.loads, printed.splitlines()):
            item = record.get("history", {}).get("item", {})
            for name, value in item.items():
                series.setdefault(name, []).append((item["_step"], value))
        runs.append((json.loads(summary), series))
    return runs


# --- tests


@pytest.fixture
def event_files_in_order(monkeypatch):
    """Two event files of one second are sorted by a counter: ...9 comes after ...10."""
    from tensorboard.summary.writer import event_file_writer as writer

    monkeypatch.setattr(writer, "_global_uid", writer.AtomicCounter(0))


def test_tensorboard_reads_what_was_written(setup, rounds, tmp_path):
    result = track(TensorBoard(tmp_path), setup, rounds)
    (folder,) = tmp_path.iterdir()
    assert folder.name == f"focus-seed3-{setup.fingerprint[:8]}"
    series, text = tensorboard_series(folder)
    check(setup, rounds, result, series)
    assert "| focus.M | 2 |" in text and "| train.lr | 0.05 |" in text and "| data | synthetic |" in text


def test_tensorboard_counts_no_round_twice_after_a_kill(setup, rounds, tmp_path, event_files_in_order):
    killed = TensorBoard(tmp_path, name="one")
    track(killed, setup, rounds[:3], end=False)
    result = track(TensorBoard(tmp_path, name="one"), setup, rounds[1:])  # the last checkpoint was of round 1
    check(setup, rounds, result, tensorboard_series(tmp_path / "one")[0])
    resumed = TensorBoard(tmp_path, name="one")  # when all was done: there are no rounds any more
    resumed.on_start(setup)
    resumed.on_end(setup, result)
    check(setup, rounds, result, tensorboard_series(tmp_path / "one")[0])


def test_mlflow_reads_what_was_written(setup, rounds, tmp_path):
    result = track(MLflow(tmp_path, experiment="hospitals"), setup, rounds)
    ((run, series),) = mlflow_runs(tmp_path, "hospitals")
    check(setup, rounds, result, series)
    assert run.info.run_name == "focus-seed3" and run.info.status == "FINISHED"
    assert run.data.params["focus.M"] == "2" and run.data.params["rounds"] == "4"
    assert run.data.params["train.lr"] == "0.05" and run.data.tags[RUN_TAG] == setup.fingerprint


def test_mlflow_continues_an_unfinished_run_and_repeats_no_round(setup, rounds, tmp_path):
    track(MLflow(tmp_path), setup, rounds[:3], end=False)
    result = track(MLflow(tmp_path), setup, rounds[1:])
    ((run, series),) = mlflow_runs(tmp_path)
    check(setup, rounds, result, series)
    resumed = MLflow(tmp_path)  # when all was done: there are no rounds any more
    resumed.on_start(setup)
    resumed.on_end(setup, result)
    ((run, series),) = mlflow_runs(tmp_path)
    check(setup, rounds, result, series)
    assert run.info.status == "FINISHED"
    track(MLflow(tmp_path), setup, rounds)  # trained again from the start: a run of its own
    assert len(mlflow_runs(tmp_path)) == 2


def test_wandb_reads_what_was_written_offline(setup, rounds, tmp_path):
    result = track(WandB(tmp_path, project="hospitals"), setup, rounds)
    ((summary, series),) = wandb_runs(tmp_path)
    check(setup, rounds, result, series)
    assert summary["name"] == "focus-seed3" and summary["project"] == "hospitals" and summary["exit_code"] == 0
    assert summary["config"]["focus.M"] == 2 and summary["config"]["train.lr"] == 0.05


def test_wandb_writes_a_resumed_run_under_the_same_id(setup, rounds, tmp_path):
    killed = WandB(tmp_path)
    track(killed, setup, rounds[:2], end=False)
    killed._run.finish()  # as wandb does at the end of a process
    track(WandB(tmp_path), setup, rounds[2:])
    (first, _), (second, series) = wandb_runs(tmp_path)
    assert first["run_id"] == second["run_id"] and [step for step, _ in series["avg_loss"]] == [3, 4]
    track(WandB(tmp_path), setup, rounds)
    assert len({summary["run_id"] for summary, _ in wandb_runs(tmp_path)}) == 2


def test_names_of_agents_and_accuracies_are_there_and_safe(tmp_path):
    names = ("bern", "../../up", "<script>", "x" * 300)
    setup = Setup.of(ff.FedAvg(), make_named(names), rounds=1)
    (done,) = loop.run(setup)
    for tracker in (TensorBoard(tmp_path / "t", name="run"), MLflow(tmp_path / "m")):
        tracker.on_start(setup)
        tracker.on_round(setup, done)
        tracker._close()
    series, _ = tensorboard_series(tmp_path / "t" / "run")
    ((_, other),) = mlflow_runs(tmp_path / "m")
    assert series.keys() == other.keys()
    long = "x" * 60 + "-3"
    assert {name.split("/")[1] for name in series if "/" in name} == {"bern", ".._.._up-1", "_script_-2", long}
    assert series["agents/bern/accuracy"] == [(1, pytest.approx(float(done.scores.acc[0])))]
    assert series["avg_acc"] == [(1, pytest.approx(float(done.scores.acc.mean())))]
    assert not any("clusters" in name or "labels" in name for name in series)  # FedAvg has none


@pytest.mark.parametrize("kind", [TensorBoard, MLflow])
def test_a_run_killed_before_its_end_gets_its_last_values_once(kind, setup, rounds, tmp_path, event_files_in_order):
    """It was killed between its last round and its best losses: resumed, no round is left."""
    track(kind(tmp_path, name="one"), setup, rounds, end=False)
    for _ in range(2):
        resumed = kind(tmp_path, name="one")
        resumed.on_start(setup)
        resumed.on_end(setup, result := finish(setup, rounds[-1]))
    series = tensorboard_series(tmp_path / "one")[0] if kind is TensorBoard else mlflow_runs(tmp_path)[0][1]
    check(setup, rounds, result, series)


def test_metrics_of_the_users_own_and_missing_agents(setup, rounds, tmp_path):
    loss = rounds[0].scores.loss.clone()
    loss[4] = float("nan")  # sent no scores
    scores = rounds[0].scores._replace(loss=loss, metrics={"my/auc": torch.linspace(0, 1, setup.E)})
    track(TensorBoard(tmp_path, name="run", agents=6), setup, [replace(rounds[0], scores=scores)], end=False)
    series, _ = tensorboard_series(tmp_path / "run")
    assert series["metrics/my_auc"] == [(1, pytest.approx(0.5))]
    assert series["agents/5/my_auc"] == [(1, pytest.approx(5 / 9))]
    others = loss[torch.isfinite(loss)]
    assert series["avg_loss"] == [(1, pytest.approx(float(others.mean())))]
    assert {name.split("/")[1] for name in series if name.startswith("agents/")} == set("012345")
    assert "agents/4/loss" not in series and "agents/4/my_auc" in series


def test_a_whole_fit_is_tracked_and_so_is_the_round_in_which_it_stops(tmp_path, ragged):
    def stop(setup, done):
        return done.t == 3

    options = {"rounds": 9, "eval_every": 2, "metrics": ["auc"], "validation": 0.3}
    result = ff.fit(ff.Focus(M=2), ragged, callbacks=[TensorBoard(tmp_path), stop], **options)
    (folder,) = tmp_path.iterdir()
    series, text = tensorboard_series(folder)
    assert "| metrics | auc |" in text and "| loss | default |" in text
    assert [step for step, _ in series["avg_loss"]] == [2, 3]
    assert series["avg_loss"][-1] == (3, pytest.approx(float(result.loss.mean())))
    assert series["agents/2/auc"][-1] == (3, pytest.approx(float(result.metrics["auc"][2])))
    assert series["validation_loss"][-1] == (3, pytest.approx(result.validation_loss))
    assert series["faa"] == [(3, pytest.approx(result.faa))]


def test_a_fit_that_is_interrupted_and_resumed_writes_every_round_once(tmp_path, ragged, event_files_in_order):
    def ctrl_c(setup, done):
        if done.t == 7:
            os.kill(os.getpid(), signal.SIGINT)

    trackers = TensorBoard(tmp_path / "t", name="run"), MLflow(tmp_path / "m")
    options = {"rounds": 12, "out": tmp_path / "out", "checkpoint_every": 5}
    with pytest.raises(Interrupted):
        ff.fit(ff.Focus(M=2), ragged, callbacks=[*trackers, ctrl_c], **options)
    result = ff.fit(ff.Focus(M=2), ragged, callbacks=trackers, resume=True, **options)
    ff.fit(ff.Focus(M=2), ragged, callbacks=trackers, resume=True, **options)  # only read
    ((run, other),) = mlflow_runs(tmp_path / "m")
    for series in (tensorboard_series(tmp_path / "t" / "run")[0], other):
        assert [step for step, _ in series["avg_loss"]] == list(range(1, 13)) and len(series["faa"]) == 1
        assert [v for _, v in series["avg_loss"]] == pytest.approx(result.history["avg_loss"], rel=1e-5)
    assert run.info.status == "FINISHED"


def test_the_command_line_tracks_every_run(tmp_path, focusfl):
    words = ["compare", "--data", "synthetic", "--algorithms", "focus,qffl:q=0.1", "--seeds", "0,1", "--rounds", 3]
    code, _, err = focusfl(*words, "--out", "out", "--track", "mlflow", "--track", "tensorboard")
    assert code == 0, err
    names = {"focus-seed0", "focus-seed1", "qffl-q0.1-seed0", "qffl-q0.1-seed1"}
    tracked, rows = tmp_path / "out" / "tracking", json.loads((tmp_path / "out" / "results.json").read_text())
    assert {folder.name for folder in (tracked / "tensorboard").iterdir()} == names
    runs = {run.info.run_name: series for run, series in mlflow_runs(tracked / "mlflow")}
    assert runs.keys() == names
    for row in rows:
        name = f"{row['method'].replace(':', '-').replace('=', '')}-seed{row['seed']}"
        series, _ = tensorboard_series(tracked / "tensorboard" / name)
        assert runs[name]["faa"] == [(3, row["faa"])] and series["faa"] == [(3, pytest.approx(row["faa"]))]
        assert [step for step, _ in series["agents/9/loss"]] == [1, 2, 3]
    code, _, err = focusfl(*words, "--out", "out", "--overwrite", "--track", "wandb")  # no old files beside the new
    assert code == 0 and {path.name for path in tracked.iterdir()} == {"wandb"}, err
    assert len(list((tracked / "wandb").glob("wandb/offline-run-*"))) == 4


def test_the_command_line_says_which_runs_it_does_not_track(tmp_path, focusfl):
    words = ["compare", "--data", "synthetic", "--algorithms", "fedavg,local", "--seeds", "0", "--rounds", 1]
    words += ["--out", "out"]
    assert "--track" not in focusfl(*words)[2]
    code, _, err = focusfl(*words, "--track", "tensorboard")
    assert code == 0 and "--track: 2 of 2 runs" in err and "--overwrite" in err
    (tmp_path / "out/runs/local-seed0/result.json").unlink()
    code, _, err = focusfl(*words, "--resume", "--track", "tensorboard")
    assert code == 0 and "--track: 1 of 2 runs" in err
    code, _, err = focusfl(*words, "--overwrite", "--track", "tensorboard")
    assert code == 0 and "--track" not in err


def test_the_command_line_refuses_a_tool_before_anything_is_written(tmp_path, focusfl, monkeypatch):
    code, _, err = focusfl("compare", "--data", "synthetic", "--out", "out", "--track", "tensorbord")
    assert code == 2 and "--track tensorbord: did you mean 'tensorboard'" in err
    monkeypatch.setitem(sys.modules, "wandb", None)
    code, _, err = focusfl("compare", "--data", "synthetic", "--out", "out", "--track", "wandb")
    assert code == 2 and "focusfl[tracking]" in err and not (tmp_path / "out").exists()


def test_rounds_without_evaluation_write_nothing(tmp_path):
    setup = Setup.of(ff.FedAvg(), ff.data.synthetic(seed=0), rounds=5)
    track(TensorBoard(tmp_path, name="run"), setup, list(loop.run(setup, eval_every=2)), end=False)
    assert [step for step, _ in tensorboard_series(tmp_path / "run")[0]["avg_loss"]] == [2, 4, 5]


@pytest.mark.parametrize("tool", TRACKERS)
def test_a_missing_library_is_named_before_training(tool, setup, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == tool or name.endswith(f".{tool}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, tool, None)
    with pytest.raises(InputError, match=r"focusfl\[tracking\]"):
        TRACKERS[tool](tmp_path / "x").on_start(setup)
    assert not (tmp_path / "x").exists()


def test_options_out_of_range_are_refused(tmp_path):
    with pytest.raises(InputError, match="mode = on"):
        WandB(tmp_path, mode="on")
    with pytest.raises(InputError, match="agents = -1"):
        TensorBoard(tmp_path, agents=-1)


def test_a_password_in_a_uri_stays_out_of_the_message(setup, rounds):
    tracker = MLflow("nosuch://ann:secret@localhost/x")
    with pytest.raises(InputError, match="MLflow at nosuch://localhost/x cannot be used") as refused:
        track(tracker, setup, rounds)
    assert "secret" not in str(refused.value) and refused.value.__cause__ is None


SILENT = """
import sys
addresses = []
def audit(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        addresses.append((event, str(args[-1] if event == "socket.connect" else args[0])))
sys.addaudithook(audit)
import focusfl as ff
from focusfl.run import loop
from focusfl.run.setup import Setup
from focusfl.run.tracking import MLflow, TensorBoard, WandB
setup = Setup.of(ff.FedAvg(), ff.data.synthetic(seed=0), rounds=1)
(done,) = loop.run(setup)
for tracker in (TensorBoard("t"), MLflow("m"), WandB("w")):
    tracker.on_start(setup)
    tracker.on_round(setup, done)
    tracker._close()
print(addresses)
"""


def test_nothing_is_sent_and_no_secret_is_written(tmp_path):
    secret = "s3cr3t-value-of-a-variable"
    outside = {"PYTEST_CURRENT_TEST", "CI"}  # MLflow would be silent only because of them
    env = {k: v for k, v in os.environ.items() if k not in outside} | {"WANDB_API_KEY": secret + "0" * 20}
    words = [sys.executable, "-c", SILENT, f"--password={secret}"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    addresses = ast.literal_eval(done.stdout.splitlines()[-1])
    assert all("wandb" in place and "/" in place for _, place in addresses), addresses  # its own process's socket
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) >= 3 and not any(secret.encode() in path.read_bytes() for path in written)
