"""Keys and certificates of a fleet: its own authority, its server, its devices.

TLS proves the server to the devices: they trust this fleet's authority only. A
device proves itself by signing each request with its key (Flower's node
authentication), so it needs no certificate.
"""

import datetime
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedbnn_core.errors import FleetError

__all__ = [
    "Pair",
    "checked_host",
    "expiry",
    "join_address",
    "make_authority",
    "make_node_key",
    "make_server_certificate",
    "names_of",
    "public_pem",
]

# The server's own Flower processes reach it under these names.
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
# The last part has a letter: 10.0.0.256 is a mistyped address, not a name.
_HOST_NAME = re.compile(rf"(?=.{{1,253}}$)({_LABEL}\.)*(?=[^.]*[a-z]){_LABEL}")
# A device's clock may lag; a certificate is valid from a day before it was made.
_LEEWAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A private key and the certificate or public key that goes with it."""

    private: bytes
    public: bytes


def checked_host(host: str) -> str:
    """Return a host name or IP address in its usual form.

    Raises
    ------
    FleetError
        It is neither.
    """
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        name = host.lower()
    if not _HOST_NAME.fullmatch(name):
        raise FleetError(
            f"{host!r} is neither a host name nor an IP address; give it without "
            "https://, port and brackets, such as fleet.example.org, and write names "
            "with letters outside ASCII in their xn-- form"
        )
    return name


def join_address(host: str, port: int) -> str:
    """Return HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def make_authority(*, days: int) -> Pair:
    """Make a certificate authority: key and self-signed certificate, both PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("FedBNN fleet authority")
    certificate = (
        _builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    return Pair(_private_pem(key), certificate.public_bytes(_PEM))


def make_server_certificate(
    authority: Pair, hosts: Sequence[str], *, days: int
) -> Pair:
    """Make the server's key and certificate, signed by the fleet's authority.

    Parameters
    ----------
    authority : Pair
        From `make_authority`.
    hosts : sequence of str
        Names and addresses under which devices reach the server; the local ones are
        added.
    days : int
        Days until it expires, but never beyond the authority's own end.
    """
    ca_key = serialization.load_pem_private_key(authority.private, password=None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)  # noqa: S101  we made it
    ca = x509.load_pem_x509_certificate(authority.public)
    key = ec.generate_private_key(ec.SECP256R1())
    hosts = [checked_host(host) for host in hosts]
    names = dict.fromkeys((*hosts, *_LOCAL_NAMES))
    certificate = (
        _builder(
            ca.subject, _name(hosts[0]), key.public_key(), days, ca.not_valid_after_utc
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .add_extension(
            x509.SubjectAlternativeName([_general_name(host) for host in names]),
            critical=False,
        )
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
            critical=False,
        )
        .sign(ca_key, hashes.SHA256())
    )
    return Pair(_private_pem(key), certificate.public_bytes(_PEM))


def make_node_key() -> Pair:
    """Make a device's P-384 key pair in OpenSSH format, the one Flower reads."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        _PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return Pair(private, public)


def public_pem(openssh_public: bytes) -> bytes:
    """Return a device's public key as the SuperLink stores it."""
    key = serialization.load_ssh_public_key(openssh_public)
    return key.public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def expiry(certificate: bytes) -> datetime.datetime:
    """Return when a PEM certificate ends, in UTC; raise `FleetError` if it is none."""
    try:
        return x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    except ValueError as error:
        raise FleetError(f"this is no certificate in PEM format: {error}") from error


def names_of(certificate: bytes) -> list[str]:
    """Return the names and addresses that a server certificate is valid for."""
    extension = x509.load_pem_x509_certificate(
        certificate
    ).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(entry.value) for entry in extension.value]


_PEM = serialization.Encoding.PEM


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        _PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _builder(
    issuer: x509.Name,
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    days: int,
    latest: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LEEWAY)
        .not_valid_after(min(end, latest) if latest else end)
    )


def _name(text: str) -> x509.Name:
    # A common name holds 64 characters; what counts are the alternative names.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
