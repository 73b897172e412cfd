"""What lies in the folders of a deployment."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from focusfl.deploy import certificates, operator, site, writing
from focusfl.deploy.certificates import Key, PublicKey
from focusfl.deploy.site import Site
from focusfl.util.errors import InputError

# What a SuperNode with a registered key calls. Not here: to (un)register a node, which is the operator's business.
NODE_CALLS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "pull-object",
    "push-object",
    "confirm-message-received",
)


def fill(folder: Path, chosen: Site) -> None:
    """All of them, into an empty folder."""
    for name in ("authority", "server", "operator", "operator/nodes", "nodes"):
        (folder / name).mkdir(mode=0o700)
    key = certificates.tls_key()
    ca = certificates.authority(key)
    for name in ("authority", "server", "operator"):
        writing.public(folder / name / "ca.pem", ca.public_bytes(Encoding.PEM))
    writing.secret(folder / "authority/ca.key", certificates.pem(key))
    writing.public(folder / "authority/README.txt", writing.fill("authority.txt"))
    certify(folder, chosen, ca, key)
    _server(folder / "server", chosen)
    operator.connect(folder / "operator", chosen.address(chosen.ports.operator))
    for e in range(chosen.nodes):
        node(folder, chosen, e)
    writing.public(folder / site.FILE, chosen.toml())
    writing.public(folder / "README.txt", writing.fill("README.txt"))


def certify(folder: Path, chosen: Site, ca: x509.Certificate, key: Key) -> None:
    """The server's and the operator's certificates, and the list of operators that the proxy lets in."""
    server = certificates.server(_public(folder / "server/server"), chosen.hosts, ca, key, chosen.days)
    writing.public(folder / "server/server.pem", server.public_bytes(Encoding.PEM))
    one = certificates.operator(_public(folder / "operator/operator"), ca, key, chosen.days)
    writing.public(folder / "operator/operator.pem", one.public_bytes(Encoding.PEM))
    writing.public(folder / "server/operators.map", f'{certificates.serial(one)} "operator";\n')


def node(folder: Path, chosen: Site, e: int) -> Path:
    """The folder of agent e: its key, the authority's certificate, its script. The operator gets the public key."""
    own = folder / "nodes" / f"agent-{e}"
    if own.exists():
        raise InputError(f"{own}: is there already, and keys are never overwritten; remove it if it is of no use")
    own.mkdir(mode=0o700)
    private, public = certificates.node_pair(certificates.node_key())
    writing.secret(own / "node.key", private)
    writing.public(own / "ca.pem", (folder / "server/ca.pem").read_bytes())
    writing.script(
        own / "start-supernode.sh",
        agent=e,
        superlink=chosen.address(chosen.ports.node),
        supernode_port=chosen.ports.supernode + e,
    )
    writing.public(folder / "operator/nodes" / f"{own.name}.pub", public)
    return own


def _server(folder: Path, chosen: Site) -> None:
    ports = chosen.ports
    writing.script(folder / "start-superlink.sh", superlink_port=ports.superlink)
    writing.script(folder / "start-proxy.sh", node_port=ports.node, operator_port=ports.operator)
    proxy = writing.fill(
        "nginx.conf",
        superlink_port=ports.superlink,
        node_listen=chosen.listen(ports.node),
        operator_listen=chosen.listen(ports.operator),
        node_calls="|".join(NODE_CALLS),
    )
    writing.public(folder / "nginx.conf", proxy)


def _public(stem: Path) -> PublicKey:
    """The public half of stem.key or, where that is on its machine alone, of stem.pem; or of a key made now."""
    private, signed = stem.with_suffix(".key"), stem.with_suffix(".pem")
    if private.is_file():
        found = load_pem_private_key(private.read_bytes(), password=None).public_key()
    elif signed.is_file():
        found = x509.load_pem_x509_certificate(signed.read_bytes()).public_key()
    else:
        key = certificates.tls_key()
        writing.secret(private, certificates.pem(key))
        found = key.public_key()
    if not isinstance(found, PublicKey):
        raise InputError(f"{private}: not a key of ours; delete it and {signed.name} to have new ones")
    return found
