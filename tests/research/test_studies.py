"""focusfl study start: runs are kept one by one, counted as they are, and missing where they are missing."""

import json
import statistics
import sys

import pytest
import torch
from focusfl.run.training import labels
from sklearn.metrics import adjusted_rand_score

from focusfl.cli import app as cli
from focusfl.models.task import InitialWeights
from focusfl.research.studies import cases, runs, summary, table
from focusfl.run.loop import run
from focusfl.util.errors import Diverged, InputError, Interrupted

TINY = ("synthetic-paper", "auto-synthetic-even-2")


@pytest.fixture
def study(monkeypatch, capsys, tmp_path):
    """The command, in an empty folder; gives (exit code, stderr)."""
    monkeypatch.chdir(tmp_path)
    few = [case for case in cases.cases() if case.name in TINY]
    short = [cases.Case(c.name, c.data, {**c.options, "n": 30}, c.clusters, 5, 0.1, c.starts) for c in few]
    monkeypatch.setattr(cases, "cases", lambda: short)

    def call(*words):
        words = ["study", "start", "--cells", "c", "--results", "r", *words]
        monkeypatch.setattr(sys, "argv", ["focusfl", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code, capsys.readouterr().err

    return call


def lines(tmp_path):
    return [json.loads(line) for line in (tmp_path / "c/start.jsonl").read_text().splitlines()]


def cells(page, *begin):
    """The cells of the first line of a table that begins so."""
    for line in page.splitlines():
        found = [cell.strip() for cell in line.strip("|").split("|")]
        if found[: len(begin)] == list(begin):
            return found
    raise AssertionError(f"no line {begin}")


def test_the_tables_are_what_the_rows_say(study, tmp_path):
    assert study("--seeds", 2) == (0, "")
    rows = json.loads((tmp_path / "r/start.json").read_text())["rows"]
    page = (tmp_path / "r/start.md").read_text()
    assert len(rows) == len(lines(tmp_path)) == 2 * 3 + 2 and "missing" not in page.lower()
    for start in ("split", "tied", "independent"):
        mine = [row for row in rows if (row["case"], row["start"]) == ("synthetic-paper", start)]
        right = [row for row in mine if row["ari"] == 1]
        _, _, hits, since, acc, loss, worst, faa = cells(page, "synthetic-paper", start)
        assert hits == f"{len(right)} of 2" and acc == "-"
        assert since == (f"{statistics.median(row['since'] for row in right):.3g}" if right else "-")
        assert loss == f"{sum(row['loss'] for row in mine) / 2:.4f}"
        assert worst == f"{sum(row['worst'] for row in mine) / 2:.4f}"
        assert faa == f"{sum(row['faa'] for row in mine) / 2:.4f}"
    auto = [row for row in rows if row["start"] == "auto"]
    number, clusters = cells(page, "auto-synthetic-even-2")[2:]
    assert number == f"{sum(row['clusters'] == 2 for row in auto)} of 2"
    assert clusters == f"{sum(row['ari'] == 1 for row in auto)} of 2"


def test_a_row_is_what_the_run_did():
    case = cases.chosen(["synthetic-three"])[0]
    setup = case.setup("split", 3)
    right = []
    for done in run(setup):
        pi = labels(setup.algorithm, done.server, done.states, setup.fed.E)
        right.append(adjusted_rand_score(setup.fed.clusters.tolist(), pi.argmax(1).tolist()) == 1)
    row = runs.one(case, "split", 3)
    assert row["since"] == (len(right) - right[::-1].index(False) + 1 if right[-1] else None)
    assert row["loss"] == pytest.approx(float(done.scores.loss.mean()))
    assert row["worst"] == pytest.approx(float(done.scores.loss.max()))
    assert row["clusters"] == len(set(pi.argmax(1).tolist())) and row["acc"] is None


def test_a_killed_study_goes_on_and_repeats_nothing(study, tmp_path, monkeypatch):
    made, one = [], runs.one

    def counted(case, start, seed, *rest):
        if len(made) == 2:
            raise Interrupted("stopped after round 1 of 5")
        made.append((case.name, start, seed))
        return one(case, start, seed, *rest)

    monkeypatch.setattr(runs, "one", counted)
    code, said = study("--seeds", 1)
    assert code == 130 and "same command goes on" in said
    page = (tmp_path / "r/start.md").read_text()
    assert "Missing: 2 of 4 runs." in page and "No case is complete yet" in page
    assert cells(page, "synthetic-paper", "independent")[2:] == ["missing", "-", "-", "-", "-", "-"]
    assert cells(page, "synthetic-paper", "missing") and cells(page, "auto-synthetic-even-2", "2", "missing")

    before = (tmp_path / "c/start.jsonl").read_text()
    (tmp_path / "c/start.jsonl").write_text(before + before[:40])  # killed while it wrote
    again = []
    monkeypatch.setattr(runs, "one", lambda case, start, seed, *_: again.append(start) or one(case, start, seed))
    assert study("--seeds", 1)[0] == 0 and again == ["independent", "auto"]
    assert (tmp_path / "c/start.jsonl").read_text().startswith(before)
    assert "missing" not in (tmp_path / "r/start.md").read_text().lower()
    (tmp_path / "c/start.jsonl").unlink()
    assert study("--seeds", 1)[0] == 0 and len(again) == 2  # the results are kept too


def test_only_some_cases_and_some_seeds(study, tmp_path):
    assert study("--only", "auto", "--seeds", 1)[0] == 0
    assert [row["case"] for row in lines(tmp_path)] == ["auto-synthetic-even-2"]
    assert study("--only", "auto", "--seeds", 2)[0] == 0
    page = (tmp_path / "r/start.md").read_text()
    assert [row["seed"] for row in lines(tmp_path)] == [0, 1] and "Missing: 6 of 8 runs." in page
    code, said = study("--only", "nothing")
    assert code == 2 and "synthetic-paper" in said


def test_a_run_with_other_settings_is_not_this_run(study, tmp_path):
    study("--only", "auto", "--seeds", 1)
    row = lines(tmp_path)[0]
    row["settings"]["n"] = 31
    (tmp_path / "c/start.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "r/start.json").unlink()
    assert not runs.read(tmp_path / "c", tmp_path / "r", cases.cases())


def test_a_run_that_diverges_is_a_wrong_one(monkeypatch):
    def diverges(*_):
        raise Diverged("training diverged")

    monkeypatch.setattr(runs, "_measured", diverges)
    case = cases.chosen(["synthetic-paper"])[0]
    row = runs.one(case, "tied", 0)
    line = summary.count(case, "tied", 1, {(case.name, "tied", 0): row})
    assert line.right == 0 and line.diverged == 1 and table.share(0, line) == "0 of 1 (1 diverged)"


def line(right, loss, worst, acc=None, done=10, faa=0.1):
    case = cases.chosen(["synthetic-paper"])[0]
    return summary.Line(case, "split", done, 10, right, right, 3.0, acc, loss, worst, faa, 0)


def test_no_worse_than_the_best_of_the_others():
    others = [line(9, 0.2, 0.5), line(7, 0.1, 0.3)]
    assert summary.worse(line(9, 0.101, 0.3), others) == []
    assert summary.worse(line(8, 0.11, 0.4), others) == ["right", "loss", "worst loss"]
    assert summary.worse(line(9, 0.1, 0.3, done=9), others) is None
    others = [line(9, 0.2, 0.5, 0.95), line(7, 0.1, 0.5, 0.90)]
    assert summary.worse(line(9, 0.1, 0.5, 0.946), others) == []
    assert summary.worse(line(9, 0.1, 0.5, 0.94), others) == ["accuracy"]
    assert summary.worse(line(9, 0.1, 0.5, 0.95, faa=0.103), others) == ["FAA"]


def test_the_cases_are_what_they_say():
    every = {case.name: case for case in cases.cases()}
    assert len(every) == len(cases.cases())
    synthetic = [case for name, case in every.items() if name.startswith("synthetic-")]
    assert len(synthetic) == 10
    for case in synthetic:
        assert case.options.get("R", 1.0) > 4 * case.options.get("r", 0.01)
    for case in every.values():
        if case.data in (cases.synthetic, cases.rotated_digits, cases.mirrored_digits):  # the quick ones
            assert len(case.data(seed=1, **case.options).clusters.unique()) == case.clusters
    with pytest.raises(InputError, match="digits-four"):
        cases.chosen(["digit"])


def test_long_runs_have_fewer_seeds_and_a_start_may_name_its_warm_up():
    case = cases.chosen(["warmup-mnist-raw"])[0]
    assert len(runs.wanted(case, 10)) == 2 * len(cases.WARMUPS) and len(runs.wanted(case, 1)) == len(cases.WARMUPS)
    setup = cases.chosen(["warmup-digits-lone"])[0].setup("split:25", 0)
    assert (setup.algorithm.init, setup.algorithm.warmup, setup.algorithm.M) == ("split", 25, 2)
    assert cases.chosen(["more-synthetic-three"])[0].setup("split+2", 0).algorithm.M == 5


def test_rounds_to_an_accuracy_are_those_of_the_run(tmp_path):
    case = cases.Case("full", cases.rotated_digits, {"turns": [0, 0, 1, 1]}, 2, 12, 1, ("split",), 1, reach=True)
    row = runs.one(case, "split", 0)
    acc = [float(done.scores.acc.mean()) for done in run(case.setup("split", 0))]
    for goal, at in row["rounds_to"].items():
        assert at == next((t for t, a in enumerate(acc, 1) if a >= float(goal)), None)
    page = table.markdown([case], 1, {("full", "split", 0): row | {"commit": "x"}})
    assert cells(page, "full", "split", "0")[3:] == [str(at or "-") for at in row["rounds_to"].values()]


def test_the_first_weights_are_standard_normal():
    w = InitialWeights(lambda: cases.normal(5000), 0).independent(2)["1.weight"]
    assert abs(float(w.mean())) < 0.05 and abs(float(w.std()) - 1) < 0.05


def test_a_mirror_turns_left_and_right_about():
    plain, seen = cases.mirrored_digits(2, (0, 1, 0)), cases.mirrored_digits(2, (0, 1, 4))
    assert torch.equal(seen.train(2).x, plain.train(2).x.flip(-1)) and torch.equal(seen.test(1).x, plain.test(1).x)
    assert seen.clusters.tolist() == [0, 1, 2] and plain.clusters.tolist() == [0, 1, 0]
