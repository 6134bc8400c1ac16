"""Fields of OpenAI's API that Floe does not act on: harmless ones pass, the others are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floe.core.errors import BadRequest

IGNORED: Mapping[str, str] = {
    "user": "a label of the caller's",
    "metadata": "a label of the caller's",
    "store": "nothing is ever stored",
    "service_tier": "there is one tier",
    "safety_identifier": "a label of the caller's",
    "prompt_cache_key": "prefixes are reused by content",
    "prompt_cache_retention": "prefixes are reused by content",
    "prediction": "a hint about speed only",
    "parallel_tool_calls": "there are no tools",
}
"""Accepted whatever their value: they cannot change the answer."""

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "audio": (),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}
"""Not supported: accepted with null or with a value that asks for nothing."""


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """Raise BadRequest for a field that asks for something Floe cannot do."""
    for name, neutral in NEUTRAL.items():
        value = body.get(name)
        if value is not None and not any(_same(value, rest) for rest in neutral):
            raise BadRequest(f"{name} is not supported: remove it", param=name)


def _same(value: object, neutral: object) -> bool:
    """Equal as JSON: 0 and 0.0 are, 0 and false are not."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
