"""Publishing under a name: signed versions, one after the other, and back to an earlier one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from floe.adapters.manifest import Record
from floe.adapters.signature import SigningKey
from floe.adapters.source import SIGNATURE
from floe.adapters.statement import Figure, Seal, Statement, centroid_sha256, seal
from floe.adapters.store import AdapterStore, Sign
from floe.core.adapter import StoredAdapter
from floe.core.errors import BadAdapter, NotFound
from floe.core.files import atomic_write

WORSE, NOT_WORSE = "worse", "not_worse"
"""Figures of the evaluation gate: members that find the candidate worse, and those that do not."""


@dataclass(frozen=True, kw_only=True)
class Claims:
    """What a publisher says of a version besides what it is. Fields as in `Statement`."""

    base_digest: str = ""
    round_number: int = 0
    epsilon: float | None = None
    delta: float | None = None
    evaluation: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Version:
    """A version in the chain; `is_here`: its file is kept, so that it can be gone back to."""

    statement: Statement
    public_key: str
    is_current: bool
    is_here: bool


def claims_of(card: Mapping[str, object]) -> Claims:
    """The claims in the facts of a card (`card.json`); others are left out."""

    def number(name: str) -> float | None:
        value = card.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number else None  # type: ignore[arg-type]

    counts = {name: int(n) for name in (WORSE, NOT_WORSE) if (n := number(name)) is not None}
    return Claims(
        base_digest=str(card.get("base_digest") or ""),
        round_number=int(number("round") or 0),
        epsilon=number("epsilon"),
        delta=number("delta"),
        evaluation=counts,
    )


def publish(
    store: AdapterStore,
    source: Path,
    key: SigningKey,
    *,
    name: str | None = None,
    description: str = "",
    claims: Claims | None = None,
    any_base: bool = False,
) -> StoredAdapter:
    """Add the adapter at `source` as the next signed version of its name.

    A running server sees it with its next request. A PEFT folder gets the signature, too
    (signature.json), so that it can be handed on.

    Raises:
        BadAdapter: the gate found it worse, or as `AdapterStore.add`; nothing was changed.
        Untrusted: the key or the content was revoked.
    """
    claims = claims or Claims()
    if worse := claims.evaluation.get(WORSE, 0):
        members = worse + claims.evaluation.get(NOT_WORSE, 0)
        raise BadAdapter(
            f"not published: {worse} of {members} members find it worse than what they have. Train "
            "more rounds, or publish without the ones it does not suit"
        )
    stored = store.add(
        source,
        name=name,
        description=description,
        replace=True,
        any_base=any_base,
        sign=signer(store, key, claims),
    )
    if source.is_dir() and (made := store.record(stored).seal) is not None:
        write_seal(source, made)
    return stored


def rollback(
    store: AdapterStore, name: str, key: SigningKey, *, to: int | None = None
) -> StoredAdapter:
    """Publish an earlier version again, as a new one that says so.

    `to` None is the newest before the present one with other content that was not revoked.

    Raises:
        NotFound: no such version, or its file is not kept any more.
        Untrusted: it was revoked.
    """
    versions = chain(store, name)
    if to is None:
        target = _before(store, versions, name)
    else:
        target = next((v for v in versions if v.statement.version == to), None)
    if target is None or not target.is_here:
        here = ", ".join(str(v.statement.version) for v in versions if v.is_here) or "none"
        wanted = "an earlier version" if to is None else f"version {to}"
        raise NotFound(f"{wanted} of {name!r} is not here; there are: {here}", param="to")
    old = target.statement
    record = store.history.at(name, old.version)
    assert record is not None  # it was just listed
    claims = Claims(
        base_digest=old.base_digest,
        round_number=old.round_number,
        epsilon=old.epsilon,
        delta=old.delta,
        evaluation=old.evaluation,
    )
    return store.point(record, signer(store, key, claims, restores=old.version))


def chain(store: AdapterStore, name: str) -> tuple[Version, ...]:
    """Every signed version of the name, oldest first. Raises BadAdapter if one is damaged."""
    records = store.history.records(name)
    now = store.current(name)
    current = now.seal.statement.version if now is not None and now.seal is not None else 0
    return tuple(
        Version(
            statement=r.seal.statement,
            public_key=r.seal.public_key,
            is_current=r.seal.statement.version == current,
            is_here=store.has_file(r),
        )
        for r in records
        if r.seal is not None
    )


def signer(store: AdapterStore, key: SigningKey, claims: Claims, *, restores: int = 0) -> Sign:
    """Signs an entry of the store as the next version of its name."""

    def sign(record: Record) -> Seal:
        manifest = record.manifest
        before = store.current(manifest.name)
        statement = Statement(
            name=manifest.name,
            version=store.history.highest(manifest.name) + 1,
            digest=manifest.digest,
            file_sha256=record.file_sha256,
            base=manifest.base_model,
            shape_digest=record.shape_digest,
            centroid_sha256=centroid_sha256(manifest.centroid),
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            parent=before.manifest.digest if before is not None else "",
            restores=restores,
            base_digest=claims.base_digest,
            round_number=claims.round_number,
            epsilon=claims.epsilon,
            delta=claims.delta,
            evaluation=dict(claims.evaluation),
        )
        return seal(statement, public_key=key.public, sign=key.sign)

    return sign


def resigned(record: Record, key: SigningKey) -> Record:
    """The entry with the same statement over what it holds now: the same version, cut smaller."""
    assert record.seal is not None
    statement = dataclasses.replace(
        record.seal.statement, digest=record.manifest.digest, file_sha256=record.file_sha256
    )
    signed = seal(statement, public_key=key.public, sign=key.sign)
    return dataclasses.replace(record, seal=signed)


def write_seal(folder: Path, made: Seal) -> None:
    """Lay the signature beside an adapter's files."""
    with atomic_write(folder / SIGNATURE) as file:
        file.write(json.dumps(asdict(made), indent=1, allow_nan=False).encode())


def _before(store: AdapterStore, versions: tuple[Version, ...], name: str) -> Version | None:
    """The newest version with other content than the name has now, not revoked."""
    now = store.current(name)
    digest = now.manifest.digest if now is not None else ""
    revoked = store.trust.revocations
    for version in reversed(versions):
        stated = version.statement
        if stated.digest != digest and not revoked.reason(digest=stated.digest):
            return version
    return None
