"""SecAgg+ of Flower, as both ends use it: its older records, our masks, one word for each failure.

Flower has the protocol in `flwr.server.workflow` and `flwr.client.mod` alone. Both work on today's
messages with FitIns and FitRes packed into them, so no client or strategy of that time is needed.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

from flwr.app import MessageType
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage

from floe.core.errors import BadUpdate, FloeError
from floe.federated.rounds import FAILED
from floe.federated.secure_sum import SecureTerms
from floe.federated.shields.masks import masks

SEAL = "seal"
"""The device's seal among the metrics of its FitRes."""
CONFIGS = RECORD_KEY_CONFIGS
MAX_WEIGHT = 1.0

# Flower's generator has 32 bits of state to guess (`pseudo_rand_gen`, 1.42); both ends are ours.
for _name in (
    "flwr.client.mod.secure_aggregation.secaggplus_mod",  # the package hides it behind a function
    "flwr.server.workflow.secure_aggregation.secaggplus_workflow",
):
    _module = import_module(_name)
    if not hasattr(_module, "pseudo_rand_gen"):
        raise ImportError(f"{_name} draws its masks elsewhere; use flwr 1.42")
    _module.pseudo_rand_gen = masks  # type: ignore[attr-defined]


def failure_of(error: FloeError) -> bytes:
    """Why a device is not in the sum, as `federated.rounds.failure_in` reads it: a word that says
    nothing of its values."""
    word = error.reason if isinstance(error, BadUpdate) else error.kind
    return FAILED + json.dumps({"kind": word}).encode()


def stage_of(message: Any) -> str:
    """Which step of the protocol a message asks for; "" where it asks for none."""
    records = message.content.config_records if message.has_content() else {}
    return str(records[CONFIGS].get(Key.STAGE, "")) if CONFIGS in records else ""


def check_stage(message: Any, terms: SecureTerms) -> None:
    """Raise BadUpdate where the server asks for what could show this device's update."""
    stage = stage_of(message)
    if message.metadata.message_type != MessageType.TRAIN or stage not in Stage.all():
        # Flower's mod hands messages of other types on, and their answers back without a mask.
        raise BadUpdate("this device answers steps of a secure sum alone", reason="not_secure")
    asked = message.content.config_records[CONFIGS]
    if stage == Stage.SETUP:
        _check_setup(asked, terms)
    elif stage == Stage.UNMASK:
        here, gone = set(asked[Key.ACTIVE_NODE_ID_LIST]), set(asked[Key.DEAD_NODE_ID_LIST])
        if here & gone or len(here) < terms.least:
            raise BadUpdate(
                "the server asks for both secrets of a device, or for a sum of too few",
                reason="unsafe_terms",
            )


def _check_setup(asked: Any, terms: SecureTerms) -> None:
    n = int(asked[Key.SAMPLE_NUMBER])
    wanted = {
        Key.SHARE_NUMBER: n,
        Key.THRESHOLD: terms.threshold(n),
        Key.CLIPPING_RANGE: terms.fixed.clipping_range,
        Key.TARGET_RANGE: terms.fixed.levels,
        Key.MOD_RANGE: terms.fixed.modulus,
        Key.MAX_WEIGHT: MAX_WEIGHT,
    }
    other = [key for key, value in wanted.items() if asked[key] != value]
    if other or not terms.least <= n <= terms.most:
        raise BadUpdate(
            f"the server's secure sum of {n} differs from this device's settings "
            f"({', '.join(other) or 'number of devices'}): set [federated] alike on both ends",
            reason="unsafe_terms",
        )
