"""The reference engine on torch, transformers and PEFT: slow, obvious, what others must equal.

The only file that imports the three; serving never imports it. PEFT reads an adapter's folder and
says what its matrices and scalings are; the weighted sum of adapters is added to each linear
layer's output, which equals PEFT's `combination_type="cat"` (its "linear" is not that sum).
One lock: sessions take turns.

Legend: V the tokenizer's real ids, T tokens fed, R rank, I and O a layer's inputs and outputs.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import peft
import torch
import transformers
from tokenizers import pre_tokenizers

from floe.core.errors import BadAdapter, BadModel, ContextTooLong, FloeError
from floe.core.gguf import read_header
from floe.core.model import ModelInfo
from floe.engine.base import AdapterHandle, FloatArray, Session
from floe.engine.byte_level import ByteLevelTokenizer, drop_padding
from floe.engine.hf_folder import describe
from floe.engine.lora_files import check_config, check_tensors, gguf_name, read_gguf
from floe.engine.torch_session import Delta, Mix, TorchAdapter, TorchSession

Tensor: TypeAlias = Any
Model: TypeAlias = Any


class TorchEngine:
    """The `Engine` protocol on a Hugging Face folder, in float32 on the CPU."""

    def __init__(
        self,
        *,
        folder: Path,
        names: frozenset[str] = frozenset(),
        context_tokens: int | None = None,
    ) -> None:
        """Load config, weights and tokenizer.json of `folder`; nothing is fetched.

        `names` are the names of this base that adapters may declare; empty = any.

        Raises:
            BadModel: a file is missing or cannot be read, or the tokenizer is not byte-level.
        """
        self._tokenizer = ByteLevelTokenizer(folder)
        self._model = _load_model(folder)
        self._linears = _linears(self._model)
        self._info = describe(
            folder,
            self._model.config,
            self._tokenizer,
            _shapes(self._linears),
            names=names,
            context_tokens=context_tokens,
        )
        self._lock = threading.RLock()
        self._open: set[TorchSession] = set()
        self._active: Mix = ()
        self._closed = False
        for name, layer in self._linears.items():
            layer.register_forward_hook(self._hook(name))

    @property
    def info(self) -> ModelInfo:
        """The model's identity and shape; `digest` is of the weights' files."""
        return self._info

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`; with `special`, control tokens written in it are recognised."""
        return self._tokenizer.encode(text, special=special)

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; empty for control tokens and unknown ids."""
        return self._tokenizer.pieces.get(token, b"")

    def load_adapter(self, path: Path, *, key: str) -> AdapterHandle:
        """Load a LoRA from a PEFT folder, or from a GGUF file where no PEFT folder is beside it.

        Raises:
            BadAdapter: wrong base or shapes, a kind of LoRA that is more than a sum, or nothing
                in it matches the model.
        """
        self._check_open()
        folder = path if path.is_dir() else path.parent
        with self._lock:
            if (folder / "adapter_config.json").is_file():
                deltas = _deltas_of_peft(folder, self._model, self._linears, self._info)
            else:
                gguf = path / "adapter.gguf" if path.is_dir() else path
                deltas = _deltas_of_gguf(gguf, self._linears, self._info)
        return TorchAdapter(key=key, deltas=deltas)

    def unload_adapter(self, handle: AdapterHandle) -> None:
        """Free it.

        Raises:
            RuntimeError: an open session still uses it.
        """
        with self._lock:
            if any(handle is a for s in self._open for a, _ in s.adapters):
                raise RuntimeError("an open session still uses this adapter; close it first")
            self._active = ()

    def session(
        self,
        adapters: Sequence[tuple[AdapterHandle, float]] = (),
        *,
        prompt: Sequence[int] = (),
        max_tokens: int | None = None,
    ) -> Future[Session]:
        """A session at once; there is no prefix cache here, so `prompt` only counts.

        Raises (in the future):
            ContextTooLong: more than the context holds.
            FloeError: the engine is closed.
        """
        future: Future[Session] = Future()
        try:
            self._check_open()
            limit = self._info.context_tokens
            if max(len(prompt), max_tokens or 0) > limit:
                raise ContextTooLong(f"the request does not fit the context of {limit} tokens")
            chosen = tuple((_own(a), float(w)) for a, w in adapters if w != 0.0)
            session = TorchSession(self, chosen, max_tokens or limit)
            with self._lock:
                self._open.add(session)
            future.set_result(session)
        except FloeError as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Free everything; later calls fail."""
        with self._lock:
            self._closed = True
            self._open.clear()
            self._active, self._model, self._linears = (), None, {}

    def _check_open(self) -> None:
        if self._closed:
            raise FloeError("the engine is closed; make a new one")

    def _hook(self, name: str) -> Any:
        def add(_: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            for adapter, weight in self._active:
                delta = adapter.deltas.get(name)
                if delta is not None:
                    low = torch.nn.functional.linear(inputs[0], delta.a)
                    high = torch.nn.functional.linear(low, delta.b)
                    output = output + (weight * delta.scale) * high
            return output

        return add

    def forward(
        self,
        tokens: Sequence[int],
        cache: Any,
        adapters: Mix,
        *,
        every: bool,
    ) -> FloatArray:
        """Log-probabilities over real ids, (T, V) or (V,); `cache` grows by the tokens."""
        with self._lock, torch.inference_mode():
            self._check_open()
            self._active = adapters
            output = self._model(
                torch.tensor([list(tokens)]),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=0 if every else 1,
            )
            # Padded rows leave before the normalisation: they are no tokens (bug-log B37, B38).
            logits = output.logits[0, :, : self._info.n_vocab].float()
            log_probs_TV: FloatArray = torch.log_softmax(logits, dim=-1).numpy().copy()
        return log_probs_TV if every else np.ascontiguousarray(log_probs_TV[-1])

    def empty_cache(self) -> Any:
        """A cache of keys and values with nothing in it."""
        return transformers.DynamicCache()

    def forget(self, session: TorchSession) -> None:
        """Called by a session that closes."""
        with self._lock:
            self._open.discard(session)


def _load_model(folder: Path) -> Model:
    transformers.utils.logging.disable_progress_bar()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise BadModel(f"cannot load a model from {folder}; see the error above") from error
    return model.eval().requires_grad_(False)


def _linears(model: Model) -> dict[str, Any]:
    """Linear layers of the blocks by their full name; the output layer is not among them."""
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and gguf_name(name) is not None
    }


def _own(handle: AdapterHandle) -> TorchAdapter:
    if not isinstance(handle, TorchAdapter):
        raise BadAdapter("this adapter was loaded by another engine; load it here first")
    return handle


def _deltas_of_peft(
    folder: Path, model: Model, linears: Mapping[str, Any], info: ModelInfo
) -> dict[str, Delta]:
    """PEFT's own reading of a folder: its matrices and scalings, taken off the model again."""
    weights = folder / "adapter_model.safetensors"
    if not weights.is_file():
        raise BadAdapter(f"{folder} has no adapter_model.safetensors; pickles are never loaded")
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    check_config(folder, config, info)
    tensors = check_tensors(weights, _shapes(linears))
    try:
        wrapped = peft.PeftModel.from_pretrained(model, str(folder), adapter_name="read")
        deltas = {
            name: Delta(
                a=layer.lora_A["read"].weight.detach().clone(),
                b=layer.lora_B["read"].weight.detach().clone(),
                scale=float(layer.scaling["read"]),
            )
            for name, layer in wrapped.base_model.model.named_modules()
            if name in linears and "read" in getattr(layer, "lora_A", {})
        }
    except (ValueError, RuntimeError, KeyError, TypeError) as error:
        raise BadAdapter(f"{folder} does not fit the model; PEFT refuses it") from error
    finally:
        _take_off(model, linears)
    if set(deltas) != tensors:
        raise BadAdapter(f"{folder}: the configuration and the matrices name different layers")
    return deltas


def _take_off(model: Model, linears: Mapping[str, Any]) -> None:
    """Put the plain layers back, also where PEFT failed half-way."""
    for name, layer in linears.items():
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, layer)
    model.__dict__.pop("peft_config", None)


def _deltas_of_gguf(path: Path, linears: Mapping[str, Any], info: ModelInfo) -> dict[str, Delta]:
    read = read_gguf(path, _shapes(linears), info)
    return {
        name: Delta(a=torch.from_numpy(m.a.copy()), b=torch.from_numpy(m.b.copy()), scale=m.scale)
        for name, m in read.items()
    }


def _shapes(linears: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    return {name: tuple(layer.weight.shape) for name, layer in linears.items()}


def folder_from_gguf(gguf: Path, folder: Path) -> Path:
    """A Hugging Face folder (float32 weights, tokenizer) of a GGUF; made once, then reused.

    Raises:
        BadModel: the file is no GGUF, or transformers cannot read its architecture.
    """
    if folder.exists():
        return folder
    metadata = read_header(gguf).metadata
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    transformers.utils.logging.disable_progress_bar()
    where = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            **where,
            dtype=torch.float32,
            quantization_config=transformers.GgufConfig(dequantize=True),
        )
        model.save_pretrained(work)
        tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
        if metadata.get("tokenizer.ggml.pre") == "smollm":
            # transformers' conversion drops the split of digits that this tokenizer has.
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Digits(individual_digits=True),
                    pre_tokenizers.ByteLevel(add_prefix_space=False),
                ]
            )
        tokenizer.save_pretrained(work)
        drop_padding(work / "tokenizer.json", metadata.get("tokenizer.ggml.token_type", ()))
        work.replace(folder)
    except (OSError, ValueError) as error:
        raise BadModel(f"transformers cannot read {gguf}; is its architecture known?") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder
