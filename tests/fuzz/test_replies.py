"""The first cases of every kind of damaged reply of a node."""

import os

import pytest

if not os.environ.get("CI"):
    pytest.importorskip("flwr")

from . import replies  # noqa: F401  # adds its kinds
from .kinds import KINDS, case


@pytest.mark.parametrize("name", [name for name in KINDS if name.startswith("reply")])
def test_a_damaged_reply_is_refused_or_has_the_form_that_was_asked_for(name, tmp_path):
    for i in range(100):
        assert not case(name, 0, i, tmp_path), f"python -m tests.fuzz --kind {name} --seed 0 --first {i} --cases 1"
