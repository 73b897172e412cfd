"""A deployment on loopback: a SuperLink behind its proxy, SuperNodes, and a tiny app that answers numbers."""

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


def need_nginx() -> None:
    """In CI nothing is skipped."""
    if shutil.which("nginx", path=ENV["PATH"]) is None and os.environ.get("CI") != "true":
        pytest.skip("nginx is not installed", allow_module_level=True)


def free_ports(nodes: int) -> Ports:
    """Ports that nobody uses; those of the nodes follow one another."""
    with ExitStack() as stack:
        taken = [stack.enter_context(closing(socket.create_server(("127.0.0.1", 0)))) for _ in range(3)]
        node, operator, superlink = (one.getsockname()[1] for one in taken)
        for start in range(20_000 + os.getpid() % 10_000, 60_000, nodes):
            with suppress(OSError), ExitStack() as row:
                for e in range(nodes):
                    row.enter_context(closing(socket.create_server(("127.0.0.1", start + e))))
                return Ports(node, operator, superlink, start)
    raise AssertionError("no free ports")


@contextmanager
def running(command: list[object], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block; what it says goes to `log`."""
    with log.open("wb") as out:
        process = subprocess.Popen([str(part) for part in command], stdout=out, stderr=out, env=ENV)
    try:
        yield process
    finally:
        for word in (signal.SIGTERM, signal.SIGKILL):
            process.send_signal(word)
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
                break


@contextmanager
def serving(folder: Path, ports: Ports) -> Iterator[None]:
    """The SuperLink and its proxy, by the scripts that were written for them."""
    server = folder / "server"
    with (
        running([server / "start-superlink.sh"], folder / "superlink.log"),
        running([server / "start-proxy.sh"], folder / "proxy.log"),
    ):
        wait(lambda: status(ports.superlink, folder, path="/health", verb="GET") == 200, folder / "superlink.log")
        wait(lambda: status(ports.node, folder) == 404, folder / "proxy.log")
        yield


def status(
    port: int, folder: Path, path: str = "/", pair: Path | None = None, verb: str = "POST", plain: bool = False
) -> int | None:
    """The answer to a request by someone with the authority's certificate, and perhaps PAIR.pem and PAIR.key."""
    context = ssl.create_default_context(cafile=folder / "server/ca.pem")
    if pair is not None:
        context.load_cert_chain(pair.with_suffix(".pem"), pair.with_suffix(".key"))
    there = HTTPConnection("127.0.0.1", port, timeout=20) if plain else None
    with closing(there or HTTPSConnection("127.0.0.1", port, timeout=20, context=context)) as line:
        try:
            line.request(verb, path, b"", {"content-type": "application/protobuf"})
            return line.getresponse().status
        except OSError:
            return None


def wait(ready: Callable[[], bool], log: Path, seconds: float = 120) -> None:
    """Until it is so; else show what the log says."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, log.read_text(errors="replace")[-4000:]
        time.sleep(0.5)
