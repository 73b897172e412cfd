"""Flower carries the messages: `local` runs in a ClientApp at each node, `aggregate` where the grid is.

Nothing here calls home: Flower's and Ray's telemetry and update checks are off before either is imported.
"""

import os

for name, value in (
    ("FLWR_TELEMETRY_ENABLED", "0"),
    ("FLWR_DISABLE_UPDATE_CHECK", "1"),
    ("RAY_USAGE_STATS_ENABLED", "0"),
    ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"),  # Ray's future default; silences a warning of every worker
):
    os.environ.setdefault(name, value)
