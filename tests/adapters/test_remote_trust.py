"""A remote that publishes signed adapters: what fits is taken, old and revoked ones are not."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import adapter_toys as toys
import numpy as np
import pytest
from cache_toys import Memory
from hypothesis import given
from hypothesis import strategies as st

from floe.adapters.cache import AdapterCache
from floe.adapters.lora import LoraPair
from floe.adapters.remote import Remote
from floe.adapters.remote_index import INDEX
from floe.adapters.remote_index import publish as publish_store
from floe.adapters.remote_store import RemoteStore
from floe.adapters.revocations import Revocation, revocation, signed_list
from floe.adapters.signature import new_key
from floe.adapters.store import AdapterStore
from floe.adapters.truncate import truncated
from floe.adapters.trust import KEY, REVOKED, Trust
from floe.adapters.versions import publish, rollback
from floe.core.errors import BadAdapter, BadRequest, Untrusted
from floe.core.route import Route, Share

MODEL = toys.model()


class Publisher:
    """A home with its key, its store, and the folder that it publishes to."""

    def __init__(self, root: Path) -> None:
        self.root, self.out = root, root / "out"
        self.key = new_key(root / "trust" / KEY)
        self.store = AdapterStore(root / "store", MODEL, trust=Trust(root / "trust"))

    def add(self, seed: int, name: str = "medicine") -> None:
        folder = toys.folder(self.root / f"{name}-{seed}", seed=seed)
        publish(self.store, folder, self.key, name=name)

    def write(self, ranks: Sequence[int] = ()) -> None:
        publish_store(self.store, self.out, ranks=ranks, key=self.key)

    def revoke(self, kind: Any, value: str) -> None:
        entry = revocation(kind, value, reason="leaks", at="2026-01-01")
        self.store.trust.revocations.add([entry])


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return Publisher(tmp_path / "publisher")


def device(publisher: Publisher, root: Path, *, mode: Any = "off", **limits: int) -> RemoteStore:
    trust = Trust(root / "trust", signatures=mode, trusted_keys=(publisher.key.public,))
    local = AdapterStore(root / "local", MODEL, trust=trust)
    return RemoteStore(
        local=local, remote=Remote(publisher.out.as_uri()), folder=root / "fetched", model=MODEL,
        disk_bytes=1 << 30, **limits,
    )  # fmt: skip


def test_a_device_takes_what_fits(publisher: Publisher, tmp_path: Path) -> None:
    publisher.add(0)
    publisher.write(ranks=(1, 2, 4, 8))
    whole = publisher.store.get("medicine").manifest
    for max_rank, taken in ((0, 4), (9, 4), (4, 4), (3, 2), (1, 1)):
        store = device(publisher, tmp_path / f"d{max_rank}", mode="require", max_rank=max_rank)
        [stored] = store.list()
        assert (stored.manifest.name, stored.manifest.rank) == ("medicine", taken)
        with store.opened(stored) as path:
            assert path.stat().st_size == stored.manifest.file_bytes
        lora, full = store.tensors(stored), publisher.store.tensors(publisher.store.list()[0])
        for name, pair in full.pairs.items():
            exact = toys.delta(pair)
            u, s, v = np.linalg.svd(exact)
            cut = (u[:, :taken] * s[:taken]) @ v[:taken]
            np.testing.assert_allclose(toys.delta(lora.pairs[name]), cut, atol=2e-3)
    small = device(publisher, tmp_path / "bytes", max_bytes=whole.file_bytes - 1)
    assert small.list()[0].manifest.rank == 2


def test_what_does_not_fit_is_listed_with_the_reason(publisher: Publisher, tmp_path: Path) -> None:
    publisher.add(0)
    publisher.write()
    for limits, text in (
        ({"max_rank": 2}, "it is not fetched: rank 4 is above adapters.max_rank, 2"),
        ({"max_bytes": 10}, "bytes are more than the 10 it may have here"),
    ):
        store = device(publisher, tmp_path / text[:12], **limits)
        assert store.list() == ()
        [entry] = store.entries()
        assert entry.state == "failed" and text in entry.reason


@given(rank=st.integers(1, 7), cut=st.integers(1, 7), seed=st.integers(0, 9))
def test_a_cut_is_the_nearest_of_its_rank(rank: int, cut: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pair = LoraPair(
        a_RI=rng.normal(0, 1, (rank, 9)).astype(np.float32),
        b_OR=rng.normal(0, 1, (8, rank)).astype(np.float32),
    )
    lora = dataclasses.replace(toys.lora(), pairs={"x": pair})
    found = truncated(lora, cut).pairs["x"]
    assert found.rank == min(rank, cut)
    u, s, v = np.linalg.svd(toys.delta(pair))
    wanted = (u[:, :cut] * s[:cut]) @ v[:cut][:, :9] if cut < 8 else toys.delta(pair)
    np.testing.assert_allclose(toys.delta(found), wanted, atol=1e-5)


def test_only_the_signer_can_cut_what_is_signed(publisher: Publisher, tmp_path: Path) -> None:
    publisher.add(0)
    other = new_key(tmp_path / "other.key")
    for key in (None, other):
        with pytest.raises(BadRequest, match="only that key can sign it in other ranks"):
            publish_store(publisher.store, publisher.out, ranks=[2], key=key)
    plain = AdapterStore(tmp_path / "plain", MODEL)
    plain.add(toys.folder(tmp_path / "x"))
    assert publish_store(plain, tmp_path / "out", ranks=[2]) == 1
    assert len(json.loads((tmp_path / "out" / INDEX).read_text())["variants"]) == 1


def test_c07_an_older_index_played_again_is_refused(publisher: Publisher, tmp_path: Path) -> None:
    publisher.add(0)
    publisher.write()
    old = shutil.copytree(publisher.out, tmp_path / "old")
    publisher.add(1)
    publisher.write()
    store = device(publisher, tmp_path / "d")
    newest = store.list()
    shutil.rmtree(publisher.out)
    shutil.copytree(old, publisher.out)
    for again in (store, device(publisher, tmp_path / "d")):  # a restart does not help them
        again.refresh()
        assert again.list() == ()
        [entry] = again.entries()
        assert entry.is_refused
        assert "the remote offers version 1, and version 2 was there before" in entry.reason
    rollback(publisher.store, "medicine", publisher.key, to=1)  # the publisher's own way back
    publisher.write()
    store.refresh()
    [back] = store.list()
    assert back.manifest.digest != newest[0].manifest.digest
    (tmp_path / "d/fetched/versions.json").write_text("[")
    store.refresh()
    assert "the versions seen, is damaged" in (store.note + store.entries()[0].reason)


def test_a_signature_that_does_not_fit_the_index_is_refused(
    publisher: Publisher, tmp_path: Path
) -> None:
    publisher.add(0)
    publisher.add(1, name="law")
    publisher.write()
    path = publisher.out / INDEX
    index = json.loads(path.read_text())
    medicine = next(e for e in index["adapters"] if e["manifest"]["name"] == "medicine")
    law = next(e for e in index["adapters"] if e["manifest"]["name"] == "law")
    medicine["file_sha256"] = law["file_sha256"]
    medicine["manifest"]["digest"] = law["manifest"]["digest"]
    path.write_text(json.dumps(index))
    store = device(publisher, tmp_path / "d")
    assert [s.manifest.name for s in store.list()] == ["law"]
    refused = {e.name: e.reason for e in store.entries() if e.is_refused}
    assert "is not what was signed: its content, file differs" in refused["medicine"]


async def test_what_the_publisher_revokes_is_served_no_more(
    publisher: Publisher, tmp_path: Path
) -> None:
    publisher.add(0)
    publisher.add(1, name="law")
    publisher.write()
    store = device(publisher, tmp_path / "d")
    memory = Memory()
    cache = AdapterCache(store=store, load=memory.load, unload=memory.unload, budget_bytes=1 << 20)
    digests = {s.manifest.name: s.manifest.digest for s in store.list()}
    share = Share(name="medicine", digest=digests["medicine"], weight=1.0)
    asked = Route(shares=(share,), how="explicit")
    async with cache.lease(asked):
        pass
    publisher.revoke("digest", digests["medicine"])
    publisher.write()  # the index names law alone now, and the list goes along
    store.refresh()
    with pytest.raises(BadAdapter):
        async with cache.lease(asked):
            pytest.fail("it must not be leased")
    assert [s.manifest.name for s in store.list()] == ["law"]
    (publisher.out / REVOKED).unlink()  # an empty list takes nothing back
    store.refresh()
    assert store._local.trust.revocations.reason(digest=digests["medicine"])
    publisher.revoke("key", publisher.key.public)
    (publisher.out / REVOKED).write_bytes(
        signed_list(publisher.store.trust.revocations.list(), publisher.key)
    )
    store.refresh()
    assert store.list() == ()
    assert "the key that signed it was revoked" in store.entries()[0].reason


def test_a_list_that_is_not_the_publishers_is_not_believed(
    publisher: Publisher, tmp_path: Path
) -> None:
    publisher.add(0)
    publisher.write()
    digest = publisher.store.get("medicine").manifest.digest
    entry = Revocation(kind="digest", value=digest, reason="", at="")
    stranger = new_key(tmp_path / "stranger.key")
    path = publisher.out / REVOKED
    good = json.loads(signed_list([entry], publisher.key))
    for data, text in (
        (signed_list([entry], stranger), "which is not trusted"),
        (json.dumps({**good, "entries": []}).encode(), "was changed after it was signed"),
        (b"{", "is damaged"),
        (b" " * (5 << 20), "is larger than"),
    ):
        path.write_bytes(data)
        store = device(publisher, tmp_path / text)
        assert text in store.note and len(store.list()) == 1
    other = Revocation(kind="key", value=stranger.public, reason="", at="")
    kept = json.loads(signed_list([entry, other], publisher.key))["entries"]
    assert [e["kind"] for e in kept] == ["digest"]  # a key may take back itself alone


def test_an_unsigned_remote_is_served_unless_signatures_are_required(
    publisher: Publisher, tmp_path: Path
) -> None:
    plain = AdapterStore(tmp_path / "plain", MODEL)
    plain.add(toys.folder(tmp_path / "x"))
    publish_store(plain, publisher.out)
    assert len(device(publisher, tmp_path / "off").list()) == 1
    store = device(publisher, tmp_path / "req", mode="require")
    assert store.list() == () and store.entries()[0].is_refused
    with pytest.raises((BadAdapter, Untrusted)):
        store.find("x", plain.list()[0].manifest.digest)
