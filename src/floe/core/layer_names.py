"""Names of a block's linear layers in Hugging Face and in GGUF, and the row orders of q and k.

Rows of q and k are "interleaved" in GGUF's llama and deci (pairs of rotary values side by side)
and "halves" in Hugging Face and in GGUF's qwen2. Both keep the rows of a head together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

GGUF_OF_HF = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
INTERLEAVED = frozenset({"llama", "deci"})
"""Architectures of GGUF whose q and k rows are interleaved."""


def interleave(rows: NDArray[Any], head_width: int) -> NDArray[Any]:
    """Rows of each head from halves to interleaved order; also biases, of one dimension."""
    halves = rows.reshape(-1, 2, head_width // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))
