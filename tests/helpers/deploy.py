"""A deployment on loopback: start its processes, wait for them, send requests to its ports."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import pytest

from focusfl.deploy.config import Ports

ENV = {
    **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "PYTHONUNBUFFERED": "1",
}
# for the processes of a deployment whose messages a test waits for: without Flower's pauses of three seconds
SHORT_PAUSES = {
    "PYTHONPATH": os.pathsep.join(
        [str(Path(__file__).with_name("short_pauses")), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
}


def skip_without_nginx() -> None:
    """Skip the module if nginx is not installed. In CI nothing is skipped."""
    if shutil.which("nginx", path=ENV["PATH"]) is None and os.environ.get("CI") != "true":
        pytest.skip("nginx is not installed", allow_module_level=True)


def free_ports(nodes: int) -> Ports:
    """Return unused ports; those of the nodes are consecutive."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.create_server(("127.0.0.1", 0)))) for _ in range(3)]
        node, operator, superlink = (one.getsockname()[1] for one in sockets)
        for start in range(20_000 + os.getpid() % 10_000, 60_000, nodes):
            with suppress(OSError), ExitStack() as consecutive:
                for e in range(nodes):
                    consecutive.enter_context(closing(socket.create_server(("127.0.0.1", start + e))))
                return Ports(node, operator, superlink, start)
    raise AssertionError("no free ports")


@contextmanager
def running(command: list[object], log: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command until the block ends; its output goes to `log`."""
    with log.open("wb") as out:
        process = subprocess.Popen([str(part) for part in command], stdout=out, stderr=out, env=ENV | env)
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
                break


@contextmanager
def serving(folder: Path, ports: Ports, **env: str) -> Iterator[None]:
    """Run the SuperLink and the proxy with their start scripts."""
    server = folder / "server"
    with (
        running([server / "start-superlink.sh"], folder / "superlink.log", **env),
        running([server / "start-proxy.sh"], folder / "proxy.log"),
    ):
        wait_until(
            lambda: status(ports.superlink, folder, path="/health", method="GET") == 200, folder / "superlink.log"
        )
        wait_until(lambda: status(ports.node, folder) == 404, folder / "proxy.log")
        yield


def status(
    port: int, folder: Path, path: str = "/", client: Path | None = None, method: str = "POST", plain: bool = False
) -> int | None:
    """Send a request and return the HTTP status, or None if there was no answer.

    The client trusts the authority and presents the certificate CLIENT.pem with CLIENT.key, if given.
    """
    context = ssl.create_default_context(cafile=folder / "server/ca.pem")
    if client is not None:
        context.load_cert_chain(client.with_suffix(".pem"), client.with_suffix(".key"))
    insecure = HTTPConnection("127.0.0.1", port, timeout=20) if plain else None
    with closing(insecure or HTTPSConnection("127.0.0.1", port, timeout=20, context=context)) as connection:
        try:
            connection.request(method, path, b"", {"content-type": "application/protobuf"})
            return connection.getresponse().status
        except OSError:
            return None


def is_listening(port: int) -> bool:
    """Say whether a server accepts connections at a port of this machine."""
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        return True
    return False


def wait_until(ready: Callable[[], bool], log: Path, seconds: float = 600) -> None:
    """Wait until `ready()` is true; after so many seconds, fail and show the end of the log."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, log.read_text(errors="replace")[-4000:]
        time.sleep(0.2)
