"""Rounding to 8 bits that is made good later, also by another process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.federated.learning_stand_ins import a_state, an_update, dense

from floe.core.errors import BadUpdate
from floe.federated import wire
from floe.federated.base import Aggregate
from floe.federated.residual import QuantizeOnDisk


def test_what_rounding_lost_is_sent_with_the_next_update(tmp_path: Path) -> None:
    update = an_update("a", 3)
    true = dense(update.state)["layer.q"]
    sums, plain = np.zeros_like(true), np.zeros_like(true)
    for _ in range(8):  # a new process each time
        sent = QuantizeOnDisk(tmp_path).on_device(None, update, seed=0)
        sums += dense(sent.state)["layer.q"]
        plain += dense(wire.decode(wire.encode(update, bits=8)).state)["layer.q"]
    assert np.linalg.norm(sums / 8 - true) < 0.5 * np.linalg.norm(plain / 8 - true)


def test_encoding_its_result_loses_nothing_more(tmp_path: Path) -> None:
    sent = QuantizeOnDisk(tmp_path).on_device(None, an_update("a", 3), seed=0)
    again = wire.decode(wire.encode(sent, bits=8))
    for name, product in dense(sent.state).items():
        assert np.allclose(dense(again.state)[name], product, rtol=1e-5, atol=1e-6)


def test_clusters_do_not_share_what_was_lost(tmp_path: Path) -> None:
    shield = QuantizeOnDisk(tmp_path)
    shield.on_device(None, an_update("a", 3, cluster="x"), seed=0)
    first = QuantizeOnDisk(tmp_path / "new").on_device(None, an_update("a", 4), seed=0)
    other = shield.on_device(None, an_update("a", 4, cluster="y"), seed=0)
    assert np.array_equal(first.state.modules["layer.q"].b_OR, other.state.modules["layer.q"].b_OR)


def test_a_damaged_or_foreign_memory_is_passed_over(tmp_path: Path) -> None:
    QuantizeOnDisk(tmp_path).on_device(None, an_update("a", 3), seed=0)
    (memory,) = tmp_path.glob("*.lost")
    fresh = QuantizeOnDisk(tmp_path / "new").on_device(None, an_update("a", 4), seed=0)
    memory.write_bytes(b"bent")
    sent = QuantizeOnDisk(tmp_path).on_device(None, an_update("a", 4), seed=0)
    assert np.array_equal(sent.state.modules["layer.q"].b_OR, fresh.state.modules["layer.q"].b_OR)


def test_a_value_that_is_not_finite_is_not_rounded(tmp_path: Path) -> None:
    state = a_state(3)
    state.modules["layer.q"].b_OR[0, 0] = np.nan
    with pytest.raises(BadUpdate, match="not finite"):
        QuantizeOnDisk(tmp_path).on_device(None, an_update("a", state=state), seed=0)


def test_the_server_undoes_nothing(tmp_path: Path) -> None:
    total = Aggregate(state=a_state(), n_updates=1, n_examples=1)
    assert QuantizeOnDisk(tmp_path).on_server(total, ["a"], seed=0) is total
