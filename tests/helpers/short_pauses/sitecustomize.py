"""Flower's processes without its fixed pauses. Python imports this file at their start: its folder is on the path.

Flower looks for new messages and for replies every three seconds, and a node says every half minute that it is
alive; it is taken for gone after twice that time. Nothing else changes: who waits still waits for the same event.

FOCUSFL_TEST_HEARTBEAT=SECONDS  how often the nodes started with it say so; Flower accepts 10 or more
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

LONGEST = 0.3  # seconds between two looks
POLLING = ("flwr.superlink.grid.http_grid", "flwr.supernode.start_client_internal")
CONSTANTS = "flwr.common.constant"


def _short(seconds: float) -> None:
    time.sleep(min(seconds, LONGEST))


def _change(module: ModuleType) -> None:
    if module.__name__ in POLLING:
        vars(module)["time"] = SimpleNamespace(**vars(time) | {"sleep": _short})
    elif seconds := os.environ.get("FOCUSFL_TEST_HEARTBEAT"):
        vars(module)["HEARTBEAT_DEFAULT_INTERVAL"] = int(seconds)


class Finder(MetaPathFinder):
    """Finds Flower's modules as usual, and changes them once they have been loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in (*POLLING, CONSTANTS):
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_change(module: ModuleType) -> None:
                execute(module)
                _change(module)

            vars(spec.loader)["exec_module"] = execute_and_change
        return spec


sys.meta_path.insert(0, Finder())
