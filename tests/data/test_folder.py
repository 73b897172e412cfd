"""A user's folder: all data written is read back, and what cannot be used is refused by name."""

import csv
import os
import re
import shlex
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

import focusfl as ff
from focusfl.cli import app as cli
from focusfl.data import DATA
from focusfl.data.own.folder import folder
from focusfl.util.errors import InputError
from focusfl.util.progress import count_progress

PAGE = Path(__file__).parents[2] / "docs/your-data.md"


def words(texts):
    """A hashed bag of words: [n, 32]."""
    x = torch.zeros(len(texts), 32)
    for row, text in zip(x, texts, strict=True):
        for word in text.split():
            row[zlib.crc32(word.encode()) % 32] += 1
    return x


def write(path, columns):
    """A csv or parquet file from {column: values}, or an npz file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as handle:
            csv.writer(handle).writerows([columns, *zip(*columns.values(), strict=True)])
    elif path.suffix == ".parquet":
        pa.parquet.write_table(pa.table(columns), path)
    else:
        np.savez(path, **columns)


def table(path, x, y):
    if path.suffix == ".npz":
        write(path, {"x": x, "y": np.asarray(y)})
    else:
        write(path, {"a": x[:, 0].tolist(), "b": x[:, 1].tolist(), "label": list(y)})


def image(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, "uint8")).save(path)


def everything(fed, e):
    """All examples of agent e, training and test, as sorted tuples."""
    x = torch.cat([fed.train(e).x, fed.test(e).x]).flatten(1)
    y = torch.cat([fed.train(e).y, fed.test(e).y])
    return sorted(zip(map(tuple, x.tolist()), y.tolist(), strict=True))


def examples(n=10, e=0):
    rng = np.random.default_rng(e)
    return rng.normal(size=(n, 2)).astype("float32"), rng.integers(0, 3, n)


# --- what was written comes back


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
@pytest.mark.parametrize("layout", ["{}", "{}/data", "{}/train {}/test"])
def test_every_layout_gives_back_what_was_written(tmp_path, suffix, layout):
    held = {}
    for name in ["bern", "aarau", "chur"]:
        for part in layout.format(name, name).split():
            held[part] = examples(10, len(held))
            table(tmp_path / f"{part}{suffix}", *held[part])
    (tmp_path / ".DS_Store").touch()
    (tmp_path / "README.md").write_text("about")
    fed = folder(tmp_path, scale=False)
    assert fed.agents == ("aarau", "bern", "chur") and fed.classes == 3 and fed.clusters is None
    for e, name in enumerate(fed.agents):
        mine = [pair for part, pair in held.items() if part.split("/")[0] == name]
        rows = [(tuple(a), b) for x, y in mine for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        assert everything(fed, e) == sorted(rows)
        assert (len(fed.train(e).y), len(fed.test(e).y)) == ((10, 10) if "train" in layout else (8, 2))
        if "train" in layout:
            assert fed.test(e).x.tolist() == held[f"{name}/test"][0].tolist()


def test_one_npz_may_hold_training_and_test(tmp_path):
    (x, y), (x2, y2) = examples(5, 0), examples(4, 1)
    for name in "ab":
        write(tmp_path / f"{name}.npz", {"x_train": x, "y_train": y, "x_test": x2, "y_test": y2[:, None]})
    fed = folder(tmp_path)
    assert torch.equal(fed.train(1).x, torch.tensor(x)) and fed.test(0).y.tolist() == y2.tolist()


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("channels", [(), (3,)])
def test_images_give_back_their_pixels_and_classes_are_the_union(tmp_path, split, channels):
    rng, held = np.random.default_rng(0), {}
    for name, kinds in (("a", ["cat", "emu"]), ("b", ["bee", "cat"])):
        for half in ["train", "test"] if split else [""]:
            for kind in kinds:
                for i in range(3):
                    place = tmp_path / name / half / kind / f"{i}.png"
                    held[place] = rng.integers(0, 256, (4, 5, *channels))
                    image(place, held[place])
    fed = folder(str(tmp_path))
    assert fed.labels == ("bee", "cat", "emu") and fed.classes == 3
    assert fed.training.x.shape[1:] == (3 if channels else 1, 4, 5) and fed.training.x.dtype == torch.float32
    for e, name in enumerate("ab"):
        mine = {p: v for p, v in held.items() if p.relative_to(tmp_path).parts[0] == name}
        rows = [
            (
                tuple((np.moveaxis(np.atleast_3d(v), 2, 0).astype("float32") / np.float32(255)).ravel().tolist()),
                fed.labels.index(p.parent.name),
            )
            for p, v in mine.items()
        ]
        assert everything(fed, e) == sorted(rows)


def test_jpeg_and_transparency_are_read(tmp_path):
    for name in "ab":
        image(tmp_path / name / "cat" / "1.JPG", np.full((8, 8, 3), 128))
        image(tmp_path / name / "dog" / "2.png", np.full((8, 8, 4), 128))
    fed = folder(tmp_path)
    assert fed.training.x.shape == (2, 3, 8, 8) and (fed.training.x * 255 - 128).abs().max() < 3


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_text_is_encoded_and_trained_on(tmp_path, suffix):
    for e in range(4):
        good, bad = ["a fine, fine film", "what\na joy"], ["dull and long", "a long bore"]
        columns = {"text": (good + bad) * 5, "label": (["up"] * 2 + ["down"] * 2) * 5}
        write(tmp_path / f"a{e}{suffix}", columns)
    fed = folder(tmp_path, encode=words)
    assert fed.labels == ("down", "up") and fed.training.x.shape == (64, 32)
    assert sorted(everything(fed, 0)) == sorted(
        (tuple(x.tolist()), int(up == "up")) for x, up in zip(words(columns["text"]), columns["label"], strict=True)
    )
    result = ff.fit(ff.FedAvg(), fed, rounds=5)
    assert result.table() is not None and result.scores.acc.min() == 1


def test_text_without_an_encoder_uses_sentence_embeddings(tmp_path, monkeypatch):
    from focusfl.models import text

    monkeypatch.setattr(text, "embed", words)
    for name in "ab":
        write(tmp_path / f"{name}.csv", {"review": ["good", "bad"], "label": [1, 0]})
    assert folder(tmp_path, text="review").training.x.shape == (2, 32)


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.data())
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_random_tables_survive_the_round_trip(tmp_path_factory, suffix, data):
    root = tmp_path_factory.mktemp("round")
    n = data.draw(st.integers(2, 5))
    label = data.draw(st.sampled_from([st.integers(0, 50), FLOATS.map(lambda v: v if v % 1 else 0.5)]))
    held = []
    for name in "ab":
        x = data.draw(arrays(np.float32, (n, 2), elements=FLOATS))
        y = data.draw(st.lists(label, min_size=n, max_size=n))
        table(root / f"{name}{suffix}", x, y)
        held.append((x, y))
    fed = folder(root, seed=data.draw(st.integers(0, 99)), scale=False)
    kept = [["a", "b"].index(name) for name in fed.columns or "ab"]  # a constant is left out
    for e, (x, y) in enumerate(held):
        assert everything(fed, e) == sorted(zip(map(tuple, x[:, kept].tolist()), y, strict=True))


# --- labels, columns, split, clusters


@pytest.mark.filterwarnings("ignore:fewer than 10 test examples")
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_words_become_numbers_and_floats_mean_regression(tmp_path, suffix):
    x = examples(3)[0]
    for e, y in enumerate([["pig", "cow", "cow"], ["ant", "pig", "pig"]]):
        table(tmp_path / f"w/{e}{suffix}", x, y)
        table(tmp_path / f"f/{e}{suffix}", x, [0.5, 1.0, 2.0] if e else [1.0, 3.0, -4.0])
    fed = folder(tmp_path / "w")
    assert fed.labels == ("ant", "cow", "pig") and sorted(y for _, y in everything(fed, 1)) == [0, 2, 2]
    fed = folder(tmp_path / "f")
    assert fed.classes is None and sorted(y for _, y in everything(fed, 0)) == [-4, 1, 3]
    assert ff.fit(ff.FedAvg(), fed, rounds=1).setup.model().state_dict()["layers.3.bias"].shape == (1,)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_labels_with_an_underscore_are_words_and_blanks_around_them_do_not_count(tmp_path, suffix):
    for name in "ab":
        table(tmp_path / f"{name}{suffix}", examples(3)[0], ["1_2", " 1_2", "3_4 "])
    assert folder(tmp_path).labels == ("1_2", "3_4")


def test_columns_are_matched_by_name_and_csv_goes_with_parquet(tmp_path):
    write(tmp_path / "a.csv", {"x": [1, 2], "label": [0, 1], "y": [3, 4]})
    write(tmp_path / "b.parquet", {"label": [True, False], "y": [3, 4], "x": [1.0, 2.0]})
    fed = folder(tmp_path)
    assert everything(fed, 0) == [((1, 3), 0), ((2, 4), 1)] and everything(fed, 1) == [((1, 3), 1), ((2, 4), 0)]


def test_a_split_depends_on_the_seed_and_the_agent_alone(tmp_path):
    for e, name in enumerate("acd"):
        table(tmp_path / f"{name}.csv", *examples(40, e))
    first, again, other = (folder(tmp_path, seed=seed, scale=False) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert len(folder(tmp_path, test=0.5).test(0).y) == 20
    table(tmp_path / "b.csv", *examples(40, 9))
    assert torch.equal(folder(tmp_path, scale=False).test(2).x, first.test(1).x)


def test_ambiguous_labels_are_remarked_on(tmp_path):
    def remarks(*labels):
        for name in "ab":
            lines = [f"{i / 60},{labels[i % len(labels)]}" for i in range(60)]
            (tmp_path / f"{name}.csv").write_text("\n".join(["x,label", *lines]))
        return " ".join(ff.data.folder(tmp_path).remarks())

    assert "Ill, ill" in remarks("ill", "Ill", "well")
    assert "regression" in remarks("0.0", "1.0")
    assert not any([remarks("ill", "well"), remarks("0", "1"), remarks("0.5", "1.0")])


def test_clusters_scale_and_hidden(tmp_path):
    for e, name in enumerate(["a", "b", "c"]):
        x, y = examples(40, e)
        table(tmp_path / f"{name}.csv", x * [5, 2] + [100, 7], y)
    write(tmp_path / "clusters.csv", {"agent": ["c", "a", "b"], "cluster": ["east", "west", "west"]})
    fed = folder(tmp_path, hidden=8)
    assert fed.clusters.tolist() == [1, 1, 0]
    x = fed.training.x
    assert x.mean(0).abs().max() < 1e-4 and (x.std(0) - 1).abs().max() < 0.01
    assert fed.recipe.model().layers[1].out_features == 8


def test_raw_values_are_scaled_as_in_training(tmp_path):
    for e, name in enumerate(["a", "b"]):
        x, y = examples(40, e)
        table(tmp_path / f"{name}.csv", x * [5, 2] + [100, 7], y)
    raw, fed = folder(tmp_path, scale=False), folder(tmp_path)
    assert fed.columns == ("a", "b") and fed.mean.shape == fed.deviation.shape == (2,)
    assert torch.equal(fed.scaled(raw.testing.x.numpy()), fed.testing.x)
    assert torch.equal(fed.scaled(raw.training.x.tolist()), fed.training.x)
    assert torch.equal(raw.scaled(raw.testing.x), raw.testing.x)


def test_a_feature_that_is_constant_in_training_stays_small_in_a_test_row(tmp_path):
    x, y = np.full([100_003, 1], 0.1, np.float32), np.arange(100_003) % 2  # its deviation comes out as 7e-9
    for name in "ab":
        write(tmp_path / f"{name}.npz", {"x_train": x, "y_train": y, "x_test": x[:2] + 0.2, "y_test": y[:2]})
    fed = folder(tmp_path, scale=True)
    assert not fed.training.x.any() and (fed.testing.x - 0.2).abs().max() < 1e-6


def test_names_that_are_no_utf8_are_read_and_can_be_printed(tmp_path):
    root = tmp_path / os.fsdecode(b"h\xf4pitaux")
    root.mkdir()
    for name in (b"Z\xfcrich.csv", "Zürich.csv".encode()):
        (root / os.fsdecode(name)).write_text(GOOD)
    fed = folder(root)
    assert fed.agents == (r"Z\xfcrich", "Zürich") and fed.name == r"h\xf4pitaux"
    assert fed.training.sizes.tolist() == [1, 1]


def test_focus_runs_on_a_folder(tmp_path):
    for e in range(4):
        x, _ = examples(60, e)
        table(tmp_path / f"a{e}.parquet", x, ((x[:, 0] > 0) ^ (e >= 2)).astype(int))
    result = ff.fit(ff.Focus(M=2), folder(tmp_path), rounds=3)
    assert result.pi.shape == (4, 2) and result.scores.loss.isfinite().all()
    result = ff.fit(ff.Focus(M=2), folder(tmp_path), rounds=25)
    assert result.clusters.tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])


def test_links_inside_the_folder_are_fine(tmp_path):
    table(tmp_path / "a.csv", *examples())
    (tmp_path / "b.csv").symlink_to(tmp_path / "a.csv")
    assert folder(tmp_path).E == 2


# --- what is refused

GOOD = "a,b,label\n1,2,0\n3,4,1\n"
BAD_CSV = {
    "semicolons": ("a;label\n1;0\n2;1\n", "b.csv: its columns differ .*lacks b: .*data.drop=b$"),
    "missing label": ("a,b,lable\n1,2,0\n", r"b.csv.*'label'.*did you mean 'lable'"),
    "words for numbers": (
        GOOD + "5,six,0\n",
        r"b.csv, row 4 \(counting the header\), column 'b': 'six'",
    ),
    "blank rows count": (GOOD + "\n5,six,0\n", "row 5 "),
    "NaN": ("a,b,label\n1,nan,0\n3,4,1\n", "row 2 .*column 'b'.*NaN"),
    "infinite": ("a,b,label\n1,2,0\n-inf,4,1\n", "row 3 .*column 'a'.*NaN"),
    "too large": ("a,b,label\n1,2,0\n1e39,4,1\n", "row 3 .*column 'a'.*NaN"),
    "empty cell": (GOOD + " ,1,1\n", "row 4 .*column 'a'.*NaN"),
    "empty label": (GOOD + "1,1,\n", "b.csv, row 4 .*label"),
    "NaN label": (GOOD + "1,1,nan\n", "b.csv, row 4 .*label.*NaN"),
    "cut off": (GOOD + "5,", r"b.csv, row 4 .*2 cells"),
    "open quote": (GOOD + '5,"6', "b.csv, row 4 "),
    "empty file": ("", "b.csv: empty"),
    "no rows": ("a,b,label\n", "b.csv: no examples"),
    "one row": ("a,b,label\n1,2,0\n", "b.csv: 1 example.*split"),
    "other columns": ("a,c,label\n1,2,0\n3,4,1\n", "b.csv.*columns.*a.csv.*lacks b.* has c.*data.drop=b,c"),
    "no features": ("label\n1\n2\n", "b.csv: only labels"),
    "no header": ("1,2,0\n3,4,1\n5,6,0\n", "b.csv: no label column.*first row.*numbers"),
    "two alike": ("a,a,label\n0,1,2\n", "b.csv: two columns.*'a'"),
    "text among tables": ("text,label\nhi,0\nho,1\n", "b.csv: text, but .*a.csv: a table"),
    "mixed labels": ("a,b,label\n1,2,0\n3,4,cat\n", "'cat' in .*b.csv, row 3 .* 0 in .*a.csv, row 2"),
    "whole floats": (
        "a,b,label\n" + "".join(f"1,2,{i}.0\n" for i in range(11)),
        r"0.0 in .*b.csv, row 2 .*data.target=class",
    ),
    "Python's digits": (GOOD + "1_000,1,1\n", "row 4 .*column 'a': '1_000'"),
    "no class": ("a,b,label\n1,2,0\n3,4,-1\n", "b.csv, row 3 .*label -1"),
}


@pytest.mark.parametrize("content, message", BAD_CSV.values(), ids=BAD_CSV)
def test_a_bad_csv_is_refused(tmp_path, content, message):
    (tmp_path / "a.csv").write_text(GOOD)
    (tmp_path / "b.csv").write_text(content)
    refused(tmp_path, message, missing="refuse")


def refused(root, message, **options):
    with pytest.raises(InputError, match=message) as caught:
        folder(root, **options)
    assert "\n" not in str(caught.value)


def good(root, suffix=".csv"):
    table(root / f"a{suffix}", *examples())
    table(root / f"c{suffix}", *examples(10, 1))
    return root


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_a_file_that_is_no_such_file_is_refused(tmp_path, suffix):
    good(tmp_path, suffix)
    whole = (tmp_path / f"a{suffix}").read_bytes()
    bad = tmp_path / f"b{suffix}"
    for content in (b"\x80\x04\x95\x00\xff\xfe", b"", whole[: len(whole) // 2]):
        bad.write_bytes(content)
        refused(tmp_path, re.escape(str(bad)))
    bad.unlink()
    bad.symlink_to(tmp_path / f"gone{suffix}")
    refused(tmp_path, re.escape(str(bad)))


def test_a_bad_parquet_is_refused(tmp_path):
    good(tmp_path, ".parquet")
    bad = tmp_path / "b.parquet"
    for columns, message in (
        (
            {"a": [1, 2], "b": ["1", "x"], "label": [0, 1]},
            r"row 2 \(counting from 1\), column 'b': 'x'",
        ),
        ({"a": [1, None], "b": [1, 2], "label": [0, 1]}, "row 2 .*column 'a'.*NaN"),
        ({"a": [1, 2], "b": [1, 2], "label": [0, None]}, "row 2 .*label"),
        ({"a": [1, 2], "b": [1, 2], "labels": [0, 1]}, "'label'.*did you mean 'labels'"),
        ({"text": ["hi", None], "label": [0, 1]}, "row 2 .*column 'text'.*None"),
    ):
        write(bad, columns)
        refused(tmp_path, f"b.parquet.*{message}", missing="refuse")


def test_a_bad_npz_is_refused_and_never_unpickled(tmp_path):
    good(tmp_path, ".npz")
    x, y = examples()
    for held, message in (
        ({"x": x}, "expected x and y"),
        ({"x": x, "y": y[:3]}, r"x has shape \[10, 2\] and y \[3\]"),
        ({"x": x.astype(str), "y": y}, "x: .*<U32"),
        ({"x": np.where(x == x[3, 0], np.nan, x), "y": y}, r"row 3 \(of x and y, counting from 0\).*NaN"),
        ({"x": x[:, :1], "y": y}, r": shape \[1\], but .*a.npz: shape \[2\]"),
        ({"x": np.array([[Path()], [1]], object), "y": y[:2]}, "nothing is unpickled"),
    ):
        write(tmp_path / "b.npz", held)
        refused(tmp_path, f"b.npz.*{message}")
    np.save(tmp_path / "b.npy", x)
    (tmp_path / "b.npy").replace(tmp_path / "b.npz")
    refused(tmp_path, "b.npz.*not an npz file")


def test_a_bad_image_is_refused(tmp_path):
    for e in "ab":
        for i in range(2):
            image(tmp_path / e / "cat" / f"{i}.png", np.full((4, 5), 9))
    odd = tmp_path / "b" / "cat" / "9.png"
    for shape, size in (((5, 4), "4x5 grey"), ((4, 5, 3), "5x4 RGB")):
        image(odd, np.zeros(shape))
        refused(tmp_path, f"b/cat/9.png: {size}, but .*b/cat/0.png: 5x4 grey")
    Image.new("I;16", (5, 4)).save(odd)
    refused(tmp_path, "b/cat/9.png.*I;16")
    noise = np.random.default_rng(0).integers(0, 256, (4, 5))
    image(odd, noise)
    for content in (odd.read_bytes()[:-30], b"", b"GIF89a"):
        odd.write_bytes(content)
        refused(tmp_path, "b/cat/9.png.*image")
    odd.unlink()
    for i in range(2):
        image(tmp_path / "b" / "cat" / f"{i}.png", np.zeros((6, 6)))
    refused(tmp_path, "b/cat/0.png: 6x6 grey, but .*a/cat/0.png: 5x4 grey")
    (tmp_path / "b" / "cat" / "notes.txt").touch()
    refused(tmp_path, "b/cat/notes.txt: unexpected.*images")


def test_a_bad_layout_is_refused(tmp_path):
    refused(tmp_path / "none", "none: no such folder")
    refused(tmp_path, "two or more agents.*no agents")
    table(tmp_path / "train.csv", *examples())
    table(tmp_path / "test.csv", *examples())
    refused(tmp_path, "two or more agents.*test, train")
    root = good(tmp_path / "r")
    table(root / "b" / "train.csv", *examples())
    refused(root, "b: only train.csv")
    (root / "b/train.csv").rename(root / "b/test.csv")
    refused(root, "b: only test.csv")
    table(root / "b/train.csv", *examples())
    (root / "b/more.csv").touch()
    refused(root, "b/more.csv: unexpected")
    (root / "b/train.csv").unlink()
    (root / "b/test.csv").rename(root / "b/data.csv")
    refused(root, "b/data.csv: unexpected.*one file")
    (root / "b/data.csv").unlink()
    (root / "b/more.csv").rename(root / "b/notes.txt")
    refused(root, "b/notes.txt: unexpected.*csv")
    (root / "b/notes.txt").unlink()
    refused(root, "b: no examples")
    (root / "b").rmdir()
    (root / "notes.txt").touch()
    refused(root, "notes.txt: unexpected.*sub-folder")
    (root / "notes.txt").rename(root / "a.npz")
    refused(root, "a.npz.*a.csv.*name")
    table(root / "a.npz", *examples())
    (root / "a.npz").rename(root / "b.npz")
    refused(root, "b.npz: arrays, but .*a.csv: a table")
    (root / "b.npz").unlink()
    for half in ("train", "test"):
        x, y = examples()
        write(root / f"b/{half}.npz", {"x_train": x, "y_train": y, "x_test": x, "y_test": y})
    refused(root, "b: x_train and x_test")
    refused(good(tmp_path / "s"), "data.test = 1.5", test=1.5)
    refused(tmp_path / "s", "data.seed = -1", seed=-1)


def test_links_out_of_the_folder_are_not_followed(tmp_path):
    root = good(tmp_path / "r")
    table(tmp_path / "secret.csv", *examples())
    (root / "b.csv").symlink_to(tmp_path / "secret.csv")
    refused(root, "b.csv.*link")


def test_bad_clusters_are_refused(tmp_path):
    good(tmp_path)
    for rows, message in (
        ("agent,group\na,0\n", "agent, group"),
        ("agent,cluster\na,0\nd,1\n", r"row 3 \(counting the header\).*'d'"),
        ("agent,cluster\na,0\na,1\n", "row 3 .*'a'"),
        ("agent,cluster\na,\n", "row 2 .*'a'"),
        ("agent,cluster\na,0\n", "agent 'c'"),
    ):
        (tmp_path / "clusters.csv").write_text(rows)
        refused(tmp_path, f"clusters.csv.*{message}")


@pytest.mark.parametrize("name, extra", [("pyarrow.parquet", "tables"), ("PIL.Image", "images")])
def test_a_missing_package_is_named(tmp_path, monkeypatch, name, extra):
    good(tmp_path, ".parquet")
    image(tmp_path / "0" / "cat" / "1.png", np.zeros((2, 2)))
    if extra == "tables":
        (tmp_path / "0").rename(tmp_path / "z")
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=re.escape(f'pip install "focusfl[{extra}]"')):
        folder(tmp_path)


def test_the_bar_shows_on_a_terminal_and_only_if_it_takes_long(monkeypatch, capsys):
    for terminal, seconds in (("1", 0.0), ("", 0.4), ("1", 0.4)):
        monkeypatch.setenv("FORCE_COLOR", terminal)
        with count_progress("reading agents", 2, delay=0.1) as advance:
            advance(1)
            time.sleep(seconds)
        err = capsys.readouterr().err
        assert ("reading agents" in err and "1/2" in err) == bool(terminal and seconds), (terminal, seconds)
        assert terminal or not err


# --- the page


def test_the_commands_and_messages_of_the_page_are_true(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(DATA, "folder", folder)
    monkeypatch.setattr(ff.data, "folder", folder)
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert [kind for kind, _ in blocks] == ["python", "sh", "python", "", "sh", ""]
    codes, names, said = [], {}, []
    for kind, block in blocks:
        if kind == "python":
            exec(block, names)
        for line in block.replace("\\\n", "").splitlines() if kind == "sh" else ():
            monkeypatch.setattr(sys, "argv", shlex.split(line))
            with pytest.raises(SystemExit) as stopped:
                cli.main()
            codes.append(stopped.value.code)
        said.append(capsys.readouterr())
    assert codes == [0, 2] and said[4].err == blocks[5][1]
    assert (tmp_path / "runs/hospitals/results.json").exists() and "FOCUS" in said[1].out
    assert names["fed"].agents[5] == "flims" and names["fed"].labels == ("ill", "well")
    assert names["result"].clusters.tolist() in ([0, 0, 0, 0, 1, 1], [1, 1, 1, 1, 0, 0])


def test_examples_are_found_by_an_agents_name_or_number(tmp_path):
    for e, name in enumerate(["bern", "genf"]):
        table(tmp_path / f"{name}.csv", *examples(e=e))
    fed = folder(tmp_path)
    assert torch.equal(fed.test("genf").x, fed.test(1).x) and torch.equal(fed.train("bern").x, fed.train(0).x)
    plain = ff.data.synthetic()
    for which, agent, words_ in [
        (fed, "genff", "did you mean 'genf'"),
        (fed, 2, "0 to 1"),
        (fed, -1, "0 to 1"),
        (fed, 0.5, "0 to 1"),
        (plain, "bern", "0 to 9"),
    ]:
        with pytest.raises(InputError, match=words_):
            which.test(agent)
        with pytest.raises(InputError, match=words_):
            which.train(agent)
