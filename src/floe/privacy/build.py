"""The gate that a configuration asks for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from floe.core.errors import Missing
from floe.core.sections import PrivacyConfig, TenantConfig
from floe.privacy.base import Detector
from floe.privacy.detector import RuleDetector
from floe.privacy.gate import Gate
from floe.privacy.in_json import InJson
from floe.privacy.ner import NerDetector, NerFiles
from floe.privacy.policy import Policies, policies_of
from floe.privacy.semantic import Encoder, SemanticDetector

# The number plans are read on first use, which takes a request's worth of time.
_WARM = "call 0999 999 9999 or +1 415 555 2671, 我叫张伟"
_log = logging.getLogger(__name__)


def build_gate(
    config: PrivacyConfig,
    ner_files: tuple[Path, Path, Path] | None,
    *,
    tenants: Mapping[str, TenantConfig] | None = None,
    encoder: Encoder | None = None,
) -> Gate:
    """Rules always; the NER model (model, tokenizer, config) or another as `config.ner` says.

    The semantic score as `config.semantic` says, on `encoder`; before the NER model, for it is
    many times as fast.

    What a policy lets through by explicit wish is logged once, here (bug-log B20).

    Raises:
        BadConfig: a policy with an entity that no detector reports, or as `policy_of` says.
        Missing: `ner` is "on" and the model or its runtime is not there, or it names another
            detector whose package or model is not; or `semantic` is "on" without an encoder.
        BadModel: the model's files cannot be loaded, also under "auto"; or the semantic score was
            trained with another encoder.
    """
    policies = policies_of(config, tenants or {})
    _say_what_is_looser(policies)
    rules = RuleDetector()
    rules.find(_WARM)
    detectors: list[Detector] = [rules]
    semantic = _semantic(config, encoder)
    if semantic is not None:
        detectors.append(semantic)
    ner = _ner(config, ner_files)
    if ner is not None:
        detectors.append(InJson(ner))
    return Gate(
        detectors=detectors,
        draft_detectors=[rules],
        max_chars=config.max_chars,
        timeout_ms=config.timeout_ms,
        policies=policies,
    )


def _say_what_is_looser(policies: Policies) -> None:
    for name, policy in {"": policies.default, **policies.tenants}.items():
        looser = policy.looser()
        if looser:
            where = f"tenants.{name}" if name else "privacy"
            _log.warning("%s lets findings leave the device: %s", where, ", ".join(looser))


def _semantic(config: PrivacyConfig, encoder: Encoder | None) -> SemanticDetector | None:
    if config.semantic == "off" or (config.semantic == "auto" and encoder is None):
        return None
    if encoder is None:
        raise Missing(
            'privacy.semantic is "on" but the embedding is not there. Get it with: '
            "floe pull wordllama-256"
        )
    return SemanticDetector(encoder=encoder, threshold=config.semantic_threshold)


def _ner(config: PrivacyConfig, paths: tuple[Path, Path, Path] | None) -> Detector | None:
    if config.ner == "presidio":
        from floe.privacy.presidio import PresidioDetector

        return PresidioDetector(spacy_model=config.ner_model)
    if config.ner == "gliner":
        from floe.privacy.gliner import GlinerDetector

        return GlinerDetector(model=Path(config.ner_model).expanduser())
    if config.ner == "off" or (config.ner == "auto" and paths is None):
        return None
    if paths is None:
        raise Missing(
            'privacy.ner is "on" but the NER model is not there. Get it with: floe pull rampart-ner'
        )
    model, tokenizer, labels = paths
    try:
        return NerDetector(files=NerFiles(model=model, tokenizer=tokenizer, config=labels))
    except Missing as error:
        if config.ner == "on":
            raise
        _log.warning("the privacy gate works with rules only: %s", error)
        return None
