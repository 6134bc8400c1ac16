"""An adapter cut to a smaller rank: the nearest one in the Frobenius norm, layer by layer."""

from __future__ import annotations

import dataclasses

import numpy as np

from floe.adapters.lora import LoraPair, LoraTensors


def truncated(lora: LoraTensors, rank: int) -> LoraTensors:
    """Each product B A cut to its `rank` largest singular values; a smaller one stays as it is."""
    pairs = {name: _cut(pair, rank) for name, pair in lora.pairs.items()}
    return dataclasses.replace(lora, pairs=pairs)


def _cut(pair: LoraPair, rank: int) -> LoraPair:
    if pair.rank <= rank:
        return pair
    q_OR, r_RR = np.linalg.qr(pair.b_OR.astype(np.float64))
    p_IR, s_RR = np.linalg.qr(pair.a_RI.astype(np.float64).T)
    u_RR, values_R, v_RR = np.linalg.svd(r_RR @ s_RR.T)
    root_R = np.sqrt(values_R[:rank])
    b_OR = (q_OR @ u_RR[:, :rank]) * root_R
    a_RI = root_R[:, None] * (v_RR[:rank] @ p_IR.T)
    return LoraPair(a_RI=a_RI.astype(np.float32), b_OR=b_OR.astype(np.float32))
