"""Tables write large numbers compactly, say in which units a loss is, and call agents by their names."""

from io import StringIO

from helpers.rows import base, run
from rich.console import Console

from focusfl.report import terminal
from focusfl.report.certainty import below_best_loss_lines
from focusfl.report.html.notebook import result_card
from focusfl.report.html.page import page
from focusfl.report.markdown import report as markdown
from focusfl.report.notes import notes
from focusfl.report.section import Section

NAMES = ["aarau", "bern", "chur", "davos"]
LOSSES = [69544856.25, 59544856.25, 61544856.25, 79544856.25]


def whole(row, loss):
    """The row with all that a page needs."""
    made = {"data": "clinics", "engine": "serial", "train": {}, "seconds": 1.0, "names": NAMES, "target": "charges"}
    made |= {"avg_loss": sum(loss) / 4, "agnostic_loss": max(loss), "worst_agent": 3, "faa": max(loss) - min(loss)}
    made |= {"avg_acc": None, "acc": None, "accuracy_parity": None, "true_clusters": None, "ari": None}
    return row | made | {"excess_risk": loss, "bayes_kind": "validated"}


ROWS = [whole(run(loss=LOSSES), LOSSES), whole(base("fedavg", LOSSES), LOSSES)]


def shown(rows):
    console = Console(width=200, record=True, file=StringIO())
    terminal.show(rows, {}, console)
    section = Section("own", "own", "", rows)
    return console.export_text(), markdown("own", {}, section), page("own", [section])


def test_large_losses_are_compact_and_their_units_are_named_once():
    for text in (*shown(ROWS), str(result_card(ROWS[0]))):
        assert "6.754e+07" in text or "6.954e+07" in text
        assert "69544856" not in text.split("application/json")[0] and "67544856" not in text
        assert text.count("squared error") == 1 and "squared units of" in text and "charges" in text


def test_another_loss_is_not_called_squared():
    assert not any("squared" in line for line in notes([ROWS[0] | {"loss_name": "l1"}]))
    assert not any("squared" in line for line in notes([run()]))


def test_the_page_calls_agents_by_their_names():
    text = shown(ROWS)[2]
    assert "<th scope='row'>aarau</th>" in text and "agent 0" not in text
    row = ROWS[0] | {"excess_risk": [0.0, -1.0, 0.0, 0.0], "excess_se": [0.1] * 4}
    (line,) = below_best_loss_lines({"": {"FOCUS": [row]}})
    assert "bern" in line and "agent 1" not in line
