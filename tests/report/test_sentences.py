"""What a run found, in sentences: each appears exactly where its numbers are."""

import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from helpers.page import folder, section
from helpers.rows import PARAMS, base, hard, run, warned
from hypothesis import given
from hypothesis import strategies as st

import focusfl as ff
from focusfl.cli import app as cli
from focusfl.report.gains import Pair, compare_losses, needs_gap_se, verdict
from focusfl.report.html.page import page
from focusfl.report.markdown import report as markdown
from focusfl.report.names import groups, numbered, uncertain_agents
from focusfl.report.sentences import WARNING, explain
from focusfl.util.errors import InputError


def gains(baseline, lines):
    """The numbers of agents that gained and lost, as the sentence about this baseline names them."""
    (line,) = (line for line in lines if line.startswith(f"Compared with {baseline}:"))
    gained, lost = (
        re.search(r": (.*?) gained(.*?), (?=\d+ lost|none lost)", line),
        re.search(r"lost \((.*?)\)", line),
    )
    return read(gained[2]), read(lost[1]) if lost else []


def only(lines, *words):
    """Is there exactly one line, with all of these words?"""
    return len(lines) == 1 and all(word in lines[0] for word in words)


GOOD = base("fedavg", [1.0, 1.0, 1.0, 2.0])  # agent 3 gains


def test_groups_and_labels_alone_where_there_is_nothing_to_compare_with():
    found, confident = explain([run()])
    assert "2 groups" in found and "agents 0-2 (cluster 0)" in found and "agent 3 (cluster 1)" in found
    assert "confident" in confident


def test_all_of_it():
    loss, alone = [1.0, 1.0, 1.5, 1.0], [3.0, 3.0, 1.5, 1.0]
    lines = explain([run(loss=loss)], [base("local", alone), GOOD])
    assert len(lines) == 5 and "2 groups" in lines[0] and "confident" in lines[1]
    assert (
        gains("FedAvg", lines) == ([3], [2]) and "1.12 instead of 1.25" in lines[2] and "2 (agents 0-1)" in lines[2]
    )
    assert gains("training alone", lines) == ([0, 1], []) and "1.12 instead of 2.12" in lines[3]
    assert lines[4].startswith(WARNING) and "agent 2 does worse" in lines[4] and "warmup" in lines[4]


def test_agents_are_named_by_ranges():
    assert numbered("agent", [3]) == "agent 3" and numbered("agent", [3, 4]) == "agents 3-4"
    assert numbered("agent", [4, 0]) == "agents 0 and 4"
    assert numbered("agent", range(0, 200, 2)).endswith(", 78 and 60 more")


def test_an_agent_is_uncertain_below_nine_tenths():
    labels = [[0.9, 0.1], [0.8999, 0.1001], [1.0, 0.0], [0.4, 0.6]]
    line = explain([run(pi=labels)])[1]
    assert line.startswith("Agents 1 and 3 are uncertain") and "0.60" in line
    assert explain([run(pi=labels[2:], clusters=(0, 1))])[1].startswith("Agent 1 is uncertain")


def test_methods_without_labels_have_no_groups_and_no_warnings():
    lines = explain(
        [base("fedavg", [9.0] * 3) | {"algorithm": "qffl", "method": "qffl"}], [base("fedavg", [1.0] * 3)]
    )
    assert len(lines) == 2 and "share one model" in lines[0] and gains("FedAvg", lines) == ([], [0, 1, 2])
    assert only(explain([base("local", [1.0] * 3)], [base("local", [1.0] * 3)]), "its own model")


def test_noise_decides_who_gained():
    """With twice as much noise, or more agents, the same difference does not count."""
    assert verdict([Pair(0.7, 1.0, 0.15)]) == -1 and verdict([Pair(1.3, 1.0, 0.15)]) == 1  # 1.96 x 0.15 = 0.294
    assert verdict([Pair(0.7, 1.0, 0.16)]) == 0 and verdict([Pair(0.7, 1.0, 0.15)], 2) == 0
    assert verdict([Pair(0.99, 1.0, 1e-9)]) == 0  # certain and small
    assert verdict([Pair(98, 100, None)]) == 0 and verdict([Pair(97.9, 100, None)]) == -1


def test_over_the_seeds_noise_is_the_mean_or_the_spread():
    agree = [Pair(0.7, 1.0, 0.1)] * 3
    assert verdict(agree) == -1 and verdict([p._replace(se=0.2) for p in agree]) == 0  # it does not shrink
    apart = [Pair(v, 1.0, 0.01) for v in (0.1, 0.7, 1.3)]  # spread 0.6 / sqrt(3)
    assert verdict(apart) == 0 and verdict([p._replace(se=None) for p in apart]) == 0


def test_pairs_on_the_same_examples_are_more_certain_than_two_errors():
    ours, theirs = run(loss=[0.8] * 4, excess_se=[0.1] * 4), base("fedavg", [1.0] * 4, excess_se=[0.1] * 4)
    assert compare_losses([ours], [theirs]).same == [0, 1, 2, 3]
    for one, other in (
        (ours | {"gap_se": {"fedavg": [0.01] * 4}}, theirs),
        (ours, theirs | {"gap_se": {"focus": [0.01] * 4}}),
    ):
        assert compare_losses([one], [other]).gained == [0, 1, 2, 3]


def test_many_small_gains_are_one_together():
    """No agent gains beyond noise, but all of them together do: FedAvg is not sufficient."""
    E = 16
    ours = run([0] * 8 + [1] * 8, [0.8] * E, excess_se=[0.0] * E)
    theirs = base("fedavg", [1.0] * E, excess_se=[0.1] * E)
    found = compare_losses([ours], [theirs])
    assert found.same == list(range(E)) and found.overall == -1 and warned(ours, [theirs]) == []
    assert "FedAvg is sufficient" in warned(ours, [theirs | {"excess_se": [0.5] * E}])[0]


def test_best_losses_of_agents_alone_are_training_alone():
    row = run(loss=[1.0, 1.0, 1.0, 2.0], bayes=[1.0, 2.0, 1.0, 1.0], bayes_kind="agent")
    assert gains("training alone", explain([row])) == ([1], [3])
    assert len(explain([row | {"bayes_kind": "true"}])) == 2
    assert gains("training alone", explain([row | {"excess_se": [5.0] * 4}])) == ([], [])
    lines = explain([row], [base("local", [9.0] * 4)])  # a run of it is preferred
    assert gains("training alone", lines) == ([0, 1, 2, 3], [])


def test_agents_that_sent_no_result_are_not_counted():
    ours, theirs = run((0, 0, 1), [1.0] * 3, agents=[0, 2, 5]), base("fedavg", [1.0, 9.0, 9.0], agents=[1, 2, 5])
    lines = explain([ours], [theirs])
    assert "agents 0 and 2 (cluster 0); agent 5 (cluster 1)" in lines[0]
    assert gains("FedAvg", lines) == ([2, 5], []) and "2 of 2 agents" in lines[2]


def test_another_seed_is_not_compared():
    assert len(explain([run()], [GOOD | {"seed": 1}])) == 2


def test_agents_alike_need_no_groups():
    assert only(warned(run([0] * 4)), "all 4 agents are in one group", "FedAvg is sufficient")
    assert only(warned(run([0] * 4, pi=[[1.0]] * 4, params={"M": 1})), "M = 1", "M = 2", "FedAvg is sufficient")
    fedavg = base("fedavg", [1.01] * 4)
    assert only(warned(run(), [fedavg]), "FedAvg is sufficient", "2 %", "1.01")
    noisy = run(excess_se=[0.1] * 4), [fedavg | {"excess_se": [0.1] * 4}]
    assert only(warned(*noisy), "FedAvg is sufficient", "noise")
    assert warned(run(), [GOOD]) == []


def test_one_group_of_agents_that_differ_is_a_wrong_start():
    alone, start = base("local", [1.0, 1.0, 1.0, 0.5]), ("all 4 agents are in one group", "agent 3", "0.5")
    assert only(warned(run([0] * 4), [alone]), *start, "Training alone serves 1 of 4", "add ditto and fedsoft")
    tied = run([0] * 4, params=PARAMS | {"init": "tied"})
    assert only(warned(tied, [alone]), *start, 'init = "split"')
    assert "M = 2" in warned(run([0] * 4, pi=[[1.0]] * 4), [alone])[0]


@pytest.mark.parametrize(
    ("more", "advice"),
    [
        ({}, ["fewer clusters", "warmup longer than 3"]),
        ({"params": PARAMS | {"init": "tied"}}, ["fewer clusters", 'init = "split"']),
        ({"algorithm": "ifca", "params": {"M": 2}}, ["fewer clusters"]),
        ({"clusters": [0] * 4, "pi": hard([0] * 4)}, ["Use FedAvg for agents 2-3"]),
    ],
)
def test_agents_that_lose_against_fedavg_are_named(more, advice):
    def named(fedavg):
        return [line for line in warned(run() | more, [fedavg]) if line.startswith("agents 2-3 do worse")]

    fedavg = base("fedavg", [2.0, 2.0, 0.5, 0.5])
    assert only(named(fedavg), "with FedAvg 0.5", *advice)
    assert not named(fedavg | {"loss": [2.0, 2.0, 0.99, 0.99]})


def test_agents_that_are_better_off_alone_are_named():
    assert only(warned(run(), [GOOD, base("local", [1.0, 1.0, 1.0, 0.5])]), "agent 3", "alone 0.5", "more clusters")
    tied = run(params=PARAMS | {"init": "tied"})
    assert 'init = "split"' in warned(tied, [base("local", [1.0, 1.0, 0.5, 0.5])])[0]


def test_the_mean_may_lose_where_no_single_agent_does_beyond_noise():
    ours, alone = run([0] * 4, excess_se=[0.1] * 4), base("local", [0.8] * 4, excess_se=[0.1] * 4)
    assert only(warned(ours, [alone]), "on average", "worse than alone", "mean loss 1, alone 0.8")


def test_the_method_that_serves_agents_better_is_recommended_on_validation_data():
    alone, ditto = base("local", [0.5] * 4, validation_loss=0.6), base("ditto", [0.4] * 4, validation_loss=0.5)
    fedsoft = base("fedsoft", [0.3] * 4, validation_loss=0.55)  # better on test data, which do not decide
    rows = [alone, ditto, fedsoft]
    assert only(
        warned(run(validation_loss=1.0), rows), "Ditto serves 4 of 4", "0.4 instead of 1", "validation loss"
    )
    untested = [{k: v for k, v in row.items() if k != "validation_loss"} for row in rows]
    assert only(warned(run(), untested), "FedSoft serves 4 of 4", "on these test data")
    adapted = [row | {"params": {"adapt": True}} for row in rows]  # their validation losses are of shared models
    assert only(warned(run(validation_loss=1.0), adapted), "FedSoft serves 4 of 4", "on these test data")
    worse = base("ditto", [0.7] * 4)  # better than FOCUS, but alone is best
    assert only(warned(run(), [base("local", [0.5] * 4), worse]), "Training alone serves 4 of 4")


def test_what_was_tried_is_not_suggested_again():
    tried = [base("local", [1.0, 1.0, 1.0, 0.5]), base("ditto", [1.0] * 4), base("fedsoft", [1.0] * 4)]
    assert only(warned(run([0] * 4), tried[:2]), "add fedsoft")
    assert only(warned(run([0] * 4), tried), "Training alone serves 1 of 4", "Let agent 3 train alone")


def test_a_gain_over_fedavg_with_one_group_is_not_called_sufficient():
    one, fedavg = run([0] * 4, loss=[0.4] * 4), base("fedavg", [0.5] * 4)
    assert only(warned(one, [fedavg]), "not one of grouping", "weight_by_n")
    alike = fedavg | {"params": {"weight_by_n": False}}
    assert "weight_by_n" not in warned(one, [alike])[0]
    adapted = one | {"params": PARAMS | {"adapt": True}}
    assert only(warned(adapted, [alike]), "not one of grouping", "fedavg:adapt=true")


def test_an_accuracy_that_contradicts_the_loss_is_named():
    ours, fedavg = run(loss=[0.4] * 4, acc=[0.74] * 4), base("fedavg", [0.5] * 4, acc=[0.85] * 4)
    assert only(
        [line for line in explain([ours], [fedavg]) if "opposite" in line], "0.740 instead of 0.850", "lower"
    )
    agreeing = fedavg | {"acc": [0.7] * 4}
    assert not [line for line in explain([ours], [agreeing]) if "opposite" in line]


def test_agents_are_called_by_their_names():
    names = ["aarau", "bern", "chur", "davos"]
    lines = explain([run(names=names)], [base("local", [1.0, 1.0, 1.0, 0.5])])
    assert "aarau, bern and chur (cluster 0)" in lines[0] and "1 lost (davos)" in lines[2]
    assert any(line.startswith(f"{WARNING}davos does worse than alone") for line in lines)
    unsure = explain([run(names=names, pi=[[0.6, 0.4]] * 4)])
    assert any(line.startswith("aarau, bern, chur and davos are uncertain") for line in unsure)


def test_a_group_with_few_examples():
    assert only(warned(run(n=[100, 100, 100, 49])), "fewer than 50", "agent 3 (49)", "fewer clusters")
    assert warned(run(n=[20, 20, 20, 50])) == []
    assert "agents 0-2 (6) and of agent 3 (2)" in warned(run(n=[2] * 4))[0]
    _, few = warned(run([0] * 4, n=[2] * 4))
    assert "agents 0-3 (8)" in few and "fewer clusters" not in few
    old = run()
    del old["n"]
    assert warned(old) == []


def test_empty_clusters():
    pi, M5 = hard((0, 0, 0, 1), 5), {"params": PARAMS | {"M": 5}}
    assert only(warned(run(pi=pi, **M5)), "3 of 5 clusters are empty", "M = 2")
    pi[0] = [0.9, 0.0, 0.1, 0.0, 0.0]  # an agent is there with a small label
    assert only(warned(run(pi=pi, **M5)), "2 of 5 clusters are empty", "M = 3")
    assert warned(run(pi=pi, params=PARAMS | {"M": "auto"})) == []
    assert warned(run(pi=pi, algorithm="cfl", params={"most": 5})) == []
    assert warned(run([0] * 4, pi=hard([0] * 4, 5), **M5)) == warned(run([0] * 4))  # FedAvg is sufficient


def test_many_uncertain_agents():
    pi = [[0.6, 0.4]] * 2 + hard((0, 0, 0, 1))
    assert warned(run([0] * 5 + [1], pi=pi)) == []  # a third, no more
    assert only(warned(run([0] * 4 + [1], pi=pi[:2] + pi[3:])), "2 of 5 agents are uncertain")


def test_too_few_rounds_are_not_judged():
    assert only(warned(run([0] * 4, rounds=7)), "only 7 rounds", "warm-up of 3")
    assert not any("rounds" in line for line in warned(run([0] * 4, rounds=8)))


def test_seeds_agree_up_to_the_names_of_clusters():
    runs = [
        run(),
        run((1, 1, 1, 0), seed=1),
        run((0, 0, 1, 1), seed=2),
        run((1, 0, 1, 2), pi=hard((1, 0, 1, 2), 3), seed=4),
    ]
    first, same, other, confident = explain(runs)[:4]
    assert "with seed 0: agents 0-2 (cluster 0)" in first and "confident" in confident
    assert same.startswith("Seed 1 ") and "same" in same
    assert other.startswith("Seeds 2 and 4 ") and "different" in other and "2 and 3 groups" in other
    assert explain(runs[:2])[1] == same and len(explain(runs[:2])) == 3
    assert "(2 groups)" in explain([runs[0], runs[2]])[1]


def test_labels_and_losses_are_means_over_the_seeds():
    unsure = [[0.7, 0.3], *hard((0, 0, 1))]
    line = explain([run(), run(pi=unsure, seed=1)])[2]
    assert line.startswith("Agent 0 is uncertain") and "0.85" in line
    assert "confident" in explain([run(), run(seed=1), run(pi=unsure, seed=2), run(seed=3)])[2]
    fedavg = [base("fedavg", [1.0, 1.0, 1.0, v], seed=s) for s, v in enumerate((2.9, 3.1))]
    assert gains("FedAvg", explain([run(), run(seed=1)], fedavg)) == ([3], [])
    fedavg[1]["loss"][3] = 0.5
    assert gains("FedAvg", explain([run(), run(seed=1)], fedavg)) == ([], [])


def test_one_group_in_some_seeds_alone_is_no_warning():
    one = run([0] * 4, seed=1)
    assert not any(line.startswith(WARNING) for line in explain([run(), one]))
    assert "FedAvg is sufficient" in explain([run([0] * 4), one])[-1]


def floats(least, most):
    return st.floats(least, most, allow_nan=False, width=32)


@st.composite
def federations(draw):
    """One to three seeds of a method with labels, and perhaps of FedAvg and Local."""
    E, M = draw(st.integers(1, 12)), draw(st.integers(1, 5))

    def listed(least, most):
        return draw(st.lists(floats(least, most), min_size=E, max_size=E))

    def noisy(row):
        return row | ({"excess_se": listed(0, 2)} if draw(st.booleans()) else {})

    runs, others = [], []
    for seed in range(draw(st.integers(1, 3))):
        pi = np.array(draw(st.lists(st.lists(floats(0, 1), min_size=M, max_size=M), min_size=E, max_size=E))) + 1e-3
        pi /= pi.sum(1, keepdims=True)
        n = draw(st.lists(st.integers(1, 100), min_size=E, max_size=E))
        more = {"n": n, "params": PARAMS | {"M": draw(st.sampled_from([M, "auto"]))}, "bayes": listed(0, 5)}
        row = run(pi.argmax(1).tolist(), listed(0, 100), pi.tolist(), seed=seed, **more)
        runs.append(noisy(row | {"bayes_kind": draw(st.sampled_from(["true", "agent"]))}))
        for name in ("fedavg", "local"):
            if draw(st.booleans()):
                others.append(noisy(base(name, listed(0, 100), seed=seed)))
    return runs, others


def read(text):
    """The agents of "0-2, 5 and 7-8"."""
    parts = [[int(v) for v in part.split("-")] for part in re.findall(r"\d+(?:-\d+)?", text)]
    return [e for part in parts for e in range(part[0], part[-1] + 1)]


@given(federations())
def test_every_agent_is_in_one_group_and_gained_lost_or_neither(made):
    runs, others = made
    E, lines = len(runs[0]["loss"]), explain(runs, others)
    named = [read(part) for part in re.findall(r"agents? ([^()]+) \(cluster", lines[0])]
    assert sorted(e for part in named for e in part) == list(range(E)) and len(named) == len(groups(runs[0]))
    assert (" uncertain: " in "".join(lines)) == bool(uncertain_agents(runs))
    for line in lines:
        if line.startswith("Compared"):
            counts = re.findall(r"(\d+)[a-z\d ]* \(agents? ([^)]*)\)", line)
            assert all(len(read(who)) == int(n) for n, who in counts)
            assert sorted(e for _, who in counts for e in read(who)) == list(range(E))
    warnings = [line for line in lines if line.startswith(WARNING)]
    assert lines[len(lines) - len(warnings) :] == warnings and len(set(lines)) == len(lines)
    assert all(line.endswith(".") and "\n" not in line for line in lines)


@pytest.fixture(scope="module")
def turned():
    """Seven agents upright, two at 90 degrees, one at 180: FOCUS, FedAvg, every agent alone."""
    fed = ff.data.rotated_digits(seed=0)
    return [ff.fit(method, fed, rounds=25) for method in (ff.Focus(M=3, init="split"), ff.FedAvg(), ff.Local())]


@pytest.mark.slow
def test_the_turned_agents_gain(turned):
    focus, fedavg, local = turned
    lines = focus.explain(fedavg, local).splitlines()
    named = [part.split(" (")[0] for part in lines[0].removeprefix("Found 3 groups: ").split("; ")]
    assert named == ["agents 0-6", "agents 7-8", "agent 9"]
    assert gains("FedAvg", lines) == ([7, 8, 9], []) and "training alone" in lines[3]
    assert not any(line.startswith(WARNING) for line in lines)


@pytest.mark.slow
def test_without_baselines_it_shows_the_call_that_compares(turned):
    focus, fedavg, _ = turned
    lines = focus.explain().splitlines()
    calls = "result.explain(ff.fit(ff.FedAvg(), fed), ff.fit(ff.Local(), fed))"
    assert len(lines) == 3 and f"gain over FedAvg and training alone: {calls}" in lines[-1]
    assert f"gain over training alone: {calls}" in focus.explain(fedavg)
    assert "gain over training alone: result.explain(ff.fit(ff.Local(), fed))" in fedavg.explain()


def test_results_of_other_data_seeds_and_methods_are_refused(turned, ragged):
    focus, fedavg, _ = turned
    with pytest.raises(InputError, match="'ragged'"):
        focus.explain(ff.fit(ff.FedAvg(), ragged, rounds=1))
    with pytest.raises(InputError, match=r"seed 1.*seed = 0"):
        focus.explain(replace(fedavg, setup=fedavg.setup.changed(seed=1)))
    with pytest.raises(InputError, match="FOCUS"):
        fedavg.explain(focus)


def test_a_copy_of_the_data_is_the_same_data(turned):
    focus, fedavg, _ = turned
    copy = fedavg.setup.changed(fed=ff.data.rotated_digits(seed=0))
    assert focus.explain(replace(fedavg, setup=copy)) == focus.explain(fedavg)


@pytest.mark.slow
def test_fedavg_is_sufficient_for_agents_alike():
    fed = ff.data.rotated_digits(seed=0, turns=[0] * 6)
    fedavg = ff.fit(ff.FedAvg(), fed, rounds=25)
    for M in (2, "auto"):
        lines = ff.fit(ff.Focus(M=M, init="split"), fed, rounds=25).explain(fedavg).splitlines()
        advice = ("FedAvg is sufficient", "FedAvg serves")  # a split of agents alike may cost something
        assert any(line.startswith(WARNING) and any(words in line for words in advice) for line in lines)


def test_a_run_is_explained_alone_where_its_best_losses_are_those_of_agents_alone():
    rng = np.random.default_rng(0)
    data = [(x := rng.normal(size=(80, 5)), (x[:, 0] > 0) ^ (e >= 4)) for e in range(6)]
    fed = ff.Federation.from_agents(data, test=0.25, model=lambda: ff.models.mlp(5, 4, 2))
    said = ff.fit(ff.Focus(M=2), fed, rounds=20).explain()
    assert (
        "Compared with training alone" in said
        and "gain over FedAvg: result.explain(ff.fit(ff.FedAvg(), fed))" in said
    )


def rows():
    return json.loads((folder() / "results.json").read_text())


def test_compare_keeps_the_errors_of_differences_in_loss():
    focus, fedavg, afl = rows()[:3]
    assert focus["gap_se"] == {} and list(fedavg["gap_se"]) == ["focus"]
    assert list(afl["gap_se"]) == ["focus", "fedavg"]
    assert len(fedavg["gap_se"]["focus"]) == len(focus["n"]) == 10 and min(fedavg["gap_se"]["focus"]) > 0
    neither = focus | {"algorithm": "qffl", "pi": None}
    assert needs_gap_se(focus, fedavg) and needs_gap_se(fedavg, afl) and not needs_gap_se(neither, afl)
    assert not needs_gap_se(focus | {"bayes": [0.0] * 10}, fedavg)  # each with a best loss of its own


@pytest.mark.slow
def test_errors_from_a_folder_are_those_of_results(turned, tmp_path, monkeypatch):
    """The same runs on the command line and in Python say the same."""
    words = [
        "compare",
        "--algorithms",
        "focus,fedavg,local",
        "--rounds",
        "25",
        "--seeds",
        "0",
        "--out",
        str(tmp_path / "r"),
    ]
    monkeypatch.setattr(sys, "argv", ["focusfl", *words, "--set", "focus.init=split", "--set", "focus.M=3"])
    with pytest.raises(SystemExit):
        cli.main()
    focus, *others = json.loads((tmp_path / "r/results.json").read_text())
    assert "\n".join(explain([focus], others)) == turned[0].explain(*turned[1:])
    se = turned[0]._baseline_row(turned[1])["gap_se"]["focus"]
    assert others[0]["gap_se"]["focus"] == pytest.approx(se, rel=1e-2)


def test_the_terminal_the_page_and_markdown_say_it(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["focusfl", "report", str(folder())])
    with pytest.raises(SystemExit):
        cli.main()
    capsys.readouterr()
    runs = {name: [row for row in rows() if row["method"] == name] for name in ("focus", "fedavg")}
    lines = explain(runs["focus"], runs["fedavg"])
    html, text = ((folder() / f"report.{kind}").read_text() for kind in ("html", "md"))
    hint = "Add local to the algorithms"
    assert all(f"- {line}\n" in text for line in lines) and hint in text
    assert html.index("<h3>In words</h3>") < html.index("<h4>FOCUS</h4>") < html.index("<h3>Results</h3>")
    escaped = [line.replace("'", "&#x27;").replace('"', "&quot;") for line in lines]
    assert all(f"{line}</li>" in html for line in escaped) and hint in html
    assert html.count("<li class='caution'>") == sum(line.startswith(WARNING) for line in lines)
    assert "<h4>FedAvg</h4>" not in html.split("<h3>Results</h3>")[0]


def test_compare_ends_with_sentences(monkeypatch, capsys, tmp_path):
    words = ["compare", "--data", "synthetic", "--rounds", "3", "--seeds", "0", "--out", str(tmp_path / "r")]
    for more in (["--algorithms", "focus,fedavg"], ["--algorithms", "fedavg"]):
        monkeypatch.setattr(sys, "argv", ["focusfl", *words, *more, "--overwrite"])
        with pytest.raises(SystemExit):
            cli.main()
        out = capsys.readouterr().out
        assert ("In words" in out) == ("focus" in more[1])
        if "In words" in out:
            assert out.index("Found ") < out.index("Compared with FedAvg: ") < out.index("Results:")


def test_parts_are_folded_and_the_paper_has_no_hints():
    both = [row | {"part": f"k = {k}"} for k in (1, 3) for row in section().rows]
    html = page("Parts", [replace(section(), rows=both)])
    assert html.count("<details><summary>In words: k = ") == 2 and "to the algorithms" not in html
    none = [row | {"pi": None} for row in section().rows]
    assert "In words" not in page("None", [replace(section(), rows=none)])
    assert "In words" not in markdown("None", {}, replace(section(), rows=none))
