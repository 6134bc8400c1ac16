"""What a Hugging Face model folder says of its model, without its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from floe.core.errors import BadModel
from floe.core.files import folder_digest
from floe.core.model import ModelInfo
from floe.engine.byte_level import ByteLevelTokenizer
from floe.engine.lora_files import gguf_name

_ENDS = ("<|im_end|>", "<|endoftext|>", "</s>", "<|eot_id|>", "<end_of_turn>")


def describe(
    folder: Path,
    config: Any,
    tokenizer: ByteLevelTokenizer,
    shapes: Mapping[str, tuple[int, int]],
    *,
    names: frozenset[str],
    context_tokens: int | None,
) -> ModelInfo:
    """`ModelInfo` from the folder's files and its transformers config.

    `digest` is over the weights' files; ends are the config's and the well-known control tokens.

    Raises:
        BadModel: the tokenizer has more ids than the model has rows.
    """
    if tokenizer.n_vocab > config.vocab_size:
        raise BadModel(
            f"{folder} has {config.vocab_size} rows for {tokenizer.n_vocab} tokens; "
            "its tokenizer belongs to another model"
        )
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    named = [i for i, text in tokenizer.controls.items() if text in _ENDS]
    limit = config.max_position_embeddings
    return ModelInfo(
        name=folder.name,
        digest=folder_digest(folder),
        architecture=config.model_type,
        n_layers=config.num_hidden_layers,
        width=config.hidden_size,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads,
        n_vocab=tokenizer.n_vocab,
        context_tokens=min(limit, context_tokens or limit),
        eos_ids=frozenset([*(e for e in ends if e is not None), *named]),
        tokenizer_digest=tokenizer.digest(),
        chat_template=_chat_template(folder),
        names=frozenset(n.lower() for n in names),
        linears={str(gguf_name(n)): shape for n, shape in shapes.items()},
    )


def _chat_template(folder: Path) -> str | None:
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        return jinja.read_text(encoding="utf-8")
    config = folder / "tokenizer_config.json"
    if not config.is_file():
        return None
    template = json.loads(config.read_text(encoding="utf-8")).get("chat_template")
    return template if isinstance(template, str) else None
