"""Epochs: how long they are, what their plans hold, how much is tried."""

from __future__ import annotations

import numpy as np

from floe.adapters.epochs import EpochController, EpochSettings, Plan


def ends(settings: EpochSettings, requests: int) -> list[int]:
    controller = EpochController(settings)
    return [n for n in range(1, requests + 1) if controller.tick()]


def test_fixed_epochs_are_equally_long() -> None:
    assert ends(EpochSettings(kind="fixed", first=50), 200) == [50, 100, 150, 200]


def test_doubling_epochs_double_up_to_the_longest() -> None:
    settings = EpochSettings(kind="doubling", first=10, longest=45)
    assert ends(settings, 200) == [10, 30, 70, 115, 160]
    assert len(ends(EpochSettings(first=1, longest=10**9), 4_000)) <= 12  # about log2


def plan(settings: EpochSettings, **changed: object) -> Plan:
    known: dict[str, object] = {
        "digests": ("a", "b", "c", "d"),
        "utilities": np.array([[1.0, 0.2, 0.0, -1.0], [0.9, 0.3, 0.0, -1.0]]),
        "costs": np.array([1.0, 1.0, 1.0, 1.0]),
        "n_bytes": (10, 10, 10, 10),
        "samples": (9.0, 9.0, 9.0, 9.0),
        "budget_bytes": 20,
        "current": {"c", "d"},
        **changed,
    }
    return EpochController(settings).plan(**known)  # type: ignore[arg-type]


def test_a_plan_says_what_comes_and_what_goes() -> None:
    found = plan(EpochSettings(first=1_000, quota=0))
    assert found.prefer == ("a",)  # "b" is never better than "a", so it is worth nothing more
    assert found.admit == ("a",)
    assert found.evict == ("c", "d")
    assert found.explore == ()


def test_the_old_set_stays_unless_the_new_is_worth_the_loads() -> None:
    assert plan(EpochSettings(first=1, quota=0)).prefer == ("c", "d")
    assert plan(EpochSettings(first=1_000, quota=0, hysteresis=9.0)).prefer == ("c", "d")


def test_the_adapter_seen_least_is_brought_in_and_tried() -> None:
    settings = EpochSettings(first=100, quota=0.5, enough=8)
    seen = {"samples": (9.0, 9.0, 6.5, 3.0), "budget_bytes": 40, "current": {"a"}}
    found = plan(settings, **seen)
    assert found.explore == (("d", 5),)  # 5 of the 0.5 sqrt(100) tries bring it to 8
    assert found.prefer == ("a", "d")
    assert plan(settings, **seen, told=0.4).explore == (("d", 2),)  # two of five tries teach
    assert plan(settings, **seen, told=0.0).explore == ()
    seen["samples"] = (9.0, 9.0, 6.5, 9.0)
    assert plan(settings, **seen).explore == (("c", 2),)
    seen["samples"] = (9.0, 9.0, 9.0, 9.0)
    assert plan(settings, **seen).explore == ()


def test_trying_never_takes_more_than_half_of_the_memory() -> None:
    seen = {"samples": (0.0, 0.0, 0.0, 0.0), "budget_bytes": 19}
    assert plan(EpochSettings(first=100), **seen).explore == ()
    assert len(plan(EpochSettings(first=100), **{**seen, "budget_bytes": 20}).explore) == 1


def test_without_prompts_nothing_changes() -> None:
    found = plan(EpochSettings(quota=0), utilities=np.zeros((0, 4)))
    assert (found.admit, found.evict) == ((), ())
