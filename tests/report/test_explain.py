"""What a run found, in words: each sentence stands exactly where its numbers do."""

import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from helpers.page import folder, section
from hypothesis import given
from hypothesis import strategies as st

import focusfl as ff
from focusfl.cli import app as cli
from focusfl.report.explain import explain, over_seeds, wanted
from focusfl.report.explain.gains import Pair, against, verdict
from focusfl.report.explain.groups import agents, groups, uncertain
from focusfl.report.markdown import report as markdown
from focusfl.report.page import page
from focusfl.util.errors import InputError

PARAMS = {"M": 2, "init": "split", "warmup": 3}


def hard(clusters, M=2):
    return [[float(m == c) for m in range(M)] for c in clusters]


def run(clusters=(0, 0, 0, 1), loss=None, pi=None, **more):
    """A run of FOCUS with certain labels, everybody's loss 1, nothing known of noise."""
    E = len(clusters)
    made = {"algorithm": "focus", "params": PARAMS, "seed": 0, "clusters": list(clusters), "n": [100] * E}
    made |= {"loss": loss or [1.0] * E, "pi": pi or hard(clusters), "bayes": [0.0] * E, "bayes_kind": "true"}
    return made | more


def base(algorithm, loss, **more):
    clusters = [0] * len(loss) if algorithm == "fedavg" else list(range(len(loss)))
    return run(clusters, loss, algorithm=algorithm, params={}, **more) | {"pi": None}


def warned(*args):
    return [line.removeprefix("Warning: ") for line in explain(*args) if line.startswith("Warning: ")]


GOOD = base("fedavg", [1.0, 1.0, 1.0, 2.0])  # agent 3 gains


def test_groups_and_labels_alone_where_there_is_nothing_to_compare_with():
    assert explain(run()) == [
        "Found 2 groups: agents 0-2 (cluster 0); agent 3 (cluster 1).",
        "Nobody is uncertain: largest label pi 0.9 or more.",
    ]


def test_all_of_it():
    loss, alone = [1.0, 1.0, 1.5, 1.0], [3.0, 3.0, 1.5, 1.0]
    assert explain(run(loss=loss), [base("local", alone), GOOD]) == [
        "Found 2 groups: agents 0-2 (cluster 0); agent 3 (cluster 1).",
        "Nobody is uncertain: largest label pi 0.9 or more.",
        "Against FedAvg: 1 of 4 agents gained (agent 3), 1 lost (agent 2), no clear difference for 2 (agents 0-1). "
        "On average the loss is 1.12 instead of 1.25, beyond 2 %.",
        "Against training alone: 2 of 4 agents gained (agents 0-1), none lost, no clear difference for 2 (agents "
        "2-3). On average the loss is 1.12 instead of 2.12, beyond 2 %.",
        "Warning: agent 2 does worse than under FedAvg (mean loss 1.5, under FedAvg 1). "
        "Use fewer clusters or a warmup longer than 3 rounds.",
    ]


def test_agents_in_words():
    assert agents([3]) == "agent 3" and agents([3, 4]) == "agents 3-4" and agents([4, 0]) == "agents 0 and 4"
    assert agents(range(0, 200, 2)).endswith(", 78 and 60 more")


def test_an_agent_is_uncertain_below_nine_tenths():
    labels = [[0.9, 0.1], [0.8999, 0.1001], [1.0, 0.0], [0.4, 0.6]]
    lines = explain(run(pi=labels))
    assert lines[1] == "Agents 1 and 3 are uncertain: largest label pi below 0.9 (down to 0.60)."
    assert explain(run(pi=labels[2:], clusters=(0, 1)))[1].startswith(
        "Agent 1 is uncertain: largest label pi below"
    )


def test_methods_without_labels_have_no_groups_and_no_warnings():
    lines = explain(base("fedavg", [9.0] * 3) | {"algorithm": "qffl"}, [base("fedavg", [1.0] * 3)])
    assert (
        lines[0] == "No groups: all agents share one model."
        and "3 lost (agents 0-2)" in lines[1]
        and len(lines) == 2
    )
    assert explain(base("local", [1.0] * 3), [base("local", [1.0] * 3)]) == [
        "No groups: every agent has its own model."
    ]


def test_noise_decides_who_gained():
    """Twice as much noise, or more agents, and the same difference is none."""
    assert verdict([Pair(0.7, 1.0, 0.15)]) == -1 and verdict([Pair(1.3, 1.0, 0.15)]) == 1  # 1.96 x 0.15 = 0.294
    assert verdict([Pair(0.7, 1.0, 0.16)]) == 0 and verdict([Pair(0.7, 1.0, 0.15)], among=2) == 0
    assert verdict([Pair(0.99, 1.0, 1e-9)]) == 0  # certain and small
    assert verdict([Pair(98, 100, None)]) == 0 and verdict([Pair(97.9, 100, None)]) == -1


def test_over_the_seeds_noise_is_the_mean_or_the_spread():
    agree = [Pair(0.7, 1.0, 0.1)] * 3
    assert verdict(agree) == -1 and verdict([p._replace(se=0.2) for p in agree]) == 0  # it does not shrink
    apart = [Pair(v, 1.0, 0.01) for v in (0.1, 0.7, 1.3)]  # spread 0.6 / sqrt(3)
    assert verdict(apart) == 0 and verdict([p._replace(se=None) for p in apart]) == 0


def test_pairs_on_the_same_examples_are_surer_than_two_errors():
    ours, theirs = run(loss=[0.8] * 4, excess_se=[0.1] * 4), base("fedavg", [1.0] * 4, excess_se=[0.1] * 4)
    assert against([ours], [theirs]).same == [0, 1, 2, 3]
    for one, other in (
        (ours | {"gap_se": {"fedavg": [0.01] * 4}}, theirs),
        (ours, theirs | {"gap_se": {"focus": [0.01] * 4}}),
    ):
        assert against([one], [other]).gained == [0, 1, 2, 3]


def test_many_small_gains_are_one_together():
    """Nobody gains beyond noise, all of them do: FedAvg would not do."""
    E = 16
    ours = run([0] * 8 + [1] * 8, [0.8] * E, excess_se=[0.0] * E)
    theirs = base("fedavg", [1.0] * E, excess_se=[0.1] * E)
    found = against([ours], [theirs])
    assert found.same == list(range(E)) and found.overall == -1 and warned(ours, [theirs]) == []
    assert "FedAvg will do" in warned(ours, [theirs | {"excess_se": [0.5] * E}])[0]


def test_best_losses_of_agents_alone_are_training_alone():
    row = run(loss=[1.0, 1.0, 1.0, 2.0], bayes=[1.0, 2.0, 1.0, 1.0], bayes_kind="agent")
    assert "1 of 4 agents gained (agent 1), 1 lost (agent 3)" in explain(row)[2]
    assert len(explain(row | {"bayes_kind": "true"})) == 2
    assert "none of 4 agents gained, none lost" in explain(row | {"excess_se": [5.0] * 4})[2]
    assert (
        "4 of 4 agents gained (agents 0-3)" in explain(row, [base("local", [9.0] * 4)])[2]
    )  # a run of it comes first


def test_agents_that_sent_no_result_are_not_counted():
    ours, theirs = run((0, 0, 1), [1.0] * 3, agents=[0, 2, 5]), base("fedavg", [1.0, 9.0, 9.0], agents=[1, 2, 5])
    lines = explain(ours, [theirs])
    assert lines[0] == "Found 2 groups: agents 0 and 2 (cluster 0); agent 5 (cluster 1)."
    assert "2 of 2 agents gained (agents 2 and 5)" in lines[2]


def test_another_seed_is_not_compared():
    assert len(explain(run(), [GOOD | {"seed": 1}])) == 2


def test_agents_alike_need_no_groups():
    one = run([0, 0, 0, 0])
    assert warned(one) == ["all 4 agents are in one group: they look alike. FedAvg will do."]
    assert warned(run([0] * 4, pi=[[1.0]] * 4, params={"M": 1})) == [
        "all 4 agents are in one group, as M = 1 leaves no choice. Try M = 2 or more; or FedAvg will do."
    ]
    said = "nobody does better than under FedAvg by more than {} (mean loss 1, under FedAvg 1.01). FedAvg will do."
    fedavg = base("fedavg", [1.01] * 4)
    assert warned(run(), [fedavg]) == [said.format("2 %")]
    assert warned(run(excess_se=[0.1] * 4), [fedavg | {"excess_se": [0.1] * 4}]) == [said.format("noise")]
    assert warned(run(), [GOOD]) == []


def test_one_group_of_agents_that_differ_is_a_wrong_start():
    alone, start = (
        base("local", [1.0, 1.0, 1.0, 0.5]),
        "all 4 agents are in one group, but agent 3 does worse than alone",
    )
    for params, advice in (
        (PARAMS, "another seed"),
        (PARAMS | {"init": "tied"}, 'init = "split"'),
    ):
        assert warned(run([0] * 4, params=params), [alone]) == [f"{start} (mean loss 1, alone 0.5). Try {advice}."]
    assert warned(run([0] * 4, pi=[[1.0]] * 4), [alone])[0].endswith("Try M = 2 or more.")


@pytest.mark.parametrize(
    ("more", "advice"),
    [
        ({}, "Use fewer clusters or a warmup longer than 3 rounds."),
        ({"params": PARAMS | {"init": "tied"}}, 'Use fewer clusters or init = "split".'),
        ({"algorithm": "ifca", "params": {"M": 2}}, "Use fewer clusters."),
        ({"clusters": [0] * 4, "pi": hard([0] * 4)}, "Use FedAvg."),
    ],
)
def test_those_who_lose_against_fedavg_are_named(more, advice):
    fedavg = base("fedavg", [2.0, 2.0, 0.5, 0.5])
    said = f"agents 2-3 do worse than under FedAvg (mean loss 1, under FedAvg 0.5). {advice}"
    assert said in warned(run() | more, [fedavg])
    assert said not in warned(run() | more, [fedavg | {"loss": [2.0, 2.0, 0.99, 0.99]}])


def test_those_better_off_alone_are_named():
    said = "agent 3 does worse than alone (mean loss 1, alone 0.5). Let it train alone, or try more clusters."
    assert warned(run(), [GOOD, base("local", [1.0, 1.0, 1.0, 0.5])]) == [said]
    tied = run(params=PARAMS | {"init": "tied"})
    assert warned(tied, [base("local", [1.0, 1.0, 0.5, 0.5])])[0].endswith(
        'Let them train alone, or try init = "split".'
    )


def test_a_group_with_few_examples():
    said = "fewer than 50 training examples for a model of agent 3 (49). Use fewer clusters, or gather more."
    assert warned(run(n=[100, 100, 100, 49])) == [said] and warned(run(n=[20, 20, 20, 50])) == []
    both = "fewer than 50 training examples for a model of agents 0-2 (6) and of agent 3 (2)."
    assert warned(run(n=[2] * 4))[0].startswith(both)
    assert warned(run([0] * 4, n=[2] * 4))[1].endswith("agents 0-3 (8). Gather more.")
    old = run()
    del old["n"]
    assert warned(old) == []


def test_clusters_that_nobody_is_in():
    pi, M5 = hard((0, 0, 0, 1), 5), {"params": PARAMS | {"M": 5}}
    assert warned(run(pi=pi, **M5)) == ["3 of 5 clusters are empty. M = 2 will do."]
    pi[0] = [0.9, 0.0, 0.1, 0.0, 0.0]  # somebody is there a little
    assert warned(run(pi=pi, **M5)) == ["2 of 5 clusters are empty. M = 3 will do."]
    assert warned(run(pi=pi, params=PARAMS | {"M": "auto"})) == []
    assert warned(run(pi=pi, algorithm="cfl", params={"most": 5})) == []
    assert warned(run([0] * 4, pi=hard([0] * 4, 5), **M5)) == warned(run([0] * 4))  # FedAvg will do: enough said


def test_many_uncertain_agents():
    pi = [[0.6, 0.4]] * 2 + hard((0, 0, 0, 1))
    said = "{} of {} agents are uncertain. Use fewer clusters, or train for more rounds."
    assert warned(run([0] * 5 + [1], pi=pi)) == []  # a third, no more
    assert warned(run([0] * 4 + [1], pi=pi[:2] + pi[3:])) == [said.format(2, 5)]


def test_seeds_agree_up_to_the_names_of_clusters():
    runs = [run(), run((1, 1, 1, 0), seed=1), run((0, 0, 1, 1), seed=2), run((1, 0, 1, 0), seed=4)]
    lines = over_seeds(runs)
    assert lines[:4] == [
        "Found 2 groups with seed 0: agents 0-2 (cluster 0); agent 3 (cluster 1).",
        "Seed 1 found the same groups.",
        "Seeds 2 and 4 found other groups, 2 and 2 of them.",
        "Nobody is uncertain: largest label pi 0.9 or more (mean over the seeds).",
    ]
    assert over_seeds(runs[:2])[1] == "Seed 1 found the same groups." and len(over_seeds(runs[:2])) == 3


def test_labels_and_losses_are_means_over_the_seeds():
    unsure = [[0.7, 0.3], *hard((0, 0, 1))]
    said = "Agent 0 is uncertain: largest label pi below 0.9 (0.85; mean over the seeds)."
    assert said in over_seeds([run(), run(pi=unsure, seed=1)])
    assert said not in over_seeds([run(), run(seed=1), run(pi=unsure, seed=2), run(seed=3)])
    fedavg = [base("fedavg", [1.0, 1.0, 1.0, v], seed=s) for s, v in enumerate((2.9, 3.1))]
    assert "1 of 4 agents gained (agent 3)" in over_seeds([run(), run(seed=1)], fedavg)[3]
    fedavg[1]["loss"][3] = 0.5
    assert "none of 4 agents gained, none lost" in over_seeds([run(), run(seed=1)], fedavg)[3]


def test_one_group_in_some_seeds_alone_is_no_warning():
    one = run([0] * 4, seed=1)
    assert not any(line.startswith("Warning") for line in over_seeds([run(), one]))
    assert "they look alike" in over_seeds([run([0] * 4), one])[-1]


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
def test_everybody_is_in_one_group_and_gained_lost_or_neither(made):
    runs, others = made
    E, lines = len(runs[0]["loss"]), over_seeds(runs, others)
    named = [read(part) for part in re.findall(r"agents? ([^()]+) \(cluster", lines[0])]
    assert sorted(e for part in named for e in part) == list(range(E)) and len(named) == len(groups(runs[0]))
    assert ("uncertain: largest label pi below" in "".join(lines)) == bool(uncertain(runs))
    for line in lines:
        if line.startswith("Against"):
            counts = re.findall(r"(\d+)[a-z\d ]* \(agents? ([^)]*)\)", line)
            assert all(len(read(who)) == int(n) for n, who in counts)
            assert sorted(e for _, who in counts for e in read(who)) == list(range(E))
    warnings = [line for line in lines if line.startswith("Warning: ")]
    assert lines[len(lines) - len(warnings) :] == warnings and len(set(lines)) == len(lines)
    assert all(line.endswith(".") and "\n" not in line for line in lines)


@pytest.fixture(scope="module")
def turned():
    """Seven agents upright, two at 90 degrees, one at 180: FOCUS, FedAvg, every agent alone."""
    fed = ff.data.rotated_digits(seed=0)
    return [ff.fit(method, fed, rounds=25) for method in (ff.Focus(M=3, init="split"), ff.FedAvg(), ff.Local())]


def test_the_turned_agents_gain(turned):
    focus, fedavg, local = turned
    lines = focus.explain(fedavg, local).splitlines()
    named = [part.split(" (")[0] for part in lines[0].removeprefix("Found 3 groups: ").split("; ")]
    assert named == ["agents 0-6", "agents 7-8", "agent 9"]
    assert "3 of 10 agents gained (agents 7-9), none lost" in lines[2] and lines[2].startswith("Against FedAvg")
    assert lines[3].startswith("Against training alone") and not any("Warning" in line for line in lines)


def test_without_others_it_says_which_call_tells_the_rest(turned):
    focus, fedavg, _ = turned
    lines = focus.explain().splitlines()
    calls = "result.explain(ff.fit(ff.FedAvg(), fed), ff.fit(ff.Local(), fed))"
    assert len(lines) == 3 and f"against FedAvg and training alone: {calls}" in lines[-1]
    assert f"lost against training alone: {calls}" in focus.explain(fedavg)
    assert "lost against training alone: result.explain(ff.fit(ff.Local(), fed))" in fedavg.explain()


def test_results_of_other_data_seeds_and_methods_are_refused(turned, ragged):
    focus, fedavg, _ = turned
    with pytest.raises(
        InputError, match="FedAvg was fitted on 'ragged' with seed 0; fit it on this run's federation"
    ):
        focus.explain(ff.fit(ff.FedAvg(), ragged, rounds=1))
    with pytest.raises(InputError, match=r"with seed 1; fit it on .* with seed = 0"):
        focus.explain(replace(fedavg, setup=replace(fedavg.setup, seed=1)))
    with pytest.raises(InputError, match="results of FedAvg and Local, not of FOCUS"):
        fedavg.explain(focus)


def test_a_copy_of_the_data_is_the_same_data(turned):
    focus, fedavg, _ = turned
    copy = replace(fedavg.setup, fed=ff.data.rotated_digits(seed=0))
    assert focus.explain(replace(fedavg, setup=copy)) == focus.explain(fedavg)


def test_agents_alike_make_fedavg_do():
    fed = ff.data.rotated_digits(seed=0, turns=[0] * 6)
    fedavg = ff.fit(ff.FedAvg(), fed, rounds=25)
    for M in (2, "auto"):
        lines = ff.fit(ff.Focus(M=M, init="split"), fed, rounds=25).explain(fedavg).splitlines()
        assert any(line.startswith("Warning") and line.endswith("FedAvg will do.") for line in lines)


def test_a_run_is_explained_alone_where_its_best_losses_are_those_of_agents_alone():
    rng = np.random.default_rng(0)
    data = [(x := rng.normal(size=(80, 5)), (x[:, 0] > 0) ^ (e >= 4)) for e in range(6)]
    fed = ff.Federation.from_agents(data, test=0.25, model=lambda: ff.models.mlp(5, 4, 2))
    said = ff.fit(ff.Focus(M=2), fed, rounds=20).explain()
    assert (
        "Against training alone" in said and "lost against FedAvg: result.explain(ff.fit(ff.FedAvg(), fed))" in said
    )


def rows():
    return json.loads((folder() / "results.json").read_text())


def test_compare_keeps_the_errors_of_differences_in_loss():
    focus, fedavg, afl = rows()[:3]
    assert focus["gap_se"] == {} and list(fedavg["gap_se"]) == ["focus"] and afl["gap_se"] == {}
    assert len(fedavg["gap_se"]["focus"]) == len(focus["n"]) == 10 and min(fedavg["gap_se"]["focus"]) > 0
    assert wanted(focus, fedavg) and not wanted(focus, afl) and not wanted(fedavg, afl)
    assert not wanted(focus | {"bayes": [0.0] * 10}, fedavg)  # each with a best loss of its own


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
    assert "\n".join(explain(focus, others)) == turned[0].explain(*turned[1:])
    se = turned[0]._beside(turned[1])["gap_se"]["focus"]
    assert others[0]["gap_se"]["focus"] == pytest.approx(se, rel=1e-2)


def test_the_terminal_the_page_and_markdown_say_it(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["focusfl", "report", str(folder())])
    with pytest.raises(SystemExit):
        cli.main()
    capsys.readouterr()
    runs = {name: [row for row in rows() if row["method"] == name] for name in ("focus", "fedavg")}
    lines = over_seeds(runs["focus"], runs["fedavg"])
    html, text = ((folder() / f"report.{kind}").read_text() for kind in ("html", "md"))
    hint = "Add local to the algorithms to see who gains against training alone."
    assert all(f"- {line}\n" in text for line in lines) and hint in text
    assert html.index("<h3>In words</h3>") < html.index("<h4>FOCUS</h4>") < html.index("<h3>Results</h3>")
    escaped = [line.replace("'", "&#x27;").replace('"', "&quot;") for line in lines]
    assert all(f"{line}</li>" in html for line in escaped) and hint in html
    assert html.count("<li class='caution'>") == sum(line.startswith("Warning") for line in lines)
    assert "<h4>FedAvg</h4>" not in html.split("<h3>Results</h3>")[0]


def test_compare_ends_in_words(monkeypatch, capsys, tmp_path):
    words = ["compare", "--data", "synthetic", "--rounds", "3", "--seeds", "0", "--out", str(tmp_path / "r")]
    for more in (["--algorithms", "focus,fedavg"], ["--algorithms", "fedavg"]):
        monkeypatch.setattr(sys, "argv", ["focusfl", *words, *more, "--overwrite"])
        with pytest.raises(SystemExit):
            cli.main()
        out = capsys.readouterr().out
        assert ("In words" in out) == ("focus" in more[1])
        if "In words" in out:
            assert out.index("Found ") < out.index("Against FedAvg: ") < out.index("Results:")


def test_parts_are_folded_and_the_paper_has_no_hints():
    both = [row | {"part": f"k = {k}"} for k in (1, 3) for row in section().rows]
    html = page("Parts", [replace(section(), rows=both)])
    assert html.count("<details><summary>In words: k = ") == 2 and "to the algorithms to see" not in html
    none = [row | {"pi": None} for row in section().rows]
    assert "In words" not in page("None", [replace(section(), rows=none)])
    assert "In words" not in markdown("None", {}, replace(section(), rows=none))
