"""Which ports processes listen on, as Linux tells it; and another machine, as a network namespace."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

HERE, THERE = "198.18.77.1", "198.18.77.2"  # both ends of the cable; a network for tests (RFC 2544)
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
def another_machine() -> Iterator[str]:
    """Connect a network namespace to this machine, and yield its name; needs root and iproute2."""
    name, here, there = "focusfl-test", "focusfl-here", "focusfl-there"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

    ip("netns", "add", name)
    try:
        ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        ip("address", "add", f"{HERE}/30", "dev", here)
        ip("link", "set", here, "up")
        ip("-n", name, "address", "add", f"{THERE}/30", "dev", there)
        ip("-n", name, "link", "set", there, "up")
        yield name
    finally:
        subprocess.run(["ip", "link", "del", here], capture_output=True)
        ip("netns", "del", name)


def reachable_from(namespace: str, ports: list[int]) -> dict[int, str]:
    """Return what happens when the other machine connects to these ports: "open", or the error."""
    command = ["ip", "netns", "exec", namespace, sys.executable, "-c", CONNECT, HERE, *map(str, ports)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {int(port): outcome for port, outcome in (line.split() for line in printed.splitlines())}


@contextmanager
def open_port() -> Iterator[int]:
    """Listen on all interfaces, for comparison."""
    with closing(socket.create_server(("0.0.0.0", 0))) as server:
        yield server.getsockname()[1]
