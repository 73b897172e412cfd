"""focusfl's methods on Flower: `client_app` and `server_app`; `serve` runs inside your own ServerApp.

Nothing here calls home: Flower's and Ray's telemetry and update checks are off before either is imported.
"""

from __future__ import annotations

import os

from focusfl.util.errors import InputError

for name, value in (
    ("FLWR_TELEMETRY_ENABLED", "0"),
    ("FLWR_DISABLE_UPDATE_CHECK", "1"),
    ("RAY_USAGE_STATS_ENABLED", "0"),
    ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"),  # Ray's future default; silences a warning from every worker
):
    os.environ.setdefault(name, value)

try:
    from focusfl.flower.apps.client import client_app
    from focusfl.flower.apps.server import server_app
    from focusfl.flower.deployment import Deployment, serve
except ImportError as error:
    if not (error.name or "").startswith(("flwr", "ray")):
        raise
    raise InputError(f'Flower is not installed ({error.name}): pip install "focusfl[flower]"') from error

__all__ = ["Deployment", "client_app", "serve", "server_app"]
