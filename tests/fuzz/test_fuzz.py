"""The first cases of every kind of damaged input: none breaks the program. `python -m tests.fuzz` runs more."""

import pytest

from . import sound
from .harness import Fault, focusfl
from .kinds import KINDS, case

CASES = 12  # of a kind


@pytest.fixture(scope="module", autouse=True)
def sound_files():
    sound.prepare()


@pytest.mark.parametrize("name", [name for name in KINDS if not name.startswith("reply")])
@pytest.mark.parametrize("number", range(0, CASES, 4))
def test_damaged_input_is_refused_in_one_line_or_does_no_harm(name, number, tmp_path):
    for i in range(number, number + 4):
        (folder := tmp_path / str(i)).mkdir()
        assert case(name, 0, i, folder) == [], f"python -m tests.fuzz --kind {name} --seed 0 --first {i} --cases 1"


def test_the_same_seed_and_number_make_the_same_case(tmp_path):
    made = []
    for name in ("one", "other"):
        (folder := tmp_path / name).mkdir()
        case("data-csv", 0, 3, folder)
        made.append({path.name: path.read_bytes() for path in (folder / "data").iterdir()})
    assert made[0] == made[1]


def test_the_harness_sees_a_traceback_a_hang_and_an_escape_code(tmp_path, monkeypatch):
    def fails(what):
        monkeypatch.setattr("focusfl.cli.app.app", what)
        return [fault.name for fault in focusfl("report", tmp_path).faults]

    def traceback(**_):
        raise KeyError("seed")

    def hang(**_):
        while True:
            pass

    def escape(**_):
        print("\x1b[31m")

    monkeypatch.setattr("fuzz.harness.SECONDS", 0.2)
    assert fails(traceback) == ["traceback"] and fails(hang) == ["hang"] and fails(escape) == ["raw escape"]
    assert fails(lambda **_: 7) == ["exit code", "many lines"] and fails(lambda **_: 0) == []


def test_a_fault_says_what_and_where():
    assert str(Fault("hang", "data/own/layout.py:123")) == "hang: data/own/layout.py:123"
