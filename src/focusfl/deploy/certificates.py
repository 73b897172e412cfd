"""Keys and certificates. A deployment's authority signs the server's, the operator's and the agents' certificates.

To the server a node proves its identity with a signature, as Flower's nodes do; its certificate is for the other
nodes, in secure sums. Each certificate is signed for one use, so none can serve as another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from focusfl.flower.secure_sums.identity import SIGNING_USE, agent_name

AUTHORITY_DAYS = 3650
CLOCK_SKEW = timedelta(hours=1)  # a machine whose clock is behind can use a new certificate at once
LOCAL_HOSTS = ("localhost", "127.0.0.1")  # the proxy and the ServerApp call the SuperLink by these names

Key = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey


def new_tls_key() -> Key:
    """Return a new private key for a TLS certificate (P-256)."""
    return ec.generate_private_key(ec.SECP256R1())


def new_node_key() -> Key:
    """Return a new private key for a node (P-384, as Flower's own nodes use)."""
    return ec.generate_private_key(ec.SECP384R1())


def new_signing_key() -> Ed25519PrivateKey:
    """Return a new private key with which an agent signs what it says to other agents."""
    return Ed25519PrivateKey.generate()


def private_pem(key: Key | Ed25519PrivateKey) -> bytes:
    """Return a private key as PEM, not encrypted."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def node_key_pair(key: Key) -> tuple[bytes, bytes]:
    """Return a node's private and public key in OpenSSH's format, which Flower reads."""
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"


def authority_certificate(key: Key) -> x509.Certificate:
    """Return the authority's self-signed certificate. It may sign end-entity certificates, not other authorities.

    Args:
        key: The authority's private key.

    Returns:
        The certificate, valid for `AUTHORITY_DAYS`.
    """
    name = _name("focusfl deployment authority")
    builder = _builder(name, key.public_key(), name, key.public_key(), AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return builder.add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True).sign(key, SHA256())


def server_certificate(
    public: PublicKey, hosts: Sequence[str], ca: x509.Certificate, ca_key: Key, days: int
) -> x509.Certificate:
    """Return the certificate of the proxy and of the SuperLink behind it.

    Args:
        public: The server's public key.
        hosts: Names and IP addresses that clients call; `LOCAL_HOSTS` are added.
        ca: The authority's certificate.
        ca_key: The authority's private key.
        days: How long the certificate is valid.

    Returns:
        A certificate for TLS servers only.
    """
    names = [_general_name(host) for host in dict.fromkeys([*hosts, *LOCAL_HOSTS])]
    builder = _end_entity("focusfl server", public, ca, ca_key, days, ExtendedKeyUsageOID.SERVER_AUTH)
    return builder.add_extension(x509.SubjectAlternativeName(names), critical=False).sign(ca_key, SHA256())


def operator_certificate(public: PublicKey, ca: x509.Certificate, ca_key: Key, days: int) -> x509.Certificate:
    """Return a certificate with which an operator may register nodes and start runs.

    Args:
        public: The operator's public key.
        ca: The authority's certificate.
        ca_key: The authority's private key.
        days: How long the certificate is valid.

    Returns:
        A certificate for TLS clients only. The proxy also requires its serial number in operators.map.
    """
    builder = _end_entity("focusfl operator", public, ca, ca_key, days, ExtendedKeyUsageOID.CLIENT_AUTH)
    return builder.sign(ca_key, SHA256())


def agent_certificate(
    public: Ed25519PublicKey, e: int, ca: x509.Certificate, ca_key: Key, days: int = AUTHORITY_DAYS
) -> x509.Certificate:
    """Return a certificate by which other agents recognise the signatures of agent e.

    Args:
        public: The agent's public signing key.
        e: The agent's number.
        ca: The authority's certificate.
        ca_key: The authority's private key.
        days: How long the certificate is valid.

    Returns:
        A certificate for this agent's signatures in secure sums only.
    """
    return _end_entity(agent_name(e), public, ca, ca_key, days, SIGNING_USE).sign(ca_key, SHA256())


def serial_number(certificate: x509.Certificate) -> str:
    """Return the serial number as nginx writes it: whole bytes in upper-case hexadecimal digits."""
    digits = f"{certificate.serial_number:X}"
    return digits.zfill(len(digits) + len(digits) % 2)


def _end_entity(
    name: str,
    public: PublicKey | Ed25519PublicKey,
    ca: x509.Certificate,
    ca_key: Key,
    days: int,
    use: ObjectIdentifier,
) -> x509.CertificateBuilder:
    builder = _builder(_name(name), public, ca.subject, ca_key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(digital_signature=True), critical=True)
    return builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)


def _builder(
    subject: x509.Name,
    public: PublicKey | Ed25519PublicKey,
    issuer: x509.Name,
    issuer_public: PublicKey,
    days: int,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_public), critical=False)
    )


def _key_usage(
    digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
