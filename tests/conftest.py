"""Shared pieces: small federations, and one thread, so that times and bits do not depend on the machine."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from helpers.data import ENV
from helpers.federations import make_ragged
from hypothesis import settings

import focusfl as ff
from focusfl.cli import app as cli

torch.set_num_threads(1)
os.environ.update(ENV)  # one cache of real data for all tests and the processes they start
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # their idle threads leave the cores to other processes
settings.register_profile("focusfl", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("focusfl")


MARKED_FILES = {  # by path below tests/: what a file of tests needs
    "network": ("data/test_store.py", "data/test_images.py", "data/test_text.py"),
    "browser": ("report/test_page_browser.py",),
    "flower": ("flower/", "deploy/"),
    "slow": ("research/", "faults/", "run/test_sweep.py", "run/test_tracking.py", "cli/test_own_code.py"),
}

# each file is one process's: those that take the most time start first, so that no process has one left at the end
LONGEST_FIRST = (
    "deploy/test_deployment.py",
    "flower/test_flower.py",
    "data/test_text.py",
    "deploy/test_raw_tables.py",
    "run/test_saved.py",
    "research/test_paper.py",
    "deploy/test_intruders.py",
    "research/test_paper_stored.py",
    "data/test_images.py",
    "run/test_sweep.py",
    "deploy/test_superlink.py",
    "flower/test_flower_faults.py",
    "run/test_tracking.py",
    "cli/test_cli.py",
    "flower/test_simulation_processes.py",
    "flower/test_adapted_on_flower.py",
    "research/test_surrogates.py",
    "run/test_presence.py",
    "docs/test_readme.py",
    "flower/test_fit_options_on_flower.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark whole files and folders, so that `make quick` can leave them out; put the longest files first."""
    top = Path(__file__).parent
    turns = {top / place: turn for turn, place in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: turns.get(item.path, len(turns)))
    for item in items:
        if item.path.is_relative_to(top):
            place = item.path.relative_to(top).as_posix()
            for marker, places in MARKED_FILES.items():
                if place.startswith(places):
                    item.add_marker(marker)


@pytest.fixture(autouse=True)
def ctrl_c_stops_pytest() -> Iterator[None]:
    """The command line ends its process at Ctrl-C; a test that ran it here must not leave that behind."""
    previous = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.fixture
def ragged() -> ff.Federation:
    return make_ragged()


@pytest.fixture
def focusfl(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int | str | None, str, str]]:
    """The command line in this process, in an empty folder; gives (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> tuple[int | str | None, str, str]:
        monkeypatch.setattr(sys, "argv", ["focusfl", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        printed = capsys.readouterr()
        return stopped.value.code, printed.out, printed.err

    return call
