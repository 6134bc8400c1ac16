"""The one door to `cryptography` (extra `sign`): ed25519 keys, signing, verifying.

A private key is a PEM file that nobody else may read; a public key is one line of text,
"ed25519:" and base64, that may be printed, mailed and put into a configuration.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any

from floe.core.errors import BadConfig, BadRequest, Missing, NotFound
from floe.core.files import atomic_write

_PREFIX = "ed25519:"
_KEY_BYTES, SIGNATURE_BYTES = 32, 64
_MAX_FILE_BYTES = 1 << 14


class SigningKey:
    """A private key in memory; it never appears in a message or a repr."""

    def __init__(self, private: Any) -> None:
        """`private`: cryptography's Ed25519PrivateKey. Use `new_key` or `load_key`."""
        self._private = private
        raw = private.public_key().public_bytes_raw()
        self.public = _PREFIX + base64.b64encode(raw).decode()

    def sign(self, message: bytes) -> bytes:
        """64 bytes that only this key gives for these bytes."""
        return bytes(self._private.sign(message))


def new_key(path: Path) -> SigningKey:
    """Make a key, write it to `path` (mode 0600) and its public half to `path` with .pub.

    Raises:
        BadRequest: something is at `path`: a key that is lost cannot be made again.
        Missing: cryptography is not installed.
    """
    ed25519, serialization = _library()
    if path.exists():
        raise BadRequest(f"there is a file {path}. A key is never overwritten; choose another name")
    key = SigningKey(private := ed25519.Ed25519PrivateKey.generate())
    pem = private.private_bytes(
        encoding=serialization.Encoding.PEM,
        format=serialization.PrivateFormat.PKCS8,
        encryption_algorithm=serialization.NoEncryption(),
    )
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with atomic_write(path) as file:  # made with mode 0600
        file.write(pem)
    with atomic_write(public_path(path)) as file:
        file.write(f"{key.public}\n".encode())
    return key


def load_key(path: Path) -> SigningKey:
    """The private key in `path`.

    Raises:
        NotFound: no file there.
        BadConfig: others may read it, or it is no ed25519 key.
        Missing: cryptography is not installed.
    """
    ed25519, serialization = _library()
    if not path.is_file():
        raise NotFound(f"there is no key {path}. Make one with: floe fed keys new")
    if path.stat().st_mode & 0o077:
        raise BadConfig(f"the key {path} can be read by others. Run: chmod 600 {path}")
    try:
        private = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise BadConfig(f"{path} is not a private key in PEM form, without a password") from error
    if not isinstance(private, ed25519.Ed25519PrivateKey):
        raise BadConfig(f"{path} is not an ed25519 key. Make one with: floe fed keys new")
    return SigningKey(private)


def public_path(path: Path) -> Path:
    """Where the public half of the key in `path` lies."""
    return path.with_suffix(".pub")


def read_public(key: str) -> str:
    """A public key from itself or from the file that holds it, in its one spelling.

    Raises:
        BadConfig: neither.
    """
    text = key.strip()
    if not text.startswith(_PREFIX):
        path = Path(text).expanduser()
        try:
            with path.open("rb") as file:
                text = file.read(_MAX_FILE_BYTES).decode().strip()
        except (OSError, ValueError) as error:
            raise BadConfig(f"{path} is neither a public key nor a file with one") from error
        if not text.startswith(_PREFIX):
            raise BadConfig(f"{path} holds no public key: one line, {_PREFIX} and base64")
    return _PREFIX + base64.b64encode(_public_bytes(text)).decode()


def verify(public: str, signature: bytes, message: bytes) -> bool:
    """Whether the key `public` gave `signature` for exactly these bytes.

    Raises:
        BadConfig: `public` is not a public key. Missing: cryptography is not installed.
    """
    ed25519, _ = _library()
    from cryptography.exceptions import InvalidSignature

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(_public_bytes(public)).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def _public_bytes(public: str) -> bytes:
    try:
        raw = base64.b64decode(public.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if not public.startswith(_PREFIX) or len(raw) != _KEY_BYTES:
        raise BadConfig(f"a public key is {_PREFIX} and the base64 of {_KEY_BYTES} bytes")
    return raw


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise Missing(
            "signatures need the package cryptography. Install it with: pip install 'floe[sign]'"
        ) from error
    return ed25519, serialization
