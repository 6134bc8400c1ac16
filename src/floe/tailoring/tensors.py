"""A model's tensors under GGUF's names, loaded one at a time: from a folder, a GGUF, or cut.

Legend: D width.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from floe.core.errors import BadModel
from floe.core.ggml import TensorInfo, tensor_array
from floe.core.gguf import GgufHeader, read_header
from floe.core.layer_names import INTERLEAVED, interleave
from floe.tailoring.cut import head_rows
from floe.tailoring.gguf_names import GgufNames, gguf_tensor_name
from floe.tailoring.plan import Cut

FloatArray = NDArray[np.float32]
Dequantize = Callable[[NDArray[np.uint8], int, tuple[int, ...]], FloatArray]
"""(raw bytes of a tensor, ggml type id, shape) -> values, such as `gguf_quant.dequantize`."""


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """Shapes by GGUF name, and `load` for one tensor in float32.

    `family` is the architecture the weights were made for; `interleaved` tells the order of q and
    k rows.
    """

    family: str
    head_width: int
    interleaved: bool
    shapes: Mapping[str, tuple[int, ...]]
    load: Callable[[str], FloatArray]

    @property
    def n_layers(self) -> int:
        """Layers that have any tensor."""
        parsed = (GgufNames().parse(name.rpartition(".")[0]) for name in self.shapes)
        return 1 + max((p[0] for p in parsed if p), default=-1)


def from_hf_folder(folder: Path) -> Tensors:
    """The tensors of a Hugging Face folder (safetensors), also of one with our code.

    Raises:
        BadModel: no configuration or weights, or a tensor that GGUF has no name for.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadModel(f"{folder} has no readable config.json") from error
    where: dict[str, tuple[Path, str]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(str(path), framework="np") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                known = gguf_tensor_name(name)
                if known is None:
                    raise BadModel(f"{path} holds {name}, which no GGUF of this kind has")
                where[known] = (path, name)
                shapes[known] = tuple(file.get_slice(name).get_shape())
    if "token_embd.weight" not in shapes:
        raise BadModel(f"{folder} has no embeddings in safetensors")
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]

    def load(name: str) -> FloatArray:
        path, own = where[name]
        with safe_open(str(path), framework="np") as file:
            return _float32(path, own, file)

    return Tensors(
        family=str(config["model_type"]).removeprefix("tailored_"), head_width=int(width),
        interleaved=False, shapes=shapes, load=load,
    )  # fmt: skip


def from_gguf(path: Path, *, dequantize: Dequantize | None = None) -> Tensors:
    """The tensors of a GGUF file; without `dequantize`, of types F32, F16, BF16 and Q8_0.

    Raises:
        BadModel: unreadable; on loading, a type that cannot be brought to float32.
    """
    header = read_header(path)
    arch = str(header.metadata.get("general.architecture"))

    def load(name: str) -> FloatArray:
        info = header.tensors[name]
        raw = np.fromfile(path, np.uint8, count=info.n_bytes, offset=info.offset)
        try:
            if dequantize is not None:
                return np.asarray(dequantize(raw, info.type, info.shape), np.float32)
            return tensor_array(raw.tobytes(), _at_start(info))
        except (ValueError, NotImplementedError) as error:
            raise BadModel(f"{path}: {name} cannot be brought to float32: {error}") from error

    return Tensors(
        family=arch, head_width=gguf_head_width(header), interleaved=arch in INTERLEAVED,
        shapes={name: info.shape for name, info in header.tensors.items()}, load=load,
    )  # fmt: skip


def gguf_head_width(header: GgufHeader) -> int:
    """Values of one head, from the metadata.

    Raises:
        BadModel: the metadata says nothing of heads.
    """
    arch = header.metadata.get("general.architecture")
    given = header.metadata.get(f"{arch}.attention.key_length")
    heads = header.metadata.get(f"{arch}.attention.head_count")
    width = header.metadata.get(f"{arch}.embedding_length")
    if isinstance(given, int) and given > 0:
        return given
    if isinstance(heads, int) and isinstance(width, int) and heads > 0:
        return width // heads
    raise BadModel("the GGUF has neither attention.key_length nor one head_count for all layers")


def cut_tensors(
    tensors: Tensors, cut: Cut, *, compensation: Mapping[tuple[int, str], Any] | None = None
) -> Tensors:
    """The tensors that stay, renumbered; `compensation` are biases (D,) by (old layer, half)."""
    bias = {key: np.asarray(value, np.float32) for key, value in (compensation or {}).items()}
    recipes: dict[str, tuple[str, int, Any, FloatArray | None]] = {}
    shapes = {name: s for name, s in tensors.shapes.items() if not name.startswith("blk.")}
    for new, part in enumerate(cut.layers):
        takes = layer_takes(part, cut.head_width)
        for name, shape in tensors.shapes.items():
            module, _, leaf = name.rpartition(".")
            parsed = GgufNames().parse(module)
            if parsed is None or parsed[0] != part.layer or parsed[1] not in takes:
                continue
            axis, indices = takes[parsed[1]]
            if leaf == "bias" and axis == 1:
                axis, indices = 0, None  # an output's bias has its full width
            size = list(shape)
            if indices is not None:
                size[axis] = len(indices)
            renamed = f"{GgufNames().make(new, parsed[1])}.{leaf}"
            recipes[renamed], shapes[renamed] = (name, axis, indices, None), tuple(size)
        for half, kind in (("attention", "attn_output"), ("ffn", "ffn_down")):
            extra = bias.get((part.layer, half))
            name = f"{GgufNames().make(new, kind)}.bias"
            if extra is not None:
                old = recipes[name][0] if name in recipes else ""
                recipes[name], shapes[name] = (old, 0, None, extra), extra.shape

    def load(name: str) -> FloatArray:
        if name not in recipes:
            return tensors.load(name)
        old, axis, indices, extra = recipes[name]
        array = tensors.load(old) if old else np.zeros(shapes[name], np.float32)
        if indices is not None:
            array = np.ascontiguousarray(np.take(array, indices, axis))
        return array if extra is None else array + extra

    return replace(tensors, shapes=shapes, load=load)


def layer_takes(part: Any, head_width: int) -> dict[str, tuple[int, NDArray[np.intp] | None]]:
    """What stays of each module of a layer: axis and indices; None = all of it.

    A half that goes has no entry.
    """
    takes: dict[str, tuple[int, NDArray[np.intp] | None]] = {}
    if part.kv_heads:
        q, kv = head_rows(part.q_heads, head_width), head_rows(part.kv_heads, head_width)
        takes |= {"attn_norm": (0, None), "attn_q": (0, q), "attn_k": (0, kv), "attn_v": (0, kv)}
        takes["attn_output"] = (1, q)
    if part.ffn:
        ffn = np.asarray(part.ffn, np.intp)
        takes |= {"ffn_norm": (0, None), "ffn_gate": (0, ffn), "ffn_up": (0, ffn)}
        takes["ffn_down"] = (1, ffn)
    return takes


def in_rows_of(tensors: Tensors, architecture: str) -> Tensors:
    """The same tensors with q and k rows as `architecture` has them.

    Raises:
        BadModel: from interleaved to halves, which no export needs.
    """
    if tensors.interleaved == (architecture in INTERLEAVED):
        return tensors
    if tensors.interleaved:
        raise BadModel(f"weights of {tensors.family} cannot be written as {architecture}")

    def load(name: str) -> FloatArray:
        array = tensors.load(name)
        parsed = GgufNames().parse(name.rpartition(".")[0])
        if parsed and parsed[1] in ("attn_q", "attn_k"):
            return interleave(array, tensors.head_width)
        return array

    return replace(tensors, interleaved=True, load=load)


def _at_start(info: TensorInfo) -> TensorInfo:
    return TensorInfo(shape=info.shape, type=info.type, offset=0, n_bytes=info.n_bytes)


def _float32(path: Path, name: str, file: Any) -> FloatArray:
    """A tensor as float32; numpy has no bfloat16, so its bits are widened by hand."""
    kind = file.get_slice(name).get_dtype()
    if kind in ("F32", "F16"):
        return np.asarray(file.get_tensor(name), np.float32)
    if kind != "BF16":
        raise BadModel(f"{path}: {name} is {kind}; save the model in float32, float16 or bfloat16")
    with path.open("rb") as raw:
        size = int.from_bytes(raw.read(8), "little")
        entry = json.loads(raw.read(size))[name]
        start, stop = entry["data_offsets"]
        raw.seek(8 + size + start)
        bits = np.frombuffer(raw.read(stop - start), "<u2").astype(np.uint32) << 16
    return bits.view(np.float32).reshape(entry["shape"])
