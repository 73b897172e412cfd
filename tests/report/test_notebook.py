"""HTML for notebooks: the verdict first, agents by name, and nothing from outside runs."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from helpers.federations import make_named

import focusfl as ff
from focusfl.report.html.notebook import MAX_AGENTS
from focusfl.util.errors import InputError

NAMES = ("aarau", "<script>alert(1)</script>", 'b" onload="x', "a&b\x1b[31m", "zürich")
CLASSES = ("healthy", "<img src=x>", '"ill"')


class Reader(HTMLParser):
    """Collects the elements, their attributes and the cells of every row; elements must be closed in order."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.attributes, self.rows, self.words = [], set(), set(), [], []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.rows += [[]] if tag == "tr" else []
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)
        if "tr" in self.open:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def fed():
    return make_named(NAMES, CLASSES)


@pytest.fixture(scope="module")
def runs(fed):
    return [ff.fit(method, fed, rounds=5) for method in (ff.Focus(M=2), ff.FedAvg(), ff.Local())]


def cards(fed, runs):
    return [fed, runs[0], runs[1], runs[0].against(*runs[1:])]


def test_nothing_from_outside_becomes_markup(fed, runs):
    for shown in cards(fed, runs):
        html = shown._repr_html_()
        read = Reader(html)
        assert read.tags <= {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td", "span"}
        assert read.attributes <= {"style", "title"}
        assert "url(" not in html and "http" not in html and "\x1b" not in html
        text = "".join(read.words)
        assert "<script>alert(1)</script>" in text and "a&b\\x1b[31m" in text  # as it is, for the reader
    assert "<img src=x>" in "".join(Reader(fed._repr_html_()).words)


def test_a_result_begins_with_the_verdict_and_names_every_agent(runs):
    result = runs[0]
    read = Reader(result._repr_html_())
    text = "".join(read.words)
    low, high = result.faa_interval.low, result.faa_interval.high
    assert (
        text.startswith("FOCUS on raggedFAA ")
        and f"FAA {result.faa:.3g} (95 % interval {low:.3g} to {high:.3g})" in text
    )
    worst, best = int(result.excess_risk.argmax()), int(result.excess_risk.argmin())
    assert text.index(f"agent {worst} ") < text.index(f"agent {best} ")
    head, *lines = read.rows
    assert head == ["agent", "excess risk", "examples", "loss", "accuracy", "cluster", "largest label"]
    for e, line in enumerate(lines):
        assert line[0].startswith(f"{e} ") and line[1].strip() == f"{result.excess_risk[e]:+.4f}"
        assert line[2:5] == [
            str(int(result.setup.fed.training.sizes[e])),
            f"{result.loss[e]:.4f}",
            f"{result.acc[e]:.3f}",
        ]
        assert line[5:] == [str(int(result.clusters[e])), f"{result.pi[e].max():.2f}"]


def test_bars_are_as_long_as_the_numbers(runs):
    result = runs[0]
    widths = [int(w) for w in re.findall(r"height:.7em;width:(\d+)px", result._repr_html_())]
    risk = result.excess_risk.abs()
    assert widths == [round(90 * float(r / risk.max())) for r in risk]


def test_without_best_losses_the_losses_are_shown(fed):
    read = Reader(ff.fit(ff.FedAvg(), fed, rounds=2, bayes="none")._repr_html_())
    assert read.rows[0][1] == "loss" and "FAA" not in "".join(read.words) and "Mean loss" in "".join(read.words)


def test_a_federation_shows_examples_and_the_share_of_each_class(fed):
    html = fed._repr_html_()
    read = Reader(html)
    assert "5 agents, 113 training and 55 test examples of shape 6, 3 classes." in "".join(read.words)
    assert "Columns: a, b, c, d, e, f." in "".join(read.words)
    assert [line[0].split()[0] for line in read.rows[1:]] == list("01234")
    assert [line[1] for line in read.rows[1:]] == ["23", "7", "40", "12", "31"]
    counts = torch.bincount(fed.train(0).y, minlength=3).tolist()
    assert f'title="healthy: {counts[0]}"' in html and f'title="&quot;ill&quot;: {counts[2]}"' in html


def test_a_federation_of_values_or_of_many_agents_and_classes():
    html = ff.data.synthetic(seed=0)._repr_html_()
    y = ff.data.synthetic(seed=0).train(3).y
    assert "regression" in html and f"{y.min():.3g} to {y.max():.3g}, mean {y.mean():.3g}" in html
    rng = np.random.default_rng(0)
    agents = [(rng.normal(size=(4, 2)), np.array([0, 1, 1, 99])) for _ in range(MAX_AGENTS + 5)]
    many = Reader(ff.Federation.from_agents(agents, classes=100, test=0.25)._repr_html_())
    assert len(many.rows) == 1 + MAX_AGENTS and "of 100 classes" in many.rows[1][-1]
    assert f"The first {MAX_AGENTS} of {MAX_AGENTS + 5} agents" in "".join(many.words)


def test_of_many_agents_the_extremes_are_shown():
    result = ff.fit(ff.FedAvg(), many_agents(), rounds=1)
    read = Reader(result._repr_html_())
    order = result.excess_risk.argsort().tolist()
    expected = sorted(order[: MAX_AGENTS // 2] + order[-MAX_AGENTS // 2 :])
    assert [int(line[0]) for line in read.rows[1:]] == expected
    assert len(Reader(result.against(ff.fit(ff.Local(), many_agents(), rounds=1))._repr_html_()).rows) > MAX_AGENTS


def many_agents():
    rng = np.random.default_rng(0)
    agents = [(rng.normal(size=(8, 2)), rng.integers(0, 2, 8)) for _ in range(MAX_AGENTS + 7)]
    return ff.Federation.from_agents(agents, test=0.5, model=lambda: torch.nn.Linear(2, 2))


def test_a_comparison_marks_who_does_worse_with_the_other(runs):
    focus, fedavg, local = runs
    compared = focus.against(fedavg, local)
    read = Reader(compared._repr_html_())
    methods = [line for line in read.rows if line[0] in ("FOCUS", "FedAvg", "Local")]
    assert [line[0] for line in methods] == ["FOCUS", "FedAvg", "Local"]
    assert methods[1][2] == f"{float(fedavg.loss.mean()):.4f}"
    lines = read.rows[-5:]
    for e, line in enumerate(lines):
        for cell, run, name in zip(line[1:], runs, (None, "fedavg", "local"), strict=True):
            number, *mark = cell.split()
            assert number == f"{run.loss[e]:.4f}"
            if name is not None:
                found = compared.gains[name]
                assert mark == (["▲"] if e in found.gained else ["▼"] if e in found.lost else [])
    said = focus.explain(fedavg, local).splitlines()
    assert all(line in "".join(read.words) for line in said if line.startswith("Compared with"))


def test_a_comparison_prints_the_tables_of_the_command_line(runs):
    text = str(runs[0].against(runs[1]))
    assert "FOCUS" in text and "FedAvg" in text and "Each agent's excess risk" in text
    assert repr(runs[0].against(runs[1])).startswith(f"Comparison(FOCUS: FAA {runs[0].faa:.3g}")


def test_one_method_with_two_options_is_told_apart(fed, runs):
    other = ff.fit(ff.Focus(M=3), fed, rounds=5)
    assert [row["method"] for row in runs[0].against(other).rows] == ["focus:M=2", "focus:M=3"]
    assert "FOCUS M=3" in runs[0].against(other, runs[1])._repr_html_()
    with pytest.raises(InputError, match="same options"):
        runs[0].against(runs[0])
    for compared in (runs[0].against, runs[0].explain, runs[0].plot):
        with pytest.raises(InputError, match="not int"):
            compared(1)


def test_a_comparison_refuses_another_seed(fed, runs):
    with pytest.raises(InputError, match=r"against: FedAvg .* seed = 0"):
        runs[0].against(ff.fit(ff.FedAvg(), fed, rounds=1, seed=1))


def test_runs_of_different_lengths_are_compared_with_a_note(runs):
    fed = runs[0].setup.fed
    compared = runs[0].against(ff.fit(ff.FedAvg(), fed, rounds=1))
    wanted = f"different numbers of rounds: FOCUS {runs[0].rounds}, FedAvg 1."
    assert compared.notes == [f"The runs have {wanted}"]
    assert wanted in str(compared) and wanted in compared._repr_html_()
    assert not runs[0].against(runs[1]).notes
