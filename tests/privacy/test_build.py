"""The gate by configuration: never with less protection than was asked for."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from floe.core.config import load_config
from floe.core.errors import BadConfig, BadModel, Missing
from floe.core.sections import PrivacyConfig
from floe.privacy.build import build_gate
from floe.privacy.ner import NerFiles


def paths(files: NerFiles) -> tuple[Path, Path, Path]:
    return files.model, files.tokenizer, files.config


def test_without_a_model_the_rules_work_alone() -> None:
    gate = build_gate(PrivacyConfig(), None)
    assert gate.detector_names == ("rules",)
    assert not gate.inspect([("prompt", "alice@example.com")]).may_leave
    assert not gate.inspect_draft("alice@example.com").may_leave


def test_the_limits_are_those_of_the_configuration() -> None:
    gate = build_gate(PrivacyConfig(max_chars=3), None)
    assert "privacy.max_chars (3)" in gate.inspect([("prompt", "four")]).reason


def test_a_model_that_is_required_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(Missing, match=r'privacy\.ner is "on".*floe pull'):
        build_gate(PrivacyConfig(ner="on"), None)
    gone = (tmp_path / "a", tmp_path / "b", tmp_path / "c")
    with pytest.raises(Missing, match="is not there"):
        build_gate(PrivacyConfig(ner="on"), gone)


def test_a_model_that_cannot_run_is_said_to_be_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = (tmp_path / "a", tmp_path / "b", tmp_path / "c")
    with caplog.at_level(logging.WARNING):
        assert build_gate(PrivacyConfig(ner="auto"), gone).detector_names == ("rules",)
    assert "works with rules only" in caplog.text


def test_b23_a_broken_model_stops_the_start(tmp_path: Path) -> None:
    files = tuple(tmp_path / name for name in ("a", "b", "c"))
    for path in files:
        path.write_text("{}")
    with pytest.raises(BadModel, match="cannot be loaded"):
        build_gate(PrivacyConfig(ner="auto"), files)  # type: ignore[arg-type]


def test_b23_a_wrong_value_stops_the_start(tmp_path: Path) -> None:
    config = tmp_path / "floe.toml"
    config.write_text('[privacy]\nner = "onn"\n')
    with pytest.raises(BadConfig, match='did you mean "on"'):
        load_config(config)


def test_the_real_model_joins_the_rules(rampart_files: NerFiles) -> None:
    gate = build_gate(PrivacyConfig(ner="on", timeout_ms=60_000), paths(rampart_files))
    assert gate.detector_names == ("rules", "rampart")
    verdict = gate.inspect([("prompt", "My son John Miller is 12.")])
    assert verdict.reason == "found PERSON"
    assert build_gate(PrivacyConfig(ner="off"), paths(rampart_files)).detector_names == ("rules",)


def test_phonenumbers_missing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "phonenumbers", None)
    monkeypatch.delitem(sys.modules, "floe.privacy.rules.phone")
    with pytest.raises(Missing, match=r"needs phonenumbers\. Install it with: pip install"):
        __import__("floe.privacy.rules.phone")
