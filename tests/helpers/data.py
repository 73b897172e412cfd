"""Real data for tests: `need("mnist")` returns it. If it is missing, the test is skipped, or fails with CI=true."""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import pytest

from focusfl.data import store
from focusfl.data.sets import natural
from focusfl.util.errors import InputError

SHARED = Path(__file__).parents[3] / "shared/data"


def _session_cache() -> str:
    """FOCUSFL_DATA if it is set, else a temporary folder for this run of the tests."""
    if named := os.environ.get("FOCUSFL_DATA"):
        return named
    folder = tempfile.mkdtemp(prefix="focusfl-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


ENV = {"FOCUSFL_DATA": _session_cache(), "FOCUSFL_FROM": os.environ.get("FOCUSFL_FROM") or str(SHARED)}
_missing: dict[str, str] = {}


def need(name: str) -> dict[str, Any]:
    """Return `store.load(name)` from the cache of this run; a subprocess gets the same with `os.environ | ENV`."""
    if name not in _missing:
        try:
            with mock.patch.dict(os.environ, ENV):
                return store.load(name)
        except InputError as error:
            _missing[name] = str(error)
    return _skip_or_fail(_missing[name])


def need_natural(name: str) -> Path:
    """Return the folder of a natural federation such as "heart"."""
    try:
        with mock.patch.dict(os.environ, ENV):
            return natural.find(name)
    except InputError as error:
        return _skip_or_fail(str(error))


def library(name: str) -> Any:
    """Import an optional library, or skip the test (fail with CI=true)."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return _skip_or_fail(f"{name} is not installed")


def _skip_or_fail(what: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(what, pytrace=False)
    pytest.skip(what)
