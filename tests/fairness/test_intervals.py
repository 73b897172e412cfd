"""Intervals of FAA: they hold the truth where it is known, and noise alone makes no method worse than another."""

import io
import json
import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import focusfl as ff
from focusfl.fairness import examples, intervals, metrics
from focusfl.fairness.examples import Examples, standard_error
from focusfl.fairness.intervals import Interval, difference, over_seeds
from focusfl.report import terminal
from focusfl.report.certainty import faa_difference, faa_table
from focusfl.report.html.page import page
from focusfl.report.markdown import report as markdown
from focusfl.report.rows import by_method
from focusfl.research import coverage
from focusfl.research.coverage import CASES, Case, N, groups
from focusfl.run.compare import compare
from focusfl.run.experiment import Experiment
from focusfl.run.folder import from_folder
from focusfl.util.errors import InputError

risk = st.integers(-400, 400).map(lambda k: k / 8)  # eighths: shifts and powers of two are exact
error = st.integers(1, 32).map(lambda k: k / 8)
agents = st.lists(st.tuples(risk, error), min_size=2, max_size=12, unique_by=lambda pair: pair[0])
both = agents.map(lambda pairs: tuple(torch.tensor(v).double() for v in zip(*pairs, strict=True)))
limits = st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)).map(lambda v: Interval(*sorted(v)))


@given(both)
def test_an_interval_holds_the_faa_that_was_measured_and_the_corrected_one(agents):
    found = intervals.faa(*agents)
    assert 0 <= found.low <= found.estimate <= metrics.faa(agents[0]) + 1e-9 <= found.high + 1e-9


@given(both, risk, st.integers(-6, 6).map(lambda k: 2.0**k))
def test_what_all_agents_pay_alike_and_the_unit_change_nothing(agents, shift, unit):
    one, other = intervals.faa(*agents), intervals.faa(unit * (agents[0] + shift), unit * agents[1])
    assert torch.allclose(torch.tensor(other) / unit, torch.tensor(one), atol=1e-6)


@given(both, st.randoms())
def test_the_order_of_the_agents_changes_nothing(agents, random):
    order = list(range(len(agents[0])))
    random.shuffle(order)
    one, other = intervals.faa(*agents), intervals.faa(agents[0][order], agents[1][order])
    assert torch.allclose(torch.tensor(one), torch.tensor(other), atol=1e-6)


@given(both)
def test_without_noise_there_is_nothing_to_correct(agents):
    gap = metrics.faa(agents[0])
    assert intervals.faa(agents[0], torch.zeros_like(agents[1])) == (gap, gap, gap)


magnitude = st.one_of(st.just(0.0), st.floats(-12, 12).map(lambda k: 10.0**k))
of_any_size = st.lists(st.tuples(magnitude, magnitude), min_size=2, max_size=10)


@given(of_any_size, st.booleans())
def test_an_interval_of_numbers_of_any_size_is_found_and_in_order(agents, ties):
    x, se = (torch.tensor(v, dtype=torch.double) for v in zip(*agents, strict=True))
    x = x if not ties else x.new_tensor([0.0, 1.0]).repeat(len(x))[: len(x)]
    gap = metrics.faa(x)
    for found in (intervals.faa(x, se), intervals.middle_interval(x, se)):
        assert 0 <= found.low <= found.estimate <= found.high < math.inf
    assert intervals.faa(x, se).low <= gap * (1 + 1e-9)


@given(st.lists(magnitude, min_size=2, max_size=6))
def test_the_steepest_pair_of_noise_is_that_of_all_pairs(errors):
    s, every = torch.tensor(errors, dtype=torch.double), torch.arange(len(errors))
    found = intervals.steepest_noise(s, every, every, times=200)
    unit = s.clamp_min(1e-9 * float(s.max())) if s.any() else torch.ones_like(s)
    z = torch.cat([z.double() for z in intervals.draws(len(s), 200)]) * unit
    pairs = (z[:, :, None] - z[:, None, :]) / (unit[:, None] + unit)
    assert torch.allclose(found, pairs.flatten(1).amax(1), rtol=1e-6)


def test_an_agent_without_noise_is_the_limit_of_one_with_little():
    x, se = torch.tensor([0.0, 1.0, 5.0]), torch.tensor([0.0, 0.5, 0.5])
    without, little = intervals.faa(x, se), intervals.faa(x, se + torch.tensor([1e-6, 0.0, 0.0]))
    assert torch.allclose(torch.tensor(without), torch.tensor(little), atol=1e-4)
    assert intervals.shrunk(x, torch.zeros(3)).tolist() == x.tolist()
    assert not intervals.shrunk(x, se).isnan().any()


def test_errors_of_which_some_are_tiny_end_the_search():
    s = torch.tensor([1e-7] * 5 + [0.1] * 5)
    assert intervals.tied(torch.arange(10.0), s, 0.95, [torch.tensor(3)])[0].tolist() == [3]


@given(st.lists(error, min_size=2, max_size=12), risk)
def test_agents_that_measure_equal_may_be_perfectly_fair(errors, level):
    se = torch.tensor(errors)
    found = intervals.faa(torch.full_like(se, level), se)
    assert found.low == found.estimate == 0 and found.high > 0


@given(limits, limits, st.floats(-1, 1))
def test_a_difference_turned_round_is_its_opposite(a, b, rho):
    one, other = difference(a, b, rho), difference(b, a, rho)
    assert torch.allclose(torch.tensor(one), -torch.tensor(other[::-1]), atol=1e-6)
    assert one.low <= one.estimate <= one.high


@given(limits)
def test_one_seed_says_no_more_than_its_own_interval(one):
    assert over_seeds([one]) == pytest.approx(one)
    assert over_seeds([one] * 3) == pytest.approx(one)


def test_seeds_that_differ_count_by_students_t():
    runs = [Interval(v - 0.01, v, v + 0.01) for v in (1.0, 2.0, 3.0)]
    found = over_seeds(runs)  # t of 2 degrees 4.303, standard error 1/sqrt(3)
    assert found == pytest.approx((2 - 4.303 / 3**0.5, 2, 2 + 4.303 / 3**0.5), abs=1e-3)


# --- the truth is known


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["10 agents, 10 apart", "10 equal", "7 and 3, 10 apart", "squared errors, 9 and 1"]
)
def test_the_interval_holds_the_truth_nineteen_times_in_twenty(name):
    case, rng = CASES[name], torch.Generator().manual_seed(5)
    draws = [case.examples(case.noise(rng)) for _ in range(200)]
    found = [intervals.faa(examples.agent_means(one), standard_error(one)) for one in draws]
    truth = metrics.faa(case.risk.double() / math.sqrt(N))
    held = sum(i.low <= truth + 1e-9 <= i.high for i in found)
    assert 180 <= held <= 199  # 190 +- 3 standard deviations; never by being endless
    assert max(i.high - i.low for i in found) < 10 * max(float(standard_error(one).max()) for one in draws)


def test_of_equal_agents_the_measured_faa_is_noise_and_the_corrected_one_is_not():
    case, rng = CASES["10 equal"], torch.Generator().manual_seed(6)
    found = []
    for _ in range(50):
        one = case.examples(case.noise(rng))
        x, s = examples.agent_means(one), standard_error(one)
        found.append((metrics.faa(x), intervals.faa(x, s).estimate, intervals.middle(x)))
    measured, corrected, _ = np.mean(found, 0) * math.sqrt(N)
    assert measured > 2.7 and corrected < 1  # the range of ten normal numbers is 3.1


def exact(fed_of, seed, method, rounds):
    """A trained model's FAA by the exact risks of synthetic data, |w - mu_e|^2, and its result."""
    result = ff.fit(method, fed_of(seed), rounds=rounds)
    clean, w = fed_of(seed, sigma=0.0), result.server["w"]["1.weight"][0, 0].double()
    mu = [np.linalg.lstsq(*(v.double().numpy() for v in clean.test(e)), rcond=None)[0] for e in range(clean.E)]
    return metrics.faa((torch.tensor(np.array(mu)) - w).square().sum(1)), result


@pytest.mark.slow
@pytest.mark.parametrize(("R", "rounds"), [(1.0, 10), (0.0, 20)])
def test_the_interval_of_a_trained_model_holds_its_exact_faa(R, rounds):
    def fed(seed, sigma=0.1):
        return ff.data.synthetic(seed=seed, R=R, n=40, n_test=400, sigma=sigma)

    held, off = 0, []
    for seed in range(30):
        truth, result = exact(fed, seed, ff.FedAvg(), rounds)
        i = result.faa_interval
        held += i.low <= truth <= i.high
        off.append((abs(result.faa - truth), abs(i.estimate - truth)))
    assert held >= 26
    measured, corrected = np.mean(off, 0)
    assert corrected < (0.5 if R == 0 else 1.02) * measured


def test_normal_noise_does_what_resampling_examples_does():
    case, rng = Case(groups((5, 0), (5, 3)), CASES["rare errors, 10 equal"].kind), np.random.default_rng(0)
    one = case.examples(case.noise(torch.Generator().manual_seed(0)))
    rows, s = one.excess.reshape(10, N).numpy(), standard_error(one)
    again = np.stack([row[rng.integers(0, N, (2000, N))].mean(1) for row in rows], 1)
    normal = torch.cat([examples.agent_means(one) + s * z for z in intervals.draws(10)])
    resampled, drawn = np.ptp(again, axis=1), (normal.amax(1) - normal.amin(1)).numpy()
    q = [0.025, 0.25, 0.5, 0.75, 0.975]
    assert np.abs(np.quantile(resampled, q) - np.quantile(drawn, q)).max() < 0.15 * float(s.mean())


def test_many_agents_need_no_more_memory():
    sizes = [z.numel() for z, _ in zip(intervals.draws(100_000), range(2), strict=False)]
    assert max(sizes) <= intervals.MAX_NUMBERS
    x = torch.randn(3000, generator=torch.Generator().manual_seed(0))
    found, middle = intervals.faa(x, torch.ones(3000)), intervals.middle_interval(x, torch.ones(3000))
    assert found.low < 1.5 and middle.low == 0 and middle.high < found.high  # noise of size 1 explains all of it


# --- from examples


def test_standard_errors_by_hand_wider_for_few_examples():
    rng = np.random.default_rng(0)
    values, sizes = rng.exponential(size=1009), (1000, 9)
    one = Examples(torch.tensor(values), torch.tensor([0, 1000, 1009]))
    by_hand = [part.std(ddof=1) / len(part) ** 0.5 for part in (values[:1000], values[1000:])]
    wider = [1.9623 / 1.96, 2.306 / 1.96]  # Student's t of 999 and of 8 degrees against the normal
    assert standard_error(one).numpy() == pytest.approx(np.array(by_hand) * wider, rel=1e-3)
    assert examples.agent_means(one).numpy() == pytest.approx([values[:1000].mean(), values[1000:].mean()])
    assert sizes == tuple(one.at.diff())


def test_the_noise_of_a_method_is_its_own_and_not_anothers():
    case, rng = CASES["9 and 1, 20 apart"], torch.Generator().manual_seed(0)
    one, other = (case.examples(case.noise(rng)) for _ in range(2))
    assert examples.correlation(one, one) == pytest.approx(1)
    assert abs(examples.correlation(one, other)) < 0.2
    turned = Examples(-one.excess, one.at)  # its worst agent is the other's best
    assert examples.correlation(one, turned) == pytest.approx(1)  # and both gaps grow by the same noise


def test_without_noise_nothing_correlates():
    one, at = torch.arange(6.0), torch.tensor([0, 3, 6])
    assert examples.correlation(Examples(one, at), Examples(torch.zeros(6), at)) == 0
    still = Examples(torch.tensor([1.0, 1.0, 1.0, 0.0, 2.0, 5.0]), at)  # the first agent's is always the same
    assert -1 <= examples.correlation(still, Examples(one, at)) <= 1


def test_a_surrogates_losses_are_paired_with_the_methods(ragged):
    result = ff.fit(ff.FedAvg(), ragged, rounds=3)
    assert result.best.kind == "true"
    assert torch.allclose(examples.agent_means(result.examples).float(), result.excess_risk, atol=1e-5)
    e = 4
    p = result.predict(e, ragged.test(e).x)
    loss = -p[torch.arange(len(p)), ragged.test(e).y].log()
    at = ragged.testing.offsets
    assert torch.allclose(result.examples.excess[at[e] :], loss - result.best.examples[at[e] :], atol=1e-5)
    assert f"{result.faa_interval.low:.4f} to {result.faa_interval.high:.4f}" in result.table()


def test_there_is_no_noise_if_the_method_is_the_best_loss(ragged):
    assert ff.fit(ff.Local(), ragged, rounds=3, bayes="agent").faa_interval == (0, 0, 0)


def test_one_test_example_says_nothing_about_its_noise(tmp_path):
    fed = ff.data.synthetic(n_test=1)
    result = ff.fit(ff.FedAvg(), fed, rounds=2)
    assert result.faa_interval is None and "FAA" in result.table()
    said = {
        "data": {"name": "synthetic", "n_test": 1},
        "algorithms": ["fedavg", "local"],
        "seeds": [0],
        "rounds": 2,
    }
    rows = compare(Experiment.parse(said), tmp_path / "r", progress=False, note=lambda line: None)
    assert len(rows) == 2 and "faa_interval" not in rows[0] and faa_table(by_method(rows)) is None


def test_the_middle_is_for_many_agents():
    few, many = (ff.fit(ff.FedAvg(), ff.data.synthetic(E=E), rounds=2).row() for E in (10, 20))
    assert "faa90" not in few and many["faa90"] <= many["faa"]
    assert many["faa90_interval"]["low"] <= many["faa90"] <= many["faa90_interval"]["high"]


# --- compared


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("compared") / "r"
    said = {"data": "synthetic", "algorithms": ["fedavg", "fedprox", "local"], "seeds": [0, 1, 2], "rounds": 30}
    compare(Experiment.parse(said), out, progress=False, note=lambda line: None)
    return out


def read(folder):
    return json.loads((folder / "results.json").read_text())


def test_compare_keeps_intervals_and_the_correlation_of_noise(folder):
    rows = read(folder)
    for row in rows:
        assert (
            row["faa_interval"]["low"] <= row["faa"] <= row["faa_interval"]["high"] and len(row["excess_se"]) == 10
        )
    assert [list(row["faa_correlation"]) for row in rows[:3]] == [[], ["fedavg"], ["fedavg", "fedprox"]]
    assert rows[1]["faa_correlation"]["fedavg"] > 0.9  # nearly the same model


def test_pairs_separate_what_single_intervals_cannot(folder):
    runs = by_method(read(folder))
    alone = [over_seeds([Interval(**r["faa_interval"]) for r in runs[name]]) for name in ("FedAvg", "FedProx")]
    assert alone[0].low < alone[1].high and alone[1].low < alone[0].high  # they overlap
    bare = [
        [{k: v for k, v in r.items() if k != "faa_correlation"} for r in runs[k]] for k in ("FedAvg", "FedProx")
    ]
    one = [runs["FedAvg"][:1], runs["FedProx"][:1]]
    paired, _ = faa_difference(*one)
    unpaired, known = faa_difference(bare[0][:1], bare[1][:1])
    assert not known
    assert paired.estimate == unpaired.estimate and paired.high - paired.low < (unpaired.high - unpaired.low) / 3
    gap, _ = faa_difference(runs["FedAvg"], runs["Local"])
    assert gap.low > 0.5  # theory: 0.8


def test_the_tables_say_who_is_beyond_noise(folder):
    console = Console(width=80, record=True, file=io.StringIO())
    terminal.show(read(folder), {}, console)
    said = console.export_text()
    section = from_folder(folder)
    texts = [said, markdown("r", {}, section), page("r", [section])]
    assert all("above Local" in text and "beyond noise" in text and "yes" in text for text in texts)
    assert max(map(len, said.splitlines())) <= 80


def test_in_a_narrow_window_the_gap_folds_and_not_the_verdict(folder):
    said = {}
    for width in (120, 80):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(terminal.faa_intervals({f"{k}, long mu=0.1": v for k, v in by_method(read(folder)).items()}))
        said[width] = console.export_text()
    for text in said.values():
        assert text.count("yes") == said[120].count("yes") > 0 and "noise" in text


def test_results_without_intervals_are_shown_as_before(folder):
    new = ("faa_interval", "faa_correlation", "excess_se")
    rows = [{k: v for k, v in row.items() if k not in new} for row in read(folder)]
    assert faa_table(by_method(rows)) is None
    mixed = [old if old["method"] == "fedavg" else row for old, row in zip(rows, read(folder), strict=True)]
    head, lines = faa_table(by_method(mixed))
    assert all(len(line) == len(head) for line in lines)
    assert lines[0] == ["FedAvg", "-", "-", "-", "-"] and lines[1][-1] == "yes"
    some = [row for row in read(folder) if row["method"] != "local" or row["seed"] != 1]
    assert faa_table(by_method(some)) is not None  # a seed that only one of two has is left out


def test_the_fairest_is_chosen_on_the_seeds_that_all_have():
    """FedAvg is fairer on seed 0, the only one that Local has: seed 1 is harder, and Local must not gain by it."""

    def run(method, seed, faa):
        return {"method": method, "seed": seed, "faa_interval": {"low": faa, "estimate": faa, "high": faa}}

    runs = {"FedAvg": [run("fedavg", 0, 0.1), run("fedavg", 1, 0.9)], "Local": [run("local", 0, 0.2)]}
    head, lines = faa_table(runs)
    assert head[3].startswith("above FedAvg on shared seeds")
    assert lines[0][1] == "0.5" and lines[1][1] == "0.2"  # each over its own seeds
    assert lines[1][3].startswith("+0.1 ")
    tied = runs | {"Ditto": [run("ditto", 0, 0.1), run("ditto", 1, 0.3)]}
    assert faa_table(tied)[0][3].startswith("above Ditto")  # as fair on seed 0, fairer on both
    apart = {"FedAvg": [run("fedavg", 1, 0.3)], "Local": [run("local", 0, 0.2)]}
    assert faa_table(apart)[0][3].startswith("above Local")  # no seed in common: over what there is


def test_best_losses_of_older_versions_give_no_interval(tmp_path):
    said = {"data": "rotated-digits", "algorithms": ["fedavg"], "seeds": [0], "rounds": 2}
    rows = compare(Experiment.parse(said), tmp_path / "r", progress=False, note=lambda line: None)
    assert "faa_interval" in rows[0]
    next((tmp_path / "r/surrogates").glob("*.safetensors")).unlink()
    (tmp_path / "r/runs/fedavg-seed0/result.json").unlink()
    again = compare(Experiment.parse(said), tmp_path / "r", resume=True, progress=False, note=lambda line: None)
    assert "faa_interval" not in again[0] and again[0]["faa"] == rows[0]["faa"]


def test_damaged_examples_are_named(tmp_path):
    examples.save(tmp_path, Examples(torch.zeros(4), torch.tensor([0, 4])))
    path = tmp_path / examples.NAME
    assert torch.equal(examples.read(path, "at")[0], torch.tensor([0, 4]))
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(InputError, match=r"examples\.safetensors"):
        examples.read(path, "excess", "at")


def test_the_coverage_is_printed_as_tables(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["coverage", "--draws", "1"])
    coverage.main()
    said = capsys.readouterr().out
    assert "| 10 equal | " in said and said.count("| --- |") == 3 and all(name in said for name in CASES)
