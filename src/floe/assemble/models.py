"""Models and what stands on them: engine, chat format, embedding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from floe.assemble.names import EMBEDDING
from floe.assemble.tailored import manifest_at, tailored_files, tailored_settings
from floe.core.adapter import Centroid
from floe.core.errors import NotFound
from floe.core.sections import ModelConfig
from floe.engine.base import FloatArray
from floe.engine.chat import ChatFormat
from floe.engine.llamacpp import LlamaCppEngine
from floe.models.cache import PulledModel
from floe.models.pull import ensure
from floe.models.sources import Progress
from floe.routing.embed import StaticEmbedding, shipped_background


def open_engine(
    config: ModelConfig, *, home: Path, progress: Progress | None = None
) -> LlamaCppEngine:
    """The engine for a model's name, reference or path, pulled first if need be.

    Raises:
        NotFound, PullFailed, BadModel, Missing: with what to do.
        BadPlan: a tailored model that was made for another board.
    """
    config = tailored_settings(config)
    pulled = model_files(config.name, home=home, progress=progress)
    return LlamaCppEngine(
        pulled.files["model"],
        name=pulled.name,
        digest=pulled.digest,
        names={pulled.name, *pulled.base_names},
        threads=config.threads,
        context_tokens=config.context_tokens,
        max_contexts=config.max_contexts,
        sessions_per_context=config.sessions_per_context,
        kv_type=config.kv_type,
        flash_attention=config.flash_attention,
        batch_tokens=config.batch_tokens,
    )


def model_files(name: str, *, home: Path, progress: Progress | None = None) -> PulledModel:
    """A model on disk, by name, reference or path. A GGUF path is used where it lies.

    So is the path of a tailored model's manifest, after its file's digest was compared.
    """
    path = Path(name).expanduser()
    if manifest := manifest_at(name):
        return tailored_files(manifest)
    if path.suffix == ".gguf" and path.is_file():
        return PulledModel(name=path.stem, files={"model": path}, digest="")
    pulled = ensure(name, home=home, progress=progress)
    if "model" not in pulled.files:
        raise NotFound(f"{name!r} is not a language model; known ones: floe pull --list")
    return pulled


def chat_format(engine: LlamaCppEngine) -> ChatFormat:
    """How this model's prompts are written."""
    vocabulary = engine.vocabulary
    return ChatFormat(
        template=engine.info.chat_template,
        tokenize=lambda text, special: engine.tokenize(text, special=special),
        control_texts=vocabulary.control_texts,
        bos_text=vocabulary.bos_text,
        eos_text=vocabulary.eos_text,
    )


def embedding_of(pulled: PulledModel, background: Centroid | None = None) -> StaticEmbedding:
    """The static embedding in a model's files; `background` is what it takes away."""
    return StaticEmbedding(
        weights=pulled.files["weights"],
        tokenizer=pulled.files["tokenizer"],
        digest=pulled.digest,
        background=background,
    )


def open_embedding(*, home: Path, progress: Progress | None = None) -> StaticEmbedding:
    """The router's embedding, pulled first if need be."""
    pulled = ensure(EMBEDDING, home=home, progress=progress)
    return embedding_of(pulled, shipped_background(pulled.digest))


def run_f32(model: Path, adapter: Path | None, prompts: Sequence[str]) -> list[FloatArray]:
    """Log-probabilities (T, V) of each prompt on an F32 model, for `adapters.verify`."""
    engine = LlamaCppEngine(model, digest="verify", context_tokens=512, kv_f32=True)
    try:
        routes = [(engine.load_adapter(adapter, key="verified"), 1.0)] if adapter else []
        out = []
        for prompt in prompts:
            session = engine.session(routes).result()
            out.append(session.feed(engine.tokenize(prompt), every=True))
            session.close()
        return out
    finally:
        engine.close()
