"""Which ports processes listen on, as Linux tells it; and another machine, as a network namespace."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

# both ends of the cable, in a network for tests (RFC 2544)
HERE, THERE = (f"198.18.{os.getpid() // 60 % 256}.{os.getpid() % 60 * 4 + end}" for end in (1, 2))
CONNECT = """
import socket, sys
for port in sys.argv[2:]:
    try:
        socket.create_connection((sys.argv[1], int(port)), timeout=5).close()
    except OSError as error:
        print(port, type(error).__name__)
    else:
        print(port, "open")
"""


def descendants(pid: int) -> list[int]:
    """Return the ids of a process and of all processes below it."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    family = [pid]
    for one in family:
        family += [child for child, parent in parents.items() if parent == one]
    return family


def listening(pids: list[int]) -> list[tuple[IPv4Address | IPv6Address, int]]:
    """Return the addresses and ports on which these processes listen."""
    by_inode = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A":
                by_inode[rest[5]] = local
    found = set()
    for pid in pids:
        for handle in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = str(handle.readlink())
            except OSError:
                continue
            if target.startswith("socket:[") and target[8:-1] in by_inode:
                found.add(_parse(by_inode[target[8:-1]]))
    return sorted(found, key=lambda one: one[1])


def _parse(local: str) -> tuple[IPv4Address | IPv6Address, int]:
    digits, port = local.split(":")
    words = [bytes.fromhex(digits[i : i + 8])[::-1] for i in range(0, len(digits), 8)]
    address = ip_address(b"".join(words))
    return getattr(address, "ipv4_mapped", None) or address, int(port, 16)


@contextmanager
def from_outside() -> Iterator[Callable[[list[int]], dict[int, str]]]:
    """Yield a function that connects to these ports from outside: "open", or the error, by port.

    Outside is another machine, as a network namespace with a cable to here; without the right to make one (root and
    iproute2), it is this machine by its address in the network.
    """
    try:
        machine = _another_machine()
    except (OSError, subprocess.CalledProcessError):
        address = _own_address()
        yield lambda ports: _connect([], address, ports)
        return
    try:
        yield lambda ports: _connect(["ip", "netns", "exec", machine], HERE, ports)
    finally:
        _ip("link", "del", f"{machine}a")
        _ip("netns", "del", machine)


def _another_machine() -> str:
    name = f"ffl{os.getpid()}"
    _ip("netns", "add", name)
    try:
        _ip("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
        _ip("address", "add", f"{HERE}/30", "dev", f"{name}a")
        _ip("link", "set", f"{name}a", "up")
        _ip("-n", name, "address", "add", f"{THERE}/30", "dev", f"{name}b")
        _ip("-n", name, "link", "set", f"{name}b", "up")
    except subprocess.CalledProcessError:
        _ip("netns", "del", name)
        raise
    return name


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _own_address() -> str:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return str(probe.getsockname()[0])


def _connect(prefix: list[str], address: str, ports: list[int]) -> dict[int, str]:
    command = [*prefix, sys.executable, "-c", CONNECT, address, *map(str, ports)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {int(port): outcome for port, outcome in (line.split() for line in printed.splitlines())}


@contextmanager
def open_port() -> Iterator[int]:
    """Listen on all interfaces, for comparison."""
    with closing(socket.create_server(("0.0.0.0", 0))) as server:
        yield server.getsockname()[1]
