"""The configuration of a deployment: hosts, ports and number of nodes, as deploy.toml stores them."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from focusfl.util.errors import InputError, require

CONFIG_FILE = "deploy.toml"
MAX_NODES = 1000
MAX_DAYS = 3650
DNS_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
# The last label must not consist of digits: that would be a mistyped IP address.
DNS_NAME = re.compile(rf"(?:{DNS_LABEL}\.)*(?!\d+\Z){DNS_LABEL}")


@dataclass(frozen=True)
class Ports:
    """The ports of a deployment.

    Attributes:
        node: The proxy's port for nodes, open to the network.
        operator: The proxy's port for operators, open to the network.
        superlink: The SuperLink's port, on the server's loopback interface.
        supernode: The port of agent 0's SuperNode, on that machine's loopback interface. Agent e has this port + e,
            so that several nodes can share a machine.
    """

    node: int = 9092
    operator: int = 9093
    superlink: int = 9091
    supernode: int = 9100


@dataclass(frozen=True)
class DeployConfig:
    """The configuration of a deployment.

    Attributes:
        hosts: Names and IP addresses of the server, for its certificate. Nodes and operators call the first one.
        nodes: Number of nodes.
        bind: IP address that the proxy listens on.
        ports: The ports.
        days: How long the server's and the operator's certificates are valid.
    """

    hosts: tuple[str, ...]
    nodes: int
    bind: str
    ports: Ports = field(default_factory=Ports)
    days: int = 730

    def address(self, port: int) -> str:
        """Return host:port of the first host, as Flower expects it."""
        host = self.hosts[0]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def nginx_listen(self, port: int) -> str:
        """Return the arguments of nginx's `listen`."""
        return f"[{self.bind}]:{port} ssl ipv6only=off" if ":" in self.bind else f"{self.bind}:{port} ssl"

    def toml(self) -> str:
        """Return the text of deploy.toml. Lists, numbers and strings look the same in JSON and TOML."""
        values = asdict(self)
        ports = values.pop("ports")
        lines = [f"{k} = {json.dumps(v)}" for k, v in values.items()]
        lines += ["", "[ports]", *(f"{k} = {v}" for k, v in ports.items())]
        return "\n".join(["# Written by focusfl deploy init; focusfl deploy add and renew read it.", *lines, ""])


def make_config(hosts: Sequence[str], nodes: int, bind: str | None, ports: Ports, days: int) -> DeployConfig:
    """Check the values and return the configuration.

    Args:
        hosts: Names and IP addresses of the server; without any, localhost.
        nodes: Number of nodes.
        bind: IP address that the proxy listens on; None means all addresses, or 127.0.0.1 if every host is this
            machine's own.
        ports: The ports.
        days: How long the server's and the operator's certificates are valid.

    Returns:
        The configuration.

    Raises:
        InputError: If a value is not valid.
    """
    names = tuple(dict.fromkeys(check_host(host) for host in hosts)) or ("localhost",)
    is_count = type(nodes) is int and 1 <= nodes <= MAX_NODES
    require("nodes", nodes, is_count, f"a whole number from 1 to {MAX_NODES}")
    check_days(days)
    if bind is None:
        bind = "127.0.0.1" if all(map(_is_loopback, names)) else "0.0.0.0"
    require("bind", bind, _ip(bind) is not None, "an IP address of the server, or 0.0.0.0 or :: for all of them")
    numbers = list(asdict(ports).values())
    for name, port in asdict(ports).items():
        require(f"ports.{name}", port, 1 <= port <= 65535, "a port from 1 to 65535")
    require("ports", numbers, len(set(numbers)) == len(numbers), "four different ports")
    last = 65536 - nodes
    require("ports.supernode", ports.supernode, ports.supernode <= last, f"at most {last} for {nodes} nodes")
    return DeployConfig(names, nodes, bind, ports, days)


def check_days(days: int) -> None:
    """Raise an InputError if a certificate cannot be valid for so many days."""
    require("days", days, 1 <= days <= MAX_DAYS, f"a whole number from 1 to {MAX_DAYS}")


def check_host(host: str) -> str:
    """Check a host and return it as the certificate will contain it.

    Args:
        host: A DNS name or an IP address.

    Returns:
        The name in lower case, or the IP address in its normal form.

    Raises:
        InputError: If it is neither.

    >>> check_host("FL.example.org"), check_host("::0:1")
    ('fl.example.org', '::1')
    """
    address = _ip(host)
    if address is not None:
        return str(address)
    if len(host) > 253 or not DNS_NAME.fullmatch(host):
        raise InputError(
            f"host {host!r}: expected a DNS name such as fl.example.org or an IP address, without scheme, port, "
            "wildcard or path; write names in other scripts in their xn-- form"
        )
    return host.lower()


def load_config(folder: Path) -> DeployConfig:
    """Load the configuration that `init` wrote.

    Args:
        folder: The deployment's folder.

    Returns:
        The configuration.

    Raises:
        InputError: If the folder has no deploy.toml, or the file is not valid.
    """
    path = folder / CONFIG_FILE
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        ports = Ports(**values.pop("ports"))
        return make_config(values["hosts"], values["nodes"], values["bind"], ports, values["days"])
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; give the folder that focusfl deploy init wrote") from None
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not valid ({error}); correct it, or create a new deployment with focusfl deploy init"
        ) from error


def _ip(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return None if "%" in text else ip_address(text)  # a zone such as %eth0 has no meaning on other machines
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    address = _ip(host)
    return host == "localhost" or (address is not None and address.is_loopback)
