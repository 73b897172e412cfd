"""Keys and certificates: an authority of the deployment's own, and what it signs.

Nodes have no certificate: Flower's nodes prove who they are with a signature, and cannot show one. The server's
certificate cannot pass for an operator's nor the other way round: each is signed for one use alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

AUTHORITY_DAYS = 3650
SKEW = timedelta(hours=1)  # clocks that are behind may use a new certificate at once
LOCAL = ("localhost", "127.0.0.1")  # proxy and ServerApp call the SuperLink by these

Key = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey


def tls_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def node_key() -> Key:
    """P-384, what Flower makes for its own nodes."""
    return ec.generate_private_key(ec.SECP384R1())


def pem(key: Key) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def node_pair(key: Key) -> tuple[bytes, bytes]:
    """Private and public half in OpenSSH's form, which Flower reads."""
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"


def authority(key: Key) -> x509.Certificate:
    """Signed by itself; it may sign leaves and nothing else."""
    name = _name("focusfl deployment authority")
    usage = _usage(key_cert_sign=True, crl_sign=True)
    start = _start(name, key.public_key(), name, key.public_key(), AUTHORITY_DAYS)
    start = start.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return start.add_extension(usage, critical=True).sign(key, SHA256())


def server(
    public: PublicKey, hosts: Sequence[str], ca: x509.Certificate, ca_key: Key, days: int
) -> x509.Certificate:
    """For the proxy and the SuperLink behind it."""
    names = [_general(host) for host in dict.fromkeys([*hosts, *LOCAL])]
    start = _leaf("focusfl server", public, ca, ca_key, days, ExtendedKeyUsageOID.SERVER_AUTH)
    return start.add_extension(x509.SubjectAlternativeName(names), critical=False).sign(ca_key, SHA256())


def operator(public: PublicKey, ca: x509.Certificate, ca_key: Key, days: int) -> x509.Certificate:
    """Who shows it may register nodes and start runs."""
    return _leaf("focusfl operator", public, ca, ca_key, days, ExtendedKeyUsageOID.CLIENT_AUTH).sign(
        ca_key, SHA256()
    )


def serial(certificate: x509.Certificate) -> str:
    """As nginx spells it: whole bytes of capital hexadecimals."""
    digits = f"{certificate.serial_number:X}"
    return digits.zfill(len(digits) + len(digits) % 2)


def _leaf(
    name: str, public: PublicKey, ca: x509.Certificate, ca_key: Key, days: int, use: ObjectIdentifier
) -> x509.CertificateBuilder:
    start = _start(_name(name), public, ca.subject, ca_key.public_key(), days)
    start = start.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    start = start.add_extension(_usage(digital_signature=True), critical=True)
    return start.add_extension(x509.ExtendedKeyUsage([use]), critical=False)


def _start(
    subject: x509.Name, public: PublicKey, issuer: x509.Name, issuer_public: PublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_public), critical=False)
    )


def _usage(digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
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


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
