"""Folders of results that release 0.1 wrote: they are recognised, and their runs resume or are refused by name."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from focusfl.run import checkpoint
from focusfl.util import files

METHODS = ["focus", "focus:init=tied", "fedavg"]
WORDS = ("compare", "--data", "synthetic", "--rounds", 8, "--seeds", 0, "--set", "checkpoint_every=2")
WORDS = (*WORDS, "--algorithms", ",".join(METHODS), "--out", "r")
EXPERIMENT = {  # experiment.json, word for word
    "data": {"name": "synthetic"},
    "algorithms": METHODS,
    "seeds": [0],
    "rounds": 8,
    "engine": "auto",
    "fraction": 1.0,
    "device": "cpu",
    "precision": "float32",
    "bayes": "auto",
    "eval_every": 1,
    "checkpoint_every": 2,
    "train": {},
    "shift": [],
    "params": {},
}
KEYS = {  # of the tensors in a checkpoint, where the form of the state is still the same
    "focus-inittied-seed0": {"server/w/1.weight", "agents/log_pi"},
    "fedavg-seed0": {"server/w/1.weight"},
}


def without(rows, *keys):
    return [{k: v for k, v in row.items() if k not in keys} for row in rows]


def write_header(path, t):
    """Rewrite a checkpoint as if it were of round t, with its own fingerprint."""
    with safe_open(path, framework="pt") as handle:
        header = json.loads(handle.metadata()["focusfl"])
    header["round"] = t
    save_file(load_file(path), path, metadata={"focusfl": json.dumps(header)})


def remove_digest(path):
    """Rewrite a checkpoint in the format of release 0.1, which had no digest."""
    with safe_open(path, framework="pt") as handle:
        header = json.loads(handle.metadata()["focusfl"])
    del header["digest"]
    header["format"] = "focusfl-checkpoint-1"
    save_file(load_file(path), path, metadata={"focusfl": json.dumps(header)})


@pytest.fixture
def finished(focusfl, tmp_path):
    """The folder of a finished experiment, as release 0.1 wrote it."""
    assert focusfl(*WORDS)[0] == 0
    for path in (tmp_path / "r").rglob("result*.json"):
        content = files.read_json(path)
        for row in content if isinstance(content, list) else [content]:
            row.pop("version", None)  # later versions number the form of a row ...
            row.pop("digest", None)  # ... and have digests
        files.write_json(path, content)
    for path in (tmp_path / "r").rglob(checkpoint.NAME):
        remove_digest(path)
    for path in (tmp_path / "r").rglob(checkpoint.PREVIOUS):
        path.unlink()
    (tmp_path / "r/data.json").unlink()  # the first versions of it had none
    files.write_json(tmp_path / "r/experiment.json", EXPERIMENT)
    return tmp_path / "r"


def test_a_finished_folder_is_shown_and_reported(finished, focusfl):
    before = files.read_json(finished / "results.json")
    code, out, err = focusfl(*WORDS)
    assert code == 0 and "already" in err and "FedAvg" in out
    assert without(files.read_json(finished / "results.json"), "version") == without(before, "version")
    assert files.read_json(finished / "experiment.json") == EXPERIMENT
    assert focusfl("report", "r")[0] == 0 and "FedAvg" in (finished / "report.md").read_text()


def test_experiment_json_is_still_written_that_way(focusfl, tmp_path):
    assert focusfl(*WORDS)[0] == 0
    assert files.read_json(tmp_path / "r/experiment.json") == EXPERIMENT


def test_the_default_folder_has_the_same_name(focusfl, tmp_path):
    """So that the same command finds the results of before."""
    words = ("compare", "--data", "synthetic", "--rounds", 2, "--seeds", 0, "--algorithms", "fedavg")
    assert focusfl(*words)[0] == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["synthetic-d7d1e160"]


@pytest.mark.parametrize("run", KEYS)
def test_a_checkpoint_whose_form_is_the_same_is_resumed(run, finished, focusfl):
    before = files.read_json(finished / "results.json")
    folder = finished / "runs" / run
    assert load_file(folder / checkpoint.NAME).keys() == KEYS[run]
    (folder / "result.json").unlink()
    code, _, err = focusfl(*WORDS, "--resume")
    assert code == 0, err
    after = files.read_json(finished / "results.json")
    assert without(after, "version", "seconds") == without(before, "version", "seconds")


def test_an_old_checkpoint_is_really_used(finished, focusfl):
    """Three rounds from the end, with other weights, the run ends elsewhere: it did not start over."""
    folder = finished / "runs/fedavg-seed0"
    path, before = folder / checkpoint.NAME, files.read_json(folder / "result.json")
    (folder / "result.json").unlink()
    tensors = load_file(path)
    with safe_open(path, framework="pt") as handle:
        header = handle.metadata()
    save_file({k: v + 1 for k, v in tensors.items()}, path, metadata=header)
    write_header(path, 7)
    assert focusfl(*WORDS, "--resume")[0] == 0
    assert files.read_json(folder / "result.json")["loss"] != before["loss"]


OLD_FOCUS = {  # FOCUS with init="split" of ten agents and M=2, in 0.1: everything beside w, with other names
    "agents/log_pi": torch.full((10, 2), -0.6931),
    "agents/told": torch.ones(10, dtype=torch.long),
    "server/given": torch.zeros(10, 2),
    "server/heard": torch.full((10,), -1),
    "server/live": torch.ones(2, dtype=torch.long),
    "server/parted": torch.tensor(3),
    "server/sketches": torch.zeros(10, 256),
    "server/t": torch.tensor(4),
    "server/times": torch.zeros(10),
    "server/w/1.weight": torch.zeros(2, 1, 10),
}
OLD_CLIP = {
    "server/w/1.weight": torch.zeros(2, 1, 10),
    "server/bound": torch.ones(2),
    "agents/log_pi": torch.ones(10, 2),
}


@pytest.mark.parametrize("tensors", [OLD_FOCUS, OLD_CLIP], ids=["split", "clip"])
def test_a_checkpoint_of_focus_in_the_old_form_is_refused_by_name(tensors, finished, focusfl):
    before = files.read_json(finished / "results.json")
    folder = finished / "runs/focus-seed0"
    path = folder / checkpoint.NAME
    with safe_open(path, framework="pt") as handle:
        header = handle.metadata()
    save_file(tensors, path, metadata=header)
    (folder / "result.json").unlink()
    code, _, err = focusfl(*WORDS, "--resume")
    assert code == 2 and f"r/runs/focus-seed0/{checkpoint.NAME}" in err and "0.1" in err and "Delete" in err
    assert len(err.strip().splitlines()) == 1 and path.exists()
    path.unlink()  # as the message says
    assert focusfl(*WORDS, "--resume")[0] == 0
    after = files.read_json(finished / "results.json")
    assert without(after, "version", "seconds") == without(before, "version", "seconds")
