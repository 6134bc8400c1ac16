"""The store: all or nothing, one broken entry disturbs nobody, kill -9 at any step."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import adapter_toys as toys
import numpy as np
import pytest

from floe.adapters import source as source_module
from floe.adapters import store as store_module
from floe.adapters.digest import content_digest
from floe.adapters.formats import write_lora_gguf
from floe.adapters.lora import LoraTensors
from floe.adapters.manifest import MIGRATIONS, centroid_of, read_record, write_record
from floe.adapters.peft import read_peft
from floe.adapters.source import shipped
from floe.adapters.store import AdapterStore
from floe.core.adapter import Centroid
from floe.core.errors import BadAdapter, BadRequest, FloeError, NotFound

MODEL = toys.model()


@pytest.fixture
def store(tmp_path: Path) -> AdapterStore:
    return AdapterStore(tmp_path / "store", MODEL)


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_an_added_adapter_is_listed_and_whole(store: AdapterStore, tmp_path: Path) -> None:
    folder = toys.folder(tmp_path / "maths")
    stored = store.add(folder, description="sums")
    lora = read_peft(folder, MODEL)
    manifest = stored.manifest
    assert (manifest.name, manifest.digest) == ("maths", content_digest(lora))
    assert (manifest.rank, manifest.modules, manifest.description) == (4, 4, "sums")
    assert (manifest.base_model, manifest.architecture) == ("Toys/Tiny-Toy", "llama")
    assert manifest.file_bytes == stored.gguf.stat().st_size
    assert store.list() == (stored,)
    assert store.get("maths") == store.find("maths", manifest.digest) == stored
    assert AdapterStore(tmp_path / "store", MODEL).list() == (stored,)
    back = store.tensors(stored)
    for name, pair in lora.pairs.items():
        np.testing.assert_allclose(
            toys.delta(back.pairs[name]), toys.delta(pair), rtol=0.01, atol=1e-4
        )


def test_a_gguf_adapter_is_added_as_it_is(store: AdapterStore, tmp_path: Path) -> None:
    write_lora_gguf(tmp_path / "code.gguf", toys.lora(), "llama")
    stored = store.add(tmp_path / "code.gguf")
    assert (stored.manifest.name, stored.manifest.facts) == ("code", {"format": "gguf"})
    assert stored.manifest.digest == content_digest(store.tensors(stored))


def test_adding_the_same_content_changes_nothing(store: AdapterStore, tmp_path: Path) -> None:
    first = store.add(toys.folder(tmp_path / "a"))
    before = tree(tmp_path / "store")
    assert store.add(tmp_path / "a") == first
    assert store.add(toys.folder(tmp_path / "b", lora_dropout=0.5), name="a") == first
    assert tree(tmp_path / "store") == before


def test_what_lies_newly_beside_the_same_weights_is_taken(
    store: AdapterStore, tmp_path: Path
) -> None:
    folder = toys.folder(tmp_path / "a")
    first = store.add(folder)
    (folder / "centroid.json").write_text('{"encoder_digest": "e", "vector": [1, 0.5]}')
    second = store.add(folder)
    assert second.manifest.centroid == Centroid(encoder_digest="e", vector=(1.0, 0.5))
    assert second.manifest.digest == first.manifest.digest
    assert store.get("a") == second


def test_same_name_other_content_needs_replace(store: AdapterStore, tmp_path: Path) -> None:
    old = store.add(toys.folder(tmp_path / "a"))
    other = toys.folder(tmp_path / "b", seed=1)
    with pytest.raises(
        BadRequest, match=r"named 'a' with other content, or a damaged one, is in the store. Choose"
    ):
        store.add(other, name="a")
    assert store.list() == (old,)
    new = store.add(other, name="a", replace=True)
    assert store.list() == (new,)
    assert new.manifest.digest != old.manifest.digest
    assert not old.folder.exists()
    with pytest.raises(BadAdapter, match=r"'a' was removed or replaced in the store. Ask again"):
        store.find("a", old.manifest.digest)
    with pytest.raises(BadAdapter, match="'a' was removed or replaced"), store.opened(old):
        pass


def test_two_names_for_one_content_share_the_file(store: AdapterStore, tmp_path: Path) -> None:
    a = store.add(toys.folder(tmp_path / "a"))
    b = store.add(tmp_path / "a", name="b")
    assert a.folder == b.folder
    store.remove("a")
    assert store.list() == (b,)
    assert store.find("a", a.manifest.digest) == b
    store.remove("b")
    assert store.list() == ()
    assert not b.folder.exists()


def test_removing_what_is_not_there(store: AdapterStore) -> None:
    for name in ("none", "../x"):
        with pytest.raises(NotFound, match="no adapter of that name in the store; nothing removed"):
            store.remove(name)


@pytest.mark.parametrize("name", ["../../etc", "/etc/passwd", "..", "a/b", "a\\b", "", ".hidden"])
def test_a29_names_cannot_leave_the_store(store: AdapterStore, tmp_path: Path, name: str) -> None:
    with pytest.raises(NotFound, match="it is not a valid name"):
        store.get(name)
    with pytest.raises(BadRequest, match="adapter name is not allowed"):
        store.add(toys.folder(tmp_path / "a"), name=name)
    assert store.list() == ()


@pytest.mark.parametrize("name", ["auto", "Auto", MODEL.name, MODEL.name.upper(), "wordllama-256"])
def test_names_that_requests_give_to_something_else_are_refused(tmp_path: Path, name: str) -> None:
    store = AdapterStore(tmp_path / "store", MODEL, reserved={"wordllama-256"})
    with pytest.raises(BadRequest, match="never reaches an adapter of that name"):
        store.add(toys.folder(tmp_path / "a"), name=name)
    assert store.list() == ()


@pytest.mark.parametrize("given", ["C:\\x", "~/no such folder", "absent.gguf"])
def test_a40_a_path_with_nothing_there_is_named_and_what_was_expected(
    store: AdapterStore, given: str
) -> None:
    with pytest.raises(BadAdapter) as caught:
        store.add(Path(given))
    assert caught.value.message == (
        f"there is nothing at {given}; expected a PEFT folder (adapter_config.json, "
        "adapter_model.safetensors) or a .gguf file"
    )


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors", "card.json"])
def test_a_pipe_in_place_of_a_file_is_refused_at_once(
    store: AdapterStore, tmp_path: Path, file: str
) -> None:
    folder = toys.folder(tmp_path / "a")
    (folder / file).unlink(missing_ok=True)
    os.mkfifo(folder / file)
    with pytest.raises(BadAdapter, match="is no regular file"):
        store.add(folder)
    assert store.list() == ()


def test_a29_links_out_of_the_store_are_not_followed(store: AdapterStore, tmp_path: Path) -> None:
    stored = store.add(toys.folder(tmp_path / "a"))
    outside = tmp_path / "outside.json"
    manifest = tmp_path / "store/manifests/a.json"
    manifest.rename(outside)
    manifest.symlink_to(outside)
    with pytest.raises(NotFound, match="no adapter named 'a' in the store"):
        store.get("a")
    assert store.entries()[0].reason == "adapter 'a' is a link out of the store. Remove it"
    manifest.unlink()
    outside.rename(manifest)
    stored.folder.rename(tmp_path / "elsewhere")
    stored.folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadAdapter, match=r"is gone. Add it again"):
        store.get("a")


def test_an_unknown_name_lists_the_known(store: AdapterStore, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there are: none"):
        store.get("x")
    store.add(toys.folder(tmp_path / "a"))
    with pytest.raises(NotFound, match="no adapter named 'x' in the store; there are: a"):
        store.get("x")


def test_a_refused_adapter_changes_nothing(store: AdapterStore, tmp_path: Path) -> None:
    store.add(toys.folder(tmp_path / "a"))
    before = tree(tmp_path / "store")
    for bad in (
        toys.folder(tmp_path / "bad", use_dora=True),
        tmp_path / "none",
        tmp_path / "store/.lock",
    ):
        with pytest.raises(BadAdapter):
            store.add(bad, name="a", replace=True)
    assert tree(tmp_path / "store") == before


@pytest.mark.parametrize("step", ["write_lora_gguf", "write_record"])
def test_a_full_disk_is_said_and_changes_nothing(
    store: AdapterStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store.add(toys.folder(tmp_path / "a"))
    before = tree(tmp_path / "store")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    other = toys.folder(tmp_path / "b", seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(store_module, step, full)
        with pytest.raises(FloeError, match=r"'b' could not be written .* No space left on device"):
            store.add(other)
    assert tree(tmp_path / "store") == before
    assert len(list((tmp_path / "store").rglob("objects/*"))) == 1
    store.add(other)
    assert [s.manifest.name for s in store.list()] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.bin", "is a pickle, which can run code"),
        ("x.pt", "is a pickle"),
        ("x.safetensors", "lacks its config"),
        ("x.txt", "is not an adapter; expected a PEFT folder"),
        ("x.gguf", "is empty|truncated|not a GGUF"),
    ],
)
def test_a_single_file_must_be_gguf(
    store: AdapterStore, tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / name).touch()
    with pytest.raises(BadAdapter, match=message):
        store.add(tmp_path / name)
    with pytest.raises(BadAdapter, match="there is nothing at"):
        store.add(tmp_path / "none.gguf")


# --- what lies beside the weights


def test_centroid_and_card_are_read(store: AdapterStore, tmp_path: Path) -> None:
    folder = toys.folder(tmp_path / "a", enable_lora=None)
    (folder / "centroid.json").write_text('{"encoder_digest": "e", "vector": [0.5]}')
    card = {"description": "sums", "loss_before": 2.5, "steps": 3, "none": None, "nested": {"x": 1}}
    (folder / "card.json").write_text(json.dumps(card))
    manifest = store.add(folder).manifest
    assert manifest.description == "sums"
    assert manifest.centroid == Centroid(encoder_digest="e", vector=(0.5,))
    assert manifest.facts == {
        "format": "peft",
        "loss_before": 2.5,
        "steps": 3,
        "none": None,
        "notes": "ignored enable_lora: it has no value",
    }
    assert store.get("a").manifest == manifest
    moved = Centroid(encoder_digest="f", vector=(1.0, 2.0))
    assert store.set_centroid("a", moved).manifest.centroid == moved
    assert store.get("a").manifest.centroid == moved
    with pytest.raises(NotFound, match="no adapter named 'b'"):
        store.set_centroid("b", moved)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("centroid.json", "[", "centroid.json: cannot be read as JSON"),
        ("centroid.json", "[1]", "centroid.json: must be"),
        ("centroid.json", '{"encoder_digest": "e", "vector": []}', "1 to 65536 numbers"),
        ("centroid.json", '{"encoder_digest": "e", "vector": ["x"]}', "finite numbers only"),
        ("centroid.json", '{"encoder_digest": "e", "vector": [NaN]}', "cannot be read as JSON"),
        ("card.json", "[1]", "card.json: must be an object of facts"),
        ("card.json", " " * (1 << 20) + "{}", "card.json: larger than 1048576 bytes"),
    ],
)
def test_damaged_notes_are_refused(
    store: AdapterStore, tmp_path: Path, name: str, text: str, message: str
) -> None:
    folder = toys.folder(tmp_path / "a")
    (folder / name).write_text(text)
    with pytest.raises(BadAdapter, match=message):
        store.add(folder)
    assert store.list() == ()


def test_centroids_are_finite() -> None:
    with pytest.raises(ValueError, match="finite numbers only"):
        centroid_of({"encoder_digest": "e", "vector": [float("inf")]})


def test_shipped_adapters_are_folders_with_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "__file__", str(tmp_path / "source.py"))
    assert list(shipped()) == []
    toys.folder(tmp_path / "shipped/maths")
    toys.folder(tmp_path / "shipped/code")
    (tmp_path / "shipped/__pycache__").mkdir()
    assert [p.name for p in shipped()] == ["code", "maths"]


# --- damage


WRONG_FACTS: dict[str, dict[str, object]] = {
    "rank not a number": {"rank": "8"},
    "modules below 1": {"modules": 0},
    "no time": {"created_at": "yesterday"},
    "text that cannot be shown": {"description": "\ud800"},
    "description not text": {"description": ["a"]},
    "facts not by name": {"facts": ["a"]},
    "fact that cannot be shown": {"facts": {"note": "\ud800"}},
}


def damage(kind: str, root: Path, gguf: Path) -> None:
    manifest = root / "manifests/a.json"
    data = json.loads(manifest.read_text())
    if kind == "folder gone":
        gguf.unlink()
        gguf.parent.rmdir()
    elif kind == "file cut":
        gguf.write_bytes(gguf.read_bytes()[:-1])
    elif kind == "not JSON":
        manifest.write_text("{")
    elif kind == "newer":
        manifest.write_text(json.dumps({**data, "version": 99}))
    elif kind == "field missing":
        del data["manifest"]["digest"]
        manifest.write_text(json.dumps(data))
    elif kind == "digest a path":
        data["manifest"]["digest"] = "../../etc"
        manifest.write_text(json.dumps(data))
    elif kind == "size wrong":
        data["manifest"]["file_bytes"] = "1"
        manifest.write_text(json.dumps(data))
    elif kind == "name not text":
        data["manifest"]["name"] = 3
        manifest.write_text(json.dumps(data))
    elif kind in WRONG_FACTS:
        data["manifest"] |= WRONG_FACTS[kind]
        manifest.write_text(json.dumps(data))
    elif kind == "huge":
        manifest.write_text(" " * (4 << 20) + "{}")
    elif kind == "other name":
        data["manifest"]["name"] = "other"
        manifest.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("folder gone", "is gone. Add it again"),
        ("file cut", "its file was changed on disk. Add it again"),
        ("not JSON", "is damaged. Remove the adapter and add it again"),
        ("newer", "has version 99, this Floe reads 1 to 2. Update Floe"),
        ("field missing", "is damaged"),
        ("digest a path", "is damaged"),
        ("size wrong", "is damaged"),
        ("name not text", "is damaged"),
        *((kind, "is damaged") for kind in WRONG_FACTS),
        ("huge", "is larger than 4194304 bytes"),
        ("other name", "is the entry of 'other'"),
    ],
)
def test_a07_a34_a_broken_entry_is_listed_and_disturbs_no_other(
    store: AdapterStore, tmp_path: Path, kind: str, reason: str
) -> None:
    broken = store.add(toys.folder(tmp_path / "a"))
    good = store.add(toys.folder(tmp_path / "b", seed=1))
    damage(kind, tmp_path / "store", broken.gguf)
    entry, other = AdapterStore(tmp_path / "store", MODEL).entries()
    assert (entry.name, entry.state, entry.stored) == ("a", "failed", None)
    assert reason in entry.reason
    assert (other.state, other.stored) == ("registered", good)
    assert store.list() == (good,)
    with pytest.raises(BadAdapter, match=re.escape(reason)):
        store.get("a")
    with pytest.raises(BadAdapter, match=re.escape(reason)):
        store.find("a", broken.manifest.digest)
    assert store.add(tmp_path / "a", replace=True).manifest.digest == broken.manifest.digest
    assert len(store.list()) == 2


def test_a05_bytes_changed_before_or_while_loading_are_refused(
    store: AdapterStore, tmp_path: Path
) -> None:
    stored = store.add(toys.folder(tmp_path / "a"))
    good = stored.gguf.read_bytes()
    with store.opened(stored) as path:
        assert path.read_bytes() == good
    with (
        pytest.raises(BadAdapter, match=r"changed while it was loaded. Try again"),
        store.opened(stored) as path,
    ):
        path.write_bytes(good)
    with pytest.raises(BadAdapter, match=r"is gone. Add it again"), store.opened(stored) as path:
        path.unlink()
    stored.gguf.write_bytes(good[:-1] + b"x")  # the same size
    assert store.list() == (stored,)
    with pytest.raises(BadAdapter, match="its file was changed on disk"), store.opened(stored):
        pytest.fail("the block must not run")


def test_adapters_of_another_model_are_listed_as_failed(
    store: AdapterStore, tmp_path: Path
) -> None:
    store.add(toys.folder(tmp_path / "a"))
    linears = {**MODEL.linears, "blk.0.attn_q": (128, 64)}
    other = AdapterStore(tmp_path / "store", toys.model(linears=linears, name="bigger"))
    (entry,) = other.entries()
    assert entry.state == "failed"
    assert "a model of another shape than bigger" in entry.reason
    assert len(store.list()) == 1


def test_migrations_run_in_order_and_only_the_missing_ones(
    store: AdapterStore, tmp_path: Path
) -> None:
    store.add(toys.folder(tmp_path / "a"))
    path = tmp_path / "store/manifests/a.json"

    def rename(data: dict[str, Any]) -> dict[str, Any]:
        data["file_hash"] = data.pop("file_sha256")
        return data

    def rename_back(data: dict[str, Any]) -> dict[str, Any]:
        data["file_sha256"] = data.pop("file_hash")
        return data

    plain = read_record(path)
    more = (*MIGRATIONS, rename, rename_back)
    assert read_record(path, migrations=more) == plain
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**rename(data), "version": 3}))
    assert read_record(path, migrations=more) == plain
    with pytest.raises(BadAdapter, match="has version 3, this Floe reads 1 to 2"):
        read_record(path)
    with pytest.raises(BadAdapter, match=r"cannot read .*No such file"):
        read_record(tmp_path / "none.json")
    write_record(path, plain)
    assert read_record(path) == plain


# --- killed

CHILD = """
import os, sys
from pathlib import Path
sys.path[:0] = [{src!r}, {tests!r}]
import adapter_toys as toys
import floe.core.files as files
from floe.adapters.store import AdapterStore
real, calls = os.replace, 0
def replace(a, b):
    global calls
    for when in ("before", "after"):
        if when == "after":
            real(a, b)
            calls += 1
        if (calls, when) == ({calls}, {when!r}):
            print("here", flush=True)
            sys.stdin.read()
files.os.replace = replace
AdapterStore(Path({root!r}), toys.model()).add(Path({source!r}), name="a", replace=True)
print("done", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("has_old", [False, True])
@pytest.mark.parametrize(
    ("calls", "when", "is_new"),
    [(0, "before", False), (1, "after", False), (1, "before", False), (2, "after", True)],
)
def test_a_kill_during_add_leaves_the_old_or_the_new(
    tmp_path: Path, has_old: bool, calls: int, when: str, is_new: bool
) -> None:
    root = tmp_path / "store"
    store = AdapterStore(root, MODEL)
    old = store.add(toys.folder(tmp_path / "a")) if has_old else None
    source = toys.folder(tmp_path / "b", seed=1)
    here = Path(__file__).parent
    code = CHILD.format(
        src=str(here.parents[1] / "src"), tests=str(here), root=str(root), source=str(source),
        calls=calls, when=when,
    )  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdin is not None
    assert child.stdout.readline() == "here\n"
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    again = AdapterStore(root, MODEL)
    if is_new:
        (found,) = again.list()
        assert found.manifest.digest == content_digest(read_peft(source, MODEL))
    else:
        assert again.list() == ((old,) if old else ())
    assert len(list((root / "objects").iterdir())) == len(again.list())
    assert [p for p in root.rglob(".*") if p.name != ".lock"] == []
    for stored in again.list():
        again.tensors(stored)
    added = again.add(source, name="a", replace=True)
    assert again.list() == (added,)


def test_an_unreadable_entry_keeps_every_object(store: AdapterStore, tmp_path: Path) -> None:
    stored = store.add(toys.folder(tmp_path / "a"))
    manifest = tmp_path / "store/manifests/a.json"
    good = manifest.read_text()
    manifest.write_text("{")
    store.add(toys.folder(tmp_path / "b", seed=1))
    manifest.write_text(good)
    assert store.get("a") == stored


def test_any_base_is_remembered(store: AdapterStore, tmp_path: Path) -> None:
    folder = toys.folder(tmp_path / "a", base_model_name_or_path="other")
    with pytest.raises(BadAdapter, match="was trained on 'other'"):
        store.add(folder)
    stored = store.add(folder, any_base=True)
    assert stored.manifest.base_model == "other"
    assert isinstance(store.tensors(stored), LoraTensors)


def test_a_list_reads_again_only_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of adapters are looked up for every request."""
    store = AdapterStore(tmp_path / "store", toys.model())
    for seed, name in enumerate(("one", "two", "three")):
        store.add(toys.folder(tmp_path / name, seed=seed), name=name)
    store.entries()
    read: list[str] = []

    def counted(path: Path, **more: Any) -> Any:
        read.append(path.stem)
        return read_record(path, **more)

    monkeypatch.setattr("floe.adapters.store.read_record", counted)
    before = store.entries()
    digest = store.list()[0].manifest.digest
    assert store.find("one", digest) and read == []
    store.set_centroid("two", None)
    read.clear()
    assert {e.name for e in store.entries()} == {"one", "two", "three"} and read == ["two"]
    gguf = next(e.stored for e in before if e.name == "three" and e.stored).gguf
    gguf.write_bytes(b"short")
    assert [e.state for e in store.entries()] == ["registered", "failed", "registered"]
    gguf.unlink()
    gguf.symlink_to(tmp_path / "store" / "shipped.json")
    assert [e.state for e in store.entries()] == ["registered", "failed", "registered"]
