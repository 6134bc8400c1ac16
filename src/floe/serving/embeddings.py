"""/v1/embeddings: texts to vectors."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from floe.core.errors import BadRequest, Missing, NotFound
from floe.serving import fields
from floe.serving.replies import Json
from floe.serving.service import Embedder, Service

MOST_INPUTS = 2048


@dataclass(frozen=True, kw_only=True)
class EmbeddingAsk:
    """Texts, and whether the vectors are sent as base64 of little-endian float32."""

    model: str
    texts: tuple[str, ...]
    packed: bool


def embedding_ask(body: Mapping[str, Any], service: Service) -> tuple[EmbeddingAsk, Embedder]:
    """What a body of /v1/embeddings asks for, and of whom.

    Raises:
        BadRequest: naming the field. NotFound: another model. Missing: no embedding model.
    """
    fields.only(body, {"model", "input", "encoding_format", "dimensions", "user"})
    given = {key: value for key, value in body.items() if value is not None}
    embedder = service.embedder
    if embedder is None:
        raise Missing("no embedding model is installed: see floe doctor")
    if "model" not in given:
        raise BadRequest(f'model is required: "{embedder.name}"', param="model")
    model = fields.text(given["model"], "model", least=1, most=256)
    if model != embedder.name:
        raise NotFound(f'the only embedding model is "{embedder.name}"', param="model")
    if "dimensions" in given:
        wanted = fields.integer(given["dimensions"], "dimensions", low=1, high=2**31)
        if wanted != embedder.dimensions:
            raise BadRequest(f"dimensions must be {embedder.dimensions}", param="dimensions")
    form = given.get("encoding_format", "float")
    if form not in ("float", "base64"):
        raise BadRequest('encoding_format must be "float" or "base64"', param="encoding_format")
    return EmbeddingAsk(model=model, texts=_texts(given), packed=form == "base64"), embedder


def embedded(ask: EmbeddingAsk, embedder: Embedder) -> Json:
    """The vectors, in OpenAI's shape. Works in a thread: it may take long."""
    vectors = [[float(x) for x in embedder.embed(text)] for text in ask.texts]
    tokens = sum(embedder.count_tokens(text) for text in ask.texts)
    return {
        "object": "list",
        "model": ask.model,
        "data": [
            {"object": "embedding", "index": i, "embedding": _pack(v) if ask.packed else v}
            for i, v in enumerate(vectors)
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _texts(given: Mapping[str, Any]) -> tuple[str, ...]:
    if "input" not in given:
        raise BadRequest("input is required", param="input")
    entries = given["input"]
    if isinstance(entries, str):
        return (fields.text(entries, "input", least=1),)
    if not isinstance(entries, list):
        raise BadRequest("input must be a string or an array of strings", param="input")
    fields.elements(entries, "input", least=1, most=MOST_INPUTS)
    if isinstance(entries[0], int | list):
        raise BadRequest("input must be text: token arrays are not understood", param="input")
    return tuple(fields.text(entry, f"input[{i}]", least=1) for i, entry in enumerate(entries))


def _pack(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
