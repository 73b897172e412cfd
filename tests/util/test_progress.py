"""Progress: bars where they can be drawn, and a line now and then in a log file."""

import io
import sys
import types
from itertools import pairwise

import pytest
from rich.console import Console

import focusfl as ff
from focusfl.util import progress
from focusfl.util.progress import LogLines, RunProgress, shows_bars


def lines(rounds, seconds, first=1, loss=None):
    """The lines of a run whose rounds take so long, and when each was written."""
    now, written = [0.0], []
    log = LogLines("FOCUS seed 0", rounds, lambda: now[0], lambda line: written.append((now[0], line)))
    for done in range(first, rounds + 1):
        now[0] += seconds
        log(done, loss)
    return written


def test_a_short_run_is_silent():
    assert lines(rounds=60, seconds=0.1) == []
    assert lines(rounds=1, seconds=9.9) == []


def test_a_long_run_says_where_it_is_and_how_long_it_takes():
    written = lines(rounds=60, seconds=1.0, loss=0.4124)
    assert written[0] == (10.0, "FOCUS seed 0: round 10 of 60, loss 0.412, 50 s left")
    assert written[-1] == (60.0, "FOCUS seed 0: round 60 of 60, loss 0.412, 0 s left")


@pytest.mark.parametrize(("rounds", "seconds"), [(60, 1.0), (7, 30.0), (1000, 0.5), (100000, 0.003), (500, 3600.0)])
def test_lines_are_ten_seconds_apart_and_few(rounds, seconds):
    times = [at for at, _ in lines(rounds, seconds)]
    assert times and times[0] >= 10 and all(b - a >= 10 for a, b in pairwise(times))
    assert len(times) <= 10 + rounds.bit_length()  # tenths and powers of two


def test_the_time_left_of_a_resumed_run_counts_its_own_rounds():
    written = lines(rounds=64, seconds=15.0, first=57)  # two of its own rounds are done at 58, and 6 are left
    assert written[0] == (30.0, "FOCUS seed 0: round 58 of 64, 90 s left")


def numbered(written):
    return [(int(line.split("round ")[1].split()[0]), line) for _, line in written]


def test_a_file_gets_no_bar_and_a_terminal_one():
    assert not shows_bars(Console(file=io.StringIO()))
    assert shows_bars(Console(file=io.StringIO(), force_terminal=True))


def test_a_notebook_shows_bars_if_it_can_redraw_them(monkeypatch):
    notebook = Console(file=io.StringIO(), force_jupyter=True)
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    assert not shows_bars(notebook)
    monkeypatch.setattr(progress, "find_spec", lambda name: types.SimpleNamespace(name=name))
    assert shows_bars(notebook)


def test_progress_that_is_switched_off_writes_nothing(monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", told := io.StringIO())
    for show, expected in ((False, ""), (None, "FedAvg seed 0: round 1 of 2")):
        with RunProgress(show) as bars:
            bars.add("FedAvg seed 0", 2)(1, None)
        assert told.getvalue().strip() == expected


def test_fit_reports_to_a_log_file(monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", told := io.StringIO())
    ff.fit(ff.FedAvg(), ff.data.synthetic(seed=0), rounds=20)
    rounds = [t for t, line in numbered((0, line) for line in told.getvalue().splitlines() if "FedAvg" in line)]
    assert rounds == [1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
