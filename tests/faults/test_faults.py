"""Runs that are killed, or whose disk fails, in the middle of a write: resumed, they give the same bits.

A few of the many cases of `campaign.py`, which is run by hand.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from injector import FAULTS

CAMPAIGN = Path(__file__).with_name("campaign.py")


@pytest.fixture(scope="module")
def table():
    words = ("--scenarios", "tied", "--every", "60", "--kills", "3", "--disks", "100")
    said = subprocess.run([sys.executable, CAMPAIGN, *words], capture_output=True, text=True, env=os.environ)
    assert said.returncode in (0, 1), said.stderr
    return said.stdout


@pytest.mark.parametrize("fault", [*FAULTS, "kills", "disks"])
def test_a_disturbed_run_is_resumed_to_the_same_bits(fault, table):
    (line,) = [line for line in table.splitlines() if line.startswith("tied") and line.split()[1] == fault]
    if "mounted" in line:
        pytest.skip("mounting a small disk needs root")
    disturbed, killed, failed, finished, different = map(int, line.split()[2:])
    assert different == 0, table
    assert disturbed == killed + failed + finished and disturbed > 0
    if fault in ("kill", "power"):
        assert killed == disturbed
    if fault == "clock":
        assert finished == disturbed
