"""Who a node is and whom it believes: signing keys, certified by the deployment's authority for one agent each.

A node's folder has three files: signing.key (Ed25519), signing.pem (the authority's certificate for the key and the
agent's number) and ca.pem (the authority's own certificate). `focusfl deploy init` writes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID, ObjectIdentifier

from focusfl.flower.secure_sums.crypto import KEY_SIZE
from focusfl.util.errors import InputError

AUTHORITY_FILE, KEY_FILE, CERTIFICATE_FILE = "ca.pem", "signing.key", "signing.pem"
SIGNING_USE = ObjectIdentifier("2.25.91264378513620587453")  # the only use that an agent's certificate allows
MIN_TERMS = 2


def agent_name(e: int) -> str:
    """Return the name that agent e's certificate carries."""
    return f"focusfl agent {e}"


class Anyone:
    """There is no authority: a node believes the keys that the server passes on.

    This is so in a simulation. A lying server can then put keys of its own in the place of an agent's.
    """

    def signing_key(self, e: int, credential: bytes) -> Ed25519PublicKey:
        """Return the public signing key of agent e.

        Args:
            e: The agent.
            credential: Its certificate (DER), or the bare public key of a node without one.

        Returns:
            The key, with which e's signatures are checked.

        Raises:
            InputError: If the credential is not valid; the message names the agent.
        """
        try:
            if len(credential) == KEY_SIZE:
                return Ed25519PublicKey.from_public_bytes(credential)
            return _ed25519(x509.load_der_x509_certificate(credential))
        except Exception as error:  # a malformed certificate can make the library raise anything
            raise InputError(f"secure sum: agent {e} has no valid signing key") from error


@dataclass(frozen=True)
class Authority(Anyone):
    """The deployment's authority: a node believes a key if the authority has certified it for that agent."""

    certificate: x509.Certificate

    @staticmethod
    def load(path: Path) -> Authority:
        """Load the authority's certificate, a PEM file."""
        try:
            return Authority(x509.load_pem_x509_certificate(path.read_bytes()))
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path} is not readable as the authority's certificate ({error}); copy it again"
            ) from error

    def signing_key(self, e: int, credential: bytes) -> Ed25519PublicKey:
        try:
            certificate = x509.load_der_x509_certificate(credential)
            certificate.verify_directly_issued_by(self.certificate)
            uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
            names = [name.value for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
            key = _ed25519(certificate)
        except Exception as error:  # a malformed certificate can make the library raise anything
            raise InputError(f"secure sum: the authority has not certified the signing key of agent {e}") from error
        if list(uses) != [SIGNING_USE] or names != [agent_name(e)]:
            raise InputError(
                f"secure sum: the signing key of agent {e} is certified for {str(names)[:80]}, not for agent {e}"
            )
        if not certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc:
            raise InputError(f"secure sum: the certificate of agent {e} is not valid now; check the clock")
        return key


@dataclass(frozen=True)
class NodeSetup:
    """What a node was installed with. Nothing here comes from the server.

    Attributes:
        e: This node's agent.
        key: Its signing key.
        credential: Its certificate (DER), or its bare public key if there is no authority.
        trusted: Whose keys this node believes.
        minimum: Number of agents that a sum must have, for this node to participate.
    """

    e: int
    key: Ed25519PrivateKey
    credential: bytes
    trusted: Anyone
    minimum: int = MIN_TERMS

    @staticmethod
    def load(e: int, folder: Path, minimum: int = MIN_TERMS) -> NodeSetup:
        """Load a node's signing key, its certificate and the authority's.

        Args:
            e: This node's agent.
            folder: The folder with the three files.
            minimum: Number of agents that a sum must have.

        Raises:
            InputError: If a file is missing or damaged, or the certificate is not for this agent and this key.
        """
        authority = Authority.load(folder / AUTHORITY_FILE)
        path, signed = folder / KEY_FILE, folder / CERTIFICATE_FILE
        try:
            key = load_pem_private_key(path.read_bytes(), password=None)
            credential = x509.load_pem_x509_certificate(signed.read_bytes()).public_bytes(Encoding.DER)
        except (OSError, ValueError, TypeError) as error:
            raise InputError(
                f"{path} or {signed.name} next to it is not readable ({error}); copy both again"
            ) from error
        public = authority.signing_key(e, credential)
        if not isinstance(key, Ed25519PrivateKey) or key.public_key() != public:
            raise InputError(
                f"{path} does not belong to {signed.name} next to it; copy both from the deployment again"
            )
        return NodeSetup(e, key, credential, authority, minimum)

    @staticmethod
    def without_authority(e: int, minimum: int = MIN_TERMS, private: bytes | None = None) -> NodeSetup:
        """Return the set-up of a node that has no authority, with a new signing key or the given one."""
        key = Ed25519PrivateKey.generate() if private is None else Ed25519PrivateKey.from_private_bytes(private)
        return NodeSetup(e, key, key.public_key().public_bytes_raw(), Anyone(), minimum)


def is_signed(key: Ed25519PublicKey, signature: bytes, text: bytes) -> bool:
    """Return whether the signature is that of the key's owner under the text."""
    try:
        key.verify(signature, text)
    except InvalidSignature:
        return False
    return True


def _ed25519(certificate: x509.Certificate) -> Ed25519PublicKey:
    key = certificate.public_key()
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("not an Ed25519 key")
    return key
