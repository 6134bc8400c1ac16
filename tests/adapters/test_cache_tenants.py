"""Tenants share one memory: what is guaranteed stays, what is not is anybody's."""

from __future__ import annotations

import asyncio

import pytest
from cache_toys import FileStore, Handle, Memory, Slow, cache, route, slow_cache
from hypothesis import example, given, settings
from hypothesis import strategies as st

from floe.adapters.cache import AdapterCache
from floe.core.errors import BadAdapter, BadConfig, Busy
from floe.core.sections import TenantConfig
from floe.testing.virtual_time import run_virtual

SIZES = {"a": 10, "b": 20, "c": 30, "d": 40, "e": 50, "f": 25, "g": 15, "h": 35}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FileStore:
    return FileStore(tmp_path_factory.mktemp("files"), SIZES)


async def use(kept: AdapterCache[Handle], *names: str, tenant: str = "default") -> None:
    async with kept.lease(route(*names), tenant=tenant):
        pass


@pytest.mark.parametrize(
    ("tenant", "message"),
    [
        (TenantConfig(guaranteed_bytes=101), "guaranteed_bytes sum to 101, adapters.budget_bytes"),
        (TenantConfig(guaranteed_bytes=-1), "tenants.t.guaranteed_bytes must be 0 or more"),
        (TenantConfig(share=0.0), "tenants.t.share must be above 0"),
        (TenantConfig(share=float("nan")), "tenants.t.share must be above 0"),
        (TenantConfig(share=float("inf")), "tenants.t.share must be above 0"),
    ],
)
def test_f08_guarantees_that_mean_nothing_are_refused(
    store: FileStore, tenant: TenantConfig, message: str
) -> None:
    with pytest.raises(BadConfig, match=message):
        cache(store, Memory(), 100, tenants={"t": tenant})


async def test_a_burst_evicts_nothing_that_is_guaranteed(store: FileStore) -> None:
    kept = cache(
        store, Memory(), 100, tenants={"t": TenantConfig(guaranteed_bytes=40)}, prefetch="off"
    )
    for name in "acb":  # 60 bytes; of these the youngest that fit 40 are protected: b and a
        await use(kept, name, tenant="t")
    for name in ("d", "h", "d", "c", "d", "h"):
        await use(kept, name, tenant="other")
        assert kept.is_resident("d-b") and kept.is_resident("d-a")
    assert not kept.is_resident("d-c")
    figures = kept.by_tenant()
    assert figures["t"].resident_bytes == 30 and figures["t"].guaranteed_bytes == 40
    assert figures["other"].misses + figures["other"].hits == 6
    with pytest.raises(BadAdapter, match=r"need 65 bytes .* is 100, 40 of it are others' own"):
        await use(kept, "d", "f", tenant="other")
    await use(kept, "d", "f", tenant="t")  # what nobody else is promised is t's as well


async def test_others_leases_leave_room_for_what_is_guaranteed(store: FileStore) -> None:
    kept = cache(store, Memory(), 100, tenants={"t": TenantConfig(guaranteed_bytes=40)})
    async with kept.lease(route("h"), tenant="other"):
        with pytest.raises(Busy, match="40 are pinned or guaranteed to other tenants"):
            await use(kept, "c", tenant="other")  # 65 of the 60 that are not t's
        await use(kept, "f", tenant="other")
        await use(kept, "d", tenant="t")


NAMES = st.sampled_from(sorted(SIZES))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["t", "u", "burst"]),
        st.lists(NAMES, min_size=1, max_size=2, unique=True),
        st.integers(0, 30),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=120)
@example(
    steps=[
        ("t", ["a"], 0),
        ("t", ["a"], 0),
        ("u", ["a"], 17),
        ("u", ["h", "d"], 4),
        ("t", ["a"], 0),
    ],
    t=36,
    u=0,
    seed=0,
)  # the charge of an adapter held by both passes on
@given(steps=STEPS, t=st.integers(0, 60), u=st.integers(0, 60), seed=st.integers(0, 3))
def test_no_burst_takes_guaranteed_bytes(
    store: FileStore, steps: list[tuple[str, list[str], int]], t: int, u: int, seed: int
) -> None:
    """Whatever overlaps: what t and u used last, as far as it fits their bytes, stays for them.

    And a tenant that asks for no more than its guarantee, holding nothing else, is never refused.
    """
    tenants = {"t": TenantConfig(guaranteed_bytes=t), "u": TenantConfig(guaranteed_bytes=u)}
    kept = slow_cache(
        store, Memory(), 120, Slow(20), tenants=tenants, wait_ms=[0, 50, 500, 10_000][seed],
        max_overtaken=seed,
    )  # fmt: skip
    guaranteed = {"t": t, "u": u, "burst": 0}
    holding = dict.fromkeys(guaranteed, 0)
    table = kept._table
    unguarded = table.victims

    def victims(wanted: list, *, tenant: str, **more: object) -> list | None:  # type: ignore[type-arg]
        chosen = unguarded(wanted, tenant=tenant, **more)  # type: ignore[arg-type]
        for slot in chosen or ():
            for other in {"t", "u"} - {tenant}:
                assert slot.key not in protected_twin(kept, other, guaranteed[other])
        return chosen

    table.victims = victims  # type: ignore[method-assign]

    async def request(tenant: str, names: list[str], ms: int) -> None:
        need = sum(SIZES[n] for n in names)
        is_within = holding[tenant] + need <= guaranteed[tenant]
        holding[tenant] += need
        try:
            async with kept.lease(route(*names), tenant=tenant):
                kept.check_integrity()
                await asyncio.sleep(ms / 1000)
        except (Busy, BadAdapter) as error:
            assert not is_within, error
        finally:
            holding[tenant] -= need

    async def main() -> None:
        tasks = []
        for tenant, names, ms in steps:
            tasks.append(asyncio.create_task(request(tenant, names, 3 * ms)))
            await asyncio.sleep(ms / 1000)
        await asyncio.gather(*tasks)
        assert kept.counters().leased == kept.counters().waiting == 0

    run_virtual(main())
    kept.check_integrity()


def protected_twin(kept: AdapterCache[Handle], tenant: str, guaranteed: int) -> set[str]:
    """The rule of `tenants` read aloud: unheld adapters it used, youngest first, that fit."""
    slots = list(kept._table.slots.values())
    for slot in slots:
        if slot.pins and next(iter(slot.holders)) == tenant:
            guaranteed -= slot.n_bytes
    out = set()
    mine = [s for s in slots if not s.pins and s.handle is not None and tenant in s.uses]
    for slot in sorted(mine, key=lambda s: -s.uses[tenant]):
        if slot.n_bytes <= guaranteed:
            guaranteed -= slot.n_bytes
            out.add(slot.key)
    return out
