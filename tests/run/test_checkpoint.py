"""Checkpoints: damage is noticed, the last two are kept, and a run resumes from the newest that is sound."""

import json
import random

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import focusfl as ff
from focusfl.run import checkpoint, history
from focusfl.run.loop import run
from focusfl.run.setup import Setup
from focusfl.util.errors import Diverged, InputError

TIED = ff.Focus(M=2, init="tied")


def setup(fed, rounds=4, **options):
    return Setup.of(TIED, fed, rounds, train=ff.Train(steps=2, batch=8), checkpoint_every=1, **options)


@pytest.fixture
def done(ragged, tmp_path):
    """The folder of a run with the checkpoints of rounds 3 and 4."""
    list(run(setup(ragged), tmp_path))
    return tmp_path


def load(fed, folder):
    one = setup(fed)
    return checkpoint.load(folder, one.fingerprint, *one.start(), max_models=2, rounds=4)


def header_of(path):
    with safe_open(path, framework="pt") as handle:
        return json.loads(handle.metadata()["focusfl"])


def write(path, tensors, header):
    save_file(tensors, path, metadata={"focusfl": json.dumps(header)})


def without_digest(path, **changes):
    """Rewrite a checkpoint as earlier versions wrote it, with changes to its header."""
    header = {k: v for k, v in header_of(path).items() if k != "digest"}
    write(path, load_file(path), header | {"format": "focusfl-checkpoint-1"} | changes)


def test_every_flipped_bit_and_zeroed_block_is_noticed(ragged, done):
    path, rng = done / checkpoint.NAME, random.Random(0)
    (done / checkpoint.PREVIOUS).unlink()
    whole = path.read_bytes()
    damaged = []
    for _ in range(200):
        at = rng.randrange(len(whole))
        damaged.append(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
    for at in range(0, len(whole), 64):
        damaged.append(whole[:at] + bytes(len(whole[at : at + 64])) + whole[at + 64 :])
    one = setup(ragged)
    start = one.start()
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(InputError, match=checkpoint.NAME):
            checkpoint.load(done, one.fingerprint, *start, max_models=2, rounds=4)


@pytest.mark.parametrize("t", [3, 1, 0, -1, 5, 10**30, True, "4", 2.0, None])
def test_an_edited_round_number_is_noticed(t, ragged, done):
    path = done / checkpoint.NAME
    (done / checkpoint.PREVIOUS).unlink()
    write(path, load_file(path), header_of(path) | {"round": t})
    with pytest.raises(InputError, match=checkpoint.NAME):
        list(run(setup(ragged), done, resume=True))


@pytest.mark.parametrize("t", [0, -1, 5, 10**30, True, "4", 2.0, None])
def test_an_impossible_round_number_is_refused_without_a_digest(t, ragged, done):
    without_digest(done / checkpoint.NAME, round=t)
    (done / checkpoint.PREVIOUS).unlink()
    with pytest.raises(InputError, match=checkpoint.NAME):
        list(run(setup(ragged), done, resume=True))


def test_a_checkpoint_of_an_earlier_version_is_resumed_and_said_to_be_unchecked(ragged, done, capsys):
    whole = load(ragged, done)[1]["w"]
    without_digest(done / checkpoint.NAME)
    t, server, *_ = load(ragged, done)
    assert t == 4 and all(torch.equal(server["w"][k], v) for k, v in whole.items())
    said = capsys.readouterr().err
    assert checkpoint.NAME in said and "digest" in said and len(said.splitlines()) == 1


def test_a_digest_cannot_be_removed_from_the_present_format(ragged, done):
    path = done / checkpoint.NAME
    (done / checkpoint.PREVIOUS).unlink()
    write(path, load_file(path), {k: v for k, v in header_of(path).items() if k != "digest"})
    with pytest.raises(InputError, match=checkpoint.NAME):
        load(ragged, done)


def test_the_last_two_are_kept(done):
    assert header_of(done / checkpoint.NAME)["round"] == 4
    assert header_of(done / checkpoint.PREVIOUS)["round"] == 3


@pytest.mark.parametrize("how", ["damaged", "cut", "missing", "of another run", "too large"])
def test_a_run_resumes_from_the_one_before_and_says_why(how, ragged, done, capsys):
    path = done / checkpoint.NAME
    whole, before = path.read_bytes(), history.read(done)
    if how == "damaged":
        path.write_bytes(whole[:-3] + b"\0\1\2")
    elif how == "cut":
        path.write_bytes(whole[:-3])
    elif how == "missing":
        path.unlink()
    elif how == "of another run":
        one = setup(ragged, seed=1)
        checkpoint.save(done / "..", one.fingerprint, 4, *one.start())
        (done / ".." / checkpoint.NAME).replace(path)
    else:
        without_digest(path)
        tensors = load_file(path)
        tensors["server/w/1.bias"][0, 0] = 1e29
        write(path, tensors, header_of(path))
    assert [each.t for each in run(setup(ragged), done, resume=True)] == [4]
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and checkpoint.PREVIOUS in said and "round 3" in said
    assert {"missing": "missing", "too large": "1e+12", "of another run": "another"}.get(how, "") in said
    assert path.read_bytes() == whole
    assert header_of(done / checkpoint.PREVIOUS)["round"] == 3  # the sound one was not replaced by the other
    assert (done / checkpoint.UNUSABLE).exists() == (how != "missing")
    after = history.read(done)
    assert [{**row, "seconds": 0} for row in after] == [{**row, "seconds": 0} for row in before]


def test_if_neither_is_sound_both_are_named(ragged, done):
    for name in (checkpoint.NAME, checkpoint.PREVIOUS):
        (done / name).write_bytes((done / name).read_bytes()[:-1])
    with pytest.raises(InputError, match=f"{checkpoint.NAME}.*{checkpoint.PREVIOUS}"):
        load(ragged, done)


def test_a_run_that_starts_over_leaves_no_old_checkpoint(ragged, done):
    next(iter(run(setup(ragged), done)))
    assert header_of(done / checkpoint.NAME)["round"] == 1 and not (done / checkpoint.PREVIOUS).exists()


class OneHugeUpdate(ff.FedAvg):
    """After round 2 the server's models are huge, but finite."""

    def aggregate(self, server, add, each, cohort):
        server = super().aggregate(server, add, each, cohort)
        self.__dict__["t"] = getattr(self, "t", 0) + 1
        return server if self.t < 2 else {**server, "w": {k: v + 1e29 for k, v in server["w"].items()}}


def test_numbers_too_large_to_go_on_are_never_checkpointed(ragged, tmp_path):
    one = Setup.of(OneHugeUpdate(), ragged, 4, train=ff.Train(steps=2, batch=8), checkpoint_every=1)
    with pytest.raises(Diverged, match=r"round 2 .*server/w.*1e\+12"):
        list(run(one, tmp_path))
    assert header_of(tmp_path / checkpoint.NAME)["round"] == 1


def test_the_log_label_of_an_unused_cluster_is_not_too_large():
    labels = torch.tensor([[0.0, -1e30]])
    assert checkpoint.problem("agents/log_pi", labels) is None
    assert "1e+12" in checkpoint.problem("server/w/a", labels)
    assert checkpoint.problem("server/counts", torch.tensor([2**60])) is None
    assert "NaN" in checkpoint.problem("agents/log_pi", torch.tensor([0.0, float("nan")]))
