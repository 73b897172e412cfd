"""Rounds, history, checkpoints: nothing is lost and nothing changes when a run is killed and resumed."""

import itertools
import json

import pytest
import torch
from safetensors.torch import save_file

import focusfl as ff
from focusfl.core.tree import flatten
from focusfl.run import checkpoint, history
from focusfl.run.loop import run
from focusfl.run.setup import Setup
from focusfl.util import files
from focusfl.util.errors import Diverged, InputError, Interrupted


def setup(fed, algorithm=None, rounds=12, **options):
    return Setup.of(algorithm or ff.Focus(M=2), fed, rounds, train=ff.Train(steps=2, batch=8), **options)


def rounds_without_seconds(folder):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in history.read(folder)]


@pytest.mark.parametrize("algorithm", [ff.Focus(M=2), ff.FedAvg(), ff.Local()], ids=lambda a: a.name)
def test_killed_and_resumed_is_the_same_to_the_bit(algorithm, ragged, tmp_path):
    whole, cut = (files.make_folder(tmp_path / name) for name in ("whole", "cut"))
    for _ in run(setup(ragged, algorithm, checkpoint_every=3), whole):
        pass
    for _ in itertools.islice(run(setup(ragged, algorithm, checkpoint_every=3), cut), 7):  # last checkpoint at 6
        pass
    with (cut / history.NAME).open("a") as handle:
        handle.write('{"round": 8, "avg_lo')  # killed while writing
    resumed = list(run(setup(ragged, algorithm, checkpoint_every=3), cut, resume=True))
    assert [done.t for done in resumed] == [7, 8, 9, 10, 11, 12]
    assert (whole / checkpoint.NAME).read_bytes() == (cut / checkpoint.NAME).read_bytes()
    assert rounds_without_seconds(whole) == rounds_without_seconds(cut)
    again = list(run(setup(ragged, algorithm), cut, resume=True))
    assert [done.t for done in again] == [12] and torch.equal(again[0].scores.loss, resumed[-1].scores.loss)


def test_tensors_of_a_checkpoint_are_aligned_in_memory(ragged, tmp_path):
    """Kernels round differently where tensors are not aligned, and in the file they are not."""
    one = setup(ragged, rounds=1)
    list(run(one, tmp_path))
    _, server, states, *_ = checkpoint.load(tmp_path, one.fingerprint, *one.start(), max_models=2)
    assert all(v.data_ptr() % 64 == 0 for v in flatten({"a": server, "b": states}).values())


def test_history_has_the_scores_of_evaluated_rounds(ragged, tmp_path):
    *_, last = run(setup(ragged, rounds=4), tmp_path, eval_every=2)
    rows = history.read(tmp_path)
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    assert "loss" not in rows[0] and rows[3]["loss"] == last.scores.loss.tolist()
    assert rows[3]["avg_loss"] == pytest.approx(sum(rows[3]["loss"]) / 5)
    assert rows[3]["agnostic_loss"] == max(rows[3]["loss"])
    assert all(abs(sum(pi) - 1) < 1e-5 for pi in rows[3]["pi"])


def test_stopping_leaves_a_checkpoint_of_that_round(ragged, tmp_path):
    asked = iter([False, False, True])
    with pytest.raises(Interrupted, match="round 3 of 12"):
        list(run(setup(ragged, checkpoint_every=100), tmp_path, stop=lambda: next(asked)))
    assert next(iter(run(setup(ragged), tmp_path, resume=True))).t == 4


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "truncated"),
        (lambda path: path.write_bytes(path.read_bytes()[:5]), "truncated"),
        (lambda path: path.write_bytes(b"not a checkpoint at all, rather a text file"), "not a checkpoint"),
        (lambda path: save_file({"a": torch.zeros(2)}, path), "not a checkpoint"),
    ],
    ids=["cut", "cut short", "text", "foreign"],
)
def test_a_damaged_checkpoint_is_refused(damage, expected, ragged, tmp_path):
    list(run(setup(ragged, rounds=2), tmp_path))
    damage(tmp_path / checkpoint.NAME)
    with pytest.raises(InputError, match=f"{checkpoint.NAME}: .*{expected}"):
        list(run(setup(ragged, rounds=2), tmp_path, resume=True))


@pytest.mark.parametrize("change", [{"rounds": 3}, {"seed": 1}, {"algorithm": ff.Focus(M=3)}, {"fraction": 0.5}])
def test_the_checkpoint_of_another_run_is_refused(change, ragged, tmp_path):
    list(run(setup(ragged, rounds=2), tmp_path))
    options = {"rounds": 2, **change}
    with pytest.raises(InputError, match="another experiment"):
        list(run(setup(ragged, **options), tmp_path, resume=True))


def test_wrong_shapes_and_nan_in_a_checkpoint_are_refused(ragged, tmp_path):
    run_setup = setup(ragged, rounds=2)
    server, states = run_setup.start()
    poisoned = {"w": {k: v.clone() for k, v in server["w"].items()}}
    poisoned["w"]["1.bias"][0, 0] = float("nan")
    shorter = {"w": {k: v[:1] for k, v in server["w"].items()}}
    for state, expected in ((poisoned, "NaN"), (shorter, "expected"), ({"w": {}}, "missing")):
        checkpoint.save(tmp_path, run_setup.fingerprint, 1, state, states)
        with pytest.raises(InputError, match=expected):
            checkpoint.load(tmp_path, run_setup.fingerprint, server, states)


@pytest.mark.parametrize(("models", "fine"), [(0, False), (1, True), (3, True), (4, False)])
def test_a_checkpoint_may_hold_up_to_max_models(models, fine, tmp_path):
    saved = {"w": {"a": torch.ones(models, 2)}, "t": torch.tensor(1)}
    checkpoint.save(tmp_path, "key", 1, saved, {})
    expected = {"w": {"a": torch.zeros(1, 2)}, "t": torch.tensor(0)}
    if fine:
        assert torch.equal(
            checkpoint.load(tmp_path, "key", expected, {}, max_models=3)[1]["w"]["a"], saved["w"]["a"]
        )
        return
    with pytest.raises(InputError, match=r"server/w/a: expected \[1, 2\]"):
        checkpoint.load(tmp_path, "key", expected, {}, max_models=3)


def test_a_write_that_fails_leaves_the_old_file_and_no_temporary_one(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, [1])

    def half(temporary):
        temporary.write_text("[1, 2")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        files.write(path, half)
    assert json.loads(path.read_text()) == [1] and list(tmp_path.iterdir()) == [path]


def test_a_checkpoint_that_cannot_be_written_is_an_os_error(tmp_path):
    """safetensors raises an error of its own."""
    with pytest.raises(OSError, match="No such file"):
        files.write(tmp_path / "a", lambda _: save_file({"x": torch.zeros(9)}, tmp_path / "nowhere/a"))
    assert list(tmp_path.iterdir()) == []


def test_divergence_names_the_round_and_the_learning_rate():
    fed = ff.data.synthetic()
    with pytest.raises(Diverged, match=r"round \d+ .*train\.lr = 100"):
        ff.fit(ff.FedAvg(), fed, rounds=50, train=ff.Train(lr=100.0))


def test_seconds_are_the_sum_of_those_in_the_history(ragged, tmp_path):
    *_, last = run(setup(ragged, rounds=3), tmp_path)
    assert last.total_seconds == pytest.approx(sum(row["seconds"] for row in history.read(tmp_path)), abs=1e-4)
