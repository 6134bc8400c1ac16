"""Signatures, revocation, versions: what is not as it was signed is never served."""

from __future__ import annotations

import base64
import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import adapter_toys as toys
import pytest
from cache_toys import Memory
from hypothesis import given
from hypothesis import strategies as st

from floe.adapters import signature, versions
from floe.adapters.cache import AdapterCache
from floe.adapters.manifest import parse_record, read_record, record_data, write_record
from floe.adapters.revocations import revocation
from floe.adapters.signature import SigningKey, load_key, new_key, read_public, verify
from floe.adapters.source import SIGNATURE, shipped
from floe.adapters.statement import message, parse_seal
from floe.adapters.store import AdapterStore
from floe.adapters.trust import KEY, Trust, shipped_digests
from floe.adapters.versions import Claims, chain, claims_of, publish, rollback
from floe.core.adapter import Centroid
from floe.core.errors import BadAdapter, BadConfig, BadRequest, Missing, NotFound, Untrusted
from floe.core.files import sha256_file
from floe.core.route import Route, Share

MODEL = toys.model()
CLAIMS = Claims(round_number=3, epsilon=2.5, delta=1e-5, evaluation={"worse": 0, "not_worse": 4})


class Publisher:
    """A home with its key and its store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.key = new_key(root / "trust" / KEY)
        self.store = AdapterStore(root / "store", MODEL, trust=Trust(root / "trust"))

    def publish(self, seed: int, name: str = "medicine", **more: Any) -> Path:
        folder = toys.folder(self.root / f"folder-{name}-{seed}", seed=seed)
        publish(self.store, folder, self.key, name=name, **more)
        return folder


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return Publisher(tmp_path / "publisher")


def device(root: Path, *keys: str, mode: Any = "off") -> AdapterStore:
    trust = Trust(root / "trust", signatures=mode, trusted_keys=keys)
    return AdapterStore(root / "store", MODEL, trust=trust)


# --- keys


def test_a_key_is_private_and_never_overwritten(tmp_path: Path) -> None:
    key = new_key(tmp_path / "keys" / "k.key")
    assert (tmp_path / "keys/k.key").stat().st_mode & 0o777 == 0o600
    again = load_key(tmp_path / "keys/k.key")
    assert again.public == key.public == read_public(str(tmp_path / "keys/k.pub"))
    assert verify(key.public, again.sign(b"x"), b"x")
    with pytest.raises(BadRequest, match="A key is never overwritten"):
        new_key(tmp_path / "keys/k.key")
    (tmp_path / "keys/k.key").chmod(0o644)
    with pytest.raises(BadConfig, match="can be read by others"):
        load_key(tmp_path / "keys/k.key")
    with pytest.raises(NotFound, match="floe fed keys new"):
        load_key(tmp_path / "none.key")
    (tmp_path / "bad.key").write_text("no key")
    (tmp_path / "bad.key").chmod(0o600)
    with pytest.raises(BadConfig, match="is not a private key in PEM form"):
        load_key(tmp_path / "bad.key")
    assert "PRIVATE" not in repr(key) and "PRIVATE" not in str(vars(key).values())


@pytest.mark.parametrize("text", ["ed25519:", "ed25519:AAAA", "ed25519:" + "!" * 44])
def test_what_is_no_public_key_is_refused(text: str) -> None:
    with pytest.raises(BadConfig, match="a public key is ed25519: and the base64 of 32 bytes"):
        verify(text, b"", b"")
    with pytest.raises(BadConfig, match="trusted_keys"):
        Trust(Path("none"), trusted_keys=(text,))
    with pytest.raises(BadConfig, match="neither a public key nor a file with one"):
        read_public("/no/such/file")


def test_a_file_without_a_public_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "junk.pub").write_text("junk")
    with pytest.raises(BadConfig, match=r"junk\.pub holds no public key: one line, ed25519: and"):
        read_public(str(tmp_path / "junk.pub"))


@given(data=st.binary(min_size=1, max_size=40), bit=st.integers(0, 10_000), where=st.booleans())
def test_one_bit_more_or_less_is_seen(data: bytes, bit: int, where: bool) -> None:
    key = _KEYS[0]
    sig = key.sign(data)
    assert verify(key.public, sig, data)
    changed = bytearray(sig if where else data)
    changed[(bit // 8) % len(changed)] ^= 1 << (bit % 8)
    other = (bytes(changed), data) if where else (sig, bytes(changed))
    assert not verify(key.public, *other)
    assert not verify(_KEYS[1].public, sig, data)


def _ephemeral() -> SigningKey:
    ed25519, _ = signature._library()
    return SigningKey(ed25519.Ed25519PrivateKey.generate())


_KEYS = (_ephemeral(), _ephemeral())


def test_without_cryptography_the_extra_is_named(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.publish(0)
    plain = publisher.store.add(toys.folder(publisher.root / "plain", seed=9))
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(Missing, match=r"pip install 'floe\[sign\]'"):
        verify(publisher.key.public, b"", b"")
    with pytest.raises(Missing, match=r"pip install 'floe\[sign\]'"):
        new_key(publisher.root / "other.key")
    store = AdapterStore(publisher.root / "store", MODEL, trust=Trust(publisher.root / "trust"))
    assert store.list() == (plain,)  # one that cannot be checked disturbs no other
    [failed] = [e for e in store.entries() if e.state == "failed"]
    assert failed.is_refused and "is signed and cannot be checked" in failed.reason


# --- what is signed


def test_a_signed_adapter_reaches_a_device_that_trusts_the_key(
    publisher: Publisher, tmp_path: Path
) -> None:
    folder = publisher.publish(0, claims=CLAIMS)
    store = device(tmp_path / "device", publisher.key.public, mode="require")
    stored = store.add(folder)
    assert stored.manifest.name == "medicine"
    seal = store.record(stored).seal
    assert seal is not None
    said = seal.statement
    assert (said.version, said.round_number, said.epsilon, said.delta) == (1, 3, 2.5, 1e-5)
    assert said.evaluation == {"worse": 0, "not_worse": 4}
    assert (said.digest, said.parent) == (stored.manifest.digest, "")
    assert device(tmp_path / "device", publisher.key.public, mode="require").list() == (stored,)


def test_strangers_and_the_unsigned_by_setting(
    publisher: Publisher, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    signed = publisher.publish(0)
    plain = toys.folder(tmp_path / "plain", seed=5)
    for mode, takes_plain, takes_stranger in (
        ("off", True, False), ("warn", True, True), ("require", False, False),
    ):  # fmt: skip
        store = device(tmp_path / mode, mode=mode)
        for folder, takes, text in (
            (plain, takes_plain, "is not signed, and adapters.signatures is"),
            (signed, takes_stranger, "which adapters.trusted_keys does not name"),
        ):
            if takes:
                store.add(folder)
                continue
            with pytest.raises(Untrusted, match=text):
                store.add(folder)
            assert not list((tmp_path / mode / "store/objects").iterdir()) or takes_plain
        assert len(store.list()) == takes_plain + takes_stranger
    assert "is not signed" in caplog.text and "does not name" in caplog.text


def test_an_adapter_that_was_trusted_is_refused_when_the_settings_change(
    publisher: Publisher, tmp_path: Path
) -> None:
    device(tmp_path / "d").add(toys.folder(tmp_path / "plain"))
    device(tmp_path / "d", publisher.key.public).add(publisher.publish(1))
    names = {e.name: e for e in device(tmp_path / "d", mode="require").entries()}
    assert names["plain"].is_refused and names["medicine"].is_refused
    assert "is not signed" in names["plain"].reason


@pytest.mark.parametrize("what", ["name", "version", "parent", "epsilon", "evaluation", "round"])
def test_c07_a_changed_statement_is_refused(
    publisher: Publisher, tmp_path: Path, what: str
) -> None:
    folder = publisher.publish(0, claims=CLAIMS)
    data = json.loads((folder / SIGNATURE).read_text())
    changes: dict[str, Any] = {
        "name": "law", "version": 7, "parent": "0" * 64, "epsilon": 0.1,
        "evaluation": {"worse": 0, "not_worse": 40}, "round": None,
    }  # fmt: skip
    if what == "round":
        data["statement"]["round_number"] = 4
    else:
        data["statement"][what] = changes[what]
    (folder / SIGNATURE).write_text(json.dumps(data))
    with pytest.raises(Untrusted, match=r"its signature is not that of its key"):
        device(tmp_path / "d", publisher.key.public).add(folder)


def test_one_bit_of_weights_centroid_or_file_is_refused(
    publisher: Publisher, tmp_path: Path
) -> None:
    centroid = {"encoder_digest": "e", "vector": [0.6, 0.8]}
    folder = toys.folder(tmp_path / "f")
    (folder / "centroid.json").write_text(json.dumps(centroid))
    publish(publisher.store, folder, publisher.key, name="medicine")
    store = device(tmp_path / "d", publisher.key.public)
    (folder / "centroid.json").write_text(json.dumps({**centroid, "vector": [0.8, 0.6]}))
    with pytest.raises(Untrusted, match="is not what was signed: its centroid differs"):
        store.add(folder)
    (folder / "centroid.json").write_text(json.dumps(centroid))
    weights = folder / "adapter_model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(Untrusted, match="its content, file differs"):
        store.add(folder)
    assert store.entries() == () and not list((tmp_path / "d/store/objects").iterdir())
    weights.write_bytes(good)
    stored = store.add(folder)
    with pytest.raises(Untrusted, match="signed together with its centroid"):
        store.set_centroid("medicine", Centroid(encoder_digest="e", vector=(1.0,)))
    gguf = stored.gguf.read_bytes()  # somebody who writes to the store changes file and entry
    stored.gguf.write_bytes(gguf[:-1] + bytes([gguf[-1] ^ 1]))
    path = tmp_path / "d/store/manifests/medicine.json"
    data = json.loads(path.read_text())
    data["file_sha256"] = sha256_file(stored.gguf)
    path.write_text(json.dumps(data))
    [entry] = store.entries()
    assert entry.is_refused and "its file differs" in entry.reason
    with pytest.raises(Untrusted, match="its file differs"):
        store.find("medicine", stored.manifest.digest)


def test_a_signature_that_is_damaged_is_said(publisher: Publisher, tmp_path: Path) -> None:
    folder = publisher.publish(0)
    good = json.loads((folder / SIGNATURE).read_text())
    store = device(tmp_path / "d", publisher.key.public)
    for change in ({"statement": {}}, {"public_key": 3}, {"statement": {**good["statement"],
                   "version": True}}, {"statement": {**good["statement"], "more": 1}},
                   {"statement": {**good["statement"], "epsilon": "x"}},
                   {"statement": {**good["statement"], "version": 0}},
                   {"statement": {**good["statement"], "parent": 1}},
                   {"statement": {**good["statement"], "evaluation": {"worse": "0"}}}):  # fmt: skip
        (folder / SIGNATURE).write_text(json.dumps({**good, **change}))
        with pytest.raises(BadAdapter, match=r"signature\.json: is damaged"):
            store.add(folder)
    for change in ({"signature": "!"}, {"signature": base64.b64encode(b"x" * 64).decode()}):
        (folder / SIGNATURE).write_text(json.dumps({**good, **change}))
        with pytest.raises(Untrusted, match="its signature is not that of its key"):
            store.add(folder)
    (folder / SIGNATURE).write_text(json.dumps({**good, "public_key": "ed25519:AAAA"}))
    with pytest.raises(Untrusted, match="a public key is"):
        store.add(folder)


def test_the_entry_migrates_and_keeps_its_seal(publisher: Publisher, tmp_path: Path) -> None:
    publisher.publish(0, claims=CLAIMS)
    record = read_record(publisher.root / "store/manifests/medicine.json")
    data = json.loads(json.dumps(record_data(record)))
    assert parse_record(data, source="x") == record
    old = record_data(record)
    del old["seal"]
    assert parse_record({**old, "version": 1}, source="x").seal is None
    assert record.seal is not None
    assert parse_seal(json.loads(json.dumps(data["seal"]))) == record.seal
    assert message(record.seal.statement).startswith(b"floe adapter statement 1\n{")


def test_digests_of_the_shipped_adapters_are_those_of_their_files() -> None:
    names = {folder.name for folder in shipped()}
    listed = json.loads((Path(str(next(shipped()))).parent / "digests.json").read_text())
    assert set(listed) == names and len(shipped_digests()) == len(names)


# --- revocation


def revoke(store: AdapterStore, kind: Any, value: str) -> None:
    entry = revocation(kind, value, reason="leaks", at="2026-01-01")
    assert store.trust.revocations.add([entry]) == 1


async def test_a_revoked_adapter_is_served_no_more_without_a_restart(
    publisher: Publisher, tmp_path: Path
) -> None:
    store = device(tmp_path / "d", publisher.key.public)
    stored = store.add(publisher.publish(0))
    memory = Memory()
    cache = AdapterCache(store=store, load=memory.load, unload=memory.unload, budget_bytes=1 << 20)
    share = Share(name="medicine", digest=stored.manifest.digest, weight=1.0)
    asked = Route(shares=(share,), how="explicit")
    async with cache.lease(asked):
        revoke(device(tmp_path / "d"), "digest", stored.manifest.digest)  # by another process
        assert cache.is_resident(stored.manifest.digest)  # the answer under way may finish
        with pytest.raises(Untrusted, match=r"this content was revoked: leaks. Take it out"):
            async with cache.lease(asked):
                pytest.fail("it must not be leased")
    with pytest.raises(Untrusted, match="was revoked"):
        async with cache.lease(asked):
            pytest.fail("it must not be leased")
    assert not cache.is_resident(stored.manifest.digest)
    assert store.list() == ()
    [row] = cache.snapshot()
    assert (row.state, "revoked: leaks" in row.reason) == ("failed", True)
    cache.check_integrity()
    again = device(tmp_path / "d", publisher.key.public)  # after a restart
    assert again.list() == ()
    with pytest.raises(Untrusted, match="was revoked"):
        again.add(publisher.root / "folder-medicine-0", replace=True)


def test_a_revoked_key_takes_all_it_signed_with_it(publisher: Publisher, tmp_path: Path) -> None:
    store = device(tmp_path / "d", publisher.key.public)
    store.add(publisher.publish(0))
    store.add(publisher.publish(1, name="law"))
    plain = store.add(toys.folder(tmp_path / "plain", seed=5))
    revoke(store, "key", publisher.key.public)
    assert store.list() == (plain,)
    assert {e.name for e in store.entries() if e.is_refused} == {"law", "medicine"}
    with pytest.raises(BadConfig, match="64 hexadecimal digits"):
        revocation("digest", "abc", reason="", at="")


def test_an_unsigned_adapter_can_be_revoked_too(tmp_path: Path) -> None:
    store = device(tmp_path / "d")
    stored = store.add(toys.folder(tmp_path / "plain"))
    revoke(store, "digest", stored.manifest.digest)
    assert store.list() == ()


def test_a_damaged_list_of_revocations_trusts_nobody(tmp_path: Path) -> None:
    store = device(tmp_path / "d")
    stored = store.add(toys.folder(tmp_path / "plain"))
    path = tmp_path / "d/trust/revoked.json"
    path.parent.mkdir(exist_ok=True)
    for text in (
        "{",
        '{"version": 2, "entries": []}',
        '{"version": 1, "entries": [{"kind": "x"}]}',
    ):
        path.write_text(text)
        [entry] = store.entries()
        assert entry.is_refused and "cannot be read, so no adapter is trusted" in entry.reason
    path.unlink()
    assert store.list() == (stored,)


# --- versions


def test_versions_form_a_chain_and_go_back(publisher: Publisher) -> None:
    for seed in (0, 1, 2):
        publisher.publish(seed, claims=CLAIMS)
    found = chain(publisher.store, "medicine")
    assert [v.statement.version for v in found] == [1, 2, 3]
    assert [v.statement.parent for v in found[1:]] == [v.statement.digest for v in found[:-1]]
    assert [v.is_current for v in found] == [False, False, True] and all(v.is_here for v in found)
    back = rollback(publisher.store, "medicine", publisher.key)
    assert back.manifest.digest == found[1].statement.digest
    assert publisher.store.get("medicine") == back
    newest = chain(publisher.store, "medicine")[-1]
    assert (newest.statement.version, newest.statement.restores) == (4, 2)
    assert newest.statement.parent == found[2].statement.digest
    assert newest.statement.evaluation == CLAIMS.evaluation
    first = rollback(publisher.store, "medicine", publisher.key, to=1)
    assert first.manifest.digest == found[0].statement.digest
    for to in (9, 0):
        with pytest.raises(NotFound, match=r"version \d of 'medicine' is not here; there are: 1"):
            rollback(publisher.store, "medicine", publisher.key, to=to)


def test_rollback_passes_over_what_was_revoked(publisher: Publisher) -> None:
    for seed in (0, 1, 2):
        publisher.publish(seed)
    digests = [v.statement.digest for v in chain(publisher.store, "medicine")]
    revoke(publisher.store, "digest", digests[2])
    revoke(publisher.store, "digest", digests[1])
    assert publisher.store.list() == ()
    assert rollback(publisher.store, "medicine", publisher.key).manifest.digest == digests[0]
    assert [s.manifest.digest for s in publisher.store.list()] == [digests[0]]
    with pytest.raises(Untrusted, match="this content was revoked"):
        rollback(publisher.store, "medicine", publisher.key, to=2)
    with pytest.raises(NotFound, match="an earlier version of 'medicine' is not here"):
        rollback(publisher.store, "medicine", publisher.key)


def test_files_of_the_last_versions_are_kept_and_older_ones_go(publisher: Publisher) -> None:
    for seed in range(7):
        publisher.publish(seed)
    assert [v.is_here for v in chain(publisher.store, "medicine")] == [False] * 2 + [True] * 5
    with pytest.raises(NotFound, match="version 1 of 'medicine' is not here; there are: 3, 4"):
        rollback(publisher.store, "medicine", publisher.key, to=1)
    publisher.store.remove("medicine")
    assert not list((publisher.root / "store/objects").iterdir())


def test_c07_an_older_version_played_again_is_refused(publisher: Publisher, tmp_path: Path) -> None:
    folders = [publisher.publish(seed) for seed in (0, 1)]
    store = device(tmp_path / "d", publisher.key.public)
    store.add(folders[0])
    newer = store.add(folders[1], replace=True)
    with pytest.raises(Untrusted, match="this is version 1, and version 2 was here"):
        store.add(folders[0], replace=True)
    assert store.list() == (newer,)
    store.remove("medicine")
    with pytest.raises(Untrusted, match="this is version 1, and version 2 was here"):
        store.add(folders[0])
    assert store.add(folders[1]) == newer


def test_two_contents_signed_as_one_version_are_refused(
    publisher: Publisher, tmp_path: Path
) -> None:
    store = device(tmp_path / "d", publisher.key.public)
    store.add(publisher.publish(0))
    twin = AdapterStore(tmp_path / "twin", MODEL, trust=publisher.store.trust)
    other = toys.folder(tmp_path / "other", seed=3)
    publish(twin, other, publisher.key, name="medicine")
    with pytest.raises(Untrusted, match="signed two different versions 1"):
        store.add(other, replace=True)


def test_what_the_gate_found_worse_is_not_published(publisher: Publisher) -> None:
    claims = claims_of({"worse": 1, "not_worse": 3, "round": 2, "epsilon": 3.0, "x": "y"})
    assert (claims.round_number, claims.epsilon, claims.delta) == (2, 3.0, None)
    with pytest.raises(BadAdapter, match="not published: 1 of 4 members find it worse"):
        publisher.publish(0, claims=claims)
    assert publisher.store.entries() == ()


def test_a_later_signature_over_the_same_content_is_a_new_version(publisher: Publisher) -> None:
    folder = publisher.publish(0)
    publish(publisher.store, folder, publisher.key, name="medicine", claims=CLAIMS)
    found = chain(publisher.store, "medicine")
    assert [v.statement.version for v in found] == [1, 2]
    assert found[1].statement.digest == found[0].statement.digest
    with pytest.raises(NotFound, match="an earlier version"):
        rollback(publisher.store, "medicine", publisher.key)


def test_put_back_keeps_the_signature(publisher: Publisher, tmp_path: Path) -> None:
    publisher.publish(0)
    stored = publisher.store.get("medicine")
    kept = tmp_path / "kept.gguf"
    kept.write_bytes(stored.gguf.read_bytes())
    publisher.store.add(toys.folder(tmp_path / "x", seed=8), name="medicine", replace=True)
    publisher.store.put_back(stored.manifest, kept)
    assert publisher.store.record(publisher.store.get("medicine")).seal is not None


# --- killed

CHILD = """
import os, sys
from pathlib import Path
sys.path[:0] = [{src!r}, {tests!r}]
import adapter_toys as toys
import floe.core.files as files
from floe.adapters.signature import load_key
from floe.adapters.store import AdapterStore
from floe.adapters.trust import KEY, Trust
from floe.adapters.versions import publish
root = Path({root!r})
key, trust = load_key(root / "trust" / KEY), Trust(root / "trust")
store = AdapterStore(root / "store", toys.model(), trust=trust)
real, calls = os.replace, 0
def replace(a, b):
    global calls
    real(a, b)
    calls += 1
    if calls == {calls}:
        print("here", flush=True)
        sys.stdin.read()
files.os.replace = replace
publish(store, Path({source!r}), key, name="medicine")
"""


@pytest.mark.parametrize(("calls", "is_new"), [(1, False), (2, False), (3, True)])
def test_a_kill_between_object_version_and_manifest_leaves_old_or_new(
    publisher: Publisher, tmp_path: Path, calls: int, is_new: bool
) -> None:
    publisher.publish(0)
    old = publisher.store.get("medicine").manifest.digest
    source = toys.folder(tmp_path / "next", seed=1)
    here = Path(__file__).parent
    code = CHILD.format(
        src=str(here.parents[1] / "src"), tests=str(here), root=str(publisher.root),
        source=str(source), calls=calls,
    )  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "here\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    store = AdapterStore(publisher.root / "store", MODEL, trust=Trust(publisher.root / "trust"))
    [stored] = store.list()
    assert (stored.manifest.digest != old) == is_new
    with store.opened(stored) as path:
        assert path.is_file()
    publish(store, source, publisher.key, name="medicine")  # once more, and it is there
    assert store.get("medicine").manifest.digest != old
    newest = [v for v in versions.chain(store, "medicine") if v.is_current]
    assert newest[0].statement.version == store.history.highest("medicine")


def test_a_damaged_version_is_named(publisher: Publisher) -> None:
    publisher.publish(0)
    (publisher.root / "store/versions/medicine/000001.json").write_text("{")
    with pytest.raises(BadAdapter, match="is damaged"):
        chain(publisher.store, "medicine")
    assert len(publisher.store.list()) == 1  # what is served now stays


def test_a_forged_shipped_digest_from_a_remote_is_not_believed(tmp_path: Path) -> None:
    store = device(tmp_path / "d")
    record = store.record(store.add(toys.folder(tmp_path / "plain")))
    digest = next(iter(shipped_digests()))
    forged = dataclasses.replace(
        record, manifest=dataclasses.replace(record.manifest, digest=digest)
    )
    trust = Trust(tmp_path / "t", signatures="require")
    trust.check(forged)  # its content was hashed when it was added here
    with pytest.raises(Untrusted, match="is not signed"):
        trust.check(forged, is_remote=True)
    write_record(tmp_path / "x.json", forged)
