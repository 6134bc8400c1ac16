"""How long transformers takes to the first token, to compare with."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from floe.tailoring.on_torch.blocks import Model


def torch_ttft_ms(model: Model, ids: Sequence[int], *, rounds: int = 3) -> float:
    """Milliseconds of CPU for a prompt and its first token, the quickest of `rounds`; one thread.

    The cache is filled, as generation needs it, and only the last token's logits are computed.
    """
    torch.set_num_threads(1)
    prompt = torch.tensor([list(ids)])
    found = []
    with torch.inference_mode():
        model(input_ids=prompt[:, :4], use_cache=True, logits_to_keep=1)
        for _ in range(rounds):
            began_s = time.process_time()
            model(input_ids=prompt, use_cache=True, logits_to_keep=1).logits.argmax()
            found.append(1000 * (time.process_time() - began_s))
    return min(found)
