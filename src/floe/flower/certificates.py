"""What TLS and node keys need, made without openssl. A door to `cryptography` (extra `fed`).

Each machine's files lie in a folder of its own: FOLDER/server for the server, FOLDER/NAME for a
device. FOLDER/authority/ca.key signs servers; it stays where it was made.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from floe.core.errors import BadConfig, BadRequest
from floe.core.files import atomic_write, safe_name

CA_DAYS, SERVER_DAYS = 3650, 825
LOCAL = ("localhost", "127.0.0.1", "::1")
_RESERVED = ("server", "authority")


def make_authority(folder: Path) -> bool:
    """A certificate authority in FOLDER/authority; False where there is one already."""
    home = folder / "authority"
    if (home / "ca.crt").exists():
        return False
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Floe federation")
    builder = _begun(name, key.public_key(), issuer=name, signer=key, days=CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    _write_key(home / "ca.key", key)
    _write(home / "ca.crt", _pem(builder.sign(key, hashes.SHA256())))
    return True


def make_server(folder: Path, hosts: Sequence[str]) -> None:
    """A certificate for these names and addresses, and for loopback, in FOLDER/server.

    Raises:
        BadRequest: a host that is none. BadConfig: the authority's files are damaged.
    """
    places = [_place(host) for host in dict.fromkeys((*hosts, *LOCAL))]
    ca_key, ca = _authority(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _begun(
        _name("Floe server"), key.public_key(), issuer=ca.subject, signer=ca_key, days=SERVER_DAYS
    )
    builder = builder.add_extension(x509.SubjectAlternativeName(places), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
    )
    home = folder / "server"
    _write_key(home / "server.key", key)
    _write(home / "server.crt", _pem(builder.sign(ca_key, hashes.SHA256())))
    _write(home / "ca.crt", _pem(ca))


def make_device(folder: Path, name: str) -> bool:
    """A node key in FOLDER/NAME, its public half in FOLDER/server/nodes; False where there is one.

    Raises:
        BadRequest: no name for a device.
    """
    safe_name(name, what="device")
    if name in _RESERVED:
        raise BadRequest(f"a device cannot be named {name} here: that folder is another's")
    _, ca = _authority(folder)
    path = folder / name / "node.key"
    _write(folder / name / "ca.crt", _pem(ca))
    if path.exists():
        return False
    key = ec.generate_private_key(ec.SECP384R1())
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,  # the form that Flower reads
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write(path, secret)
    _write(folder / "server" / "nodes" / f"{name}.pub", public + b"\n")
    return True


def read_node_key(path: Path) -> Any:
    """A device's private node key.

    Raises:
        BadConfig: not there, or none that Flower takes.
    """
    try:
        key = serialization.load_ssh_private_key(path.expanduser().read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        why = error.strerror if isinstance(error, OSError) else "no key in OpenSSH form"
        raise _bad_key("node_key", path, why) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _bad_key("node_key", path, "no key of an elliptic curve (NIST)")
    return key


def node_public_key(path: Path) -> bytes:
    """A device's public node key as Flower's server wants it (PEM).

    Raises:
        BadConfig: not there, or none that Flower takes.
    """
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        why = error.strerror if isinstance(error, OSError) else "no public key in OpenSSH form"
        raise _bad_key("node_keys", path, why) from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise _bad_key("node_keys", path, "no key of an elliptic curve (NIST)")
    return bytes(
        key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )


def _bad_key(setting: str, path: Path, why: str | None) -> BadConfig:
    return BadConfig(
        f"the node key {path} cannot be used: {why}; `floe fed certificates` makes them",
        param=f"federated.{setting}",
    )


def _authority(folder: Path) -> tuple[Any, x509.Certificate]:
    home = folder / "authority"
    try:
        key = serialization.load_pem_private_key((home / "ca.key").read_bytes(), password=None)
        certificate = x509.load_pem_x509_certificate((home / "ca.crt").read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise BadConfig(f"{home} holds no usable ca.key and ca.crt; name a new folder") from error
    return key, certificate


def _begun(
    subject: x509.Name, public: Any, *, issuer: x509.Name, signer: Any, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(authority, critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _place(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass  # a name, then
    labels = host.split(".")
    fine = all(p and p.isascii() and p.replace("-", "").isalnum() for p in labels)
    if not fine or len(host) > 253:
        raise BadRequest(f"{host[:60]!r} is no host: a name as learn.example.org or an address")
    return x509.DNSName(host)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _write_key(path: Path, key: Any) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write(path, pem)


def _write(path: Path, content: bytes) -> None:
    """A file that only its owner can read, in a folder that only its owner can open."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with atomic_write(path) as file:
        file.write(content)
