"""Results and histories that are damaged or hostile: each is refused by file and key, or shown as text."""

import json
import shutil

import pytest
from helpers.page import EVIL, folder

from focusfl.report.markdown import code, plain
from focusfl.run import history
from focusfl.run.results import read_left_out
from focusfl.util import sealed
from focusfl.util.errors import InputError


@pytest.fixture
def out(tmp_path):
    return shutil.copytree(folder(), tmp_path / "small")


def change(path, **changes):
    """Change keys of a result, in results.json that of the first row."""
    value = json.loads(path.read_text())
    if isinstance(value, list):
        value[0].update(changes)
    else:
        value = sealed.add_digest(value | changes)
    path.write_text(json.dumps(value))


BAD_ROWS = {
    "excess_risk": [0.1],
    "pi": [[0.5, 0.5]],
    "clusters": [],
    "true_clusters": [0, 1],
    "ari": None,
    "worst_agent": 99,
    "agents": [0, 0],
    "faa": float("nan"),
    "avg_loss": float("inf"),
    "agnostic_loss": 1e300,
    "acc": None,
    "rounds_to": {"many": 3},
    "gap_se": {"fedavg": [0.1]},
    "faa_interval": {"low": 0},
    "loss": [],
    "n": [-1] * 10,
    "names": "aarau",
    "history": {"round": [1], "avg_loss": [], "agnostic_loss": [], "avg_acc": None, "pi": None},
}


@pytest.mark.parametrize("key", BAD_ROWS)
def test_a_row_that_does_not_fit_is_refused_with_its_file_and_key(key, out, focusfl):
    change(out / "results.json", **{key: BAD_ROWS[key]})
    code, _, err = focusfl("report", out)
    assert code == 2 and err.count("\n") == 1 and "results.json" in err
    if key not in ("loss", "faa", "avg_loss"):  # without losses no list fits; NaN and Infinity are not JSON
        assert key in err


def test_labels_of_unequal_length_and_rows_twice_are_refused(out, focusfl):
    rows = json.loads((out / "results.json").read_text())
    (out / "results.json").write_text(json.dumps([*rows, rows[0]]))
    code, _, err = focusfl("report", out)
    assert code == 2 and "results.json" in err and "same method and seed" in err
    rows[0]["pi"][0] = [1.0]
    (out / "results.json").write_text(json.dumps(rows))
    code, _, err = focusfl("report", out)
    assert code == 2 and "results.json: pi" in err


def test_a_result_of_one_run_is_checked_as_well(out, focusfl):
    path = out / "runs/focus-seed0/result.json"
    for text in ("[]", "{}", '{"method": "focus"}', "7", "[" * 5000, "9" * 5000, "\ufeff{}"):
        path.write_text(text)
        code, _, err = focusfl("report", out)
        assert code == 2 and err.count("\n") == 1 and "result.json" in err


BAD_LINES = {
    "not JSON": "{",
    "not an object": "[1]",
    "another type": '{"round": "1", "seconds": 1}',
    "no seconds": '{"round": 1}',
    "NaN": '{"round": 1, "seconds": NaN}',
    "no agent": '{"round": 1, "seconds": 1, "dropped": {"x": "why"}}',
    "some averages": '{"round": 1, "seconds": 1, "avg_loss": 1.0}',
    "another round": '{"round": 9, "seconds": 1}',
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_of_a_history_is_named(name, out, focusfl):
    path = out / "runs/focus-seed0" / history.NAME
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0].replace('"round": 1', '"round": 0'), BAD_LINES[name], *lines[1:], ""]))
    code, _, err = focusfl("report", out)
    assert code == 2 and err.count("\n") == 1 and f"{history.NAME}: line " in err


def test_labels_in_a_history_must_be_of_this_runs_agents(out, focusfl):
    path = out / "runs/focus-seed0" / history.NAME
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(sealed.add_digest(line | {"pi": [[1.0]]})) + "\n" for line in lines))
    code, _, err = focusfl("report", out)
    assert code == 2 and history.NAME in err and "pi" in err


def test_a_last_line_that_was_cut_short_is_left_out_but_not_of_a_finished_run(out, focusfl):
    path = out / "runs/focus-seed0" / history.NAME
    whole = history.read(path.parent)
    path.write_bytes(path.read_bytes()[:-20] + b"\xff")
    assert history.read(path.parent) == whole[:-1]
    code, _, err = focusfl("report", out)
    assert code == 2 and history.NAME in err and "round 5 of 6" in err
    path.write_bytes(path.read_bytes()[:20])
    code, _, err = focusfl("report", out)
    assert code == 2 and history.NAME in err and "round 0 of 6" in err


def test_the_order_of_the_rows_changes_nothing(out, focusfl):
    pages = []
    for step in (1, -1):
        rows = json.loads((out / "results.json").read_text())
        (out / "results.json").write_text(json.dumps(rows[::step]))
        assert focusfl("report", out)[0] == 0
        pages.append((out / "report.md").read_text() + (out / "report.html").read_text())
    assert pages[0] == pages[1]


@pytest.mark.parametrize("name", ["experiment.json", "left-out.json"])
@pytest.mark.parametrize("text", ["[]", "7", "null", '{"data": 7}', "[" * 5000])
def test_settings_that_are_none_are_refused(name, text, out, focusfl):
    (out / name).write_text(text)
    code, _, err = focusfl("report", out)
    assert code == 2 and err.count("\n") == 1 and name in err


@pytest.mark.parametrize("text", ["[]", "7", '{"rows": 7}', '{"table": [[1]]}', '{"written_by": "me", "rows": []}'])
def test_a_results_file_of_the_paper_is_checked(text, tmp_path, focusfl):
    (tmp_path / "fair-mnist.small.json").write_text(text)
    code, _, err = focusfl("report", tmp_path)
    assert code == 2 and err.count("\n") == 1 and "fair-mnist.small.json" in err


# --- what is shown of hostile names

NASTY = f"\x1b]0;title\x07{EVIL}[bold]*x*[/y](z) | `a``b` :smile:"


def test_hostile_names_are_text_on_the_page_and_in_markdown(out, focusfl):
    for path in (out / "results.json", out / "runs/focus-seed0/result.json"):
        change(path, data=NASTY, names=[NASTY] * 10, bayes_kind=NASTY)
    (out / "left-out.json").write_text(json.dumps({NASTY: NASTY}))
    code, _, err = focusfl("report", out)
    assert code == 0, err
    markdown = (out / "report.md").read_text()
    assert "<img" not in markdown and "<script" not in markdown and "\x1b" not in markdown
    assert "\\[bold\\]\\*x\\*" in markdown and "&lt;img" in markdown
    assert "\x1b" not in (out / "report.html").read_text()


def test_hostile_names_do_not_reach_the_terminal(focusfl, tmp_path):
    words = ("--data", "folder", "--algorithms", "focus,local", "--rounds", 1, "--seeds", 0, "--out", "out")
    evil = tmp_path / "[bold]\x1b[31mred"
    evil.mkdir()
    for name in ("a", "b\x1b]0;title\x07", "[red]c"):
        (evil / f"{name}.csv").write_text("a,b,label\n" + "1,2,0\n3,4,1\n" * 10)
    code, out, err = focusfl("compare", *words, "--set", f"data.path={evil}")
    assert code == 0 and "\x1b" not in out + err and "[bold]\\x1b" in out and "[red]c" in err


def test_text_and_code_in_markdown():
    assert plain("a\nb") == "a\\\\nb" and plain("&lt;") == "&amp;lt;"
    assert code("``") == "``` `` ```"


def test_reasons_for_methods_left_out_are_text(tmp_path):
    (tmp_path / "left-out.json").write_text('{"fedma": 7}')
    with pytest.raises(InputError, match=r"left-out\.json"):
        read_left_out(tmp_path)
