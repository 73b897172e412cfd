"""What a deployment is: its hosts, ports and nodes, as `deploy.toml` keeps them."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from focusfl.util.errors import InputError, require

FILE = "deploy.toml"
MOST_NODES = 1000
MOST_DAYS = 3650
LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
NAME = re.compile(rf"(?:{LABEL}\.)*(?!\d+\Z){LABEL}")  # no last label of digits alone: that is a mistyped address


@dataclass(frozen=True)
class Ports:
    """node and operator are the proxy's, open to the network; superlink and supernode stay on their machines."""

    node: int = 9092
    operator: int = 9093
    superlink: int = 9091
    supernode: int = 9100  # agent e: this one + e, so that several nodes may share a machine


@dataclass(frozen=True)
class Site:
    """hosts  names and addresses of the server, in its certificate; nodes and operators call the first
    bind   address that the proxy listens on
    days   how long the server's and the operator's certificates hold
    """

    hosts: tuple[str, ...]
    nodes: int
    bind: str
    ports: Ports = field(default_factory=Ports)
    days: int = 730

    def address(self, port: int) -> str:
        """host:port of the first host, as Flower wants it."""
        host = self.hosts[0]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def listen(self, port: int) -> str:
        """What nginx's `listen` wants."""
        return f"[{self.bind}]:{port} ssl ipv6only=off" if ":" in self.bind else f"{self.bind}:{port} ssl"

    def toml(self) -> str:
        """The text of `deploy.toml`; a list, number or text looks the same in JSON and TOML."""
        values = asdict(self)
        ports = values.pop("ports")
        lines = [f"{k} = {json.dumps(v)}" for k, v in values.items()]
        lines += ["", "[ports]", *(f"{k} = {v}" for k, v in ports.items())]
        return "\n".join(["# Written by focusfl deploy init; focusfl deploy add and renew read it.", *lines, ""])


def make(hosts: Sequence[str], nodes: int, bind: str | None, ports: Ports, days: int) -> Site:
    """Check all of it. Without hosts, or with none but this machine's, the proxy listens on loopback alone."""
    names = tuple(dict.fromkeys(check_host(host) for host in hosts)) or ("localhost",)
    require(
        "nodes", nodes, type(nodes) is int and 1 <= nodes <= MOST_NODES, f"a whole number from 1 to {MOST_NODES}"
    )
    require("days", days, 1 <= days <= MOST_DAYS, f"a whole number from 1 to {MOST_DAYS}")
    if bind is None:
        bind = "127.0.0.1" if all(map(_is_loopback, names)) else "0.0.0.0"
    require("bind", bind, _ip(bind) is not None, "an IP address of the server, 0.0.0.0 or :: for all of them")
    numbers = list(asdict(ports).values())
    for name, port in asdict(ports).items():
        require(f"ports.{name}", port, 1 <= port <= 65535, "a port from 1 to 65535")
    require("ports", numbers, len(set(numbers)) == len(numbers), "four different ones")
    require(
        "ports.supernode", ports.supernode, ports.supernode + nodes <= 65536, f"room for {nodes} nodes after it"
    )
    return Site(names, nodes, bind, ports, days)


def check_host(host: str) -> str:
    """The host as the certificate will have it, or an InputError.

    >>> check_host("FL.example.org"), check_host("::0:1")
    ('fl.example.org', '::1')
    """
    address = _ip(host)
    if address is not None:
        return str(address)
    if len(host) > 253 or not NAME.fullmatch(host):
        raise InputError(
            f"host {host!r}: expected a DNS name such as fl.example.org or an IP address, "
            "without scheme, port, wildcard or path; write names in other scripts in their xn-- form"
        )
    return host.lower()


def load(folder: Path) -> Site:
    """The site that `init` wrote there."""
    path = folder / FILE
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        ports = Ports(**values.pop("ports"))
        return make(values["hosts"], values["nodes"], values["bind"], ports, values["days"])
    except FileNotFoundError:
        raise InputError(f"{path}: not there; name the folder that focusfl deploy init wrote") from None
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); mend it or start anew with deploy init") from error


def _ip(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return None if "%" in text else ip_address(text)  # a zone such as %eth0 means nothing elsewhere
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    address = _ip(host)
    return host == "localhost" or (address is not None and address.is_loopback)
