"""`floe bench latency`: where the time of a token and of a prompt goes, part by part.

A model of the served one's shape and types, but random weights, is timed in the serving engine
beside variants that lack one part: what a variant is faster by is that part's time. Variants take
turns and of each the quietest look counts. Every part says whether it was measured so or derived.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from floe.assemble import cpu_count, model_files
from floe.assemble.tailoring import EngineTimer
from floe.core.config import home
from floe.core.errors import BadModel
from floe.core.gguf import GgufHeader, read_header
from floe.core.request import Sampling
from floe.core.sections import ModelConfig
from floe.engine.kv_context import log_softmax
from floe.engine.llama_library import library
from floe.evaluation.machine import load_average, versions
from floe.fusion.sample import Sampler
from floe.tailoring.gguf_quant import TYPE_IDS, group_of
from floe.tailoring.memory import MIN_FFN
from floe.tailoring.plan import GROUPS, LayerPlan, ModelShape
from floe.tailoring.probes import write_probe
from floe.tailoring.profile import Timing
from floe.tailoring.shapes import shape_of_gguf, whole_plan
from floe.tailoring.tune import Settings

Say = Callable[[str], None]
Figures = dict[str, Any]
DEEP_TOKENS = 768
BUSY_LOAD = 1.0
PARTS = ("embedding", "attention", "ffn", "head", "sampling", "rest")
_CONTEXT_TOKENS = 1536
_SAMPLING_ROUNDS = 60


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A model to time: its layers, with the whole vocabulary or one token per byte."""

    layers: tuple[LayerPlan, ...]
    whole_vocab: bool = True
    depth_tokens: int | None = None


def latency_benchmark(full: bool, say: Say) -> Figures:
    """The breakdown for the default model, in its own types (`full`: also in F16 and Q8_0).

    On a machine that is busy with other things one thread's CPU time is counted, else the clock
    on the wall with all cores; the field `clock` says which.
    """
    name = ModelConfig().name
    pulled = model_files(name, home=home())
    model = pulled.files["model"]
    header = read_header(model)
    shape = shape_of_gguf(header, base_digest=pulled.digest)
    is_busy = load_average() > BUSY_LOAD
    timer = EngineTimer(settings=Settings(threads=1 if is_busy else cpu_count()), cpu_time=is_busy)
    rounds = 6 if full else 3
    own = types_of(header)
    figures = breakdown(shape, own, timer, base=model, rounds=rounds, say=say)
    say("the served file itself, to compare")
    looks = [timer(model) for _ in range(rounds)]
    figures["decode_served_ms"] = min(look.decode_ms for look in looks)
    figures["prefill_served_ms"] = min(look.prefill_ms for look in looks)
    for quant in ("F16", "Q8_0") if full else ():
        more = breakdown(
            shape, dict.fromkeys(GROUPS, quant), timer, base=model, rounds=rounds, say=say
        )
        figures |= {f"{quant.lower()}_{key}": value for key, value in more.items()}
    return {
        "model": pulled.name,
        "model_digest": pulled.digest or None,
        "threads": timer.settings.threads,
        "clock": "cpu" if is_busy else "wall",
        "types": ", ".join(f"{group} {own[group]}" for group in GROUPS),
        "rounds": rounds,
        **figures,
        **versions(llama_build=library().layout.build),
    }


def types_of(header: GgufHeader) -> dict[str, str]:
    """The type of most tensors of each group; a tied output has the embedding's.

    Raises:
        BadModel: a type that no model of random weights can be written in.
    """
    names = {type_id: name for name, type_id in TYPE_IDS.items()}
    out: dict[str, str] = {}
    for group in GROUPS:
        found = [i.type for name, i in header.tensors.items() if group_of(name) == group]
        most = max(set(found), key=found.count) if found else TYPE_IDS[out["embedding"]]
        if most not in names:
            raise BadModel(
                f"the model's {group} is of ggml type {most}; a breakdown can be made of "
                f"{', '.join(names.values())}"
            )
        out[group] = names[most]
    return out


def variants_of(shape: ModelShape) -> dict[str, Variant]:
    """The whole model, and one without each part."""
    layers = whole_plan(shape).layers
    bare = tuple(replace(one, n_kv_heads=0, q_per_kv=0) for one in layers[1:])
    thin = tuple(replace(one, n_ffn=MIN_FFN) for one in layers)
    return {
        "whole": Variant(layers=layers),
        "no attention": Variant(layers=(layers[0], *bare)),
        "thin ffn": Variant(layers=thin),
        "no head": Variant(layers=layers, whole_vocab=False),
        "long cache": Variant(layers=layers, depth_tokens=DEEP_TOKENS),
    }


def breakdown(
    shape: ModelShape,
    quants: Mapping[str, str],
    timer: EngineTimer,
    *,
    base: Path,
    rounds: int,
    say: Say,
) -> Figures:
    """Milliseconds of each part of a decoded token and of a prompt, with how they were found."""
    looks: dict[str, list[Timing]] = {}
    with tempfile.TemporaryDirectory(prefix="floe-latency-") as folder:
        path = Path(folder) / "variant.gguf"
        variants = list(variants_of(shape).items())
        for turn in range(rounds):
            for name, variant in variants if turn % 2 == 0 else reversed(variants):
                write_probe(
                    path, shape, variant.layers, quants, context_tokens=_CONTEXT_TOKENS,
                    base=base if variant.whole_vocab else None,
                )  # fmt: skip
                looks.setdefault(name, []).append(timer(path, depth_tokens=variant.depth_tokens))
            say(f"breakdown: round {turn + 1} of {rounds}")
    times = {
        name: Timing(
            decode_ms=min(t.decode_ms for t in found),
            prefill_ms=min(t.prefill_ms for t in found),
            depth_tokens=found[0].depth_tokens,
        )
        for name, found in looks.items()
    }
    normalise_ms, draw_ms = sampling_ms(shape.n_vocab)
    found = parts_of(
        shape, times, prompt_tokens=timer.prompt_tokens, normalise_ms=normalise_ms,
        draw_ms=draw_ms,
    )  # fmt: skip
    return {"prompt_tokens": timer.prompt_tokens, **found}


def parts_of(
    shape: ModelShape,
    times: Mapping[str, Timing],
    *,
    prompt_tokens: int,
    normalise_ms: float,
    draw_ms: float,
) -> Figures:
    """The parts from the variants' times; a part can come out below 0 where noise is larger."""
    out: Figures = {}
    for phase, n_rows in (("decode", 1), ("prefill", prompt_tokens)):
        ms = {name: getattr(t, f"{phase}_ms") for name, t in times.items()}
        whole = ms["whole"]
        attention = (whole - ms["no attention"]) * shape.n_layers / max(shape.n_layers - 1, 1)
        ffn = (whole - ms["thin ffn"]) * shape.n_ffn / max(shape.n_ffn - MIN_FFN, 1)
        logits = whole - ms["no head"]
        head = logits - normalise_ms
        embedding = max(head, 0.0) * n_rows / shape.n_vocab
        parts = {
            "embedding": embedding,
            "attention": attention,
            "ffn": ffn,
            "head": head,
            "sampling": normalise_ms + (draw_ms if phase == "decode" else 0.0),
        }
        counted = sum(parts.values()) - (draw_ms if phase == "decode" else 0.0)
        out[f"{phase}_ms"] = whole
        out |= {f"{phase}_{part}_ms": value for part, value in parts.items()}
        out[f"{phase}_rest_ms"] = whole - counted
    deep, shallow = times["long cache"], times["whole"]
    more = deep.depth_tokens - shallow.depth_tokens
    out["decode_cache_ms_per_1000_tokens"] = 1000 * (deep.decode_ms - shallow.decode_ms) / more
    out["attention_how"] = "measured: without attention in all layers but the first"
    out["ffn_how"] = f"measured: with {MIN_FFN} channels"
    out["head_how"] = "measured: with one token per byte, less turning logits into probabilities"
    out["sampling_how"] = "measured: that, and a draw at temperature 0.8 (a token's only)"
    out["cache_how"] = f"measured: behind {deep.depth_tokens} tokens against {shallow.depth_tokens}"
    out["embedding_how"] = "derived: its rows' share of the head's time"
    out["rest_how"] = "derived: what the parts leave"
    return out


def sampling_ms(n_vocab: int) -> tuple[float, float]:
    """Milliseconds to turn logits into log-probabilities, and to draw a token from them."""
    logits = np.random.default_rng(0).normal(0.0, 3.0, (1, n_vocab)).astype(np.float32)
    log_probs = log_softmax(logits)[0]
    sampler = Sampler(Sampling(temperature=0.8, top_p=1.0, seed=1))
    spent: dict[str, list[float]] = {"normalise": [], "draw": []}
    for place in range(_SAMPLING_ROUNDS):
        began_s = time.perf_counter()
        log_softmax(logits)
        middle_s = time.perf_counter()
        sampler.propose(log_probs, place)
        spent["normalise"].append(middle_s - began_s)
        spent["draw"].append(time.perf_counter() - middle_s)
    normalise, draw = (1000 * float(np.median(v)) for v in spent.values())
    return normalise, draw
