"""Layers from headers: what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from floe.core.errors import BadModel
from floe.federated.layers import layer_shapes, weights_digest


def test_layers_of_several_files_are_found(tmp_path: Path) -> None:
    for n in range(2):
        name = f"model.layers.{n}.self_attn.q_proj"
        arrays = {f"{name}.weight": np.zeros((6, 4), np.float32)}
        arrays |= {f"{name}.bias": np.zeros(6, np.float32), "norm.weight": np.zeros(4, np.float32)}
        save_file(arrays, tmp_path / f"part-{n}.safetensors", metadata={"format": "pt"})
    found = layer_shapes(tmp_path, ("q_proj",))
    assert found == {f"model.layers.{n}.self_attn.q_proj": (6, 4) for n in range(2)}
    before = weights_digest(tmp_path)
    (tmp_path / "part-1.safetensors").unlink()
    assert weights_digest(tmp_path) != before


def test_what_is_missing_or_broken_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="holds no safetensors; pickles are never loaded"):
        weights_digest(tmp_path)
    save_file({"x.weight": np.zeros((2, 2), np.float32)}, tmp_path / "m.safetensors")
    with pytest.raises(BadModel, match="has no linear layer named q_proj"):
        layer_shapes(tmp_path, ("q_proj",))
    for data in (b"", b"\xff" * 9, b"\x02\0\0\0\0\0\0\0{]"):
        (tmp_path / "m.safetensors").write_bytes(data)
        with pytest.raises(BadModel, match=r"m\.safetensors is no safetensors file"):
            layer_shapes(tmp_path, ("q_proj",))
