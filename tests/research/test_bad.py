"""focusfl study bad: agents whose updates are bent, what is run, and what the page says of it."""

import json
import sys

import pytest
import torch
from torch import nn

import focusfl as ff
from focusfl.cli import app as cli
from focusfl.core.tree import flatten
from focusfl.models import linear
from focusfl.research.studies import bad, bad_runs, bad_summary, bad_table
from focusfl.research.studies.attack import Attacked, Bent
from focusfl.run.best_loss import Surrogates
from focusfl.run.loop import run
from focusfl.run.setup import Setup
from focusfl.util.errors import InputError, Interrupted

METHODS = {**bad.METHODS, "FedAvg-HardCluster": ff.algorithms.HardCluster(M=2, clusters=(0, 0, 0, 1, 1))}
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
    Bent by -2 the second is -0.8; the mean is -0.2."""
    fed = ff.Federation.from_agents([([[1.0]], [2.0]), ([[2.0]], [1.0])], test=[([[1.0]], [0.5])] * 2)
    algorithm, train = Attacked(ff.FedAvg(), (1.0, -2.0)), ff.Train(lr=0.1, steps=1)
    *_, done = run(Setup.of(algorithm, fed, 1, at_zero, train, engine=engine))
    assert float(done.server["w"]["1.weight"]) == pytest.approx((0.4 - 0.8) / 2)


@every_method
def test_all_honest_is_the_plain_method_to_the_bit(method, ragged):
    plain, bent = final(method, ragged), final(Attacked(method, (1.0,) * 5), ragged)
    assert plain.keys() == bent.keys() and all(torch.equal(plain[k], bent[k]) for k in plain)


@every_method
@pytest.mark.parametrize("factor", [0.0, 3.0, -1.0])
def test_the_engines_agree_on_who_is_bent(method, factor, ragged):
    algorithm = Attacked(method, (1.0, factor, 1.0, 1.0, factor))
    a, b = (final(algorithm, ragged, engine=engine) for engine in ("serial", "vectorised"))
    for k in a:
        assert torch.allclose(a[k], b[k], rtol=1e-4, atol=1e-4), k
    honest = final(method, ragged)
    assert any(not torch.equal(a[k], honest[k]) for k in a)


@pytest.mark.parametrize("name", ["FedAvg", "FOCUS-M3", "AFL", "CFL", "IFCA", "FedEM", "Local"])
def test_where_all_send_nothing_new_no_model_moves(name, ragged):
    algorithm = Attacked(bad.METHODS[name], (0.0,) * 5)
    first = flatten(algorithm.start(Setup.of(algorithm, ragged, 1).networks, 5))
    last = final(algorithm, ragged)
    models = [k for k in first if k.startswith("w/")]
    assert models and all(torch.allclose(last[f"server/{k}"], first[k], atol=1e-6) for k in models)


def test_batch_statistics_and_losses_stay_true():
    class Simple:
        n, lr, learnt = torch.tensor(3.0), 0.1, ("a",)

        def sgd(self, w, *_):
            return {"a": w["a"] + 1, "mean": w["mean"] + 1}

        def losses(self, w, rough=None):
            return w["a"][:, 0]

    agent, w = Bent(Simple(), torch.tensor(-10.0)), {"a": torch.ones(2, 1), "mean": torch.ones(2, 1)}
    theta = agent.sgd(w)
    assert theta["a"].tolist() == [[-9.0], [-9.0]] and theta["mean"].tolist() == [[2.0], [2.0]]
    assert agent.losses(w).tolist() == [1.0, 1.0] and agent.n == 3


def test_who_breaks_its_own_model_does_not_end_the_run(ragged):
    *_, plain = run(Setup.of(ff.Local(), ragged, 8), eval_every=0)
    *_, bent = run(Setup.of(Attacked(ff.Local(), (1.0,) * 4 + (1e30,)), ragged, 8), eval_every=0)
    for k, v in flatten(plain.states).items():
        assert torch.equal(v[:4], flatten(bent.states)[k][:4])


def test_a_method_that_needs_another_gets_its_clusters_under_attack():
    method = Attacked(ff.algorithms.HardCluster(M=2), (1.0, 0.0))
    assert method.first() == Attacked(ff.Focus(M=2), (1.0, 0.0))
    assert method.given(torch.tensor([1, 0])).inner.clusters == (1, 0)
    assert (method.name, method.personal) == ("FedAvg-HardCluster", False)
    assert Attacked(ff.Local(), (0.0,)).personal and Attacked(bad.METHODS["FOCUS"], (0.0,)).shows


def test_the_good_agents_are_the_same_in_every_case():
    reference = bad.WITHOUT.federation(3)
    assert reference.clusters.tolist() == list(bad.GOOD) and sum(reference.testing.sizes) == 315
    for case in bad.CASES[1:]:
        fed = case.federation(3)
        assert fed.E == 10 and fed.clusters[:7].tolist() == list(bad.GOOD)
        for e in range(7):
            for a, b in zip((fed.train(e), fed.test(e)), (reference.train(e), reference.test(e)), strict=True):
                assert torch.equal(a.x, b.x) and torch.equal(a.y, b.y)
    assert len({case.name for case in bad.CASES}) == 13


def test_a_row_is_what_the_run_did():
    case = next(case for case in bad.CASES if case.name == "x-1")
    row = bad_runs.one(case, "FOCUS-M3", 1, Surrogates())
    setup = case.setup(bad.METHODS["FOCUS-M3"], 1)
    *_, done = run(setup)
    alone = ff.fit(ff.Local(), bad.WITHOUT.federation(1).pool(torch.tensor(bad.GOOD)), rounds=bad.ROUNDS, seed=1)
    assert setup.algorithm.factors == (1.0,) * 7 + (-1.0,) * 3
    assert row["acc"] == pytest.approx(float(done.scores.acc[:7].mean()))
    assert row["worst"] == pytest.approx(float(done.scores.acc[:7].min()))
    assert row["loss"] == pytest.approx(float(done.scores.loss[:7].mean()))
    best = alone.scores.loss @ torch.tensor([4 / 7, 3 / 7])  # all agents have 45 test examples
    assert row["excess"] == pytest.approx(row["loss"] - float(best), abs=1e-5)
    assert row["largest"] >= row["excess"] and len(row["groups"]) == 10


def row(case, method, seed, acc, ari=None):
    found = {"acc": acc, "excess": None if acc is None else 1 - acc, "ari": ari, "commit": "c"}
    return (case, method, seed), {"case": case, "method": method, "seed": seed, **found}


def cells(page, heading, name):
    """The cells of the line of a method in the first table below a heading, by their column."""
    lines = page.split(f"## {heading}\n")[1].splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return next(dict(zip(table[0], line, strict=True)) for line in table if line[0] == name)


def test_the_page_says_what_hand_made_rows_say():
    known = dict(
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
    page = bad_table.markdown(2, known)
    found = cells(page, "Accuracy", "FOCUS")
    assert found["without"] == "91.0" and found["random-labels"] == "-0.3" and found["zero-updates"] == "-1.5"
    assert found["x10"] == "+0.0 (1 diverged)" and found["x100"] == "diverged" and found["x-1"] == "missing"
    assert found["tiny"] == "+3.0 (1 missing)" and cells(page, "Accuracy", "FedAvg")["tiny"] == "missing"
    assert cells(page, "Excess risk", "FOCUS")["random-labels"] == "0.093"
    assert cells(page, "Clusters", "FOCUS")["zero-updates"] == "1 of 2"
    assert cells(page, "Diverged", "FOCUS")["x10"] == "1 of 2"
    assert "Missing: 430 of 442 runs." in page  # 17 methods, 13 cases, 2 seeds, 12 rows
    assert "FOCUS loses at most 0.5 points in random-labels; more in zero-updates (-1.5), x10 (+0.0 (1 d" in page
    assert "| random-labels | FOCUS | -0.3 | 0.7 | -1.0 | 2 | yes |" in page
    assert "| zero-updates | FOCUS | -1.5 | 0.5 | -2.0 | 2 | no |" in page
    assert "| zero-updates | FOCUS-clip | missing | - | - | 0 | missing |" in page
    more = bad_table.markdown(1, known)  # seeds beyond those asked for count, and none of them is missing
    assert "Missing: 214 of 221 runs." in more and cells(more, "Accuracy", "FOCUS")["random-labels"] == "-0.3"
    assert "## Diverged" not in bad_table.markdown(1, dict([row("without", "FOCUS", 0, 0.9)]))


def test_the_spread_is_that_of_the_median_cell():
    losses = {"tiny": (0.8, 0.9), "x10": (0.85, 0.85), "x-1": (0.7, 0.9)}  # sd 7.1, 0 and 14.1 points
    known = dict(row("without", "FOCUS", seed, 0.9) for seed in range(2))
    known |= dict(row(case, "FOCUS", seed, acc) for case, both in losses.items() for seed, acc in enumerate(both))
    runs = [bad_summary.Runs("FOCUS", case, 2, known) for case in bad.CASES]
    assert bad_summary.spread(runs) == pytest.approx(100 * 0.1 / 2**0.5) and bad_summary.spread(runs[:1]) is None


@pytest.fixture
def study(monkeypatch, capsys, tmp_path):
    """The command, in an empty folder, two rounds a run; gives (exit code, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bad, "ROUNDS", 2)

    def call(*words):
        words = ["study", "bad", "--cells", "c", "--results", "r", *words]
        monkeypatch.setattr(sys, "argv", ["focusfl", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code, capsys.readouterr().err

    return call


def test_the_command_runs_what_is_asked_for_and_goes_on(study, tmp_path, monkeypatch):
    made, one = [], bad_runs.one

    def counted(case, method, seed, *rest):
        if len(made) == 3:
            raise Interrupted("stopped after round 1 of 2")
        made.append((case.name, method))
        return one(case, method, seed, *rest)

    only = ("--only", "FedAvg", "--only", "Local", "--only", "x-10", "--seeds", 1)
    monkeypatch.setattr(bad_runs, "one", counted)
    code, said = study(*only)
    assert code == 130 and "same command goes on" in said
    assert made == [("without", "FedAvg"), ("without", "Local"), ("x-10", "FedAvg")]
    monkeypatch.setattr(bad_runs, "one", one)
    assert study(*only) == (0, "")
    rows = json.loads((tmp_path / "r/bad.json").read_text())["rows"]
    page = (tmp_path / "r/bad.md").read_text()
    assert len((tmp_path / "c/bad.jsonl").read_text().splitlines()) == len(rows) == 4
    assert cells(page, "Accuracy", "Local")["x-10"] == "+0.0"  # nothing is shared
    acc = {(r["case"], r["method"]): r["acc"] for r in rows}
    lost = 100 * (acc["x-10", "FedAvg"] - acc["without", "FedAvg"])
    assert cells(page, "Accuracy", "FedAvg")["x-10"] == f"{lost:+.1f}"
    code, said = study("--only", "FedAvgg")
    assert code == 2 and "FedAvg-HardCluster" in said and "x-10" in said


def test_a_run_with_other_settings_is_not_this_run(study, tmp_path, monkeypatch):
    study("--only", "FedAvg", "--only", "without", "--seeds", 1)
    assert len(bad_runs.read(tmp_path / "c", tmp_path / "r")) == 1
    monkeypatch.setattr(bad, "ROUNDS", 3)
    assert not bad_runs.read(tmp_path / "c", tmp_path / "r")
    with pytest.raises(InputError, match="random-labels"):
        bad.chosen(["nobody"])


def test_a_run_that_diverges_has_no_numbers(monkeypatch):
    monkeypatch.setattr(bad, "ROUNDS", 30)
    case = bad.Case("broken", "", factor=1e30)
    row = bad_runs.one(case, "FedAvg", 0, Surrogates())
    assert row["acc"] is None and row["excess"] is None
    assert bad_runs.one(case, "Local", 0, Surrogates())["acc"] > 0.5
