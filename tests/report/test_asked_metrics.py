"""Metrics that the user asked for are in every table of results: the mean over the agents, then over the seeds."""

from io import StringIO
from statistics import mean, pstdev

import pytest
from helpers.page import Read, assert_shows
from rich.console import Console

import focusfl as ff
from focusfl.report import markdown
from focusfl.report.html.page import page
from focusfl.report.rows import columns
from focusfl.report.section import Section
from focusfl.report.terminal import show

NAMES = ["auc", "log-loss", "mine|<b>"]


@pytest.fixture(scope="module")
def rows():
    def largest(p, y):
        return p.max()

    fed = ff.data.rotated_digits(seed=0)
    options = {"rounds": 1, "bayes": "none", "metrics": {"auc": "auc", "log-loss": "log-loss", "mine|<b>": largest}}
    made = [ff.fit(m, fed, seed=s, **options).row() for m in (ff.FedAvg(), ff.Local()) for s in (0, 1)]
    made[0]["metrics"]["auc"][2:5] = [None] * 3  # not defined for three agents
    for row in made[2:]:
        row["metrics"]["log-loss"] = [None] * fed.E  # of Local, defined for none
    return made


def averages(rows, method, name):
    mine = [row["metrics"][name] for row in rows if row["method"] == method]
    return [mean(v for v in each if v is not None) for each in mine if set(each) != {None}]


def test_columns_follow_the_loss_and_say_which_values_are_better(rows):
    shown = columns(rows)
    assert [column.key for column in shown] == ["avg_acc", "avg_loss", *NAMES, "faa", "agnostic_loss"]
    assert [column.better for column in shown] == ["higher", "lower", "higher", "lower", "", "lower", "lower"]
    plain = [{k: v for k, v in row.items() if k != "metrics"} for row in rows]
    assert [column.key for column in columns(plain)] == ["avg_acc", "avg_loss", "faa", "agnostic_loss"]


def check(line, rows, method):
    for cell, name in zip(line[3:6], NAMES, strict=True):
        found = averages(rows, method, name)
        assert_shows(cell, *([mean(found), pstdev(found)] if found else []))


def test_the_page_and_markdown_have_them(rows):
    section = Section("x", "x", "", [row | {"part": "", "history": None} for row in rows])
    read = Read(page("x", [section]))
    table = read.find("agnostic loss")
    assert [head.split("\xa0") for head in table[0][3:6]] == [["auc", "↑"], ["log-loss", "↓"], ["mine|<b>"]]
    for line, method in zip(table[1:], ("fedavg", "local"), strict=True):
        check(line, rows, method)
    assert {at for _, at in read.bold} >= {3, 4} and 5 not in {at for _, at in read.bold}

    text = markdown.results_table(rows).replace("\\|", "¦")
    lines = {cells[1].strip(): cells[1:] for line in text.splitlines() if (cells := line.split("|"))}
    assert [cell.strip() for cell in lines["method"][3:6]] == ["auc", "log-loss", "mine¦&lt;b>"]
    check(lines["FedAvg"], rows, "fedavg")
    check(lines["Local"], rows, "local")


def test_the_terminal_has_them(rows):
    text = StringIO()
    show(rows, {}, Console(file=text, width=150, markup=False, emoji=False))
    lines = text.getvalue().splitlines()
    head = next(line for line in lines if "log-loss" in line)
    places = [head.index(word) for word in (" loss", "auc", "log-loss", "mine|<b>", "FAA")]
    assert places == sorted(places)
    for method, name in (("FedAvg", "fedavg"), ("Local", "local")):
        cells = next(line for line in lines if line.strip().startswith(method)).split()
        for cell, key in zip(cells[3:6], NAMES, strict=True):
            found = averages(rows, name, key)
            assert cell.startswith(f"{mean(found):.4f}±") if found else cell == "-"
