"""Ray on this machine, for Flower's simulation: it listens on loopback, and obeys only who knows its token."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from focusfl.util.errors import SimulationFailed

# Ray's switch for machines that should not open ports to a network; its name comes from where it is the default
ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
# otherwise Ray's library aborts the process at SIGTERM, with a dump of the stack
NO_DUMP = {"RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1"}


def start(folder: Path) -> None:
    """Start Ray, or connect to the cluster that RAY_ADDRESS names. If Ray is in use in this process, it stays.

    Ray's default is to listen on all interfaces and to run what anyone sends it.

    Args:
        folder: A folder of this user alone, for Ray's sockets and logs.

    Raises:
        SimulationFailed: Ray did not start, or would be open to others.
    """
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        return
    path = os.pathsep.join([*sys.path, *filter(None, [os.environ.get("PYTHONPATH")])])
    options: dict[str, Any] = {"logging_level": logging.ERROR, "runtime_env": {"env_vars": {"PYTHONPATH": path}}}
    if os.environ.get("RAY_ADDRESS", "local") not in ("", "local"):
        with _environment(NO_DUMP):
            _init(options)
        return
    auth = {"RAY_AUTH_MODE": "token"}
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        auth["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    with _environment(NO_DUMP | ON_LOOPBACK | auth), _imported_ray():
        _init({**options, "include_dashboard": False, "_temp_dir": str(folder)})
    _require_closed()


def stop() -> None:
    """Stop what `start` started, unless Flower has done so."""
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()


def _init(options: Mapping[str, Any]) -> None:
    """Call ray.init, and restore the handler of SIGTERM that Ray replaces in the main thread."""
    import ray

    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
    except (OSError, RuntimeError, ValueError) as error:
        raise SimulationFailed(f"Ray did not start: {' '.join(str(error).split())}") from error
    except SystemExit as stopped:  # raised by Ray's handler
        raise KeyboardInterrupt from stopped
    finally:
        if in_main_thread:
            signal.signal(signal.SIGTERM, handler)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables while Ray starts; its processes inherit them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


@contextmanager
def _imported_ray() -> Iterator[None]:
    """Let Ray read its variables now: it may have been imported before they were set."""
    from ray._private import ray_constants
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    cluster, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    AuthenticationTokenLoader.instance().reset_cache()
    Config.initialize("")
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = cluster


def _require_closed() -> None:
    """Shut Ray down and raise if it can be reached from other machines or without its token."""
    import ray
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    if not ip_address(address).is_loopback or not is_token_auth_enabled():
        ray.shutdown()
        raise SimulationFailed(f"Ray would listen on {address} without protection; use --engine serial")
