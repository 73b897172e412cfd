"""The Flower app that `focusfl deploy run` submits, written from the settings on the command line."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from focusfl.util.errors import InputError

MODULE = '''"""The app that focusfl ships, for Flower to load."""

from focusfl.flower.apps.configured import app as client
from focusfl.flower.apps.configured import server

__all__ = ["client", "server"]
'''

PYPROJECT = """[project]
name = "focusfl-app"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "focusfl"

[tool.flwr.app.components]
serverapp = "focusfl_app:server"
clientapp = "focusfl_app:client"

[tool.flwr.app.config]
"""


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """Parse settings such as "rounds=20" or "model=mlp:64,32,10".

    Args:
        settings: Texts of the form KEY=VALUE.

    Returns:
        The values by key: numbers and booleans as TOML reads them, everything else as a string.

    Raises:
        InputError: If a text has no key or no "=", or its value is not a single number, boolean or string.

    >>> parse_settings(["rounds=20", "model=mlp:64,32,10", "resume=true"])
    {'rounds': 20, 'model': 'mlp:64,32,10', 'resume': True}
    """
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise InputError(f"--set {setting}: expected KEY=VALUE, for example rounds=20")
        try:
            values[key] = tomllib.loads(f"v = {value}")["v"]
        except tomllib.TOMLDecodeError:
            values[key] = value
        if not isinstance(values[key], str | int | float | bool):
            raise InputError(f"--set {setting}: expected a number, true, false or a word")
    return values


def write_app(folder: Path, config: dict[str, Any]) -> Path:
    """Check a run configuration and write the app that runs it.

    Args:
        folder: The folder to write the app into.
        config: The run configuration, by the keys of docs/flower.md.

    Returns:
        The folder.

    Raises:
        InputError: If the configuration is not valid. It is checked here, so that the operator sees it at once.
    """
    from focusfl.flower.apps.configured import KEYS, RunConfig

    RunConfig(config).deployment()
    return write_files(folder, {**KEYS, **config})


def write_files(folder: Path, config: dict[str, Any]) -> Path:
    """Write the app's two files, with a configuration that is not checked; return the folder."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in config.items()]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(PYPROJECT + "\n".join(lines) + "\n", encoding="utf-8")
    (folder / "focusfl_app.py").write_text(MODULE, encoding="utf-8")
    return folder
