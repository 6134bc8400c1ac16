"""Train the five adapters that Floe ships, on a CPU, and write what they gained on unseen data.

    python scripts/train_adapters.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf \\
        --wordllama FOLDER --data shared/data --out src/floe/adapters/shipped

Needs `pip install floe[train]`. One thread each; run two at once with `--only`. The result
depends on the seed, the machine's arithmetic and the versions named in card.json, on nothing else.

Legend: N answer tokens of a batch.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from adapter_data import SOURCES, Example, Source, Split, split
from safetensors.torch import save_file
from tokenizers import Tokenizer

from floe.core.config import home
from floe.core.files import sha256_file
from floe.core.schedule import schedule
from floe.engine.torch_engine import folder_from_gguf
from floe.federated.on_torch.losses import answer_losses, mean_loss
from floe.federated.rows import Row, epochs
from floe.routing.centroid import centroid_of
from floe.routing.embed import StaticEmbedding, shipped_background

BASE = "HuggingFaceTB/SmolLM2-135M-Instruct"
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
END = "<|im_end|>"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What was chosen for a run; written into the card as it is."""

    seed: int = 17
    rank: int = 8
    alpha: int = 16
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    learning_rate: float = 1e-3
    warmup_steps: int = 8
    steps: int = 120
    batch: int = 4
    max_tokens: int = 224
    held_out: int = 96
    validation: int = 32
    check_every: int = 30
    patience: int = 2


def encode(tokenizer: Tokenizer, example: Example) -> Row:
    """The chat template of the model around one turn; the answer ends with its end mark."""
    head = (
        f"<|im_start|>system\n{SYSTEM}{END}\n<|im_start|>user\n{example.prompt}{END}\n"
        "<|im_start|>assistant\n"
    )
    answer = tokenizer.encode(example.answer + END, add_special_tokens=False).ids
    ids = (*tokenizer.encode(head, add_special_tokens=False).ids, *answer)
    return Row(ids=ids, n_answer=len(answer))


def core_of(model: Any) -> Any:
    """The causal model itself, with or without PEFT around it."""
    return model.get_base_model() if isinstance(model, peft.PeftModel) else model


def losses(model: Any, batch: list[Row]) -> tuple[torch.Tensor, list[int]]:
    """Negative log-likelihood of each answer token, and where each row's first one is."""
    core = core_of(model)
    return answer_losses(core.model, core.lm_head, batch)


def measure(model: Any, rows: list[Row]) -> dict[str, float]:
    """Mean loss per answer token, and of the first answer token alone (the decision)."""
    model.eval()
    core = core_of(model)
    found = mean_loss(core.model, core.lm_head, rows)
    return {
        "loss": found.loss, "first_token_loss": found.first_token_loss, "tokens": found.tokens
    }  # fmt: skip


def adapt(base: Any, s: Settings) -> Any:
    """The base with fresh LoRA matrices, in the order of the seed."""
    torch.manual_seed(s.seed)
    config = peft.LoraConfig(
        r=s.rank,
        lora_alpha=s.alpha,
        target_modules=list(s.targets),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=BASE,
    )
    return peft.get_peft_model(base, config)


def state(model: Any) -> dict[str, torch.Tensor]:
    """The LoRA matrices in half precision, by PEFT's names."""
    weights = peft.get_peft_model_state_dict(model)
    return {k: v.detach().to(torch.float16).contiguous().clone() for k, v in weights.items()}


def train(model: Any, rows: list[Row], checks: list[Row], s: Settings, log: Any) -> dict[str, Any]:
    """Train, and leave in the model the half-precision weights of the best check."""
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=s.learning_rate, weight_decay=0.0)
    stream = epochs(rows, s.batch, s.seed)
    start = measure(model, checks)["loss"]
    best, best_step, best_state, bad = start, 0, state(model), 0
    history = [[0, round(start, 4)]]
    for step in range(s.steps):
        began = time.perf_counter()
        model.train()
        loss_N, _ = losses(model, next(stream))
        loss_N.mean().backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = s.learning_rate * schedule(
                step, steps=s.steps, warmup_steps=s.warmup_steps
            )
        optimizer.step()
        optimizer.zero_grad()
        log(f"step {step + 1} loss {loss_N.mean().item():.3f} {time.perf_counter() - began:.1f} s")
        if (step + 1) % s.check_every == 0 or step + 1 == s.steps:
            now = measure(model, checks)["loss"]
            history.append([step + 1, round(now, 4)])
            log(f"validation {now:.4f}")
            if now < best:
                best, best_step, best_state, bad = now, step + 1, state(model), 0
            else:
                bad += 1
                if bad >= s.patience:
                    break
    peft.set_peft_model_state_dict(model, {k: v.float() for k, v in best_state.items()})
    return {"best_step": best_step, "validation_loss_by_step": history, "state": best_state}


def centroid(examples: list[Example], wordllama: Path) -> dict[str, Any]:
    """The middle of the training prompts, each with its context and as the bare question."""
    weights = wordllama / "weights" / "l2_supercat_256.safetensors"
    digest = sha256_file(weights)
    embedding = StaticEmbedding(
        weights=weights,
        tokenizer=wordllama / "tokenizers" / "l2_supercat_tokenizer_config.json",
        digest=digest,
        background=shipped_background(digest),
    )
    prompts = [text for e in examples for text in sorted({e.prompt, e.short})]
    middle = centroid_of(prompts, embedding)
    return {
        "encoder_digest": middle.encoder_digest,
        "vector": [round(x, 5) for x in middle.vector],
        "prompts": len(prompts),
    }


def build(source: Source, args: argparse.Namespace, s: Settings) -> None:
    """One adapter, from data to folder."""

    def log(text: str) -> None:
        print(f"[{source.name}] {text}", flush=True)

    tokenizer = Tokenizer.from_file(str(args.base / "tokenizer.json"))
    rows = {e: encode(tokenizer, e) for e in source.load(args.data)}
    fitting = [e for e, r in rows.items() if len(r.ids) <= s.max_tokens]
    parts = split(fitting, seed=s.seed, n_held_out=s.held_out, n_validation=s.validation)
    base = transformers.AutoModelForCausalLM.from_pretrained(args.base, dtype=torch.float32)
    held_out = [rows[e] for e in parts.held_out]
    before = measure(base, held_out)
    log(f"{len(parts.train)} to train on; held-out loss before {before['loss']:.4f}")
    model = adapt(base, s)
    result = train(
        model, [rows[e] for e in parts.train], [rows[e] for e in parts.validation], s, log
    )
    after = measure(model, held_out)
    log(f"held-out loss after {after['loss']:.4f}")
    if after["loss"] >= before["loss"]:
        raise SystemExit(f"{source.name}: the held-out loss did not fall; nothing was written")
    folder = args.out / source.name
    folder.mkdir(parents=True, exist_ok=True)
    save_file(result.pop("state"), folder / "adapter_model.safetensors", metadata={"format": "pt"})
    write_config(model, folder)
    write_json(folder / "centroid.json", centroid(parts.train, args.wordllama))
    figures = {"dropped_too_long": len(rows) - len(fitting), **result}
    write_json(folder / "card.json", card(source, args, s, parts, before, after) | figures)


def write_config(model: Any, folder: Path) -> None:
    """PEFT's adapter_config.json, in a stable order (PEFT keeps the targets in a set)."""
    config = model.peft_config["default"].to_dict()
    config |= {"inference_mode": True, "base_model_name_or_path": BASE}
    config["target_modules"] = sorted(config["target_modules"])
    write_json(folder / "adapter_config.json", config)


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=1, sort_keys=True, default=str, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def card(
    source: Source,
    args: argparse.Namespace,
    s: Settings,
    parts: Split,
    before: dict[str, float],
    after: dict[str, float],
) -> dict[str, Any]:
    """What the adapter is and what it gained; single values on top, so that stores keep them."""
    return {
        "name": source.name,
        "description": source.description,
        "base_model": BASE,
        "base_weights_sha256": args.gguf_sha256,
        "licence": "Apache-2.0",
        "data_source": source.data,
        "data_licence": source.licence,
        "data_attribution": source.attribution,
        "data_split": source.split_rule,
        "seed": s.seed,
        "train_examples": len(parts.train),
        "validation_examples": len(parts.validation),
        "held_out_examples": len(parts.held_out),
        "held_out_answer_tokens": before["tokens"],
        "held_out_loss_before": round(before["loss"], 4),
        "held_out_loss_after": round(after["loss"], 4),
        "held_out_first_token_loss_before": round(before["first_token_loss"], 4),
        "held_out_first_token_loss_after": round(after["first_token_loss"], 4),
        "loss_unit": "mean negative log-likelihood per answer token in nats, end mark included",
        "settings": asdict(s),
        "machine": {
            "processor": processor(),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "peft": peft.__version__,
        },
    }


def processor() -> str:
    """The CPU's own name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return f"{line.split(':', 1)[1].strip()}, {os.cpu_count()} cores"
    return platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=Path, required=True, help="SmolLM2-135M-Instruct as GGUF")
    parser.add_argument("--wordllama", type=Path, required=True, help="unpacked wordllama wheel")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=home() / "train", help="dequantized base")
    parser.add_argument("--only", default=",".join(s.name for s in SOURCES))
    parser.add_argument("--steps", type=int, default=Settings.steps)
    args = parser.parse_args()
    names = args.only.split(",")
    unknown = set(names) - {s.name for s in SOURCES}
    if unknown:
        parser.error(f"unknown adapter: {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    args.gguf_sha256 = sha256_file(args.gguf)
    args.base = folder_from_gguf(args.gguf, args.cache / args.gguf_sha256[:16])
    for source in SOURCES:
        if source.name in names:
            build(source, args, Settings(steps=args.steps))


if __name__ == "__main__":
    sys.exit(main())
