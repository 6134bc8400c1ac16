"""Settings of the cache: what is refused, and what they turn into."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import adapter_toys as toys
import pytest

from floe.adapters.remote_index import publish
from floe.adapters.remote_store import RemoteStore
from floe.adapters.store import AdapterStore
from floe.assemble import open_cache, open_source
from floe.core.config import Config, load_config
from floe.core.errors import BadConfig
from floe.core.sections import AdaptersConfig, TenantConfig

REMOTE = 'remote = "file:///srv/adapters"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('policy = " "', "adapters.policy must be the name of a policy"),
        ("host_bytes = -1", r"adapters.host_bytes must be 0 \(none\) or more"),
        ("disk_bytes = -1", "adapters.disk_bytes must be 0 or more"),
        ("disk_bytes = 9", "adapters.disk_bytes must be 0 without adapters.remote"),
        ('remote = "/srv/adapters"', "adapters.remote must be a URL such as file:///srv"),
        ('remote = "https://me:secret@x/y"', "adapters.remote must be .* without a password"),
        ("wait_ms = -1", "adapters.wait_ms must be 0 or more"),
        ("max_overtaken = -1", "adapters.max_overtaken must be 0 or more"),
        ('pinned = ["a", "a"]', "adapters.pinned must be a list of different names"),
        ('prefetch = "bth"', 'adapters.prefetch must be one of .*did you mean "both"'),
    ],
)
def test_f08_settings_that_mean_nothing_are_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "floe.toml"
    path.write_text(f"[adapters]\n{text}\n")
    with pytest.raises(BadConfig, match=message):
        load_config(path)


def test_a_remote_with_a_bound_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "floe.toml"
    path.write_text(f"[adapters]\n{REMOTE}disk_bytes = 1000\n")
    assert load_config(path).adapters.disk_bytes == 1000


class Scene:
    """A store of one adapter, and an engine of which only `info` is asked."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.engine: Any = SimpleNamespace(
            info=toys.model(), load_adapter=None, unload_adapter=None
        )
        self.store = AdapterStore(home / "adapters" / "tiny-toy", toys.model())
        self.size = self.store.add(toys.folder(home / "one")).manifest.file_bytes

    def source(self, adapters: AdaptersConfig, **tenants: TenantConfig) -> Any:
        config = Config(adapters=adapters, tenants=tenants)
        return open_source(config, self.engine, self.store, home=self.home)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_pinned_adapters_that_cannot_be_kept_stop_the_start(scene: Scene) -> None:
    adapters = AdaptersConfig(pinned=("one",), budget_bytes=scene.size)
    assert scene.source(adapters) is scene.store
    with pytest.raises(BadConfig, match=r"adapters.pinned need \d+ bytes; of .* are not guar"):
        scene.source(adapters, t=TenantConfig(guaranteed_bytes=1))
    with pytest.raises(
        BadConfig, match=r"adapters.pinned: 'two': there is no adapter of that name"
    ):
        scene.source(replace(adapters, pinned=("two",)))
    scene.store.list()[0].gguf.unlink()
    with pytest.raises(BadConfig, match=r"adapters.pinned: 'one': adapter 'one': its file"):
        scene.source(adapters)


def test_a_policy_of_no_known_name_stops_the_start(scene: Scene) -> None:
    config = Config(adapters=AdaptersConfig(policy="gdfs"))
    with pytest.raises(BadConfig, match="no cache policy named 'gdfs'; did you mean \"gdsf\""):
        open_cache(config, scene.engine, scene.store, home=scene.home)


def test_f08_guarantees_above_the_budget_stop_the_start(scene: Scene) -> None:
    config = Config(
        adapters=AdaptersConfig(budget_bytes=10), tenants={"t": TenantConfig(guaranteed_bytes=11)}
    )
    with pytest.raises(BadConfig, match=r"guaranteed_bytes sum to 11, adapters.budget_bytes is 10"):
        open_cache(config, scene.engine, scene.store, home=scene.home)


def test_the_remote_is_put_behind_the_store(scene: Scene, tmp_path: Path) -> None:
    publish(scene.store, tmp_path / "remote")
    scene.store.remove("one")
    source = scene.source(AdaptersConfig(remote=(tmp_path / "remote").as_uri(), pinned=("one",)))
    assert isinstance(source, RemoteStore)
    cache, host = open_cache(Config(), scene.engine, source, home=scene.home)
    assert [(row.name, row.tier) for row in cache.snapshot()] == [("one", "remote")]
    assert cache.policy_name == "learned"
    host.close()
