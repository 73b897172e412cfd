"""Rows of results.json: what a run writes is a row, and what is not a row is refused with its place."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.page import folder, section

from focusfl.report.html.page import page
from focusfl.report.rows import ROW_VERSION, Row, read_row, read_rows
from focusfl.run.folder import from_folder
from focusfl.util.errors import InputError

PATH = Path("some/results.json")
STORED = Path(__file__).parents[2] / "docs/results"


def row():
    return json.loads((folder() / "results.json").read_text())[0]


@pytest.mark.parametrize("data", ["rotated-digits", "synthetic"])
def test_a_run_writes_rows_with_keys_that_are_known(data):
    path = folder(data) / "results.json"
    rows = read_rows(path)
    assert rows == json.loads(path.read_text())
    assert all(set(each) <= Row.__required_keys__ | Row.__optional_keys__ for each in rows)


def test_the_stored_results_of_the_paper_are_rows():
    pages = [json.loads(path.read_text()) for path in sorted(STORED.glob("*.json"))]
    rows = [each for page in pages for each in page.get("rows", []) if "key" in each]
    assert len(rows) > 400
    for each in rows:
        assert read_row(each, PATH) is each and set(each) <= Row.__required_keys__ | Row.__optional_keys__


def test_keys_of_another_release_are_kept():
    assert read_row(row() | {"colour": "red"}, PATH)["colour"] == "red"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"loss": "low"}, "loss"),
        ({"loss": [0.1, None]}, r"loss\.1"),
        ({"seed": 0.5}, "seed"),
        ({"faa": None}, "faa"),
    ],
)
def test_a_wrong_type_is_refused_with_the_file_and_the_key(change, key):
    with pytest.raises(InputError, match=rf"results\.json: {key}: "):
        read_row(row() | change, PATH)


def test_a_missing_key_is_refused():
    with pytest.raises(InputError, match=r"results\.json: excess_risk: "):
        read_row({k: v for k, v in row().items() if k != "excess_risk"}, PATH)
    with pytest.raises(InputError, match=r"results\.json"):
        read_row([row()], PATH)


def test_rows_of_a_newer_release_are_refused_and_of_this_one_are_not():
    assert read_row(row() | {"version": ROW_VERSION}, PATH)["version"] == ROW_VERSION
    with pytest.raises(InputError, match=r"results\.json.*newer.*update"):
        read_row(row() | {"version": ROW_VERSION + 1}, PATH)


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "results.json"
    path.write_text("{}")
    with pytest.raises(InputError, match=r"results\.json"):
        read_rows(path)
    (tmp_path / "experiment.json").write_text((folder() / "experiment.json").read_text())
    path.write_text(json.dumps([row() | {"clusters": None}]))
    with pytest.raises(InputError, match=r"results\.json: clusters"):
        from_folder(tmp_path)


def test_rows_of_the_first_release_are_shown():
    """They have no version, and no intervals, errors or training examples."""
    later = ("version", "n", "excess_se", "faa_interval", "faa_correlation", "gap_se")
    rows = [{k: v for k, v in each.items() if k not in later} for each in section().rows]
    for each in rows:
        read_row(each, PATH)
    assert "In words" in page("Old", [replace(section(), rows=rows)])
