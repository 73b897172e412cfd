"""What runs keep on disk: an edit of one digit is noticed by the command that reads the file, which names it."""

import json

import pytest
import torch

import focusfl as ff
from focusfl.report.rows import read_rows
from focusfl.run import history
from focusfl.run.best_loss import Surrogates
from focusfl.run.setup import Setup
from focusfl.util import files
from focusfl.util.errors import InputError

WORDS = ("compare", "--data", "synthetic", "--rounds", 3, "--seeds", 0, "--algorithms", "focus:init=tied,fedavg")
WORDS = (*WORDS, "--set", "bayes='true'", "--set", "data.n=20", "--out", "r")
RUN = "r/runs/fedavg-seed0"


def edit(path, key):
    """Change the first digit after the first 0. of a key's value."""
    text = path.read_text()
    at = text.index("0.", text.index(f'"{key}"')) + 2
    path.write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :])


@pytest.mark.parametrize(
    ("name", "key", "command"),
    [
        (f"{RUN}/result.json", "avg_loss", WORDS),
        (f"{RUN}/result.json", "avg_loss", ("report", "r")),
        ("r/results.json", "avg_loss", ("report", "r")),
        (f"{RUN}/history.jsonl", "avg_loss", ("report", "r")),
    ],
)
def test_an_edited_digit_is_noticed(name, key, command, focusfl, tmp_path):
    assert focusfl(*WORDS)[0] == 0
    assert focusfl(*command)[0] == 0
    edit(tmp_path / name, key)
    code, _, err = focusfl(*command)
    assert code == 2 and name in err and "edited" in err and len(err.strip().splitlines()) == 1


def test_edited_best_losses_are_noticed(focusfl, tmp_path):
    assert focusfl(*WORDS)[0] == 0
    (path,) = (tmp_path / "r/surrogates").glob("*.json")
    edit(path, "loss")
    (tmp_path / RUN / "result.json").unlink()
    code, _, err = focusfl(*WORDS, "--resume")
    assert code == 2 and path.name in err and "edited" in err and len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["r/surrogates/*.safetensors", "r/runs/focus-inittied-seed0/examples.safetensors"])
def test_a_flipped_bit_in_the_losses_of_examples_is_noticed(name, focusfl, tmp_path):
    assert focusfl(*WORDS)[0] == 0
    (path,) = tmp_path.glob(name)
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    (tmp_path / RUN / "result.json").unlink()
    code, _, err = focusfl(*WORDS, "--resume")
    assert code == 2 and path.name in err and "edited" in err and len(err.strip().splitlines()) == 1


def test_results_without_digests_are_read(focusfl, tmp_path):
    """As earlier versions wrote them."""
    assert focusfl(*WORDS)[0] == 0
    for path in (*tmp_path.rglob("result.json"), *(tmp_path / "r/surrogates").glob("*.json")):
        value = files.read_json(path)
        del value["digest"]
        files.write_json(path, value)
    for path in tmp_path.rglob("history.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text(
            "".join(json.dumps({k: v for k, v in line.items() if k != "digest"}) + "\n" for line in lines)
        )
    assert focusfl(*WORDS)[0] == 0 and focusfl("report", "r")[0] == 0
    (tmp_path / RUN / "result.json").unlink()
    assert focusfl(*WORDS, "--resume")[0] == 0


def test_results_json_has_no_key_that_is_not_a_result(focusfl, tmp_path):
    assert focusfl(*WORDS)[0] == 0
    assert all("digest" not in row for row in read_rows(tmp_path / "r/results.json"))


def test_best_losses_of_other_agents_are_refused(ragged, tmp_path):
    setup = Setup.of(ff.FedAvg(), ragged, 2)
    Surrogates(tmp_path).best(setup)
    (path,) = tmp_path.glob("*.json")
    for wrong in ({"loss": [0.5]}, {"loss": "0.5"}, [0.5], {}, {"loss": [0.5] * 4 + [None]}):
        files.write_json(path, wrong)
        with pytest.raises(InputError, match=path.name):
            Surrogates(tmp_path).best(setup)


def test_histories_with_missing_or_strange_rounds_are_refused(tmp_path):
    path = tmp_path / history.NAME
    good = [{"round": t, "seconds": 0.1} for t in (4, 5, 6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in good))
    assert history.read(tmp_path) == good  # the first lines may be gone
    for bad in ({"round": 7}, {"round": "5", "seconds": 1}, {"round": 9, "seconds": 1}, {"seconds": 1}, 3):
        path.write_text("".join(json.dumps(row) + "\n" for row in (*good, bad)))
        with pytest.raises(InputError, match="line 4"):
            history.read(tmp_path)


def test_lines_after_the_checkpoint_are_removed_and_the_rest_is_kept(tmp_path):
    one = history.History(tmp_path, 0)
    for t in (1, 2, 3):
        one.write(t, None, None, 0.5, {})
    one.sync()
    with (tmp_path / history.NAME).open("a") as handle:
        handle.write('{"round": 4, "sec')
    again = history.History(tmp_path, 2)
    assert [row["round"] for row in history.read(tmp_path)] == [1, 2] and again.seconds == 1.0
    again.write(3, None, torch.ones(1, 1), 0.5, {})
    assert [row["round"] for row in history.read(tmp_path)] == [1, 2, 3]
