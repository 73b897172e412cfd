"""Shared pieces: small federations, and one thread, so that times and bits do not depend on the machine."""

from __future__ import annotations

import os

import pytest
import torch
from helpers.data import ENV
from helpers.federations import make_ragged
from hypothesis import settings

import focusfl as ff

torch.set_num_threads(1)
os.environ.update(ENV)  # one cache of real data for all tests and the processes they start
settings.register_profile("focusfl", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("focusfl")


@pytest.fixture
def ragged() -> ff.Federation:
    return make_ragged()
