"""Write the folders of a deployment: `init` creates them, `add` and `replace` write nodes, `renew` certificates.

    authority/     the key that signs certificates; kept offline
    server/        certificate and key, start scripts, nginx.conf, the list of operators
    operator/      certificate and key, Flower's connection, the nodes' public keys
    nodes/agent-e/ the node's two keys, the certificate of its signing key, the authority's, a start script
    deploy.toml    the configuration

No function overwrites a key.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from focusfl.deploy import certificates, operator
from focusfl.deploy.certificates import Key, PublicKey
from focusfl.deploy.config import CONFIG_FILE, DeployConfig, Ports, check_days, load_config, make_config
from focusfl.flower.secure_sums import identity
from focusfl.util import files
from focusfl.util.errors import InputError, require

TEMPLATES = Path(__file__).parent / "templates"

# The calls that a registered SuperNode makes. Calls that (un)register a node are missing: only the operator may.
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


def init(
    folder: Path,
    nodes: int,
    hosts: Sequence[str] = (),
    *,
    bind: str | None = None,
    ports: Ports | None = None,
    days: int = 730,
) -> DeployConfig:
    """Write a new deployment: one folder per machine, with exactly what that machine needs.

    If anything fails, nothing is written.

    Args:
        folder: A folder that is empty or does not exist.
        nodes: Number of nodes.
        hosts: Names and IP addresses of the server; without any, the deployment is a trial on this machine.
        bind: IP address that the proxy listens on; by default all, or 127.0.0.1 in a trial.
        ports: The ports, by default those of `Ports`.
        days: How long the server's and the operator's certificates are valid.

    Returns:
        The configuration.

    Raises:
        InputError: If a value is not valid or the folder is not empty.
    """
    config = make_config(hosts, nodes, bind, ports or Ports(), days)
    folder = folder.expanduser().absolute()
    with files.readable_errors(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(
                f"{folder} is not empty, and keys are never overwritten; to add nodes, use focusfl deploy add; "
                "to renew certificates, focusfl deploy renew; for another deployment, give another folder"
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            _write_deployment(draft, config)
            draft.replace(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        operator.update_connection(folder / "operator")
    return config


def add(folder: Path, nodes: int = 1) -> list[Path]:
    """Write folders for more nodes, numbered after the existing ones. The server does not change.

    Args:
        folder: The deployment's folder, with authority/ca.key: the authority certifies the nodes' signing keys.
        nodes: Number of new nodes.

    Returns:
        The new nodes' folders. Their public keys are in operator/nodes and must be registered.

    Raises:
        InputError: If the folder is no deployment, the number is not valid, the authority's key is missing, or a
            node's folder already exists.
    """
    old = load_config(folder)
    require("nodes", nodes, nodes >= 1, "a whole number, 1 or more")
    new = make_config(old.hosts, old.nodes + nodes, old.bind, old.ports, old.days)
    with files.readable_errors(folder):
        authority = _load_authority(folder)
        added = [_write_node(folder, new, e, *authority) for e in range(old.nodes, new.nodes)]
        files.write_text(folder / CONFIG_FILE, new.toml())
    return added


def replace_node(folder: Path, e: int) -> Path:
    """Write the folder of agent e again, with new keys: the old ones are lost, or someone else has them.

    Args:
        folder: The deployment's folder, with authority/ca.key and without nodes/agent-e.
        e: The agent.

    Returns:
        The node's folder. Its public key is in operator/nodes and must be registered.

    Raises:
        InputError: If there is no such agent, or nodes/agent-e still exists.
    """
    config = load_config(folder)
    require(
        "agent", e, 0 <= e < config.nodes, f"from 0 to {config.nodes - 1}; for more nodes use focusfl deploy add"
    )
    with files.readable_errors(folder):
        return _write_node(folder, config, e, *_load_authority(folder))


def renew(folder: Path, days: int | None = None) -> None:
    """Renew the server's and the operator's certificates.

    Existing keys stay. Where both a key and its certificate are missing, a new key is created. Once the proxy has
    the new operators.map, the operator's old certificate is no longer accepted.

    Args:
        folder: The deployment's folder, with authority/ca.key.
        days: How long the certificates are valid; by default as before.

    Raises:
        InputError: If the authority's key is missing or does not belong to its certificate.
    """
    old = load_config(folder)
    config = replace(old, days=old.days if days is None else days)
    check_days(config.days)
    with files.readable_errors(folder):
        _write_certificates(folder, config, *_load_authority(folder))


def _load_authority(folder: Path) -> tuple[x509.Certificate, Key]:
    """Return the authority's certificate and key."""
    path = folder / "authority" / "ca.key"
    if not path.is_file():
        raise InputError(f"{path} does not exist; put the authority folder back from where you keep it")
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
        ca = x509.load_pem_x509_certificate(path.with_suffix(".pem").read_bytes())
    except ValueError as error:
        raise InputError(f"{path} or ca.pem next to it is damaged; put the original files back") from error
    if not isinstance(key, Key) or key.public_key() != ca.public_key():
        raise InputError(f"{path} does not belong to ca.pem next to it; put the original files back")
    return ca, key


def _write_deployment(folder: Path, config: DeployConfig) -> None:
    """Write everything into an empty folder."""
    for name in ("authority", "server", "operator", "operator/nodes", "nodes"):
        (folder / name).mkdir(mode=0o700)
    key = certificates.new_tls_key()
    ca = certificates.authority_certificate(key)
    for name in ("authority", "server", "operator"):
        _write_public(folder / name / "ca.pem", ca.public_bytes(Encoding.PEM))
    _write_secret(folder / "authority/ca.key", certificates.private_pem(key))
    _write_public(folder / "authority/README.txt", _render("authority-README.txt"))
    _write_certificates(folder, config, ca, key)
    _write_server(folder / "server", config)
    operator.write_connection(folder / "operator", config.address(config.ports.operator))
    for e in range(config.nodes):
        _write_node(folder, config, e, ca, key)
    _write_public(folder / CONFIG_FILE, config.toml())
    _write_public(folder / "README.txt", _render("README.txt"))


def _write_certificates(folder: Path, config: DeployConfig, ca: x509.Certificate, ca_key: Key) -> None:
    """Write the server's and the operator's certificates, and the list of operators that the proxy accepts."""
    public = _public_key(folder / "server/server")
    server = certificates.server_certificate(public, config.hosts, ca, ca_key, config.days)
    _write_public(folder / "server/server.pem", server.public_bytes(Encoding.PEM))
    public = _public_key(folder / "operator/operator")
    certificate = certificates.operator_certificate(public, ca, ca_key, config.days)
    _write_public(folder / "operator/operator.pem", certificate.public_bytes(Encoding.PEM))
    _write_public(folder / "server/operators.map", f'{certificates.serial_number(certificate)} "operator";\n')


def _public_key(stem: Path) -> PublicKey:
    """Return the public key of stem.key, of stem.pem if the key is only on its own machine, or of a new key."""
    private, signed = stem.with_suffix(".key"), stem.with_suffix(".pem")
    if private.is_file():
        public = load_pem_private_key(private.read_bytes(), password=None).public_key()
    elif signed.is_file():
        public = x509.load_pem_x509_certificate(signed.read_bytes()).public_key()
    else:
        key = certificates.new_tls_key()
        _write_secret(private, certificates.private_pem(key))
        public = key.public_key()
    if not isinstance(public, PublicKey):
        raise InputError(
            f"{private} is not an elliptic-curve key; delete it and {signed.name} to get a new key and certificate"
        )
    return public


def _write_server(folder: Path, config: DeployConfig) -> None:
    ports = config.ports
    _write_script(folder / "start-superlink.sh", superlink_port=ports.superlink)
    _write_script(folder / "start-proxy.sh", node_port=ports.node, operator_port=ports.operator)
    proxy = _render(
        "nginx.conf",
        superlink_port=ports.superlink,
        node_listen=config.nginx_listen(ports.node),
        operator_listen=config.nginx_listen(ports.operator),
        node_calls="|".join(NODE_CALLS),
    )
    _write_public(folder / "nginx.conf", proxy)


def _write_node(folder: Path, config: DeployConfig, e: int, ca: x509.Certificate, ca_key: Key) -> Path:
    """Write the folder of agent e, and its public key into the operator's folder."""
    node = folder / "nodes" / f"agent-{e}"
    if node.exists():
        raise InputError(f"{node} already exists, and keys are never overwritten; remove it if you do not need it")
    node.mkdir(mode=0o700)
    private, public = certificates.node_key_pair(certificates.new_node_key())
    _write_secret(node / "node.key", private)
    signing = certificates.new_signing_key()
    certificate = certificates.agent_certificate(signing.public_key(), e, ca, ca_key)
    _write_secret(node / identity.KEY_FILE, certificates.private_pem(signing))
    _write_public(node / identity.CERTIFICATE_FILE, certificate.public_bytes(Encoding.PEM))
    _write_public(node / identity.AUTHORITY_FILE, ca.public_bytes(Encoding.PEM))
    _write_script(
        node / "start-supernode.sh",
        agent=e,
        superlink=config.address(config.ports.node),
        supernode_port=config.ports.supernode + e,
        minimum=max(2, config.nodes // 2 + 1),
    )
    _write_public(folder / "operator/nodes" / f"{node.name}.pub", public)
    return node


def _write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can ever read; fail if it exists."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
        handle.write(content)


def _write_public(path: Path, content: bytes | str, mode: int = 0o644) -> None:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)


def _write_script(path: Path, **values: object) -> None:
    """Write an executable script from the template of the same name."""
    _write_public(path, _render(path.name, **values), 0o755)


def _render(template: str, **values: object) -> str:
    """Return the template with each @NAME@ replaced by its value."""
    text = (TEMPLATES / template).read_text(encoding="utf-8")
    return re.sub(r"@([A-Z_]+)@", lambda match: str(values[match[1].lower()]), text)
