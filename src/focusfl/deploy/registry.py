"""Register, list and revoke the nodes of a deployment.

The public key of a node, operator/nodes/NAME.pub, identifies it. Flower assigns each node an id, and Flower's own
command line shows ids only; here nodes have names.
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
    """A node whose public key the operator has.

    Attributes:
        name: Name of the file with its public key, without .pub: agent-0.
        id: Flower's id; None if the node is not registered.
        status: "registered" (never connected so far), "online", "offline" or "not registered".
    """

    name: str
    id: int | None
    status: str


def nodes(folder: Path) -> list[Node]:
    """List the nodes whose public keys the operator has.

    Args:
        folder: The operator's folder, or the deployment's folder.

    Returns:
        The nodes, in the order of their numbers.

    Raises:
        InputError: If the server cannot be reached or refuses the operator.
    """
    folder = operator.operator_folder(folder)
    with control_client(folder) as client:
        return _nodes(client, folder)


def register(folder: Path) -> list[Node]:
    """Register every node that is not registered yet. The SuperLink refuses all others.

    Args:
        folder: The operator's folder, or the deployment's folder.

    Returns:
        All nodes, in the order of their numbers.

    Raises:
        InputError: If the server cannot be reached or refuses the operator.
    """
    from flwr.proto.control_pb2 import RegisterNodeRequest

    folder = operator.operator_folder(folder)
    keys = _public_keys(folder)
    with control_client(folder) as client:
        for node in _nodes(client, folder):
            if node.id is None:
                client.RegisterNode(RegisterNodeRequest(public_key=keys[node.name], name=node.name))
        return _nodes(client, folder)


def revoke(folder: Path, name: str) -> None:
    """Revoke a node: the SuperLink refuses it from now on. Its public key is renamed to NAME.pub.revoked.

    Args:
        folder: The operator's folder, or the deployment's folder.
        name: The node's name, for example agent-0.

    Raises:
        InputError: If there is no such node, or the server cannot be reached or refuses the operator.
    """
    from flwr.proto.control_pb2 import UnregisterNodeRequest

    folder = operator.operator_folder(folder)
    with control_client(folder) as client:
        known = {node.name: node for node in _nodes(client, folder)}
        if name not in known:
            raise InputError(f"{name}: there is no such node; {nearest(name, known)}")
        if (node_id := known[name].id) is not None:
            client.UnregisterNode(UnregisterNodeRequest(node_id=node_id))
    (folder / "nodes" / f"{name}.pub").rename(folder / "nodes" / f"{name}.pub.revoked")


def _nodes(client: Any, folder: Path) -> list[Node]:
    from flwr.proto.control_pb2 import ListNodesRequest

    known = {info.public_key: info for info in client.ListNodes(ListNodesRequest()).nodes_info}
    return [
        Node(name, known[key].node_id, known[key].status) if key in known else Node(name, None, "not registered")
        for name, key in _public_keys(folder).items()
    ]


def _public_keys(folder: Path) -> dict[str, bytes]:
    """Return the nodes' public keys by name, in the format that Flower sends."""
    keys = {}
    for path in sorted((folder / "nodes").glob("*.pub"), key=lambda path: (len(path.name), path.name)):
        try:
            key = load_ssh_public_key(path.read_bytes())
        except ValueError as error:
            raise InputError(f"{path} is not a public key; copy the file from the deployment again") from error
        keys[path.stem] = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return keys


@contextmanager
def control_client(folder: Path) -> Iterator[Any]:
    """Yield Flower's client for the control API, as the operator. Turn the proxy's refusals into InputErrors."""
    import httpx
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    address = operator.read_connection(folder)["address"]
    connect = operator.with_certificate(ControlHttpClient, folder).from_server_address
    version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
    try:
        with connect(address, False, (folder / "ca.pem").read_bytes(), [version]) as client:
            yield client
    except httpx.TransportError as error:
        raise InputError(f"{address} cannot be reached ({error}); check that start-proxy.sh is running") from error
    except httpx.HTTPStatusError as error:
        code = error.response.status_code
        hint = {
            400: "operator.pem has expired or belongs to another deployment; see focusfl deploy renew",
            403: "operator.pem is not in the server's operators.map; copy the newer map there and reload the proxy",
        }.get(code, "see the SuperLink's log")
        raise InputError(f"{address} refused the operator with HTTP status {code}: {hint}") from error
