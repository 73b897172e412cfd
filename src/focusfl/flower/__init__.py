"""focusfl's methods in Flower apps: `client_app` and `server_app`, or a `Strategy` for a ServerApp of your own."""

from __future__ import annotations

import focusfl.engines.flower  # noqa: F401  before Flower: it turns telemetry off
from focusfl.errors import InputError

try:
    from focusfl.flower.client import client_app
    from focusfl.flower.run import Run
    from focusfl.flower.server import serve, server_app
    from focusfl.flower.strategy import Strategy
except ImportError as error:
    if not (error.name or "").startswith(("flwr", "ray")):
        raise
    raise InputError(f'Flower is not installed ({error.name}): pip install "focusfl[flower]"') from error

__all__ = ["Run", "Strategy", "client_app", "serve", "server_app"]
