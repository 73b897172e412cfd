"""Who takes part: the operator's side of Flower's list of nodes.

A node is known by its public key, operator/nodes/NAME.pub. Flower gives it a number, and its own command line shows
numbers alone; here they have names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from focusfl.deploy import operator
from focusfl.util.errors import InputError, nearest


@dataclass(frozen=True)
class Node:
    """name    of the file with its public key: agent-0
    id      Flower's number; None: not registered
    status  registered (never seen yet), online, offline, or not registered
    """

    name: str
    id: int | None
    status: str


def nodes(folder: Path) -> list[Node]:
    """Those whose public keys the operator has, in the order of their numbers."""
    with _client(folder) as client:
        return _nodes(client, operator.desk(folder))


def register(folder: Path) -> list[Node]:
    """Register those that are not yet. The SuperLink refuses all others."""
    from flwr.proto.control_pb2 import RegisterNodeRequest

    keys = _keys(operator.desk(folder))
    with _client(folder) as client:
        for node in _nodes(client, operator.desk(folder)):
            if node.id is None:
                client.RegisterNode(RegisterNodeRequest(public_key=keys[node.name], name=node.name))
        return _nodes(client, operator.desk(folder))


def revoke(folder: Path, name: str) -> None:
    """The SuperLink takes nothing from this node any more. Its public key is set aside as NAME.pub.revoked."""
    from flwr.proto.control_pb2 import UnregisterNodeRequest

    desk = operator.desk(folder)
    with _client(folder) as client:
        found = {node.name: node for node in _nodes(client, desk)}
        if name not in found:
            raise InputError(f"{name}: no such node; {nearest(name, found)}")
        if (number := found[name].id) is not None:
            client.UnregisterNode(UnregisterNodeRequest(node_id=number))
    (desk / "nodes" / f"{name}.pub").rename(desk / "nodes" / f"{name}.pub.revoked")


def _nodes(client: Any, desk: Path) -> list[Node]:
    from flwr.proto.control_pb2 import ListNodesRequest

    known = {info.public_key: info for info in client.ListNodes(ListNodesRequest()).nodes_info}
    return [
        Node(name, known[key].node_id, known[key].status) if key in known else Node(name, None, "not registered")
        for name, key in _keys(desk).items()
    ]


def _keys(desk: Path) -> dict[str, bytes]:
    """Public keys by name, in the form that Flower sends them."""
    found = {}
    for path in sorted((desk / "nodes").glob("*.pub"), key=lambda path: (len(path.name), path.name)):
        try:
            key = load_ssh_public_key(path.read_bytes())
        except ValueError as error:
            raise InputError(f"{path}: not a public key; put back the one that focusfl deploy wrote") from error
        found[path.stem] = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return found


@contextmanager
def _client(folder: Path) -> Iterator[Any]:
    """Flower's client for the control API, as the operator. What the proxy refuses becomes words."""
    import httpx
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    desk = operator.desk(folder)
    address = operator.connection(desk)["address"]
    make = operator.certified(ControlHttpClient, desk).from_server_address
    version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
    try:
        with make(address, False, (desk / "ca.pem").read_bytes(), [version]) as client:
            yield client
    except httpx.TransportError as error:
        raise InputError(f"{address}: no answer ({error}); is start-proxy.sh running?") from error
    except httpx.HTTPStatusError as error:
        code = error.response.status_code
        hint = {
            400: "operator.pem ran out or is not this deployment's; see focusfl deploy renew",
            403: "operator.pem is not in the server's operators.map; copy the newer one and reload the proxy",
        }.get(code, "see the SuperLink's log")
        raise InputError(f"{address}: refused with {code}; {hint}") from error
