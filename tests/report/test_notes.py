"""Notes beside a table say by name what its numbers miss."""

from io import StringIO

from helpers.rows import base, run
from rich.console import Console

from focusfl.report.markdown import report
from focusfl.report.notes import notes
from focusfl.report.rows import meaningful_goals
from focusfl.report.section import Section
from focusfl.report.terminal import rounds_to_accuracy

NAMES = ["aarau", "bern", "chur", "zug"]


def only(lines, *words):
    return len(lines) == 1 and all(word in lines[0] for word in words)


def test_agents_without_a_value_are_named_and_why():
    metrics = {"auc": [0.7, None, 0.8, None], "skill": [0.1, None, 0.1, None], "mine": [1.0, 1.0, None, 1.0]}
    found = notes([run(names=NAMES, metrics=metrics), base("fedavg", [1.0] * 4, metrics=metrics)])
    assert only(
        [line for line in found if "bern" in line], "auc and skill are not defined for bern and zug", "equal"
    )
    (own,) = (line for line in found if "mine" in line)
    assert "not defined for chur" in own and "equal" not in own


def test_agents_with_few_test_examples_are_named():
    assert only(notes([run(names=NAMES, n_test=[10, 9, 50, 3])]), "bern and zug have fewer than 10 test examples")
    assert notes([run(n_test=[10] * 4)]) == [] and notes([run()]) == [] and notes([]) == []


def test_how_agents_were_weighed_is_said_where_it_matters():
    focus = run(n=[10, 20, 30, 40], params={"M": 2, "weight_by_n": False})
    fedavg = base("fedavg", [1.0] * 4) | {"n": [10, 20, 30, 40], "params": {"weight_by_n": None}}
    assert only(notes([focus, fedavg]), "same weight for all agents in FOCUS; ", "numbers of examples in FedAvg")
    alike = fedavg | {"params": {"weight_by_n": False}}
    assert only(notes([focus, alike]), "same weight for all agents in FOCUS and FedAvg")
    assert notes([row | {"n": [10] * 4} for row in (focus, fedavg)]) == []  # then they are the same


def test_the_target_of_a_regression_is_named():
    loss, rmse = notes([run(metrics={"rmse": [1.0] * 4}, target="score")])
    assert "rmse is in the units of 'score'" in rmse and "squared units of 'score'" in loss


def test_accuracies_that_a_constant_prediction_has_are_no_goals():
    reached = {"0.7": 1, "0.8": 2, "0.85": 7, "0.9": None}
    row = run(rounds_to=reached, constant_acc=0.82)
    assert meaningful_goals([row]) == ["0.85", "0.9"] and meaningful_goals([run(rounds_to=reached)]) == [*reached]
    text = StringIO()
    Console(file=text, width=100).print(rounds_to_accuracy({"FOCUS": [row]}))
    assert "85%" in text.getvalue() and "70%" not in text.getvalue()
    text = StringIO()
    Console(file=text, width=100).print(rounds_to_accuracy({"FOCUS": [row | {"constant_acc": 0.95}]}))
    assert not text.getvalue().strip()


def test_an_unbalanced_table_says_so():
    row = run(constant_acc=0.88)
    assert only(notes([row]), "unbalanced", "0.880") and notes([row | {"constant_acc": 0.6}]) == []


def test_markdown_has_the_notes():
    more = {"data": "own", "avg_acc": 0.9, "avg_loss": 1.0, "faa": 0.0, "agnostic_loss": 1.0, "ari": None}
    more |= {"true_clusters": None, "seconds": 1.0, "excess_risk": [0.0] * 4, "train": {}}
    rows = [run(n_test=[3] * 4) | more]
    assert "fewer than 10 test examples" in report("x", {}, Section("x", "x", "", rows))
