"""The one door to llama.cpp's C API: find the library, lay out its structs, test them, bind calls.

The structs of llama.h change without notice and a wrong layout reads shifted values instead of
crashing. So there is one struct table per supported build, and a library is used only when its
own defaults read back as the values that build documents.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from floe.core.errors import BadModel, Missing

_P, _I32, _U32, _F32, _BOOL = (
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_uint32,
    ctypes.c_float,
    ctypes.c_bool,
)
ENVIRONMENT = "FLOE_LLAMA_LIBRARY"


class Batch(ctypes.Structure):
    """llama_batch: tokens with positions, sequences and a flag for wanted logits."""

    _fields_ = (
        ("n_tokens", _I32),
        ("token", ctypes.POINTER(_I32)),
        ("embd", ctypes.POINTER(_F32)),
        ("pos", ctypes.POINTER(_I32)),
        ("n_seq_id", ctypes.POINTER(_I32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(_I32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


def _struct(name: str, *fields: tuple[str, Any]) -> type[ctypes.Structure]:
    """A struct of parameters. They are returned into our memory by a library that may be newer:
    the tail catches what it writes beyond the fields, and hands it back unchanged."""
    return type(name, (ctypes.Structure,), {"_fields_": (*fields, ("tail", ctypes.c_uint8 * 256))})


def _context_params(name: str, *, n_outputs: int, moe_cache: bool) -> type[ctypes.Structure]:
    outputs = (("n_outputs_max", _U32), ("n_outputs_max_per_seq", _U32))[:n_outputs]
    moe = (("moe_cache_size", ctypes.c_size_t),) if moe_cache else ()
    return _struct(
        name,
        *(("n_ctx", _U32), ("n_batch", _U32), ("n_ubatch", _U32), ("n_seq_max", _U32)),
        *(("n_rs_seq", _U32), *outputs),
        *(("n_threads", _I32), ("n_threads_batch", _I32), ("ctx_type", _I32)),
        *(("rope_scaling_type", _I32), ("pooling_type", _I32), ("attention_type", _I32)),
        *(("flash_attn_type", _I32), ("rope_freq_base", _F32), ("rope_freq_scale", _F32)),
        *(("yarn_ext_factor", _F32), ("yarn_attn_factor", _F32), ("yarn_beta_fast", _F32)),
        *(("yarn_beta_slow", _F32), ("yarn_orig_ctx", _U32), ("defrag_thold", _F32)),
        *(("cb_eval", _P), ("cb_eval_user_data", _P), ("type_k", _I32), ("type_v", _I32)),
        *moe,
        *(("abort_callback", _P), ("abort_callback_data", _P), ("embeddings", _BOOL)),
        *(("offload_kqv", _BOOL), ("no_perf", _BOOL), ("op_offload", _BOOL)),
        *(("swa_full", _BOOL), ("kv_unified", _BOOL), ("samplers", _P)),
        *(("n_samplers", ctypes.c_size_t), ("ctx_other", _P)),
    )


def _model_params(name: str) -> type[ctypes.Structure]:
    return _struct(
        name,
        *(("devices", _P), ("tensor_buft_overrides", _P), ("n_gpu_layers", _I32)),
        *(("split_mode", _I32), ("load_mode", _I32), ("lazy_mode", _I32), ("main_gpu", _I32)),
        *(("tensor_split", _P), ("progress_callback", _P), ("progress_callback_user_data", _P)),
        *(("kv_overrides", _P), ("vocab_only", _BOOL), ("check_tensors", _BOOL)),
        *(("use_extra_bufts", _BOOL), ("no_host", _BOOL), ("no_alloc", _BOOL)),
        ("load_mtp", _BOOL),
    )


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The structs of one supported build of llama.cpp."""

    build: str
    model_params: type[ctypes.Structure]
    context_params: type[ctypes.Structure]


LAYOUTS = (
    Layout(
        build="b11549 (xllamacpp 2026.10.11549)",
        model_params=_model_params("ModelParams11549"),
        context_params=_context_params("ContextParams11549", n_outputs=2, moe_cache=True),
    ),
    Layout(
        build="0c1e57098 (llama-cpp-python 0.3.36; from its llama.h, not run in CI)",
        model_params=_model_params("ModelParams0c1e57098"),
        context_params=_context_params("ContextParams0c1e57098", n_outputs=2, moe_cache=False),
    ),
)

_CONTEXT_DEFAULTS: dict[str, object] = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_threads": 4,
    "n_threads_batch": 4,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
    "yarn_ext_factor": -1.0,
    "cb_eval": None,
    "type_k": 1,
    "type_v": 1,
    "abort_callback": None,
    "embeddings": False,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "kv_unified": False,
    "samplers": None,
    "n_samplers": 0,
    "ctx_other": None,
}
_MODEL_DEFAULTS: dict[str, object] = {
    "devices": None,
    "n_gpu_layers": -1,
    "split_mode": 1,
    "main_gpu": 0,
    "tensor_split": None,
    "progress_callback": None,
    "kv_overrides": None,
    "vocab_only": False,
    "use_extra_bufts": True,
    "no_alloc": False,
}

_CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_backend_init": (None, ()),
    "llama_log_set": (None, (_P, _P)),
    "llama_model_free": (None, (_P,)),
    "llama_model_get_vocab": (_P, (_P,)),
    "llama_model_n_params": (ctypes.c_uint64, (_P,)),
    "llama_free": (None, (_P,)),
    "llama_get_memory": (_P, (_P,)),
    "llama_n_ctx": (_U32, (_P,)),
    "llama_n_seq_max": (_U32, (_P,)),
    "llama_n_batch": (_U32, (_P,)),
    "llama_batch_init": (Batch, (_I32, _I32, _I32)),
    "llama_batch_free": (None, (Batch,)),
    "llama_decode": (_I32, (_P, Batch)),
    "llama_get_logits_ith": (ctypes.POINTER(_F32), (_P, _I32)),
    "llama_memory_clear": (None, (_P, _BOOL)),
    "llama_memory_seq_rm": (_BOOL, (_P, _I32, _I32, _I32)),
    "llama_memory_seq_cp": (None, (_P, _I32, _I32, _I32, _I32)),
    "llama_adapter_lora_init": (_P, (_P, ctypes.c_char_p)),
    "llama_adapter_lora_free": (None, (_P,)),
    "llama_set_adapters_lora": (
        _I32,
        (_P, ctypes.POINTER(_P), ctypes.c_size_t, ctypes.POINTER(_F32)),
    ),
    "llama_vocab_n_tokens": (_I32, (_P,)),
    "llama_vocab_get_attr": (_I32, (_P, _I32)),
    "llama_vocab_is_eog": (_BOOL, (_P, _I32)),
    "llama_vocab_is_control": (_BOOL, (_P, _I32)),
    "llama_vocab_bos": (_I32, (_P,)),
    "llama_vocab_eos": (_I32, (_P,)),
    "llama_vocab_get_text": (ctypes.c_char_p, (_P, _I32)),
    "llama_vocab_get_add_bos": (_BOOL, (_P,)),
    "llama_token_to_piece": (_I32, (_P, _I32, ctypes.c_char_p, _I32, _I32, _BOOL)),
    "llama_tokenize": (
        _I32,
        (_P, ctypes.c_char_p, _I32, ctypes.POINTER(_I32), _I32, _BOOL, _BOOL),
    ),
    "llama_set_n_threads": (None, (_P, _I32, _I32)),
}
_STRUCT_CALLS = (
    "llama_model_default_params",
    "llama_context_default_params",
    "llama_model_load_from_file",
    "llama_init_from_model",
)


class Library:
    """A loaded libllama whose layout passed the self-test; calls are attributes of `c`."""

    def __init__(self, c: ctypes.CDLL, *, layout: Layout, path: Path) -> None:
        self.c = c
        self.layout = layout
        self.path = path

    def load_model(self, path: Path) -> int:
        """A model pointer. Raises BadModel when llama.cpp refuses the file."""
        params = self.c.llama_model_default_params()
        params.n_gpu_layers = 0
        _recent.lines = []
        pointer = self.c.llama_model_load_from_file(os.fsencode(path), params)
        if not pointer:
            raise BadModel(f"llama.cpp cannot load {path}: {last_log()}")
        return int(pointer)

    def new_context(self, model: int, **values: int) -> int:
        """A context pointer with these parameters over the defaults."""
        params = self.c.llama_context_default_params()
        for name, value in values.items():
            setattr(params, name, value)
        _recent.lines = []
        pointer = self.c.llama_init_from_model(model, params)
        if not pointer:
            raise BadModel(f"llama.cpp cannot create a context: {last_log()}")
        if self.c.llama_n_seq_max(pointer) != values["n_seq_max"]:
            self.c.llama_free(pointer)
            raise BadModel(f"{self.path} ignores n_seq_max: its struct layout is not the known one")
        return int(pointer)


@cache
def library() -> Library:
    """The first usable libllama: FLOE_LLAMA_LIBRARY, then xllamacpp, then llama-cpp-python.

    Raises:
        Missing: no library, or none whose struct layout is known.
    """
    refused = []
    for path in candidates():
        try:
            return _open(path)
        except (OSError, Missing) as error:
            refused.append(f"{path}: {error}")
    tried = "; ".join(refused) or "none found"
    raise Missing(
        f"no usable llama.cpp library ({tried}). Install one with: pip install 'floe[serve]', "
        f"or set {ENVIRONMENT} to a libllama.so of a supported build"
    )


def candidates() -> list[Path]:
    """Where a libllama may be, in order; nothing is imported to find out."""
    found = []
    if chosen := os.environ.get(ENVIRONMENT):
        return [Path(chosen)]
    for package, pattern in (("xllamacpp", "xllamacpp*.so"), ("llama_cpp", "lib/libllama.so")):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            found += sorted(Path(folder).glob(pattern))
    return found


def _open(path: Path) -> Library:
    # libgomp spins 3 ms at a barrier by default: 370 ms a token beside busy cores, 100 with 2000;
    # sleeping at once (0) doubles the time on a quiet machine, 1000 costs 8 % there, 2000 some 4 %
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    c = ctypes.CDLL(str(path))
    if absent := [name for name in (*_CALLS, *_STRUCT_CALLS) if not hasattr(c, name)]:
        raise Missing(f"it does not export {absent[0]}")
    for name, (result, arguments) in _CALLS.items():
        call = getattr(c, name)
        call.restype, call.argtypes = result, arguments
    for layout in LAYOUTS:
        _bind(c, layout)
        if not defaults_differing(c):
            c.llama_log_set(ctypes.cast(_LOG, _P), None)
            c.llama_backend_init()
            return Library(c, layout=layout, path=path)
    wrong = ", ".join(defaults_differing(c))
    raise Missing(
        f"its struct layout is none of {[x.build for x in LAYOUTS]}: defaults differ in {wrong}"
    )


def _bind(c: ctypes.CDLL, layout: Layout) -> None:
    model, context = layout.model_params, layout.context_params
    c.llama_model_default_params.restype = model
    c.llama_context_default_params.restype = context
    c.llama_model_load_from_file.restype, c.llama_model_load_from_file.argtypes = (
        _P,
        (ctypes.c_char_p, model),
    )
    c.llama_init_from_model.restype, c.llama_init_from_model.argtypes = _P, (_P, context)


def defaults_differing(c: Any) -> list[str]:
    """Names of default parameters that do not read back as documented; empty = layout is right."""
    pairs: list[tuple[Callable[[], Any], dict[str, object]]] = [
        (c.llama_model_default_params, _MODEL_DEFAULTS),
        (c.llama_context_default_params, _CONTEXT_DEFAULTS),
    ]
    return [
        name
        for call, wanted in pairs
        for params in [call()]
        for name, value in wanted.items()
        if getattr(params, name) != value
    ]


_recent = threading.local()


def _keep_error(level: int, text: bytes, _user: object) -> None:
    """Keep the thread's last error lines for messages; llama.cpp's log is not shown."""
    if level == _ERROR:
        lines = getattr(_recent, "lines", [])
        _recent.lines = [*lines[1 - _KEPT_LINES :], text.decode("utf-8", "replace").strip()]


_ERROR = 4  # GGML_LOG_LEVEL_ERROR
_KEPT_LINES = 3  # the cause comes first, then what failed for it
_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, _P)(_keep_error)


def last_log() -> str:
    """The last errors llama.cpp logged on this thread, oldest first."""
    return "; ".join(getattr(_recent, "lines", ())) or "no reason given"
