"""The figure of a run: its marks are the numbers, its titles what was found."""

import io
import sys

import pytest
from helpers.federations import make_named

import focusfl as ff
from focusfl.report.plot import MAX_AGENTS, figure
from focusfl.util.errors import InputError

NAMES = ("aarau", "<b>bern</b>", "$x^2$", "a very long name of a hospital in the mountains", "zürich")


@pytest.fixture(scope="module")
def runs():
    fed = make_named(NAMES)
    return [ff.fit(method, fed, rounds=20) for method in (ff.Focus(M=2), ff.FedAvg(), ff.Local())]


def ticks(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def test_marks_are_the_losses_of_the_agents_by_name(runs):
    made = runs[0].plot(*runs[1:])
    losses, clusters = made.axes
    order = sorted(range(5), key=lambda e: (int(runs[0].clusters[e]), -float(runs[0].loss[e])))
    short = [NAMES[0], NAMES[1], r"\$x^2\$", NAMES[3][:23] + "…", NAMES[4]]
    assert ticks(losses) == ticks(clusters) == [short[e] for e in order]
    drawn = {marks.get_label(): marks.get_offsets().tolist() for marks in losses.collections}
    assert list(drawn) == ["Local", "FedAvg", "FOCUS"]
    for run, name in zip(runs, ("FOCUS", "FedAvg", "Local"), strict=True):
        assert drawn[name] == [[pytest.approx(float(run.loss[e])), y] for y, e in enumerate(order)]
    (image,) = clusters.images
    assert image.get_array().tolist() == [pytest.approx(runs[0].pi[e].tolist()) for e in order]


def test_titles_say_who_gains_and_how_certain_the_groups_are(runs):
    focus, fedavg, local = runs
    losses, clusters = focus.plot(local, fedavg).axes
    gains = focus.against(fedavg).gains["fedavg"]
    assert losses.get_title().startswith(f"{len(gains.gained)} of 5 agents gain")
    assert "over FedAvg" in losses.get_title()
    assert clusters.get_title() == "2 groups, all labels confident"
    (alone,) = fedavg.plot().axes  # no groups, nothing to compare with
    worst = int(fedavg.excess_risk.argmax())
    assert (
        alone.get_title().startswith("Worst off: agent") and f"{fedavg.excess_risk[worst]:.2g}" in alone.get_title()
    )


def test_curves_are_those_of_the_history(runs):
    history = {"round": [1, 2, 4], "avg_loss": [1.0, 0.5, 0.25], "agnostic_loss": [2.0, None, float("nan")]}
    made = figure(runs[0].row(), (), history)
    curves = made.axes[1]
    assert [line.get_xydata().tolist() for line in curves.lines] == [[[1, 1], [2, 0.5], [4, 0.25]], [[1, 2]]]
    assert curves.get_title() == "Mean loss 1 after round 1, 0.25 after 4"
    assert len(figure(runs[0].row(), (), {"round": [1], "avg_loss": [1.0]}).axes) == 2  # one round is no curve


def test_it_can_be_written_and_leaves_no_global_state(runs):
    before = "matplotlib.pyplot" in sys.modules
    made, png = runs[0].plot(*runs[1:]), io.BytesIO()
    made.savefig(png, format="png")
    assert png.getvalue().startswith(b"\x89PNG") and len(png.getvalue()) > 5000
    assert before or "matplotlib.pyplot" not in sys.modules


def test_the_largest_losses_of_many_agents_are_shown(runs):
    row, E = runs[1].row(), MAX_AGENTS + 3
    row |= {"loss": [1.0 + e for e in range(E)], "excess_risk": [float(e) for e in range(E)], "names": None}
    row |= {"bayes": [1.0] * E, "clusters": [0] * E}
    (axes,) = figure(row).axes
    assert ticks(axes) == [str(e) for e in reversed(range(3, E))]
    assert f"{MAX_AGENTS} of {E} shown" in axes.get_ylabel() and axes.get_xscale() == "log"


def test_without_matplotlib_the_extra_is_named(runs, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"focusfl\[plot\]"):
        runs[0].plot()


def test_a_figure_without_curves_says_how_to_have_them(runs):
    assert "eval_every=1" in runs[0].plot()._suptitle.get_text()
    row = runs[0].row()
    for history in ({"round": [1, 2], "avg_loss": [2.0, 1.0]}, {"round": [1], "avg_loss": [1.0]}, None):
        assert "eval_every" not in figure(row, (), history)._suptitle.get_text()
