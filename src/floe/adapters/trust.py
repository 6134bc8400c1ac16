"""Whom the store believes: trusted keys, signatures that fit, nothing that was revoked.

An adapter that carries a signature is always checked, whatever the settings: only what has none is
a matter of `adapters.signatures`.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from floe.adapters.manifest import Record
from floe.adapters.revocations import Revocations
from floe.adapters.signature import public_path, read_public, verify
from floe.adapters.stamps import FileStamp, stamp
from floe.adapters.statement import Seal, Statement, centroid_sha256, message
from floe.core.errors import BadConfig, Missing, Untrusted

Mode = Literal["off", "warn", "require"]

KEY = "publish.key"
REVOKED = "revoked.json"

log = logging.getLogger("floe.adapters")


class Trust:
    """What is asked before an adapter enters the store, is listed or is leased.

    `folder` holds this device's own key, which is trusted, and the list of what was revoked.
    """

    def __init__(
        self, folder: Path, *, signatures: Mode = "off", trusted_keys: Sequence[str] = ()
    ) -> None:
        """`trusted_keys`: public keys, or files with one.

        Raises:
            BadConfig: one of them is neither.
        """
        self.folder, self.mode = folder, signatures
        try:
            self._keys = frozenset(read_public(key) for key in trusted_keys)
        except BadConfig as error:
            name = "adapters.trusted_keys"
            raise BadConfig(f"{name}: {error.message}", param=name) from error
        self.revocations = Revocations(folder / REVOKED)
        self._own_path = public_path(folder / KEY)
        self._own: tuple[FileStamp, str] = ((), "")
        self._warned: set[str] = set()

    @property
    def stamp(self) -> tuple[FileStamp, FileStamp]:
        """What changes when an adapter that was trusted may not be any more, or the reverse."""
        return self.revocations.stamp, stamp(self._own_path)

    def trusts(self, key: str) -> bool:
        """Whether that public key's signature counts; revoked keys are asked for elsewhere."""
        return key in self._keys or key == self._own_key()

    def check(self, record: Record, *, is_remote: bool = False) -> None:
        """Whether the adapter may be served; `is_remote`: its content was not hashed here.

        Raises:
            Untrusted: it is unsigned and must not be, was signed by a stranger, is not what was
                signed, or was revoked.
        """
        name, seal = record.manifest.name, record.seal
        key = seal.public_key if seal is not None else ""
        if reason := self.revocations.reason(digest=record.manifest.digest, key=key):
            raise Untrusted(f"adapter {name!r}: {reason}. Take it out: floe adapters rm {name}")
        if seal is None:
            self._check_unsigned(record, is_remote)
            return
        _check_fits(record, seal.statement)
        self._check_signature(name, seal)
        if not self.trusts(key):
            why = f"adapter {name!r} is signed by {key}, which adapters.trusted_keys does not name"
            if self.mode != "warn":
                raise Untrusted(f"{why}. Add it if you know whose it is")
            self._warn(record.manifest.digest, why)

    def _check_unsigned(self, record: Record, is_remote: bool) -> None:
        name, digest = record.manifest.name, record.manifest.digest
        if self.mode == "off" or (digest in shipped_digests() and not is_remote):
            return
        if self.mode == "require":
            raise Untrusted(
                f'adapter {name!r} is not signed, and adapters.signatures is "require". Sign it '
                "with: floe fed publish"
            )
        self._warn(digest, f"adapter {name!r} is not signed")

    def _check_signature(self, name: str, seal: Seal) -> None:
        try:
            is_good = verify(seal.public_key, seal.signature_bytes, message(seal.statement))
        except Missing as error:
            raise Untrusted(f"adapter {name!r} is signed and cannot be checked: {error}") from error
        except BadConfig as error:
            raise Untrusted(f"adapter {name!r}: {error.message}") from error
        if not is_good:
            raise Untrusted(
                f"adapter {name!r}: its signature is not that of its key. Fetch it again"
            )

    def _warn(self, digest: str, why: str) -> None:
        if digest not in self._warned:
            self._warned.add(digest)
            log.warning("%s", why)

    def _own_key(self) -> str:
        """This device's public key, if it has one; read again when its file changes."""
        now = stamp(self._own_path)
        if self._own[0] != now:
            try:
                self._own = (now, read_public(str(self._own_path)) if now else "")
            except BadConfig as error:
                raise Untrusted(f"this device's own key: {error.message}") from error
        return self._own[1]


def _check_fits(record: Record, statement: Statement) -> None:
    """Raise Untrusted unless the statement is about this very entry."""
    manifest = record.manifest
    facts = {
        "name": (statement.name, manifest.name),
        "content": (statement.digest, manifest.digest),
        "file": (statement.file_sha256, record.file_sha256),
        "base": (statement.base, manifest.base_model),
        "base's shape": (statement.shape_digest, record.shape_digest),
        "centroid": (statement.centroid_sha256, centroid_sha256(manifest.centroid)),
    }
    other = [what for what, (signed, found) in facts.items() if signed != found]
    if other:
        raise Untrusted(
            f"adapter {manifest.name!r} is not what was signed: its {', '.join(other)} differs. "
            "Fetch it again, or ask its publisher"
        )


@functools.cache
def shipped_digests() -> frozenset[str]:
    """The contents that come with Floe itself: who trusts the code trusts them."""
    path = Path(__file__).parent / "shipped" / "digests.json"
    return frozenset(json.loads(path.read_bytes()).values())
