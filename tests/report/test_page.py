"""The HTML page: its numbers are those of the rows, what is missing is named, nothing in the data can act."""

import io
import json
import re
import shutil
from dataclasses import replace
from statistics import mean, pstdev

import pytest
from helpers.page import EVIL, KEYS, METHODS, MINUS, NONE, PAPER, Read, assert_shows, evil, folder, of, section
from rich.console import Console

from focusfl.report.html.page import page
from focusfl.report.html.plots import label_panel
from focusfl.report.section import Difference, Section
from focusfl.report.sentences import NO_SHARED_AGENT
from focusfl.report.terminal import show
from focusfl.run.folder import from_folder
from focusfl.run.history import thin


def test_the_results_have_mean_and_deviation_and_the_paper_beside():
    table = Read(page("Small", [section()])).find("agnostic loss")
    assert table[1] == ["here", "paper", "diff."] * 2
    for line, method in zip(table[2:5], METHODS, strict=True):
        expect, cells = PAPER.get(("", method), {}), iter(line[1:])
        for k in KEYS:
            average = mean(of(method, k))
            assert_shows(next(cells), average, pstdev(of(method, k)))
            if k in ("avg_acc", "faa"):
                assert_shows(next(cells), *([expect[k]] if k in expect else []))
                assert_shows(next(cells), *([average - expect[k]] if k in expect else []))
        assert next(cells) == "2"
        right = sum(ari == 1 for ari in of(method, "ari"))
        assert next(cells) == (f"{right} of 2" if method == "focus" else NONE)
    assert table[5][0] == "FedMA" and table[5][-2] == "not run"  # the paper has it, we have not


def test_the_best_of_each_column_is_bold_and_so_is_what_shows_the_same():
    read = Read(page("Small", [replace(section(), expect={})]))
    table = read.find("agnostic loss")
    for column, k in enumerate(KEYS, 1):
        said = {line[0]: float(line[column].split()[0]) for line in table[1:]}
        best = (max if k == "avg_acc" else min)(mean(of(m, k)) for m in METHODS)
        bold = {name for name, at in read.bold if at == column}
        assert bold and bold == {name for name, v in said.items() if abs(v - best) <= 0.5e-3 + 1e-9}


def test_rounds_to_an_accuracy_are_means_over_the_seeds_that_reached_it():
    rows = [row | {"rounds_to": {"0.7": 3 + row["seed"], "0.9": None}} for row in section().rows]
    rows[0]["rounds_to"]["0.9"] = 5
    table = Read(page("Small", [replace(section(), rows=rows)])).find("90%")
    assert table[2] == ["FOCUS", "3.5 (2 of 2)", "4", f"{MINUS}0.5", "5.0 (1 of 2)"]
    assert table[3] == ["FedAvg", "3.5 (2 of 2)", NONE, NONE, "never (0 of 2)"]


def test_what_was_measured_has_a_dash_where_the_paper_has_nothing():
    lines = [
        {"method": "focus", "ratio": -2.5, "ratio, paper": 1.06},
        {"method": "ifca", "ratio": 1.0, "ratio, paper": None},
    ]
    table = Read(page("Times", [Section("runtime", "Times", "small", [], table=lines)])).find("ratio, paper")
    assert table[1:] == [["focus", f"{MINUS}2.5", "1.06"], ["ifca", "1", NONE]]


def test_every_part_has_its_own_block():
    rows = [row | {"part": f"k = {k}", "faa": k * row["faa"]} for k in (1, 3) for row in section().rows]
    text = page("Parts", [replace(section(), rows=rows, expect={("k = 3", "focus"): {"faa": 1.0}})])
    table = Read(text).find("agnostic loss")
    first, second = [line for line in table if line[0] == "FOCUS"]
    faa = of("focus", "faa")
    assert [line[0] for line in table if len(line) == 1] == ["k = 1", "k = 3"]
    assert_shows(first[3], mean(faa), pstdev(faa))
    assert first[4:6] == [NONE, NONE]
    assert_shows(second[5], 3 * mean(faa) - 1)
    assert text.count("<summary>Plots: ") == 2


def test_regression_has_no_accuracy():
    text = page("Regression", [from_folder(folder("synthetic"))])
    headings = [cell.split("\xa0")[0] for cell in Read(text).find("agnostic loss")[0]]
    assert headings == ["method", "loss", "FAA", "agnostic loss", "seeds", "clusters right"]
    assert "known exactly" in text and "First round with" not in text
    lines = next(plot for plot in json.loads(Read(text).data) if plot["kind"] == "lines")
    assert [panel["name"].split(" (")[0] for panel in lines["panels"]] == ["loss", "agnostic loss"]


def test_the_page_says_what_is_missing_and_how_it_was_made():
    text = page("Small", [section()])
    for words in ("Not computed yet", "FOCUS, seed 2", "Left out", "PFNM: needs layers", "small scale", "6 rounds"):
        assert words in text
    for words in (
        "holds weakly",
        "by a little",
        "sums: theta, pi",
        "versions.torch",
    ):
        assert words in text
    assert "<nav" not in text and "<nav" in page("Two", [section(), section()])


def test_a_difference_from_the_paper_is_shown_with_its_reason():
    difference = Difference("k = 1: FOCUS", "FAA 0.5 instead of 0.1", "Too few <rounds>")
    text = page("Off", [replace(section(), differences=[difference])])
    assert "<li>k = 1: FOCUS: FAA 0.5 instead of 0.1. Too few &lt;rounds&gt;.</li>" in text


def test_the_page_says_where_there_is_nothing_to_draw():
    rows = [row | {"history": None, "pi": None} for row in section().rows]
    text = page("Bare", [Section("a", "A", "", rows), Section("b", "B", "paper", [], missing=["all"])])
    for words in ("No history", "None of these methods", "No run"):
        assert words in text
    assert [plot["kind"] for plot in json.loads(Read(text).data)] == ["bars"]


def test_a_method_has_one_look_on_the_whole_page():
    fewer = [row for row in section().rows if row["method"] != "focus"]
    plots = json.loads(Read(page("Two", [section(), replace(section(), rows=fewer)])).data)
    looks = {(m["name"], m["look"]) for plot in plots for m in plot.get("panels", []) if "look" in m}
    looks |= {(m["name"], m["look"]) for plot in plots for m in plot.get("methods", []) if "look" in m}
    assert len(looks) == len({look for _, look in looks}) == len(METHODS)


def test_labels_have_the_colours_of_the_true_clusters_once_these_are_found():
    wrong, right = [[0.5, 0.5, 0.0]] * 4, [[0.0, 0.1, 0.9], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.9, 0.1, 0.0]]
    row = {"seed": 7, "true_clusters": [0, 1, 0, 1], "ari": 1.0, "loss": [0.0] * 4, "pi": right, "rounds": 9}
    run = label_panel(row | {"history": {"pi": {"round": [1, 4, 9], "pi": [wrong, right, right]}}})
    assert run["name"] == "seed 7: right since round 4" and run["rounds"] == [1, 4, 9]
    assert run["pi"][1] == [right[0], right[2], right[1], right[3]]  # agents 0 and 2 are of true cluster 0
    ends = [(j, to, look) for j, begin, to, look in run["cells"] if begin == 1]
    assert ends == [(0, 3, "k0 o7"), (1, 3, "k0 o8"), (2, 3, "k1 o8"), (3, 3, "k1 o7")]
    never = label_panel(row | {"ari": 0.25, "history": None, "pi": wrong})
    assert never["name"] == "seed 7: not right at the end (adjusted Rand index 0.25)" and never["rounds"] == [9]
    assert label_panel(row | {"history": None, "pi": None}) is None


def test_nothing_in_the_data_can_act():
    read = Read(page(EVIL, [evil(), evil()]))
    assert read.elements.count("script") == 2 and "img" not in read.elements
    assert EVIL in json.loads(read.data)[0]["panels"][0]["name"] and "<" not in read.data


def test_nothing_is_fetched():
    text = page("Small", [section(), evil()])
    assert all(link == "data:," or link.startswith("#") for link in Read(text).links)
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", text)
    assert "default-src 'none'" in text and "unsafe" not in text


def test_a_history_is_thinned():
    row = {"avg_loss": 1 / 3, "agnostic_loss": 2e-7 / 3, "avg_acc": 0.5, "pi": [[1 / 3, 2 / 3]] * 200}
    rows = [{"round": t} | row for t in range(1, 501)]
    made = thin([{"round": 0, "seconds": 1.0}, *rows])
    assert made["round"] == [*range(1, 61), *range(65, 501, 5)] and set(made["avg_loss"]) == {0.33333}
    assert set(made["agnostic_loss"]) == {6.6667e-8} and set(made["avg_acc"]) == {0.5}
    kept = made["pi"]["round"]
    assert 30 < len(kept) <= 40 and (kept[0], kept[-1]) == (1, 500) and kept[len(kept) // 2] < 150
    assert made["pi"]["pi"][0][0] == [0.333, 0.667]
    assert thin([row | {"pi": [[0.5, 0.5]] * 201} for row in rows])["pi"] is None
    assert thin([]) is None


def test_an_unfinished_folder_says_what_is_missing(tmp_path):
    copy = shutil.copytree(folder(), tmp_path / "copy")
    rows = json.loads((copy / "results.json").read_text())
    (copy / "results.json").write_text(json.dumps(rows[:-1]))
    made = from_folder(copy)
    assert made.missing == ["AFL, seed 1"] and len(made.rows) == 5 and from_folder(folder()).missing == []
    assert all(row["part"] == "" and row["history"]["round"] == [1, 2, 3, 4, 5, 6] for row in made.rows)
    (copy / "results.json").unlink()
    assert len(from_folder(copy).missing) == 6 and from_folder(copy).rows == []
    with pytest.raises(Exception, match=r"no experiment\.json"):
        from_folder(tmp_path)


def without(row: dict, *gone: int | None) -> dict:
    """As the server of a deployment writes it: the agents that sent their last numbers, the true clusters unknown.
    The labels of the rounds before are all there."""
    kept = [e for e in range(len(row["loss"])) if e not in gone]
    each = ("loss", "acc", "excess_risk", "bayes", "pi", "clusters")
    cut = {key: row[key] and [row[key][e] for e in kept] for key in each}
    unknown = ("n", "excess_se", "gap_se", "faa_interval", "faa_correlation")
    known = {key: value for key, value in row.items() if key not in unknown}
    return known | cut | {"true_clusters": None, "ari": None, "agents": kept}


def terminal(rows: list[dict]) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    show(rows, {}, console)
    return console.export_text()


def test_agents_keep_their_numbers_if_one_sent_nothing():
    rows = [without(row, 2) for row in section().rows]
    text = page("Gone", [Section("a", "A", "", rows)])
    bars, _, labels = json.loads(Read(text).data)
    who = [f"agent {e}" for e in rows[0]["agents"]]
    assert bars["who"] == labels["who"] == who and "agent 2" not in who
    whole = section().rows[0]["history"]["pi"]["pi"]
    for shown_then, then in zip(labels["methods"][0]["runs"][0]["pi"], whole, strict=True):
        assert shown_then[2] == pytest.approx(then[3], abs=1e-3)  # the third row is agent 3's
    assert "Not shown" not in text  # no run has agent 2
    line = next(line for line in terminal(rows).splitlines() if line.split()[:1] == ["3"])
    assert f"{mean(seed[3] for seed in of('focus', 'excess_risk')):+.4f}" in line


def test_agents_are_matched_by_number_if_runs_have_different_agents():
    """FOCUS without agent 2 with one seed and without agent 5 with the other, the rest complete."""
    gone = {("focus", 0): 2, ("focus", 1): 5}
    rows = [without(row, gone.get((row["method"], row["seed"]))) for row in section().rows]
    text = page("Gone", [Section("a", "A", "", rows)])
    bars, _, labels = json.loads(Read(text).data)
    kept = [e for e in range(len(of("afl", "loss")[0])) if e not in (2, 5)]
    assert bars["who"] == labels["who"] == [f"agent {e}" for e in kept]
    for run, history in zip(labels["methods"][0]["runs"], of("focus", "history"), strict=True):
        last = history["pi"]["pi"][-1]
        assert run["pi"][-1] == [pytest.approx(last[e], abs=1e-3) for e in kept]
    said, at = terminal(rows), kept.index(6)
    sixth = next(line for line in said.splitlines() if line.split()[:1] == ["6"])
    numbers = Read(text).find("agent 6")[1 + at]
    for i, (panel, method) in enumerate(zip(bars["panels"], METHODS, strict=True)):
        wanted = [mean(seed[e] for seed in of(method, "excess_risk")) for e in kept]
        assert panel["mean"] == pytest.approx(wanted, rel=1e-4)
        assert_shows(numbers[1 + i], wanted[at])
        assert f"{wanted[at]:+.4f}" in sixth
    words = "Not shown: agents 2 and 5"
    assert words in text and words in said


def test_the_profiles_of_many_methods_name_the_agent_by_its_number():
    first = without(section().rows[0], 0, 1)
    worst = first["agents"][first["excess_risk"].index(max(first["excess_risk"]))]
    names = ["focus", "fedavg", "afl", "ditto", "local"]
    assert f"(agent {worst})" in terminal([first | {"method": name} for name in names])


def test_runs_that_share_no_agent_are_not_drawn_side_by_side():
    one, two = [row for row in section().rows if row["method"] == "focus"]
    rows = [without(one, *range(5)), without(two, *range(5, len(two["loss"])))]
    text = page("Gone", [Section("a", "A", "", rows)])
    assert NO_SHARED_AGENT in text and NO_SHARED_AGENT in terminal(rows)
    assert [plot["kind"] for plot in json.loads(Read(text).data)] == ["lines"]
