"""Who sends an update: registered devices, and updates sealed with a device's signature.

A seal covers client, round, nonce and the digest of the payload, so that neither a stranger nor a
copy of an older update gets in. Signing itself is handed in as callables.

Bytes: MAGIC, u32 length of the header, header (JSON), payload.
"""

from __future__ import annotations

import hashlib
import json
import struct
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from floe.core.errors import BadConfig, BadUpdate
from floe.core.files import atomic_write, safe_name
from floe.federated.rounds import UNREADABLE

Sign = Callable[[bytes], bytes]
"""A message's signature by this device's own key."""
Verify = Callable[[str, bytes, bytes], bool]
"""Whether the public key (text) signed the message: (key, signature, message)."""

MAGIC = b"FLOESEAL"
MAX_HEADER_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Sealed:
    """A payload and who vouches for it; nothing in it has been checked but the payload's digest."""

    client: str
    round_number: int
    nonce: str
    signature: bytes
    payload: bytes

    @property
    def signed(self) -> bytes:
        """What the signature must cover."""
        digest = hashlib.sha256(self.payload).hexdigest()
        return signed_text(self.client, self.round_number, self.nonce, digest)


def signed_text(client: str, round_number: int, nonce: str, digest: str) -> bytes:
    """The bytes a device signs; JSON, so that no two different seals share them."""
    return b"floe update 1\n" + json.dumps([client, round_number, nonce, digest]).encode()


def seal(payload: bytes, *, client: str, round_number: int, nonce: str, sign: Sign) -> bytes:
    """`payload` as a device sends it."""
    digest = hashlib.sha256(payload).hexdigest()
    header = {
        "client": client,
        "round": round_number,
        "nonce": nonce,
        "digest": digest,
        "signature": sign(signed_text(client, round_number, nonce, digest)).hex(),
    }
    text = json.dumps(header).encode()
    return MAGIC + struct.pack("<I", len(text)) + text + payload


def unseal(data: bytes) -> Sealed:
    """What came in, taken apart.

    Raises:
        BadUpdate: reason "corrupt": not these bytes' form, or damaged on the way.
    """
    try:
        if data[: len(MAGIC)] != MAGIC:
            raise ValueError("no seal")
        start = len(MAGIC) + 4
        (length,) = struct.unpack("<I", data[len(MAGIC) : start])
        if length > MAX_HEADER_BYTES:
            raise ValueError("header too long")
        header = json.loads(data[start : start + length])
        payload = data[start + length :]
        if hashlib.sha256(payload).hexdigest() != header["digest"]:
            raise ValueError("digest does not match")
        return Sealed(
            client=str(header["client"]),
            round_number=int(header["round"]),
            nonce=str(header["nonce"]),
            signature=bytes.fromhex(header["signature"]),
            payload=payload,
        )
    except (*UNREADABLE, struct.error) as error:
        raise BadUpdate(
            f"an update of {len(data)} bytes is damaged or no update; send it again",
            reason="corrupt",
        ) from error


def read_devices(path: Path) -> dict[str, str]:
    """Name -> public key of the devices in a TOML file of `name = "public key"` lines.

    Raises:
        BadConfig: unreadable, not TOML, a key that is no text, or one key for two devices.
        BadRequest: a name that cannot be a file's.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadConfig(
            f'cannot read the devices in {path}: {error.strerror}. Write one line name = "key" '
            "for each; `floe fed join` prints a device's",
            param="federated.devices",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path} is not valid TOML: {error}", param="federated.devices") from error
    owners: dict[str, str] = {}
    for name, key in data.items():
        safe_name(name, what="device")
        if not isinstance(key, str) or not key.strip():
            raise BadConfig(
                f"{path}: the public key of device {name!r} must be text",
                param="federated.devices",
            )
        if owners.setdefault(key, name) != name:
            raise BadConfig(
                f"{path}: {name} and {owners[key]} have the same key: each device needs its own",
                param="federated.devices",
            )
    return data


def write_devices(path: Path, devices: Mapping[str, str]) -> None:
    """The file that `read_devices` reads."""
    lines = [f"{json.dumps(name)} = {json.dumps(key)}" for name, key in sorted(devices.items())]
    with atomic_write(path) as file:
        file.write(("\n".join(lines) + "\n").encode())
