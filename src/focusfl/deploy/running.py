"""focusfl deploy run: an app for `flwr run`, written from settings that are checked first."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from focusfl.util.errors import InputError

MODULE = '''"""What Flower loads: the app that focusfl ships."""

from focusfl.flower.apps.configured import app as client
from focusfl.flower.apps.configured import server

__all__ = ["client", "server"]
'''

HEAD = """[project]
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


def parse(changes: Iterable[str]) -> dict[str, Any]:
    """From "rounds=20", "model=mlp:64,32,10": numbers, true and false as such, else words."""
    found: dict[str, Any] = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not key:
            raise InputError(f"--set {change}: expected KEY=VALUE, as in rounds=20")
        try:
            found[key] = tomllib.loads(f"v = {value}")["v"]
        except tomllib.TOMLDecodeError:
            found[key] = value
        if not isinstance(found[key], str | int | float | bool):
            raise InputError(f"--set {change}: expected a number, true, false or a word")
    return found


def write_app(folder: Path, config: dict[str, Any]) -> Path:
    """The app's folder, with this run configuration; what cannot run is refused here, not at the server."""
    from focusfl.flower.apps.configured import KEYS, RunConfig

    RunConfig(config).deployment()
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**KEYS, **config}.items()]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    (folder / "focusfl_app.py").write_text(MODULE, encoding="utf-8")
    return folder
