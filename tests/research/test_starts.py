"""focusfl study start: finished runs are stored one by one; the page shows their results and what is missing."""

import json
import statistics
import sys

import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from focusfl.cli import app as cli
from focusfl.models.task import InitialWeights
from focusfl.research.studies import starts, starts_report
from focusfl.run.best_loss import Surrogates
from focusfl.run.loop import run
from focusfl.util.errors import Diverged, InputError, Interrupted

TINY = ("synthetic-paper", "auto-synthetic-even-2")


@pytest.fixture
def study(monkeypatch, capsys, tmp_path):
    """The command in an empty folder; returns the exit code and stderr."""
    monkeypatch.chdir(tmp_path)
    few = [case for case in starts.all_cases() if case.name in TINY]
    short = [starts.Case(c.name, c.data, {**c.options, "n": 30}, c.clusters, 5, 0.1, c.starts) for c in few]
    monkeypatch.setattr(starts, "all_cases", lambda: short)

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
    """The cells of the first table line that begins with these cells."""
    for line in page.splitlines():
        row = [cell.strip() for cell in line.strip("|").split("|")]
        if row[: len(begin)] == list(begin):
            return row
    raise AssertionError(f"no line {begin}")


@pytest.mark.slow
def test_the_tables_show_what_the_rows_say(study, tmp_path):
    assert study("--seeds", 2) == (0, "")
    rows = json.loads((tmp_path / "r/start.json").read_text())["rows"]
    page = (tmp_path / "r/start.md").read_text()
    assert len(rows) == len(lines(tmp_path)) == 2 * 3 + 2 and "missing" not in page.lower()
    for start in ("split", "tied", "independent"):
        same = [row for row in rows if (row["case"], row["start"]) == ("synthetic-paper", start)]
        correct = [row for row in same if row["ari"] == 1]
        _, _, share, since, acc, loss, worst, faa = cells(page, "synthetic-paper", start)
        assert share == f"{len(correct)} of 2" and acc == "-"
        assert since == (f"{statistics.median(row['since'] for row in correct):.3g}" if correct else "-")
        assert loss == f"{sum(row['loss'] for row in same) / 2:.4f}"
        assert worst == f"{sum(row['worst'] for row in same) / 2:.4f}"
        assert faa == f"{sum(row['faa'] for row in same) / 2:.4f}"
    auto = [row for row in rows if row["start"] == "auto"]
    number, clusters = cells(page, "auto-synthetic-even-2")[2:]
    assert number == f"{sum(row['clusters'] == 2 for row in auto)} of 2"
    assert clusters == f"{sum(row['ari'] == 1 for row in auto)} of 2"


def test_a_row_reports_what_the_run_did():
    case = starts.select(["synthetic-three"])[0]
    setup = case.setup("split", 3)
    correct = []
    for done in run(setup):
        pi = setup.engine.labels(setup.algorithm, done.server, done.states)
        correct.append(adjusted_rand_score(setup.fed.clusters.tolist(), pi.argmax(1).tolist()) == 1)
    row = starts.measure_run(case, "split", 3, Surrogates())
    assert row["since"] == (len(correct) - correct[::-1].index(False) + 1 if correct[-1] else None)
    assert row["loss"] == pytest.approx(float(done.scores.loss.mean()))
    assert row["worst"] == pytest.approx(float(done.scores.loss.max()))
    assert row["clusters"] == len(set(pi.argmax(1).tolist())) and row["acc"] is None


def test_a_killed_study_resumes_and_repeats_nothing(study, tmp_path, monkeypatch):
    started, measure_run = [], starts.measure_run

    def counted(case, start, seed, *rest):
        if len(started) == 2:
            raise Interrupted("stopped after round 1 of 5")
        started.append((case.name, start, seed))
        return measure_run(case, start, seed, *rest)

    def noted(case, start, seed, *rest):
        again.append(start)
        return measure_run(case, start, seed, *rest)

    monkeypatch.setattr(starts, "measure_run", counted)
    code, err = study("--seeds", 1)
    assert code == 130 and "resume" in err
    page = (tmp_path / "r/start.md").read_text()
    assert "Missing: 2 of 4 runs." in page and "No case is complete" in page
    assert cells(page, "synthetic-paper", "independent")[2:] == ["missing", "-", "-", "-", "-", "-"]
    assert cells(page, "synthetic-paper", "missing") and cells(page, "auto-synthetic-even-2", "2", "missing")

    before = (tmp_path / "c/start.jsonl").read_text()
    (tmp_path / "c/start.jsonl").write_text(before + before[:40])  # killed while writing
    again = []
    monkeypatch.setattr(starts, "measure_run", noted)
    assert study("--seeds", 1)[0] == 0 and again == ["independent", "auto"]
    assert (tmp_path / "c/start.jsonl").read_text().startswith(before)
    assert "missing" not in (tmp_path / "r/start.md").read_text().lower()
    (tmp_path / "c/start.jsonl").unlink()
    assert study("--seeds", 1)[0] == 0 and len(again) == 2  # start.json has the runs too


@pytest.mark.slow
def test_a_selection_of_cases_and_seeds(study, tmp_path):
    assert study("--only", "auto", "--seeds", 1)[0] == 0
    assert [row["case"] for row in lines(tmp_path)] == ["auto-synthetic-even-2"]
    assert study("--only", "auto", "--seeds", 2)[0] == 0
    page = (tmp_path / "r/start.md").read_text()
    assert [row["seed"] for row in lines(tmp_path)] == [0, 1] and "Missing: 6 of 8 runs." in page
    code, err = study("--only", "nothing")
    assert code == 2 and "nothing" in err and "synthetic-paper" in err


def test_a_stored_run_with_other_settings_does_not_count(study, tmp_path):
    study("--only", "auto", "--seeds", 1)
    row = lines(tmp_path)[0]
    row["settings"]["n"] = 31
    del row["digest"]  # an edit on purpose
    (tmp_path / "c/start.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "r/start.json").unlink()
    assert not starts.read(tmp_path / "c", tmp_path / "r", starts.all_cases())


def test_a_run_that_diverges_is_not_correct(monkeypatch):
    def diverges(*_):
        raise Diverged("training diverged")

    monkeypatch.setattr(starts, "_measure", diverges)
    case = starts.select(["synthetic-paper"])[0]
    row = starts.measure_run(case, "tied", 0, Surrogates())
    summary = starts_report.summarise(case, "tied", 1, {(case.name, "tied", 0): row})
    assert summary.correct == 0 and summary.diverged == 1 and summary.share(0) == "0 of 1 (1 diverged)"


def summary_of(correct, loss, worst, acc=None, finished=10, faa=0.1):
    case = starts.select(["synthetic-paper"])[0]
    return starts_report.Summary(case, "split", finished, 10, correct, correct, 3.0, acc, loss, worst, faa, 0)


def test_no_worse_than_the_best_of_the_others():
    others = [summary_of(9, 0.2, 0.5), summary_of(7, 0.1, 0.3)]
    assert starts_report.worse_in(summary_of(9, 0.101, 0.3), others) == []
    assert starts_report.worse_in(summary_of(8, 0.11, 0.4), others) == ["correct runs", "loss", "worst loss"]
    assert starts_report.worse_in(summary_of(9, 0.1, 0.3, finished=9), others) is None
    others = [summary_of(9, 0.2, 0.5, 0.95), summary_of(7, 0.1, 0.5, 0.90)]
    assert starts_report.worse_in(summary_of(9, 0.1, 0.5, 0.946), others) == []
    assert starts_report.worse_in(summary_of(9, 0.1, 0.5, 0.94), others) == ["accuracy"]
    assert starts_report.worse_in(summary_of(9, 0.1, 0.5, 0.95, faa=0.103), others) == ["FAA"]


def test_the_cases_are_what_their_names_say():
    every = {case.name: case for case in starts.all_cases()}
    assert len(every) == len(starts.all_cases())
    synthetic = [case for name, case in every.items() if name.startswith("synthetic-")]
    assert len(synthetic) == 10
    for case in synthetic:
        assert case.options.get("R", 1.0) > 4 * case.options.get("r", 0.01)
    for case in every.values():
        if case.data in (starts.synthetic, starts.rotated_digits, starts.mirrored_digits):  # the quick ones
            assert len(case.data(seed=1, **case.options).clusters.unique()) == case.clusters
    with pytest.raises(InputError, match="digits-four"):
        starts.select(["digit"])


def test_long_runs_have_fewer_seeds_and_a_start_names_its_warm_up_or_extra_clusters():
    case = starts.select(["warmup-mnist-raw"])[0]
    assert len(case.runs(10)) == 2 * len(starts.WARMUP_ROUNDS) and len(case.runs(1)) == len(starts.WARMUP_ROUNDS)
    setup = starts.select(["warmup-digits-lone"])[0].setup("split:25", 0)
    assert (setup.algorithm.init, setup.algorithm.warmup, setup.algorithm.M) == ("split", 25, 2)
    assert starts.select(["more-synthetic-three"])[0].setup("split+2", 0).algorithm.M == 5


@pytest.mark.slow
def test_rounds_to_an_accuracy_are_those_of_the_run(tmp_path):
    case = starts.Case("full", starts.rotated_digits, {"turns": [0, 0, 1, 1]}, 2, 12, 1, ("split",), 1, True)
    row = starts.measure_run(case, "split", 0, Surrogates())
    acc = [float(done.scores.acc.mean()) for done in run(case.setup("split", 0))]
    for goal, at in row["rounds_to"].items():
        assert at == next((t for t, a in enumerate(acc, 1) if a >= float(goal)), None)
    page = starts_report.markdown([case], 1, {("full", "split", 0): row | {"commit": "x"}})
    assert cells(page, "full", "split", "0")[3:] == [str(at or "-") for at in row["rounds_to"].values()]


def test_the_first_weights_are_standard_normal():
    w = InitialWeights(lambda: starts.standard_normal_linear(5000), 0).independent(2)["1.weight"]
    assert abs(float(w.mean())) < 0.05 and abs(float(w.std()) - 1) < 0.05


def test_a_mirror_swaps_left_and_right():
    plain, seen = starts.mirrored_digits(2, (0, 1, 0)), starts.mirrored_digits(2, (0, 1, 4))
    assert torch.equal(seen.train(2).x, plain.train(2).x.flip(-1)) and torch.equal(seen.test(1).x, plain.test(1).x)
    assert seen.clusters.tolist() == [0, 1, 2] and plain.clusters.tolist() == [0, 1, 0]


def test_an_edited_run_is_noticed(study, tmp_path):
    study("--only", "auto", "--seeds", 1)
    for path in (tmp_path / "c/start.jsonl", tmp_path / "r/start.json"):
        whole = path.read_text()
        path.write_text(whole.replace('"seed": 0', '"seed": 1').replace('"seed":0', '"seed":1'))
        with pytest.raises(InputError, match=f"{path.name}.*edited"):
            starts.read(tmp_path / "c", tmp_path / "r", starts.all_cases())
        path.write_text(whole)
    assert len(starts.read(tmp_path / "c", tmp_path / "r", starts.all_cases())) == 1
