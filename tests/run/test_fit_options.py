"""What ff.fit takes besides the settings of training: metrics, validation, callbacks, a folder; and its history."""

from __future__ import annotations

import dataclasses
import math
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from helpers.federations import make_ragged

import focusfl as ff
from focusfl.core.tree import flatten
from focusfl.data.federation import Rows
from focusfl.run import checkpoint, history, results
from focusfl.run.callbacks import Callback
from focusfl.run.compare import compare
from focusfl.run.experiment import Experiment
from focusfl.run.loop import run
from focusfl.run.setup import Setup
from focusfl.util.errors import InputError, Interrupted

TRAIN = ff.Train(lr=0.3, steps=5, batch=8)
ENGINES = ["serial", "vectorised"]
engines = pytest.mark.parametrize("engine", ENGINES)


def same(a: ff.Result, b: ff.Result) -> None:
    """The same result to the bit."""
    for one, other in ((a.server, b.server), (a.states, b.states)):
        for k, v in flatten(one).items():
            assert torch.equal(v, flatten(other)[k])
    assert torch.equal(a.loss, b.loss) and (a.t, a.rounds) == (b.t, b.rounds)


def overfitting(patience: int | None = 3, **options):
    """Agents with few examples and a large network: the validation loss soon rises."""
    rng = np.random.default_rng(3)
    agents = [(rng.normal(size=(n, 5)), rng.integers(0, 2, n)) for n in (14, 9, 20, 1)]
    tests = [(rng.normal(size=(10, 5)), rng.integers(0, 2, 10)) for _ in agents]
    fed = ff.Federation.from_agents(
        agents, test=tests, classes=2, model=lambda: ff.models.mlp(5, 16, 2), train=TRAIN
    )
    chosen = {"rounds": 40, "validation": 0.3, "patience": patience, "bayes": "none"} | options
    return fed, chosen


# --- metrics


@engines
def test_metrics_are_those_of_the_predictions(ragged, engine):
    def share_of_class_0(p, y):
        return (y == 0).float().mean()

    named = ff.fit(ff.Focus(M=2), ragged, rounds=2, engine=engine, metrics=["auc", "f1", "calibration-error"])
    own = ff.fit(ff.Focus(M=2), ragged, rounds=2, engine=engine, metrics={"zeros": share_of_class_0, "AUC": "auc"})
    assert list(named.metrics) == ["auc", "f1", "calibration-error"]
    for e in range(ragged.E):
        x, y = ragged.test(e)
        p = named.predict(e, x).numpy()
        present = [c for c in range(3) if 0 < (y == c).sum() < len(y)]
        by_hand = np.mean([sk.roc_auc_score(y == c, p[:, c]) for c in present])
        assert named.metrics["auc"][e].item() == pytest.approx(by_hand)
        assert named.metrics["f1"][e].item() == pytest.approx(sk.f1_score(y, p.argmax(1), average="macro"))
        assert own.metrics["zeros"][e].item() == pytest.approx((y == 0).float().mean().item())
    assert torch.equal(own.metrics["AUC"], named.metrics["auc"])


def test_engines_measure_the_same(ragged):
    names = ["auc", "average-precision", "f1", "balanced-accuracy", "calibration-error", "log-loss"]
    a, b = (ff.fit(ff.Ditto(), ragged, rounds=3, engine=engine, metrics=names) for engine in ENGINES)
    for name in names:
        assert torch.allclose(a.metrics[name], b.metrics[name], atol=1e-5)
    fed = ff.data.synthetic()
    a, b = (ff.fit(ff.Focus(M=2), fed, rounds=3, engine=engine, metrics=["mae", "r2"]) for engine in ENGINES)
    assert torch.allclose(a.metrics["r2"], b.metrics["r2"], atol=1e-4)


def test_an_agent_with_one_class_has_no_auc_and_is_left_out_of_the_mean(tmp_path):
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    mixed, single = (x, torch.tensor([0, 1, 0, 1, 0, 1])), (x, torch.zeros(6, dtype=torch.long))
    fed = ff.Federation.from_agents([mixed, single], test=[mixed, single], model=lambda: ff.models.mlp(2, 2))
    result = ff.fit(ff.FedAvg(), fed, rounds=2, metrics="auc", out=tmp_path / "run")
    assert math.isnan(result.metrics["auc"][1]) and math.isfinite(result.metrics["auc"][0])
    assert result.row()["metrics"]["auc"] == [result.metrics["auc"][0].item(), None]
    assert result.history["auc"] == [pytest.approx(v) for v in result.history_by_agent["auc"][::2]]
    assert "auc" in result.table().splitlines()[0] and "nan" not in result.table()
    assert results.read_row(tmp_path / "run")["metrics"] == result.row()["metrics"]
    assert history.read(tmp_path / "run")[-1]["metrics"] == result.row()["metrics"]


def test_options_with_names_work_from_toml(tmp_path):
    raw = {"data": "rotated-digits", "algorithms": ["fedavg"], "seeds": [0], "rounds": 3}
    raw |= {"metrics": ["auc"], "validation": 0.2, "patience": 1, "loss": "focal:gamma=1", "bayes": "none"}
    [row] = compare(Experiment.parse(raw), tmp_path / "out", progress=False, note=lambda _: None)
    assert len(row["metrics"]["auc"]) == len(row["loss"])
    assert row["loss_name"] == "focal:gamma=1" and row["validation_loss"] > 0 and row["best_round"] <= row["rounds"]
    assert compare(Experiment.parse(raw), tmp_path / "out", progress=False, note=lambda _: None) == [row]
    for name in ("loss", "metrics"):
        with pytest.raises(InputError, match=name):
            Experiment.parse(raw).with_settings(**{name: {"mine": abs} if name == "metrics" else abs})


def test_metrics_of_ones_own_are_named_by_module_or_entry_point(tmp_path, monkeypatch, ragged):
    code = "def zeros(p, y):\n    return (y == 0).float().mean()\n\nTEN = 10\n"
    (tmp_path / "metrics_of_mine.py").write_text(code)
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[focusfl.metrics]\nzeros = metrics_of_mine:zeros\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = ff.Settings(metrics="metrics_of_mine:zeros, zeros")
    assert settings.metrics == ("metrics_of_mine:zeros", "zeros")
    assert "metrics_of_mine" not in sys.modules  # settings are also read from files, and these import nothing
    result = ff.fit(ff.FedAvg(), ragged, rounds=1, settings=settings)
    wanted = [(ragged.test(e).y == 0).float().mean().item() for e in range(ragged.E)]
    assert [values.tolist() for values in result.metrics.values()] == [pytest.approx(wanted)] * 2
    for wrong, word in [("metrics_of_mine:TEN", "function"), ("zeross", "'zeros'"), ("absent_x:f", "absent_x")]:
        with pytest.raises(InputError, match=word):
            ff.fit(ff.FedAvg(), ragged, rounds=1, metrics=[wrong])
    monkeypatch.delitem(sys.modules, "metrics_of_mine")


# --- validation and early stopping


def test_validation_examples_are_taken_from_training_and_no_others(ragged):
    fed = Setup.of(ff.FedAvg(), ragged, 1, validation=0.2).fed
    assert fed.testing is ragged.testing
    for e in range(fed.E):
        before, kept, held = ragged.train(e), fed.train(e), fed.validation.of(e)
        assert len(held.y) == max(round(0.2 * len(before.y)), 1)
        together = torch.cat([torch.cat([d.x, d.y[:, None].float()], 1) for d in (kept, held)])
        wanted = torch.cat([before.x, before.y[:, None].float()], 1)
        assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, wanted.tolist()))
    again, other = (Setup.of(ff.FedAvg(), ragged, 1, validation=0.2, seed=s).fed for s in (0, 1))
    assert again.fingerprint == fed.fingerprint != other.fingerprint


def test_an_agent_with_one_example_keeps_it_for_training():
    fed, chosen = overfitting()
    result = ff.fit(ff.FedAvg(), fed, **chosen)
    assert result.setup.fed.validation.sizes.tolist() == [4, 3, 6, 0]
    assert math.isnan(result.validation.loss[3]) and math.isfinite(result.validation_loss)


@engines
def test_early_stopping_returns_the_best_validation_round(engine):
    fed, chosen = overfitting(engine=engine)
    result = ff.fit(ff.FedAvg(), fed, **chosen)
    losses = result.history["validation_loss"]
    assert result.t == 1 + int(np.argmin(losses)) and len(losses) == result.rounds == result.t + 3 < 40
    whole = ff.fit(ff.FedAvg(), fed, **chosen | {"patience": None, "rounds": 40})
    assert whole.history["validation_loss"][: result.rounds] == losses
    assert not torch.equal(whole.loss, result.loss)
    assert result.row()["rounds"] == result.rounds and result.row()["best_round"] == result.t
    assert result.validation_loss == min(losses)
    state = next(one for one in run(result.setup.changed(patience=None)) if one.t == result.t)
    assert torch.equal(state.scores.loss, result.loss)


def test_engines_stop_in_the_same_round():
    fed, chosen = overfitting()
    for method in (ff.FedAvg(), ff.Focus(M=2), ff.Ditto()):
        a, b = (ff.fit(method, fed, engine=engine, **chosen) for engine in ENGINES)
        assert (a.t, a.rounds) == (b.t, b.rounds)
        assert torch.allclose(a.loss, b.loss, atol=1e-4)


def test_early_stopping_never_looks_at_test_data():
    fed, chosen = overfitting()
    result = ff.fit(ff.FedAvg(), fed, **chosen)
    rng = torch.Generator().manual_seed(1)
    other = Rows(torch.randn(fed.testing.x.shape, generator=rng), 1 - fed.testing.y, fed.testing.offsets)
    changed = ff.fit(ff.FedAvg(), dataclasses.replace(fed, testing=other), **chosen)
    assert (changed.t, changed.rounds) == (result.t, result.rounds)
    assert torch.equal(changed.server["w"]["1.weight"], result.server["w"]["1.weight"])
    assert not torch.equal(changed.loss, result.loss)


def test_patience_counts_evaluations():
    fed, chosen = overfitting(patience=2, eval_every=3)
    result = ff.fit(ff.FedAvg(), fed, **chosen)
    pairs = zip(result.history["round"], result.history["validation_loss"], strict=True)
    evaluated = [t for t, loss in pairs if not math.isnan(loss)]
    assert evaluated == list(range(3, result.rounds + 1, 3)) and result.rounds == result.t + 6


class Rising(ff.FedAvg):
    """FedAvg that has settled after some rounds; it counts them in its state."""

    def start(self, networks, E):
        return super().start(networks, E) | {"rounds": torch.tensor(0)}

    def aggregate(self, server, add, each, cohort):
        return super().aggregate(server, add, each, cohort) | {"rounds": server["rounds"] + 1}

    def settled(self, server):
        return int(server["rounds"]) > 6


@engines
def test_rounds_before_a_method_has_settled_are_neither_counted_nor_chosen(engine):
    fed, chosen = overfitting(patience=1, engine=engine)
    assert ff.fit(ff.FedAvg(), fed, **chosen).rounds < 6  # its validation loss soon rises
    result = ff.fit(Rising(), fed, **chosen)
    losses = result.history["validation_loss"]
    assert result.t == 7 + int(np.argmin(losses[6:])) > 1 + int(np.argmin(losses)) and result.rounds == result.t + 1
    short = ff.fit(Rising(), fed, **chosen | {"rounds": 5})  # nothing else exists
    assert short.rounds == 5 and short.t == 1 + int(np.argmin(short.history["validation_loss"]))


@pytest.mark.parametrize(("M", "least"), [(2, 4), ("auto", 4), (1, 1)])
def test_focus_is_not_stopped_before_a_round_with_its_clusters(M, least):
    """The first three rounds train one model, which is split after the third; with M = 1 there is no split."""
    fed, chosen = overfitting(patience=1, train=ff.Train(lr=2.0, steps=20, batch=8))
    result = ff.fit(ff.Focus(M=M), fed, **chosen)
    assert result.t >= least and result.rounds == result.t + 1
    losses = result.history["validation_loss"]
    assert (losses[1] > losses[0]) and result.t - 1 == least - 1 + int(np.argmin(losses[least - 1 :]))


def test_an_early_stop_during_the_warm_up_survives_a_resume(tmp_path):
    fed, chosen = overfitting(patience=1, train=ff.Train(lr=2.0, steps=20, batch=8))

    def ctrl_c(setup, done):
        if done.t == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        ff.fit(ff.Focus(M=2), fed, out=tmp_path, callbacks=[ctrl_c], **chosen)
    resumed = ff.fit(ff.Focus(M=2), fed, out=tmp_path, resume=True, **chosen)
    same(ff.fit(ff.Focus(M=2), fed, **chosen), resumed)


def test_validation_data_of_ones_own():
    rng = np.random.default_rng(0)
    pairs = [[(rng.normal(size=(8, 3)), rng.integers(0, 2, 8)) for _ in range(2)] for _ in range(3)]
    fed = ff.Federation.from_agents(
        pairs[0], test=pairs[1], validation=pairs[2], model=lambda: ff.models.mlp(3, 2), train=TRAIN
    )
    result = ff.fit(ff.FedAvg(), fed, rounds=3, validation=0.5, patience=1, bayes="none")
    assert result.setup.fed.training.sizes.tolist() == [8, 8]  # the share is not taken in addition
    logs = [result.predict(e, x).log() for e, (x, _) in enumerate(pairs[2])]
    wanted = [-logs[e][range(8), y].mean().item() for e, (_, y) in enumerate(pairs[2])]
    assert result.validation.loss.tolist() == pytest.approx(wanted, abs=1e-5)
    with pytest.raises(InputError, match="agent 1, validation"):
        bad = [pairs[2][0], (pairs[2][1][0] * np.nan, pairs[2][1][1])]
        ff.Federation.from_agents(pairs[0], test=pairs[1], validation=bad)


@pytest.mark.parametrize("options", [{"patience": 3}, {"validation": 1.0}, {"patience": -1, "validation": 0.2}])
def test_what_makes_no_sense_is_refused(ragged, options):
    with pytest.raises(InputError, match=next(iter(options))):
        ff.fit(ff.FedAvg(), ragged, rounds=1, **options)


def test_the_identity_of_a_run_changes_with_new_options_and_not_without(ragged):
    def of(**options):
        return Setup.of(ff.FedAvg(), ragged, 3, **options).fingerprint

    plain = of()
    assert of(metrics=["auc"]) == plain  # they do not change what is trained
    different = [plain, of(validation=0.2), of(validation=0.3), of(validation=0.2, patience=1)]
    different += [of(validation=0.2, patience=2), of(validation=0.2, patience=2, eval_every=2)]
    assert len(set(different)) == len(different)


# --- callbacks


class Watch(Callback):
    def __init__(self, seen, name="", last=None):
        self.seen, self.name, self.last = seen, name, last

    def on_start(self, setup):
        self.seen.append((self.name, "start", setup.settings.T))

    def on_round(self, setup, done):
        self.seen.append((self.name, done.t, done.scores is not None))
        return done.t == self.last

    def on_end(self, setup, result):
        self.seen.append((self.name, "end", result.rounds))


@engines
def test_callbacks_run_in_order_and_may_stop_the_run(ragged, engine):
    seen = []
    callbacks = [Watch(seen, "a", last=3), lambda setup, done: seen.append(("f", done.t, done.metrics))]
    result = ff.fit(ff.FedAvg(), ragged, rounds=9, eval_every=2, engine=engine, callbacks=callbacks)
    assert seen == [
        ("a", "start", 9),
        *[("a", 1, False), ("f", 1, {}), ("a", 2, True), ("f", 2, {}), ("a", 3, False), ("f", 3, {})],
        ("a", "end", 3),
    ]
    assert result.rounds == result.row()["rounds"] == 3
    three = [r for r in run(Setup.of(ff.FedAvg(), ragged, 9, engine=engine)) if r.t == 3]
    assert torch.equal(result.loss, three[0].scores.loss)


def test_a_run_that_a_callback_stopped_is_finished(ragged, tmp_path):
    one = ff.fit(ff.Ditto(), ragged, rounds=9, out=tmp_path, callbacks=[Watch([], last=4)])
    seen = []
    again = ff.fit(ff.Ditto(), ragged, rounds=9, out=tmp_path, resume=True, callbacks=[Watch(seen)])
    same(one, again)
    assert [name for _, name, _ in seen] == ["start", "end"]


def test_compare_gives_each_run_its_callbacks(tmp_path):
    seen = []
    raw = {"data": "synthetic", "algorithms": ["fedavg", "ditto"], "seeds": [0, 1], "rounds": 2}
    rows = compare(
        Experiment.parse(raw),
        tmp_path,
        progress=False,
        note=lambda _: None,
        callbacks=lambda method, seed: [Watch(seen, (method, seed), last=1)],
    )
    assert [row["rounds"] for row in rows] == [1] * 4
    assert [name for name, what, _ in seen if what == "end"] == [
        (method, seed) for seed in (0, 1) for method in ("fedavg", "ditto")
    ]


def test_a_single_callback_needs_no_list(ragged):
    seen = []
    ff.fit(ff.FedAvg(), ragged, rounds=2, callbacks=lambda setup, done: seen.append(done.scores is not None))
    ff.fit(ff.FedAvg(), ragged, rounds=2, callbacks=Watch(seen))
    assert seen == [True, True, ("", "start", 2), ("", 1, True), ("", 2, True), ("", "end", 2)]


@pytest.mark.parametrize("wrong", [3, Callback])
@pytest.mark.parametrize("listed", [False, True])
def test_what_is_not_a_callback_is_refused(ragged, wrong, listed):
    with pytest.raises(InputError, match="callbacks"):
        ff.fit(ff.FedAvg(), ragged, rounds=1, callbacks=[wrong] if listed else wrong)


@pytest.mark.parametrize(
    ("name", "near"),
    [("optimizer", "optimiser"), ("callback", "callbacks"), ("epoch", "known: "), ("seeds", "seed")],
)
def test_a_misspelt_option_is_answered_with_the_nearest_that_fit_takes(ragged, name, near):
    with pytest.raises(InputError, match=rf"unknown option '{name}'.*{near}") as error:
        ff.fit(ff.FedAvg(), ragged, rounds=1, **{name: 1})
    assert "out" in str(error.value).split("nown: ")[1].split(", ")


# --- a folder, Ctrl-C and resume


@engines
@pytest.mark.parametrize("method", [ff.FedAvg(), ff.Focus(M=2), ff.HardCluster()], ids=lambda m: m.name)
def test_ctrl_c_and_resume_give_the_same_bits(method, engine, ragged, tmp_path):
    def ctrl_c(setup, done):
        if done.t == 3:
            signal.raise_signal(signal.SIGINT)

    options = {"rounds": 7, "engine": engine, "checkpoint_every": 5}
    with pytest.raises(Interrupted, match=r"round 3 of 7.*resume=True"):
        ff.fit(method, ragged, out=tmp_path / "run", callbacks=[ctrl_c], **options)
    with pytest.raises(InputError, match=r"unfinished.*resume=True"):
        ff.fit(method, ragged, out=tmp_path / "run", **options)
    with pytest.raises(InputError, match="another run"):
        ff.fit(method, ragged, out=tmp_path / "run", resume=True, **options | {"seed": 1})
    resumed = ff.fit(method, ragged, out=tmp_path / "run", resume=True, **options)
    whole = ff.fit(method, ragged, eval_every=1, **options)
    same(whole, resumed)
    assert resumed.history["avg_loss"] == whole.history["avg_loss"]
    with pytest.raises(InputError, match=r"finished.*resume=True"):
        ff.fit(method, ragged, out=tmp_path / "run", **options)
    same(whole, ff.fit(method, ragged, out=tmp_path / "run", resume=True, **options))


@engines
@pytest.mark.parametrize("at", [2, 5])
def test_early_stopping_survives_a_stop(engine, at, tmp_path):
    """Before and after the best round, with a checkpoint of another round."""

    def ctrl_c(setup, done):
        if done.t == at:
            signal.raise_signal(signal.SIGINT)

    fed, chosen = overfitting(engine=engine)
    whole = ff.fit(ff.Ditto(), fed, **chosen)
    assert 2 < whole.rounds != whole.t
    at = min(at, whole.rounds - 1)
    with pytest.raises(Interrupted):
        ff.fit(ff.Ditto(), fed, out=tmp_path, callbacks=[ctrl_c], **chosen)
    resumed = ff.fit(ff.Ditto(), fed, out=tmp_path, resume=True, **chosen)
    same(whole, resumed)
    assert resumed.history["validation_loss"] == whole.history["validation_loss"]
    same(whole, ff.fit(ff.Ditto(), fed, out=tmp_path, resume=True, **chosen))  # finished: only read


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from run.test_fit_options import overfitting
import focusfl as ff

fed, chosen = overfitting()
ff.fit(ff.Ditto(), fed, out={out!r}, checkpoint_every=1,
       callbacks=[lambda setup, done: done.t == 3 and os.kill(os.getpid(), signal.SIGKILL)], **chosen)
"""


def test_early_stopping_survives_a_kill(tmp_path):
    tests = str(Path(__file__).parents[1])
    program = KILLED.format(tests=tests, out=str(tmp_path))
    killed = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert checkpoint.exists(tmp_path) and not (tmp_path / "result.json").exists()
    fed, chosen = overfitting()
    same(ff.fit(ff.Ditto(), fed, **chosen), ff.fit(ff.Ditto(), fed, out=tmp_path, resume=True, **chosen))


def test_a_folder_with_other_things_is_refused(ragged, tmp_path):
    (tmp_path / "experiment.json").write_text("{}")
    with pytest.raises(InputError, match=r"experiment\.json"):
        ff.fit(ff.FedAvg(), ragged, rounds=1, out=tmp_path)
    with pytest.raises(InputError, match="out"):
        ff.fit(ff.FedAvg(), ragged, rounds=1, resume=True)


# --- optimiser and history


def test_optimiser_replaces_that_of_the_training_options(ragged):
    short, long = (
        ff.fit(ff.FedAvg(), ragged, rounds=2, **options)
        for options in (
            {"optimiser": "adam", "train": ff.Train(lr=0.01)},
            {"train": ff.Train(lr=0.01, optimiser="adam")},
        )
    )
    same(short, long)
    assert ff.fit(ff.FedAvg(), ragged, rounds=1, optimiser="rmsprop").setup.settings.local.optimiser == "rmsprop"
    with pytest.raises(InputError, match="optimiser"):
        ff.fit(ff.FedAvg(), ragged, rounds=1, optimiser="lion")


def test_history_is_columns_of_equal_length():
    fed = make_ragged()
    result = ff.fit(ff.Focus(M=2), fed, rounds=4, eval_every=2, metrics="f1", validation=0.2)
    table = result.history
    assert list(table) == ["round", "seconds", "avg_loss", "agnostic_loss", "avg_acc", "validation_loss", "f1"]
    assert {len(column) for column in table.values()} == {4} and table["round"] == [1, 2, 3, 4]
    assert [math.isnan(v) for v in table["avg_loss"]] == [True, False, True, False]
    assert table["avg_loss"][-1] == pytest.approx(result.loss.mean().item())
    agents = result.history_by_agent
    assert list(agents) == ["round", "agent", "loss", "acc", "validation_loss", "f1", "pi_0", "pi_1"]
    assert {len(column) for column in agents.values()} == {2 * fed.E}
    assert agents["agent"] == list(range(fed.E)) * 2 and agents["round"] == [2] * fed.E + [4] * fed.E
    assert agents["loss"][fed.E :] == result.loss.tolist()
    assert agents["pi_1"][fed.E :] == result.pi[:, 1].tolist()


def test_without_a_wish_only_the_last_round_is_evaluated(ragged):
    result = ff.fit(ff.FedAvg(), ragged, rounds=3)
    assert [math.isnan(v) for v in result.history["avg_loss"]] == [True, True, False]
