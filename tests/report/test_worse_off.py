"""How many agents are worse off, how many excess risks are negative, and where both are shown."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from focusfl.report import certainty, terminal, worse_off
from focusfl.report.gains import Gains, Pair, WorseOff, compare_with_baselines
from focusfl.report.gains import worse_off as count
from focusfl.report.html.page import page
from focusfl.report.markdown import report as markdown
from focusfl.report.rows import Row, read_row
from focusfl.report.section import Section
from focusfl.report.sentences import baseline_hint
from focusfl.util.errors import InputError


def row(method: str, loss: list[float], **more: Any) -> Any:
    """A run of which nothing is known about noise; the best losses are 1."""
    E = len(loss)
    made: dict[str, Any] = {"method": method, "algorithm": method, "params": {}, "data": "own", "seed": 0}
    made |= {"rounds": 3, "engine": "serial", "train": {}, "seconds": 1.0, "loss": loss, "bayes": [1.0] * E}
    made |= {"avg_loss": sum(loss) / E, "agnostic_loss": max(loss), "worst_agent": loss.index(max(loss))}
    made |= {"avg_acc": None, "acc": None, "accuracy_parity": None, "faa": max(loss) - min(loss), "pi": None}
    made |= {"excess_risk": [v - 1 for v in loss], "bayes_kind": "validated", "clusters": [0] * E}
    return made | {"true_clusters": None, "ari": None} | more


def gains_of(*pairs: Pair) -> Gains:
    return Gains([], [], [], {e: [pair] for e, pair in enumerate(pairs)}, 0, "noise")


def test_limits_by_hand() -> None:
    """Five agents: 2.576 standard errors count. Each loses or gains 0.5 of 10, of which 0.2 are too little."""
    certain, some, none = 0.1, 0.15, 0.5  # 0.3 is 3, 2 and 0.6 of these standard errors
    lost = gains_of(
        *(Pair(10.5, 10.0, se) for se in (certain, some, none)), Pair(9.5, 10.0, certain), Pair(9.5, 10, none)
    )
    assert count(lost) == WorseOff(low=1, measured=3, high=4, agents=5)  # 9.5 +- 0.5: may be worse off
    assert str(count(lost)) == "3 (1 to 4) of 5"


def test_without_noise_there_is_no_interval_and_two_per_cent_are_too_little() -> None:
    found = count(gains_of(Pair(1.019, 1.0, None), Pair(1.021, 1.0, None), Pair(1.0, 1.0, None)))
    assert found == WorseOff(1, 1, 1, 3) and str(found) == "1 of 3"


def test_the_table_compares_with_fedavg_and_with_the_validated_network_alone() -> None:
    alone = {"alone": [2.0, 1.0, 1.0]}
    runs: dict[str, list[Row]] = {
        "Ditto": [row("ditto", [1.0, 1.5, 1.0], **alone, alone_se=[0.005] * 3)],
        "FedAvg": [row("fedavg", [1.2, 1.2, 1.2], **alone)],
    }
    assert worse_off.table(runs) == (
        ["method", "worse than alone", "worse than under FedAvg"],
        [["Ditto", "1 of 3", "1 of 3"], ["FedAvg", "2 of 3", "-"]],
    )
    assert compare_with_baselines(runs["Ditto"], [])["local"].lost == [1]
    assert worse_off.table({"Ditto": [row("ditto", [1.0])]}) is None
    assert baseline_hint(runs) == "" and "local" in baseline_hint({"Ditto": [row("ditto", [1.0])]})


def test_a_run_of_local_is_preferred() -> None:
    runs: dict[str, list[Row]] = {"Ditto": [row("ditto", [1.0], alone=[0.5])], "Local": [row("local", [1.0])]}
    made = worse_off.table(runs)
    assert made is not None and made[1] == [["Ditto", "0 of 1"], ["Local", "-"]]


def test_negative_excess_risks_are_counted_and_explained() -> None:
    noisy = row("ditto", [0.5, 0.99, 1.5], excess_se=[0.1] * 3)
    (counts, meaning) = certainty.negative_risks({"Ditto": [noisy], "FedAvg": [row("fedavg", [1.0, 2.0, 3.0])]})
    assert "Ditto 2 of 3, 1 by more than" in counts and "FedAvg" not in counts and "estimates" in meaning
    exact = certainty.negative_risks({"Ditto": [noisy | {"bayes_kind": "exact"}]})
    assert "known" in exact[1] and "estimates" not in exact[1]
    assert certainty.negative_risks({"Ditto": [noisy | {"bayes_kind": "none"}]}) == []
    assert certainty.negative_risks({"Ditto": [row("ditto", [1.0, 2.0])]}) == []


def test_every_page_shows_both() -> None:
    rows = [row("ditto", [0.5, 2.0], alone=[1.0, 1.0]), row("fedavg", [1.0, 1.0], alone=[1.0, 1.0])]
    console = Console(width=200, record=True, file=StringIO())
    terminal.show(rows, {}, console)
    section = Section("own", "own", "", rows)
    for shown in (console.export_text(), markdown("own", {}, section), page("own", [section])):
        assert "worse than under FedAvg" in shown and "1 of 2" in shown and "Negative excess risks" in shown
    paper = page("own", [Section("own", "own", "paper", rows)])
    assert "worse than under FedAvg" not in paper and "Negative excess risks" not in paper


@pytest.mark.parametrize("key", ["bayes_from", "alone", "bayes_low"])
def test_rows_with_wrong_lengths_are_refused(key: str, tmp_path: Any) -> None:
    value = ["boosted"] if key == "bayes_from" else [1.0]
    assert read_row(row("ditto", [1.0, 2.0], **{key: value * 2}), tmp_path)[key] == value * 2  # type: ignore[literal-required]
    with pytest.raises(InputError, match=key):
        read_row(row("ditto", [1.0, 2.0], **{key: value}), tmp_path)
