"""focusfl study bad: agents that send wrong updates, what is run, and what the page says about it."""

import json
import sys

import pytest
import torch
from torch import nn

import focusfl as ff
from focusfl.cli import app as cli
from focusfl.core.tree import flatten
from focusfl.models import linear
from focusfl.research.studies import bad_agents, bad_agents_report
from focusfl.research.studies.attack import Attacked, Attacker
from focusfl.run.best_loss import Surrogates
from focusfl.run.loop import run
from focusfl.run.setup import Setup
from focusfl.util.errors import InputError, Interrupted

METHODS = {**bad_agents.METHODS, "FedAvg-HardCluster": ff.algorithms.HardCluster(M=2, clusters=(0, 0, 0, 1, 1))}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def final(algorithm, fed, rounds=8, **options):
    *_, done = run(Setup.of(algorithm, fed, rounds, train=ff.Train(lr=0.1, steps=3), **options))
    return flatten({"server": done.server, "agents": done.states, "loss": done.scores.loss})


def at_zero():
    network = linear(1)
    nn.init.zeros_(network[1].weight)
    return network


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_one_step_of_two_agents_by_hand(engine):
    """Loss (w x - y)^2, w = 0, lr = 0.1. x = 1, y = 2: gradient -4, theta = 0.4; x = 2, y = 1: the same.
    Multiplied by -2 the second is -0.8; the mean is -0.2."""
    fed = ff.Federation.from_agents([([[1.0]], [2.0]), ([[2.0]], [1.0])], test=[([[1.0]], [0.5])] * 2)
    algorithm, train = Attacked(ff.FedAvg(), (1.0, -2.0)), ff.Train(lr=0.1, steps=1)
    *_, done = run(Setup.of(algorithm, fed, 1, at_zero, train=train, engine=engine))
    assert float(done.server["w"]["1.weight"]) == pytest.approx((0.4 - 0.8) / 2)


@every_method
def test_if_all_agents_are_honest_the_method_is_unchanged_to_the_bit(method, ragged):
    plain, attacked = final(method, ragged), final(Attacked(method, (1.0,) * 5), ragged)
    assert plain.keys() == attacked.keys() and all(torch.equal(plain[k], attacked[k]) for k in plain)


@every_method
@pytest.mark.parametrize("factor", [0.0, 3.0, -1.0])
def test_the_engines_agree_on_who_attacks(method, factor, ragged):
    algorithm = Attacked(method, (1.0, factor, 1.0, 1.0, factor))
    a, b = (final(algorithm, ragged, engine=engine) for engine in ("serial", "vectorised"))
    for k in a:
        assert torch.allclose(a[k], b[k], rtol=1e-4, atol=1e-4), k
    honest = final(method, ragged)
    assert any(not torch.equal(a[k], honest[k]) for k in a)


@pytest.mark.parametrize("name", ["FedAvg", "FOCUS-M3", "AFL", "CFL", "IFCA", "FedEM", "Local"])
def test_if_all_agents_send_back_what_they_received_no_model_moves(name, ragged):
    algorithm = Attacked(bad_agents.METHODS[name], (0.0,) * 5)
    first = flatten(algorithm.start(Setup.of(algorithm, ragged, 1).networks, 5))
    last = final(algorithm, ragged)
    models = [k for k in first if k.startswith("w/")]
    assert models and all(torch.allclose(last[f"server/{k}"], first[k], atol=1e-6) for k in models)


def test_an_attacker_reports_true_batch_statistics_and_losses():
    class Simple:
        n, lr, trainable, log_loss = torch.tensor(3.0), 0.1, ("a",), True

        def sgd(self, w, *_):
            return {"a": w["a"] + 1, "mean": w["mean"] + 1}

        def losses(self, w, estimate=None):
            return w["a"][:, 0]

    agent, w = Attacker(Simple(), torch.tensor(-10.0)), {"a": torch.ones(2, 1), "mean": torch.ones(2, 1)}
    theta = agent.sgd(w)
    assert theta["a"].tolist() == [[-9.0], [-9.0]] and theta["mean"].tolist() == [[2.0], [2.0]]
    assert agent.losses(w).tolist() == [1.0, 1.0] and agent.n == 3


def test_an_attacker_that_breaks_its_own_model_does_not_end_the_run(ragged):
    *_, plain = run(Setup.of(ff.Local(), ragged, 8), eval_every=0)
    *_, attacked = run(Setup.of(Attacked(ff.Local(), (1.0,) * 4 + (1e30,)), ragged, 8), eval_every=0)
    for k, v in flatten(plain.states).items():
        assert torch.equal(v[:4], flatten(attacked.states)[k][:4])


def test_a_method_that_needs_another_gets_its_clusters_under_attack():
    method = Attacked(ff.algorithms.HardCluster(M=2), (1.0, 0.0))
    needed = method.prerequisite()
    assert needed.algorithm == Attacked(ff.Focus(M=2), (1.0, 0.0))
    assert needed.with_clusters(torch.tensor([1, 0])).inner.clusters == (1, 0)
    assert (method.name, method.personal) == ("FedAvg-HardCluster", False)
    assert Attacked(ff.Local(), (0.0,)).personal and Attacked(bad_agents.METHODS["FOCUS"], (0.0,)).max_models == 10


def test_the_good_agents_are_the_same_in_every_case():
    reference = bad_agents.BASELINE.federation(3)
    assert reference.clusters.tolist() == list(bad_agents.GOOD_TURNS) and sum(reference.testing.sizes) == 315
    for case in bad_agents.CASES[1:]:
        fed = case.federation(3)
        assert fed.E == 10 and fed.clusters[:7].tolist() == list(bad_agents.GOOD_TURNS)
        for e in range(7):
            for a, b in zip((fed.train(e), fed.test(e)), (reference.train(e), reference.test(e)), strict=True):
                assert torch.equal(a.x, b.x) and torch.equal(a.y, b.y)
    assert len({case.name for case in bad_agents.CASES}) == 13


@pytest.mark.slow
def test_a_row_reports_what_the_run_did():
    case = next(case for case in bad_agents.CASES if case.name == "x-1")
    row = bad_agents.measure_run(case, "FOCUS-M3", 1, Surrogates())
    setup = case.setup(bad_agents.METHODS["FOCUS-M3"], 1)
    *_, done = run(setup)
    pooled = bad_agents.BASELINE.federation(1).pool(torch.tensor(bad_agents.GOOD_TURNS))
    alone = ff.fit(ff.Local(), pooled, rounds=bad_agents.ROUNDS, seed=1)
    assert setup.algorithm.factors == (1.0,) * 7 + (-1.0,) * 3
    assert row["acc"] == pytest.approx(float(done.scores.acc[:7].mean()))
    assert row["worst"] == pytest.approx(float(done.scores.acc[:7].min()))
    assert row["loss"] == pytest.approx(float(done.scores.loss[:7].mean()))
    best = alone.scores.loss @ torch.tensor([4 / 7, 3 / 7])  # all agents have 45 test examples
    assert row["excess"] == pytest.approx(row["loss"] - float(best), abs=1e-5)
    assert row["largest"] >= row["excess"] and len(row["groups"]) == 10


def row(case, method, seed, acc, ari=None):
    measured = {"acc": acc, "excess": None if acc is None else 1 - acc, "ari": ari, "commit": "c"}
    return (case, method, seed), {"case": case, "method": method, "seed": seed, **measured}


def cells(page, heading, name):
    """The cells of a method in the first table below a heading, by column."""
    lines = page.split(f"## {heading}\n")[1].splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return next(dict(zip(table[0], line, strict=True)) for line in table if line[0] == name)


def test_the_page_shows_what_hand_made_rows_say():
    rows = dict(
        [
            *(row("without", "FOCUS", seed, acc, 1.0) for seed, acc in enumerate((0.90, 0.92))),
            *(row("random-labels", "FOCUS", seed, acc, 1.0) for seed, acc in enumerate((0.89, 0.924))),
            *(row("zero-updates", "FOCUS", seed, acc, ari) for seed, acc, ari in ((0, 0.88, 0.0), (1, 0.91, 1.0))),
            *(row("x10", "FOCUS", seed, acc) for seed, acc in enumerate((0.90, None))),
            *(row("x100", "FOCUS", seed, None) for seed in range(2)),
            row("tiny", "FOCUS", 0, 0.93, 1.0),
            row("tiny", "FedAvg", 0, 0.93),
        ]
    )
    page = bad_agents_report.markdown(2, rows)
    shown = cells(page, "Accuracy", "FOCUS")
    assert shown["without"] == "91.0" and shown["random-labels"] == "-0.3" and shown["zero-updates"] == "-1.5"
    assert shown["x10"] == "+0.0 (1 diverged)" and shown["x100"] == "diverged" and shown["x-1"] == "missing"
    assert shown["tiny"] == "+3.0 (1 missing)" and cells(page, "Accuracy", "FedAvg")["tiny"] == "missing"
    assert cells(page, "Excess risk", "FOCUS")["random-labels"] == "0.093"
    assert cells(page, "Clusters", "FOCUS")["zero-updates"] == "1 of 2"
    assert cells(page, "Diverged", "FOCUS")["x10"] == "1 of 2"
    assert "Missing: 668 of 680 runs." in page  # 17 methods, 20 cases, 2 seeds, 12 rows
    unharmed, harmed, missing = next(line for line in page.splitlines() if line.startswith("- FOCUS:")).split(";")
    assert "random-labels" in unharmed and "0.5" in unharmed and "zero-updates" not in unharmed
    assert "zero-updates (-1.5), x10 (+0.0 (1 diverged)), x100 (diverged)" in harmed and "tiny" in missing
    assert "| random-labels | FOCUS | -0.3 | 0.7 | -1.0 | 2 | yes |" in page
    assert "| zero-updates | FOCUS | -1.5 | 0.5 | -2.0 | 2 | no |" in page
    assert "| zero-updates | FOCUS-clip | missing | - | - | 0 | missing |" in page
    more = bad_agents_report.markdown(1, rows)  # seeds beyond those requested count, and none of them is missing
    assert "Missing: 333 of 340 runs." in more and cells(more, "Accuracy", "FOCUS")["random-labels"] == "-0.3"
    assert "## Diverged" not in bad_agents_report.markdown(1, dict([row("without", "FOCUS", 0, 0.9)]))


def test_the_page_says_who_withstands_which_lie():
    def lied(method, acc, refused, wronged=0):
        key, values = row("share-6", method, 0, acc)
        return key, {**values, "refused": refused, "wronged": wronged}

    accuracies = {"FOCUS": (0.895, 1.0), "FedAvg": (0.3, 0.25), "AFL": (None, None)}
    rows = dict(row("without", method, 0, 0.9) for method in accuracies)
    rows |= dict(
        lied(method, acc, refused, wronged=0 if acc else None) for method, (acc, refused) in accuracies.items()
    )
    page = bad_agents_report.markdown(1, rows)
    lines = [line for line in page.splitlines() if line.startswith("| FOCUS |") and "100 %" in line]
    assert "-0.5 / 100 %" in lines[0]
    assert "| share-6 | FOCUS | FedAvg, AFL |" in page
    assert "refused: 0 of 560." in page  # 2 runs that did not diverge, 40 rounds, 7 good agents


@pytest.mark.slow
def test_liars_are_refused_and_cost_the_good_agents_nothing():
    case = next(case for case in bad_agents.LYING if case.name == "share-6")
    lied = bad_agents.measure_run(case, "FedAvg", 0, Surrogates())
    alone = bad_agents.measure_run(bad_agents.BASELINE, "FedAvg", 0, Surrogates())
    assert lied["refused"] == 1 and lied["wronged"] == 0
    assert lied["acc"] == alone["acc"]


def test_the_deviation_is_that_of_the_median_cell():
    accuracies = {"tiny": (0.8, 0.9), "x10": (0.85, 0.85), "x-1": (0.7, 0.9)}  # sd 7.1, 0 and 14.1 points
    rows = dict(row("without", "FOCUS", seed, 0.9) for seed in range(2))
    rows |= dict(
        row(case, "FOCUS", seed, acc) for case, both in accuracies.items() for seed, acc in enumerate(both)
    )
    outcomes = [bad_agents_report.Outcome("FOCUS", case, 2, rows) for case in bad_agents.CASES]
    assert bad_agents_report.median_deviation(outcomes) == pytest.approx(100 * 0.1 / 2**0.5)
    assert bad_agents_report.median_deviation(outcomes[:1]) is None


@pytest.fixture
def study(monkeypatch, capsys, tmp_path):
    """The command in an empty folder, with two rounds per run; returns the exit code and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bad_agents, "ROUNDS", 2)

    def call(*words):
        words = ["study", "bad", "--cells", "c", "--results", "r", *words]
        monkeypatch.setattr(sys, "argv", ["focusfl", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code, capsys.readouterr().err

    return call


def test_the_command_runs_what_is_selected_and_resumes(study, tmp_path, monkeypatch):
    started, measure_run = [], bad_agents.measure_run

    def counted(case, method, seed, *rest):
        if len(started) == 3:
            raise Interrupted("stopped after round 1 of 2")
        started.append((case.name, method))
        return measure_run(case, method, seed, *rest)

    only = ("--only", "FedAvg", "--only", "Local", "--only", "x-10", "--seeds", 1)
    monkeypatch.setattr(bad_agents, "measure_run", counted)
    code, err = study(*only)
    assert code == 130 and "resume" in err
    assert started == [("without", "FedAvg"), ("without", "Local"), ("x-10", "FedAvg")]
    monkeypatch.setattr(bad_agents, "measure_run", measure_run)
    assert study(*only) == (0, "")
    rows = json.loads((tmp_path / "r/bad.json").read_text())["rows"]
    page = (tmp_path / "r/bad.md").read_text()
    assert len((tmp_path / "c/bad.jsonl").read_text().splitlines()) == len(rows) == 4
    assert cells(page, "Accuracy", "Local")["x-10"] == "+0.0"  # nothing is shared
    acc = {(r["case"], r["method"]): r["acc"] for r in rows}
    change = 100 * (acc["x-10", "FedAvg"] - acc["without", "FedAvg"])
    assert cells(page, "Accuracy", "FedAvg")["x-10"] == f"{change:+.1f}"
    code, err = study("--only", "FedAvgg")
    assert code == 2 and "FedAvgg" in err and "FedAvg-HardCluster" in err and "x-10" in err


def test_a_stored_run_with_other_settings_does_not_count(study, tmp_path, monkeypatch):
    study("--only", "FedAvg", "--only", "without", "--seeds", 1)
    assert len(bad_agents.read(tmp_path / "c", tmp_path / "r")) == 1
    monkeypatch.setattr(bad_agents, "ROUNDS", 3)
    assert not bad_agents.read(tmp_path / "c", tmp_path / "r")
    with pytest.raises(InputError, match="random-labels"):
        bad_agents.select(["nobody"])


@pytest.mark.slow
def test_a_run_that_diverges_has_no_numbers(monkeypatch):
    monkeypatch.setattr(bad_agents, "ROUNDS", 30)
    case = bad_agents.Case("broken", "", factor=1e30)
    row = bad_agents.measure_run(case, "FedAvg", 0, Surrogates())
    assert row["acc"] is None and row["excess"] is None
    assert bad_agents.measure_run(case, "Local", 0, Surrogates())["acc"] > 0.5
