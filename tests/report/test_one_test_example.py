"""An agent with one test example: nothing is judged beyond noise for it, and everything is for the others."""

import json
from io import StringIO

import pytest
import torch
from helpers.rows import base, run
from rich.console import Console

import focusfl as ff
from focusfl.fairness.examples import Examples, correlation
from focusfl.report import terminal
from focusfl.report.certainty import below_best_loss
from focusfl.report.gains import compare_losses, worse_off
from focusfl.report.notes import notes
from focusfl.report.rows import read_row
from focusfl.report.sentences import WITH_NOISE, WITHOUT_NOISE, explain, what_counts
from focusfl.report.worse_off import INTERVAL, heading
from focusfl.run.result import rows_for_comparison

NAMES = ["aarau", "bern", "chur", "flims"]
ERRORS = [0.01, 0.01, 0.01, None]
OURS = run(loss=[0.8, 1.0, 1.2, 0.1], names=NAMES, excess_se=ERRORS)
FEDAVG = base("fedavg", [1.0] * 4, names=NAMES, excess_se=ERRORS)


def test_it_is_left_out_by_name_and_the_others_are_judged():
    gains = compare_losses([OURS], [FEDAVG])
    assert (gains.gained, gains.lost, gains.same, list(gains.unknown)) == ([0], [2], [1], [3])
    assert gains.threshold == "noise" and worse_off(gains).agents == 3
    (line,) = (line for line in explain([OURS], [FEDAVG]) if line.startswith("Compared"))
    assert "1 of 3 agents gained (aarau)" in line and "flims left out" in line and "too few test examples" in line
    assert "Without it the mean loss is 1 instead of 1" in line


@pytest.mark.parametrize("key", ["gap_se", "alone_se"])
def test_errors_of_differences_may_be_unknown_too(key):
    ours, others = OURS | {"gap_se": {"fedavg": ERRORS}}, [FEDAVG]
    if key == "alone_se":
        ours, others = OURS | {"alone": [1.0] * 4, "alone_se": ERRORS}, []
        del ours["excess_se"]
    assert "flims left out" in "".join(explain([ours], others))


def test_best_losses_of_agents_alone_are_not_judged_without_noise():
    ours = OURS | {"bayes": [1.0] * 4, "bayes_kind": "agent"}
    assert "flims left out" in "".join(explain([ours]))


def test_what_is_judged_without_noise_does_not_claim_it():
    bare = [{k: v for k, v in row.items() if k != "excess_se"} for row in (OURS, FEDAVG)]
    runs = {"FOCUS": bare[:1], "FedAvg": bare[1:]}
    assert what_counts(runs) == WITHOUT_NOISE and INTERVAL not in heading(runs)
    known = {"FOCUS": [OURS], "FedAvg": [FEDAVG]}
    assert what_counts(known) == WITH_NOISE and INTERVAL in heading(known)
    assert "left out" not in "".join(explain(bare[:1], bare[1:]))


def test_a_note_says_why():
    (line,) = notes([OURS | {"pi": None}])
    assert line.startswith("flims has too few test examples")
    assert not notes([OURS | {"excess_se": [0.1] * 4}])


def test_it_is_never_below_its_best_loss_beyond_noise():
    row = {"excess_risk": [-0.2, -0.2], "excess_se": [0.01, None]}
    assert below_best_loss([row]) == {0: -0.2}


def test_the_correlation_of_the_others_is_known():
    rng = torch.Generator().manual_seed(0)
    excess, at = torch.randn(61, generator=rng), torch.tensor([0, 30, 60, 61])
    found = correlation(Examples(excess, at), Examples(excess * 1.1, at))
    assert found > 0.9


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Four sites, the last with six rows, of which one is for testing."""
    folder, rng = tmp_path_factory.mktemp("sites"), torch.Generator().manual_seed(0)
    for name, n in zip(NAMES, (80, 80, 80, 6), strict=True):
        x = torch.randn(n, 2, generator=rng)
        lines = [f"{a:.3f},{b + 3 * (i % 2):.3f},{i % 2}" for i, (a, b) in enumerate(x.tolist())]
        (folder / f"{name}.csv").write_text("\n".join(["a,b,y", *lines]))
    fed = ff.data.folder(folder, label="y")
    assert fed.testing.sizes.tolist()[-1] == 1
    with pytest.warns(UserWarning, match="flims"):
        results = [ff.fit(method, fed, rounds=2) for method in (ff.Focus(M=2), ff.FedAvg())]
    assert "95 % interval" in results[0].table() and results[0].faa_interval is not None
    return rows_for_comparison(results)


def test_a_run_keeps_the_noise_of_the_others(rows, tmp_path):
    for row in rows:
        assert row["excess_se"][3] is None and None not in row["excess_se"][:3] and "faa_interval" in row
        assert read_row(json.loads(json.dumps(row)), tmp_path) == row
    assert rows[1]["gap_se"]["focus"][3] is None
    console = Console(width=160, record=True, file=StringIO())
    terminal.show(rows, {}, console)
    text = console.export_text()
    assert "FAA corrected for noise" in text and "flims has too few test examples" in text and "of 3" in text
