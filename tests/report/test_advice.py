"""Advice follows from what was measured, is given once, and never contradicts itself."""

import re

import pytest
from helpers.rows import PARAMS, base, hard, run, warned
from hypothesis import given, settings
from hypothesis import strategies as st

from focusfl.report.advice import compared_with, recommended
from focusfl.report.gains import deciding_metric, judge
from focusfl.report.sentences import WARNING, explain

ONE = {"M": "auto", "init": "split", "warmup": 3}


def test_forty_of_forty_two_agents_that_are_worse_than_alone_are_not_told_to_try_another_seed():
    """Parkinson's: one group, loss 93.1; alone 5.47, Ditto 6.03, FedSoft 5.07."""
    ours = run([0] * 42, [93.1] * 40 + [4.0] * 2, params=ONE, pi=hard([0] * 42, 8))
    rows = [base("fedavg", [93.3] * 40 + [5.0] * 2), base("local", [5.47] * 42), base("fedsoft", [5.07] * 42)]
    (line,) = warned(ours, [*rows, base("ditto", [6.03] * 42)])
    assert "agents 0-39 do worse than alone" in line and "seed" not in line and "sufficient" not in line
    assert "FedSoft serves 40 of 42 agents better" in line and "agents 40-41 worse" in line


def test_an_agent_whose_training_alone_diverged_is_left_out():
    """Of a loss too large to write down there is None: the others are compared, and nothing fails."""
    ours = run([0, 0, 0], [0.1, 0.1, 0.1], bayes_kind="validated", alone=[0.5, None, 0.5])
    (gains,) = [line for line in explain([ours]) if line.startswith("Compared with training alone")]
    assert "2 of 2 agents gained (agents 0 and 2)" in gains


def test_a_mean_worse_than_alone_is_warned_of_and_ditto_is_suggested():
    """Vowel: .346 against .119 alone, where no single agent's difference is beyond noise."""
    ours = run([0] * 15, [0.346] * 15, params=ONE, excess_se=[0.1] * 15)
    alone = base("local", [0.119] * 15, excess_se=[0.1] * 15)
    (line,) = warned(ours, [alone])
    assert "worse than alone (mean loss 0.346, alone 0.119)" in line and "add ditto and fedsoft" in line
    ditto = base("ditto", [0.1] * 15, excess_se=[0.1] * 15)
    (line,) = warned(ours, [alone, ditto])
    assert "Ditto serves 15 of 15 agents better" in line and "ditto" not in line


def test_a_gain_beyond_noise_over_fedavg_is_not_followed_by_fedavg_is_sufficient():
    """Heart: 0.392 instead of 0.454, all hospitals in one group."""
    ours = run([0] * 4, [0.392] * 4, params=ONE, gap_se={"fedavg": [0.01] * 4})
    said = " ".join(explain([ours], [base("fedavg", [0.454] * 4)]))
    assert "0.392 instead of 0.454, a difference beyond noise" in said and "sufficient" not in said


def test_an_accuracy_that_contradicts_the_loss_leaves_the_decision_to_the_user():
    ours, ditto = run(loss=[0.5] * 4, acc=[0.85] * 4), base("ditto", [0.4] * 4, acc=[0.744] * 4)
    assert not warned(ours, [ditto]) and warned(ours | {"acc": [0.74] * 4}, [ditto])
    fedavg = ditto | {"algorithm": "fedavg", "method": "fedavg"}
    (line,) = (line for line in explain([ours], [fedavg]) if "opposite" in line)
    assert "0.850 instead of 0.744" in line and "metrics=accuracy" in line
    decided = [row | {"metrics": {"accuracy": row["acc"]}} for row in (ours, fedavg)]
    assert any(
        "Judged by accuracy" in line and "the loss says the opposite" in line
        for line in explain(decided[:1], decided[1:])
    )


def test_the_first_metric_decides():
    """By the loss FOCUS wins; by AUC, which was asked for first, Ditto does."""
    aucs = {"auc": [0.6, 0.62, 0.64, None]}
    ours = run(loss=[0.4] * 4, metrics=aucs | {"log-loss": [0.4] * 4})
    ditto = base("ditto", [0.5] * 4, metrics={"auc": [0.7, 0.71, 0.75, None], "log-loss": [0.5] * 4})
    (line,) = warned(ours, [ditto])
    assert "Ditto serves 3 of 3 agents better (mean auc 0.72 instead of 0.62;" in line
    assert not warned(ours | {"metrics": {"log-loss": [0.4] * 4} | aucs}, [ditto])
    assert deciding_metric([ours, ditto]) == "auc" and deciding_metric([ours, base("ditto", [0.5] * 4)]) == ""
    own = [row | {"metrics": {"mine": [1.0] * 4}} for row in (ours, ditto)]
    assert deciding_metric(own) == ""  # nobody knows which values are better


def test_a_metric_is_judged_beyond_its_spread_over_the_agents():
    ours = run(metrics={"auc": [0.70, 0.80, 0.60, 0.90]})
    steady = base("ditto", [1.0] * 4, metrics={"auc": [0.75, 0.85, 0.66, 0.94]})  # 0.05 more, give or take 0.01
    uneven = steady | {"metrics": {"auc": [0.95, 0.70, 0.75, 0.80]}}  # 0.05 more, give or take 0.2
    assert judge([ours], [steady], "auc").overall == 1 and judge([ours], [uneven], "auc").overall == 0
    assert judge([steady], [ours], "auc").overall == -1
    errors = [row | {"metrics": {"rmse": row["metrics"]["auc"]}} for row in (ours, steady)]
    assert judge(*([row] for row in errors), "rmse").overall == -1  # of errors, less is better


def test_agents_that_adapt_in_one_group_are_not_sent_to_fedavg_unheard():
    adapted = run([0] * 4, params=ONE | {"adapt": True})
    assert not warned(adapted) and "FedAvg is sufficient" in warned(run([0] * 4, params=ONE))[0]
    (line,) = warned(adapted, [base("fedavg", [1.0] * 4)])  # it was measured: adaptation gains nothing
    assert "FedAvg is sufficient" in line


def test_how_agents_adapted_is_said_by_name():
    shares = {"shared": [0.9, 0.1, 0.2, 0.0], "intercept": [0.1, 0.0, 0.2, 0.0]}
    shares |= {"weights": [0.0, 0.8, 0.5, 0.1], "alone": [0.0, 0.1, 0.1, 0.9]}
    names = ["aarau", "bern", "chur", "davos"]
    row = run([0] * 4, params=ONE | {"adapt": True}, adaptation=shares, names=names)
    (line,) = (line for line in explain([row]) if "adapted the shared model" in line)
    assert "largest share" in line and "Most of" not in line  # 50% of chur's, and it may be less
    assert "the shared model for aarau;" in line and "trained alone for davos;" in line
    assert "its own data for bern and chur." in line and "30% shared" in line and "28% trained alone" in line
    del row["adaptation"]
    assert any("adapted the shared model" in line and "aarau" not in line for line in explain([row]))


def test_many_agents_of_whom_nothing_is_said_are_not_listed():
    names, clusters = [f"field {e}" for e in range(9)], [0] * 9
    shares = {"shared": [1.0] + [0.0] * 8, "weights": [0.0] + [1.0] * 8}
    shares |= {kind: [0.0] * 9 for kind in ("intercept", "alone")}
    row = run(clusters, params=ONE | {"adapt": True}, adaptation=shares, names=names)
    lines = explain([row], [base("fedavg", [1.0] * 8 + [2.0])])
    assert lines[0] == "Found one group: all 9 agents (cluster 0)."
    assert any("the shared model for field 0;" in line and "own data for the others." in line for line in lines)
    (line,) = (line for line in lines if line.startswith("Compared"))
    assert "1 of 9 agents gained (field 8)" in line and "no clear difference for 8." in line


def test_agents_without_skill_are_named():
    row = run(loss=[0.2, 0.2, 0.2, 0.9], metrics={"skill": [0.3, None, 0.2, -0.1]}, names=["a", "b", "c", "site d"])
    assert any("site d has no skill" in line and "constant" in line for line in warned(row))


def floats(least, most):
    return st.floats(least, most, allow_nan=False, width=32)


@st.composite
def comparisons(draw):
    """A method with labels, and others with or without noise, metrics, accuracies, validation losses."""
    E, M, seeds = draw(st.integers(2, 8)), draw(st.integers(1, 4)), draw(st.integers(1, 2))
    kinds = draw(st.tuples(*[st.booleans()] * 5))
    noise, metrics, accuracies, validation, names = kinds

    def listed(least, most):
        near = st.sampled_from([least, (least + most) / 2, most])
        return draw(st.lists(near | floats(least, most), min_size=E, max_size=E))

    def more(row):
        row |= {"excess_se": listed(0, 0.5)} if noise else {}
        row |= {"metrics": {"auc": listed(0, 1), "skill": listed(-1, 1)}} if metrics else {}
        row |= {"acc": listed(0, 1)} if accuracies else {}
        row |= {"validation_loss": draw(floats(0, 5))} if validation else {}
        return row | ({"names": [f"site {e}" for e in range(E)]} if names else {})

    adapt = {"adapt": True} if draw(st.booleans()) else {}
    start = draw(st.sampled_from(["split", "tied"]))
    clusters = draw(st.lists(st.integers(0, M - 1), min_size=E, max_size=E) | st.just([0] * E))
    others = draw(st.sets(st.sampled_from(["fedavg", "local", "ditto", "fedsoft"])))
    runs, rows = [], []
    for seed in range(seeds):
        pi = (
            hard(clusters, M)
            if draw(st.booleans())
            else [[0.6 if m == c else 0.4 / max(M - 1, 1) for m in range(M)] for c in clusters]
        )
        n = draw(st.lists(st.integers(1, 100), min_size=E, max_size=E))
        params = PARAMS | {"M": M, "init": start} | adapt
        kind = draw(st.sampled_from(["true", "agent"]))
        runs.append(
            more(
                run(clusters, listed(0, 2), pi, n=n, seed=seed, params=params, bayes=listed(0, 2), bayes_kind=kind)
            )
        )
        rows += [more(base(name, listed(0, 2), seed=seed)) for name in sorted(others)]
    return runs, rows


@settings(max_examples=300, deadline=None)
@given(comparisons())
def test_advice_never_contradicts_itself(made):
    runs, others = made
    lines = explain(runs, others)
    said = " ".join(line for line in lines if line.startswith(WARNING))
    metric, found = compared_with(runs, others)
    best = recommended(runs, found)
    sufficient = "FedAvg is sufficient" in said
    if sufficient:
        assert best is None and "worse than" not in said and "serves" not in said
        fedavg = next((rival for rival in found.values() if rival.algorithm == "fedavg"), None)
        assert fedavg is None or not (fedavg.gains.gained or fedavg.gains.lost or fedavg.gains.overall)
    if best is not None:
        ours, theirs = best.gains.mean_losses(list(best.gains.pairs))
        assert (best.judged.theirs > best.judged.ours) if metric and best.judged else theirs < ours
        assert f"{best.name} serves {len(best.served_better)} of " in said
        assert best.algorithm == "local" or "train alone" not in said
    assert any(rival.overall > 0 for rival in found.values()) == ("serves" in said)
    assert not ("more clusters" in said and "fewer clusters" in said)
    assert "seed" not in said and len(set(lines)) == len(lines)
    for name in re.findall(r"add ([a-z]+)(?: and ([a-z]+))?\.", said):
        assert not {*name} & {row["algorithm"] for row in others}
    for rival in found.values():
        if rival.algorithm in ("local", "fedavg") and rival.gains.lost:
            where = "alone" if rival.algorithm == "local" else "with FedAvg"
            assert f"worse than {where}" in said


def test_who_should_train_alone_and_who_should_use_fedavg_is_said_by_name():
    names = ["aarau", "bern", "elm", "zürich"]
    ours = run([0] * 4, [1.0] * 4, names=names, algorithm="fedsoft", method="fedsoft")
    local, fedavg = base("local", [3.0, 3.0, 0.5, 2.0]), base("fedavg", [3.0, 1.0, 1.0, 0.6])
    (line,) = warned(ours, [local, fedavg, base("ditto", [1.0] * 4)])
    assert "Let elm train alone. Use FedAvg for zürich." in line
    both = [local | {"loss": [3.0, 3.0, 0.5, 0.4]}, fedavg, base("ditto", [1.0] * 4)]
    (line,) = warned(ours, both)  # zürich loses against both, more against training alone
    assert "Let elm and zürich train alone." in line and "Use FedAvg" not in line


@pytest.mark.parametrize("method", ["fedsoft", "fedem"])
def test_a_method_that_mixes_models_is_not_told_to_use_fewer_clusters(method):
    spread = [[0.4, 0.6]] * 4
    ours = run([1] * 4, pi=spread, algorithm=method, method=method, n=[5] * 4)
    said = " ".join(explain([ours], [base("fedavg", [2.0] * 4)]))
    assert "mix several models" in said and "fewer clusters" not in said and "uncertain" not in said
    focus = " ".join(explain([run([1] * 4, pi=spread)], [base("fedavg", [2.0] * 4)]))
    assert "uncertain" in focus and "fewer clusters" in focus
    certain = warned(ours | {"pi": hard([1, 1, 1, 1])}, [base("fedavg", [2.0] * 4)])
    assert any("fewer than 50 training examples" in line for line in certain)
    worse = run([0, 0, 1, 1], pi=[[0.6, 0.4]] * 2 + spread[:2], algorithm=method, method=method)
    (line,) = warned(worse, [base("fedavg", [1.3, 1.3, 1.0, 0.5])])
    assert "Use FedAvg for agent 3." in line and "clusters" not in line


def test_the_judgement_by_a_metric_says_what_its_noise_is():
    ours, fedavg = (row | {"metrics": {"auc": [0.7, 0.8, 0.6, 0.9]}} for row in (run(), base("fedavg", [2.0] * 4)))
    (line,) = (line for line in explain([ours], [fedavg]) if line.startswith("Judged"))
    assert "no clear difference" in line and "spread" in line and "agents" in line and "seeds" not in line
    again = [row | {"seed": 1} for row in (ours, fedavg)]
    (line,) = (line for line in explain([ours, again[0]], [fedavg, again[1]]) if line.startswith("Judged"))
    assert "agents and seeds" in line
