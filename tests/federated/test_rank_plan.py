"""Which rank a device can carry: the table, the choice, the rule of thumb."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.core.errors import BadRequest
from floe.federated.plan import (
    Limits,
    Measurement,
    adapter_bytes,
    free_bytes,
    keep_table,
    kept_table,
    largest_fitting,
    preset_rank,
    rank_table,
)

SHAPES = {"a": (576, 576), "b": (192, 576)}
LOW = Measurement(rank=4, memory_bytes=1_000_000_000, step_s=2.0)
HIGH = Measurement(rank=32, memory_bytes=1_280_000_000, step_s=3.4)


def test_the_table_says_what_is_measured_and_what_is_modelled() -> None:
    table = rank_table(SHAPES, [HIGH, LOW], limits=Limits(), ranks=(64, 4, 8, 32))
    assert [(r.rank, r.source) for r in table] == [
        (4, "measured"), (8, "modelled"), (32, "measured"), (64, "modelled")
    ]  # fmt: skip
    assert [r.memory_bytes for r in table] == [
        1_000_000_000, 1_040_000_000, 1_280_000_000, 1_600_000_000
    ]  # fmt: skip
    assert [round(r.step_s, 6) for r in table] == [2.0, 2.2, 3.4, 5.0]
    assert table[0].adapter_bytes == 4 * (576 + 576 + 192 + 576) * 4
    assert largest_fitting(table).rank == 64


def test_the_largest_that_fits_both_limits_is_taken() -> None:
    def best(**limits: object) -> int:
        table = rank_table(SHAPES, [LOW, HIGH], limits=Limits(**limits))  # type: ignore[arg-type]
        return largest_fitting(table).rank

    assert best() == 64
    assert best(memory_bytes=1_280_000_000) == 32
    assert best(memory_bytes=1_279_999_999) == 16
    assert best(step_s=2.2) == 8
    assert best(step_s=2.2, memory_bytes=1_000_000_000) == 4


def test_where_nothing_fits_the_smallest_says_by_how_much() -> None:
    table = rank_table(SHAPES, [LOW, HIGH], limits=Limits(memory_bytes=900_000_000))
    with pytest.raises(BadRequest, match="not even rank 4 fits: needs 1000 MB, 900 are allowed"):
        largest_fitting(table)
    slow = rank_table(SHAPES, [LOW, HIGH], limits=Limits(step_s=0.5))
    assert slow[0].obstacle == "a step takes 2.00 s, 0.50 are allowed"
    assert not slow[0].fits


@given(low=st.integers(1, 10**9), high=st.integers(1, 10**9))
def test_memory_never_grows_slower_than_weights_gradients_and_moments(low: int, high: int) -> None:
    points = [
        Measurement(rank=4, memory_bytes=low, step_s=1.0),
        Measurement(rank=8, memory_bytes=high, step_s=0.5),
    ]
    table = rank_table(SHAPES, points, limits=Limits(), ranks=(16, 64))
    grown = table[1].memory_bytes - table[0].memory_bytes
    assert grown >= 4 * adapter_bytes(SHAPES, 48) - 1
    assert table[0].step_s == table[1].step_s == 1.0  # noise does not make larger ranks faster


def test_a_table_needs_two_ranks_and_sane_ones() -> None:
    with pytest.raises(BadRequest, match="two measured ranks"):
        rank_table(SHAPES, [LOW, LOW], limits=Limits())
    with pytest.raises(BadRequest, match="ranks must be 1 or more"):
        rank_table(SHAPES, [LOW, HIGH], limits=Limits(), ranks=(0, 4))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
def test_c11_limits_are_finite_and_above_zero(value: float) -> None:
    with pytest.raises(BadRequest, match="step_s must be finite and above 0"):
        Limits(step_s=value)


def test_the_rule_of_thumb() -> None:
    gib = 1 << 30
    assert [preset_rank(n) for n in (0, 2 * gib - 1, 2 * gib, 4 * gib - 1, 4 * gib)] == [
        8, 8, 16, 16, 32
    ]  # fmt: skip


def test_free_memory_is_the_kernels_word(tmp_path: Path) -> None:
    info = tmp_path / "meminfo"
    info.write_text("MemTotal:  9 kB\nMemAvailable:    2048 kB\n")
    assert free_bytes(info) == 2048 * 1024
    info.write_text("MemTotal:  9 kB\n")
    with pytest.raises(BadRequest, match="does not say how much memory is free"):
        free_bytes(info)
    with pytest.raises(BadRequest, match="does not say"):
        free_bytes(tmp_path / "absent")


def test_what_was_measured_is_kept_for_joining(tmp_path: Path) -> None:
    path, table = (
        tmp_path / "plan.json",
        rank_table(SHAPES, [LOW, HIGH], limits=Limits(), ranks=(4, 8)),
    )
    assert kept_table(path, "base", limits=Limits()) == ()
    keep_table(path, "base", table)
    kept = kept_table(path, "base", limits=Limits(memory_bytes=table[0].memory_bytes))
    assert [(r.rank, r.memory_bytes, r.fits) for r in kept] == [
        (4, table[0].memory_bytes, True),
        (8, table[1].memory_bytes, False),
    ]
    assert kept_table(path, "another", limits=Limits()) == ()
    path.write_text('{"base": "base", "rows": [[4]]}')
    assert kept_table(path, "base", limits=Limits()) == ()
