"""A store with a remote behind it: fetched when needed, checked, bounded, whole after a kill."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import adapter_toys as toys
import pytest
from cache_toys import FileStore, Memory, Slow, route, slow_cache

from floe.adapters.cache import AdapterCache
from floe.adapters.remote import Remote
from floe.adapters.remote_index import INDEX, object_name, publish
from floe.adapters.remote_store import RemoteStore
from floe.adapters.store import AdapterStore
from floe.core.errors import BadAdapter, BadConfig, Missing, NotFound
from floe.core.route import Route, Share
from floe.testing.virtual_time import run_virtual

NAMES = ("one", "two", "three", "four")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("published")
    store = AdapterStore(root / "store", toys.model())
    for seed, name in enumerate(NAMES):
        store.add(toys.folder(root / name, seed=seed), name=name)
    assert publish(store, root / "remote") == 4
    return root / "remote"


@pytest.fixture
def remote(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "remote"))


def opened(tmp_path: Path, url: str, *, disk_bytes: int = 1 << 30, **more: object) -> RemoteStore:
    return RemoteStore(
        local=AdapterStore(tmp_path / "local", toys.model()),
        remote=Remote(url),
        folder=tmp_path / "fetched",
        model=toys.model(),
        disk_bytes=disk_bytes,
        **more,  # type: ignore[arg-type]
    )


def digests(store: RemoteStore) -> dict[str, str]:
    return {s.manifest.name: s.manifest.digest for s in store.list()}


def fetch(store: RemoteStore, name: str) -> bytes:
    with store.opened(store.find(name, digests(store)[name])) as path:
        return path.read_bytes()


def on_disk(store: RemoteStore) -> set[str]:
    return {s.manifest.name for s in store.list() if s.gguf.is_file()}


def test_what_is_published_is_listed_at_once_and_fetched_when_opened(
    remote: Path, tmp_path: Path
) -> None:
    store = opened(tmp_path, remote.as_uri())
    assert store.note == ""
    assert sorted(digests(store)) == sorted(NAMES)
    stored = store.find("two", digests(store)["two"])
    assert store.tier(stored) == "remote" and store.fetched_bytes == 0
    assert fetch(store, "two") == (remote / object_name(stored.manifest.digest)).read_bytes()
    assert store.tier(stored) == "disk" and on_disk(store) == {"two"}
    assert len(store.tensors(stored).pairs) == 4
    shutil.rmtree(remote)
    assert fetch(opened(tmp_path, remote.as_uri()), "two")  # offline, from the last index


def test_a_local_name_wins_and_is_never_deleted(remote: Path, tmp_path: Path) -> None:
    local = AdapterStore(tmp_path / "local", toys.model())
    mine = local.add(toys.folder(tmp_path / "mine", seed=9), name="one")
    size = mine.manifest.file_bytes
    store = opened(tmp_path, remote.as_uri(), disk_bytes=size)
    assert digests(store)["one"] == mine.manifest.digest
    for name in ("two", "three", "one"):
        assert fetch(store, name)
    assert on_disk(store) == {"one", "three"}
    assert store.tier(mine) == "disk" and mine.gguf.is_file()
    store.fetch(mine)


def test_f14_the_disk_has_a_budget_with_eviction_and_pins(remote: Path, tmp_path: Path) -> None:
    """Room for three, a fourth comes: the least recently opened goes, a pinned one stays."""
    size = (
        AdapterStore(tmp_path / "probe", toys.model())
        .add(toys.folder(tmp_path / "probed"))
        .manifest.file_bytes
    )
    store = opened(tmp_path, remote.as_uri(), disk_bytes=3 * size, pinned=("one",))
    for name in ("one", "two", "three"):
        fetch(store, name)
    for age, name in enumerate(("one", "two", "three")):
        at_s = 1_000_000 + age
        os.utime(store.find(name, digests(store)[name]).gguf, (at_s, at_s))
    with store.opened(store.find("two", digests(store)["two"])):
        fetch(store, "four")
        assert on_disk(store) == {"one", "two", "four"}
    assert store.fetched_bytes == 3 * size
    small = opened(tmp_path, remote.as_uri(), disk_bytes=size, pinned=("one",))
    assert on_disk(small) == {"one"}  # a lower budget holds from the start
    with pytest.raises(BadAdapter, match=r"'two' needs \d+ bytes on disk; adapters.disk_bytes is"):
        fetch(small, "two")


@pytest.mark.parametrize("damage", ["flip", "short", "long", "gone", "swapped"])
def test_a_wrong_file_at_the_remote_is_refused_and_leaves_nothing(
    remote: Path, tmp_path: Path, damage: str
) -> None:
    store = opened(tmp_path, remote.as_uri())
    path = remote / object_name(digests(store)["one"])
    data = path.read_bytes()
    other = (remote / object_name(digests(store)["two"])).read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(
            {"flip": data[:-1] + b"x", "short": data[:-9], "long": data + b"x", "swapped": other}[
                damage
            ]
        )
    with pytest.raises(BadAdapter, match="adapter 'one' could not be fetched: "):
        fetch(store, "one")
    assert store.fetched_bytes == 0
    assert not [p for p in (tmp_path / "fetched").rglob("*") if p.is_file() and "part" in p.name]
    path.write_bytes(data)
    assert fetch(store, "one") == data


def test_what_is_no_adapter_of_this_model_is_refused_though_the_index_vouches_for_it(
    remote: Path, tmp_path: Path
) -> None:
    index = json.loads((remote / INDEX).read_text())
    one = index["adapters"][0]
    data = b"GGUF and nothing behind it"
    (remote / object_name(one["manifest"]["digest"])).write_bytes(data)
    one["file_sha256"] = hashlib.sha256(data).hexdigest()
    (remote / INDEX).write_text(json.dumps(index))
    store = opened(tmp_path, remote.as_uri())
    with pytest.raises(BadAdapter, match="could not be fetched: "):
        fetch(store, one["manifest"]["name"])
    assert store.fetched_bytes == 0


def test_a_file_damaged_on_disk_is_fetched_again(remote: Path, tmp_path: Path) -> None:
    store = opened(tmp_path, remote.as_uri())
    good = fetch(store, "one")
    store.find("one", digests(store)["one"]).gguf.write_bytes(good[:-1] + b"x")
    with pytest.raises(BadAdapter, match=r"'one': its bytes are not those of the index. Try again"):
        fetch(store, "one")
    assert fetch(store, "one") == good


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is damaged"),
        ('{"version": 2, "adapters": []}', "has version 2. Update Floe"),
        ('{"version": 1}', "is damaged"),
        ('{"version": 1, "adapters": [{"version": 9}]}', "has version 9"),
        ('{"version": 1, "adapters": [7]}', "is damaged"),
    ],
)
def test_a_bad_index_is_a_note_and_the_last_good_one_serves(
    remote: Path, tmp_path: Path, text: str, why: str
) -> None:
    store = opened(tmp_path, remote.as_uri())
    (remote / INDEX).write_text(text)
    store.refresh()
    assert why in store.note and store.note.endswith("the last list is used")
    assert len(store.list()) == 4
    again = opened(tmp_path, remote.as_uri())
    assert why in again.note and len(again.list()) == 4


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b", "", "two"])
def test_a29_names_of_the_index_are_checked(remote: Path, tmp_path: Path, name: str) -> None:
    index = json.loads((remote / INDEX).read_text())
    assert index["adapters"][0]["manifest"]["name"] != "two"
    index["adapters"][0]["manifest"]["name"] = name
    (remote / INDEX).write_text(json.dumps(index))
    store = opened(tmp_path, remote.as_uri())
    assert store.list() == () and "adapter" in store.note


def test_an_index_names_each_adapter_once(remote: Path, tmp_path: Path) -> None:
    index = json.loads((remote / INDEX).read_text())
    index["adapters"].append(index["adapters"][0])
    (remote / INDEX).write_text(json.dumps(index))
    assert "names an adapter twice. Publish the store" in opened(tmp_path, remote.as_uri()).note


def test_a_disk_that_cannot_be_written_is_an_error_by_name(
    remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path, remote.as_uri())

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("floe.adapters.remote_store.os.fsync", full)
    with pytest.raises(BadAdapter, match="'one' could not be written: No space left on device"):
        fetch(store, "one")
    monkeypatch.setattr("floe.core.files.os.fsync", full)
    store.refresh()
    assert store.note.endswith("index.json: No space left on device; the last list is used")
    monkeypatch.undo()
    assert store.fetched_bytes == 0 and fetch(store, "one")


def test_adapters_of_another_model_are_not_listed(remote: Path, tmp_path: Path) -> None:
    index = json.loads((remote / INDEX).read_text())
    index["adapters"][0]["shape_digest"] = "0" * 64
    (remote / INDEX).write_text(json.dumps(index))
    assert len(opened(tmp_path, remote.as_uri()).list()) == 3


def test_what_left_the_index_is_not_served_any_more(remote: Path, tmp_path: Path) -> None:
    store = opened(tmp_path, remote.as_uri())
    stored = store.find("one", digests(store)["one"])
    index = json.loads((remote / INDEX).read_text())
    index["adapters"] = [a for a in index["adapters"] if a["manifest"]["name"] != "one"]
    (remote / INDEX).write_text(json.dumps(index))
    store.refresh()
    with pytest.raises(BadAdapter, match="'one' is no longer in the remote"), store.opened(stored):
        pass
    with pytest.raises(BadAdapter, match="was removed or replaced"):
        store.find("one", stored.manifest.digest)


def test_a_remote_that_never_answered_is_a_note(tmp_path: Path) -> None:
    store = opened(tmp_path, (tmp_path / "nowhere").as_uri())
    assert store.list() == () and "adapters.remote: there is no file://" in store.note


@pytest.mark.parametrize("url", ["nosuch://x/y", "zzz://q"])
def test_a_url_that_nobody_reads_is_refused(url: str) -> None:
    with pytest.raises(BadConfig, match=r"adapters.remote: "):
        Remote(url)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(Missing, match=r"fsspec is not installed. .*pip install 'floe\[remote\]'"):
        Remote("file:///tmp")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(Missing, match=r"pip install 'floe\[remote\]'"):
        Remote("s3://bucket/adapters")


@pytest.fixture
def web(remote: Path) -> Iterator[str]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(remote))  # type: ignore[arg-type]

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_web_server_is_a_remote(web: str, tmp_path: Path) -> None:
    store = opened(tmp_path, web)
    assert store.note == "" and sorted(digests(store)) == sorted(NAMES)
    assert fetch(store, "three")
    remote = Remote(web)
    with pytest.raises(NotFound, match=r"there is no http://127.0.0.1"):
        remote.read("objects/none", max_bytes=10)
    with pytest.raises(BadAdapter, match="is larger than 10 bytes"):
        remote.read(INDEX, max_bytes=10)


def test_a_web_server_that_is_away_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(BadAdapter, match=r"cannot read http://127.0.0.1:9/index.json: .*Try again"):
        Remote("http://127.0.0.1:9").read(INDEX, max_bytes=10)


def test_a_slow_remote_has_a_deadline(remote: Path) -> None:
    with pytest.raises(BadAdapter, match="took over 0 s"):
        Remote(remote.as_uri(), deadline_s=0.0).read(INDEX, max_bytes=1 << 20)


KILLED = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_remote_store as t
from floe.adapters import remote
class Slow(remote.Remote):
    def copy(self, name, out, *, max_bytes):
        data = self.read(name, max_bytes=max_bytes)
        half = len(data) // 2
        out.write(data[:half]); out.flush()
        print("half", flush=True)
        time.sleep(60)
t.Remote = Slow
t.fetch(t.opened(Path(sys.argv[2]), sys.argv[3]), "one")
"""


def test_a_kill_in_the_middle_of_a_fetch_leaves_whole_files_only(
    remote: Path, tmp_path: Path
) -> None:
    before = opened(tmp_path, remote.as_uri())
    two = fetch(before, "two")
    script = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(tmp_path)]
    with subprocess.Popen([*script, remote.as_uri()], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"half\n"
        child.send_signal(signal.SIGKILL)
    assert list((tmp_path / "fetched" / "objects").glob(".*.part"))
    store = opened(tmp_path, remote.as_uri())  # the lock went with the process
    assert on_disk(store) == {"two"}
    assert not list((tmp_path / "fetched" / "objects").glob(".*.part"))
    assert fetch(store, "two") == two and fetch(store, "one")


# --- with the cache


def test_one_slow_fetch_for_all_and_it_holds_up_nobody_else(tmp_path: Path) -> None:
    files = FileStore(tmp_path, dict.fromkeys("abcde", 100))
    files.far = set("abc")
    slow = Slow(100, a=5_000)
    kept = slow_cache(files, Memory(), 500, slow)

    async def use(name: str) -> float:
        async with kept.lease(route(name)):
            return loop.time()

    async def main() -> None:
        slow.ms["a"] = 5_000
        asked = [asyncio.create_task(use("a")) for _ in range(100)]
        await asyncio.sleep(0.01)
        assert await use("d") == pytest.approx(0.11)  # a's fetch is under way
        given_up = asyncio.create_task(use("c"))
        second = asyncio.create_task(use("b"))
        await asyncio.sleep(0.01)
        given_up.cancel()
        await second
        slow.ms["a"] = 100
        assert set(await asyncio.gather(*asked)) == {5.1}
        assert files.fetched.count("a") == 1
        assert kept.counters().fetches == 2
        assert kept.load_ms("d-a") == pytest.approx(100)

    import asyncio

    from floe.testing.virtual_time import VirtualLoop

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        runner.run(main())


def test_expected_remote_adapters_are_fetched_ahead(tmp_path: Path) -> None:
    import asyncio

    files = FileStore(tmp_path, dict.fromkeys("ab", 100))
    files.far = {"b"}
    kept = slow_cache(files, Memory(), 500, Slow(100))

    async def main() -> None:
        with kept.expect(route("b")):
            await asyncio.sleep(0.5)
            assert {row.name: row.tier for row in kept.snapshot()} == {"a": "disk", "b": "memory"}

    run_virtual(main())
    assert kept.counters().prefetches == 1


async def test_a_remote_adapter_is_leased_with_every_step_checked(
    remote: Path, tmp_path: Path
) -> None:
    store, memory = opened(tmp_path, remote.as_uri()), Memory()
    kept = AdapterCache(store=store, load=memory.load, unload=memory.unload, budget_bytes=1 << 20)
    digest = digests(store)["one"]
    one = Route(shares=(Share(name="one", digest=digest, weight=1.0),))
    assert {row.tier for row in kept.snapshot()} == {"remote"}
    path = remote / object_name(digest)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"x")
    with pytest.raises(BadAdapter, match="'one' could not be fetched"):
        async with kept.lease(one):
            pass
    path.write_bytes(data)
    async with kept.lease(one) as leased:
        assert leased[0][0].n_bytes == len(data)
    assert {row.name: row.tier for row in kept.snapshot()}["one"] == "memory"


def test_the_list_is_read_again_while_it_is_watched(
    remote: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, read = opened(tmp_path, remote.as_uri()), threading.Semaphore(0)
    refresh = store.refresh

    def failing() -> None:
        refresh()
        read.release()
        raise ZeroDivisionError

    store.refresh = failing  # type: ignore[method-assign]
    index = json.loads((remote / INDEX).read_text())
    (remote / INDEX).write_text(json.dumps({**index, "adapters": index["adapters"][:1]}))
    store.watch(0.001)
    assert all(read.acquire(timeout=10) for _ in range(2))  # a failure does not end it
    store.close()
    assert len(store.list()) == 1
    assert store.note == "adapters.remote: reading the list failed: ZeroDivisionError"
    kept = AdapterCache(store=store, load=Memory().load, unload=Memory().unload, budget_bytes=1)
    assert kept.notes == (store.note,)
