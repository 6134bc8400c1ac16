from __future__ import annotations

import json

import pytest

from floe.core.errors import FloeError
from floe.evaluation import federated_speed
from floe.evaluation.federated_speed import Plan, error_figures, rate_figures, upload_figures


def test_the_product_mean_is_exact_and_the_baselines_are_not():
    found = error_figures()
    assert found["product_error"] <= 1e-5 and found["product_error_one_rank"] <= 1e-5
    for baseline in ("padding_error", "factor_mean_error", "factor_mean_error_one_rank"):
        assert found[baseline] > 0.05
    assert error_figures() == found


def test_an_upload_of_8_bits_is_a_quarter():
    found = upload_figures()
    assert 4 * 921_600 < found["upload_bytes"] < 4 * 921_600 + 10_000
    assert found["upload_bytes_8bit"] < 0.26 * found["upload_bytes"]


def test_both_sides_are_measured_on_the_same_bytes_and_memory_does_not_grow(monkeypatch):
    monkeypatch.setattr(federated_speed, "N_LAYERS", 2)
    said: list[str] = []
    found = rate_figures(Plan(n_updates=150, repeats=1, distinct=3), say=said.append)
    assert json.loads(json.dumps(found)) == found
    for rate in ("updates_per_s", "factor_mean_updates_per_s", "flower_updates_per_s"):
        assert found[rate] > 0.0
    assert found["ratio_vs_flower"] == found["updates_per_s"] / found["flower_updates_per_s"]
    assert 0.0 < found["updates_per_s_with_seal"] < found["updates_per_s"]
    assert (found["rss_growth_from"], found["rss_growth_to"]) == (50, 150)
    assert found["rss_growth_mb"] <= 20.0
    assert said[0].startswith("1/1: ")


def test_a_measured_process_that_fails_says_why(tmp_path):
    with pytest.raises(FloeError, match=r"(?s)speed_worker failed: .*no aggregator named"):
        federated_speed._ours(tmp_path, 1, "nothing")
