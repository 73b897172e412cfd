"""Files with a digest: every flipped bit is noticed, a line cut short is repaired, files without one are read."""

import json

import pytest
import torch
from safetensors.torch import save_file

from focusfl.util import files, sealed
from focusfl.util.errors import InputError

ROW = {"method": "fedavg", "loss": [0.25, 1e-7], "n": 3, "nested": {"10": 1, "9": None}, "name": "Zürich"}
TENSORS = {
    "w": torch.tensor([[1.5, -2.0]]),
    "half": torch.tensor([0.5], dtype=torch.bfloat16),
    "n": torch.tensor(7),
    "empty": torch.zeros(0, 3),
}


def flipped(content):
    """The content with one bit flipped, for every bit."""
    for at in range(len(content)):
        for bit in range(8):
            yield at, content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]


def read_or_refuse(read, path):
    try:
        return read(path)
    except InputError as error:
        assert str(path) in str(error) and "\n" not in str(error).strip()
        return None


def test_json_is_read_back_without_the_digest(tmp_path):
    sealed.write_json(tmp_path / "a.json", ROW)
    assert sealed.read_json(tmp_path / "a.json") == ROW
    assert {k: v for k, v in files.read_json(tmp_path / "a.json").items() if k != "digest"} == ROW  # by any tool


def test_tensors_that_share_memory_are_written_and_read_back(tmp_path):
    w = torch.arange(6.0).reshape(2, 3)
    sealed.write_tensors(tmp_path / "a", {"w": w, "best": w, "row": w[1]})
    tensors, _, _ = sealed.read_tensors(tmp_path / "a")
    assert torch.equal(tensors["w"], w) and torch.equal(tensors["best"], w) and torch.equal(tensors["row"], w[1])


@pytest.mark.parametrize("kind", ["object", "page"])
def test_every_flipped_bit_of_json_is_noticed_or_changes_nothing(kind, tmp_path):
    path = tmp_path / "a.json"
    if kind == "object":
        sealed.write_json(path, ROW)
    else:
        sealed.write_rows(path, {"study": "a", "settings": {2: 1, 10: 2}}, [ROW, ROW])
    expected, refused = sealed.read_json(path), 0
    for _, content in flipped(path.read_bytes()):
        path.write_bytes(content)
        found = read_or_refuse(sealed.read_json, path)
        assert found is None or found == expected  # a line break may become a space
        refused += found is None
    assert refused > 0.8 * 8 * len(content)


def test_formatting_is_not_an_edit(tmp_path):
    path = tmp_path / "a.json"
    sealed.write_json(path, ROW)
    path.write_text(json.dumps(files.read_json(path), sort_keys=True, indent=4))
    assert sealed.read_json(path) == ROW


def test_without_a_digest_an_edit_is_accepted(tmp_path):
    """As earlier versions wrote files, and as the message advises."""
    files.write_json(tmp_path / "a.json", ROW)
    assert sealed.read_json(tmp_path / "a.json") == ROW
    files.write_json(tmp_path / "a.json", [1, 2])
    assert sealed.read_json(tmp_path / "a.json") == [1, 2]


def test_every_flipped_bit_of_tensors_is_noticed(tmp_path):
    path = tmp_path / "a.safetensors"
    sealed.write_tensors(path, TENSORS, {"round": 3})
    tensors, header, checked = sealed.read_tensors(path)
    assert header == {"round": 3} and checked and tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[k], v) and tensors[k].dtype == v.dtype for k, v in TENSORS.items())
    accepted = []
    for at, content in flipped(path.read_bytes()):
        path.write_bytes(content)
        if read_or_refuse(sealed.read_tensors, path) is not None:
            accepted.append(at)
    assert accepted == []


def test_tensors_without_a_digest_are_read_but_not_called_checked(tmp_path):
    save_file({"w": TENSORS["w"]}, tmp_path / "a")
    tensors, header, checked = sealed.read_tensors(tmp_path / "a")
    assert torch.equal(tensors["w"], TENSORS["w"]) and header == {} and not checked


def test_equal_tensors_are_equal_files(tmp_path):
    for name in ("a", "b"):
        sealed.write_tensors(tmp_path / name, TENSORS, {"round": 3})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_line_cut_short_is_skipped_and_then_repaired(tmp_path):
    path = tmp_path / "a.jsonl"
    sealed.append_line(path, {"n": 1})
    sealed.append_line(path, {"n": 2})
    path.write_bytes(path.read_bytes()[:-9])
    assert sealed.read_lines(path) == [{"n": 1}]
    sealed.append_line(path, {"n": 3})
    assert sealed.read_lines(path) == [{"n": 1}, {"n": 3}] and path.read_bytes().count(b"\n") == 2


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    for n in (11, 12, 13):
        sealed.append_line(path, {"n": n})
    whole = path.read_text()
    for damaged in ('{"n": 17', '"n": 12', '{"n": 1x'):
        path.write_text(whole.replace('{"n": 12', damaged))
        with pytest.raises(InputError, match=r"a\.jsonl: line 2"):
            sealed.read_lines(path)


def test_lines_of_earlier_versions_are_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n{"n": 2\n{"n": 3}\n{"n"')
    assert sealed.read_lines(path, torn_anywhere=True) == [{"n": 1}, {"n": 3}]
    assert sealed.read_lines(tmp_path / "none") == []
