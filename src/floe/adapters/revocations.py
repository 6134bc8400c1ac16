"""Adapters and keys that are no longer trusted: a list on disk that only grows.

A publisher's list travels signed; what a device has taken in once stays, so that an older list
put in its place takes nothing back.
"""

from __future__ import annotations

import base64
import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from floe.adapters.signature import SigningKey, read_public, verify
from floe.adapters.stamps import FileStamp, stamp
from floe.adapters.statement import canonical
from floe.core.errors import BadConfig, Untrusted
from floe.core.files import atomic_write

DOMAIN = b"floe revocations 1\n"
MAX_BYTES = 4 << 20
_HEX = frozenset("0123456789abcdef")
_MAX_REASON_CHARS = 200


@dataclass(frozen=True, kw_only=True)
class Revocation:
    """One content digest or public key that is refused from now on."""

    kind: Literal["digest", "key"]
    value: str
    reason: str
    at: str


class Revocations:
    """The list in `path`, read again whenever the file changes. Safe for threads and processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[FileStamp, dict[tuple[str, str], Revocation]] = ((), {})

    @property
    def stamp(self) -> FileStamp:
        """What changes with the list."""
        return stamp(self._path)

    def reason(self, *, digest: str, key: str = "") -> str:
        """Why that content or key is refused; "" if it is not.

        Raises:
            Untrusted: the list cannot be read: nothing is trusted until it can.
        """
        entries = self._entries()
        found = entries.get(("digest", digest)) or entries.get(("key", key))
        if found is None:
            return ""
        what = "this content" if found.kind == "digest" else "the key that signed it"
        return f"{what} was revoked: {found.reason or 'no reason given'}"

    def list(self) -> tuple[Revocation, ...]:
        """Every entry. Raises Untrusted as `reason`."""
        return tuple(self._entries().values())

    def add(self, entries: Sequence[Revocation]) -> int:
        """Take entries in, on disk when this returns; how many were new."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock():
            known = dict(self._entries())
            new = {(e.kind, e.value): e for e in entries if (e.kind, e.value) not in known}
            if new:
                with atomic_write(self._path) as file:
                    file.write(_bytes([*known.values(), *new.values()]))
        return len(new)

    def _entries(self) -> dict[tuple[str, str], Revocation]:
        now = self.stamp
        before, entries = self._known
        if before == now:
            return entries
        try:
            if not now:
                found: Sequence[Revocation] = ()
            elif self._path.stat().st_size > MAX_BYTES:
                raise ValueError("size")
            else:
                found = _parse(json.loads(self._path.read_bytes()))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise Untrusted(
                f"the list of revoked adapters {self._path} cannot be read, so no adapter is "
                "trusted. Put a whole copy back, or remove it to start an empty list"
            ) from error
        entries = {(e.kind, e.value): e for e in found}
        self._known = (now, entries)
        return entries

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with self._path.with_suffix(".lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def revocation(kind: Literal["digest", "key"], value: str, *, reason: str, at: str) -> Revocation:
    """A checked entry. Raises BadConfig for what is no digest or key."""
    if kind == "key":
        value = read_public(value)
    elif len(value) != 64 or not set(value) <= _HEX:
        raise BadConfig("an adapter is revoked by its whole digest, 64 hexadecimal digits")
    return Revocation(kind=kind, value=value, reason=reason[:_MAX_REASON_CHARS], at=at)


def signed_list(entries: Sequence[Revocation], key: SigningKey) -> bytes:
    """The list as a publisher gives it out. Other keys than its own are left out."""
    own = [asdict(e) for e in entries if e.kind == "digest" or e.value == key.public]
    signature = base64.b64encode(key.sign(DOMAIN + canonical(own))).decode()
    data = {"version": 1, "entries": own, "public_key": key.public, "signature": signature}
    return json.dumps(data, indent=1).encode()


def read_signed(data: bytes, *, source: str) -> tuple[str, tuple[Revocation, ...]]:
    """The public key that signed a list, and its entries; whether it is trusted is not asked.

    Raises:
        Untrusted: damaged, or the signature is not that key's. Missing: no cryptography.
    """
    try:
        parsed: Any = json.loads(data)
        key, entries = read_public(str(parsed["public_key"])), _parse(parsed)
        raw = [asdict(e) for e in entries]
        signature = base64.b64decode(parsed["signature"], validate=True)
        is_good = verify(key, signature, DOMAIN + canonical(raw))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, BadConfig) as error:
        raise Untrusted(f"the list of revoked adapters {source} is damaged") from error
    if not is_good:
        raise Untrusted(f"the list of revoked adapters {source} was changed after it was signed")
    return key, tuple(e for e in entries if e.kind == "digest" or e.value == key)


def _bytes(entries: Sequence[Revocation]) -> bytes:
    return json.dumps({"version": 1, "entries": [asdict(e) for e in entries]}, indent=1).encode()


def _parse(data: Any) -> tuple[Revocation, ...]:
    if data["version"] != 1:
        raise ValueError("version")
    entries = tuple(Revocation(**entry) for entry in data["entries"])
    for e in entries:
        if e.kind not in ("digest", "key") or not all(
            isinstance(v, str) for v in (e.value, e.reason, e.at)
        ):
            raise ValueError("entry")
    return entries
