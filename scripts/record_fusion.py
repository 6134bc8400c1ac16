"""Record what the SLM and the cloud stand-in say over reference answers, for training and tests.

    python scripts/record_fusion.py --data shared/data --out FOLDER

Training rows: GSM8K's first 1,500 lines of train.jsonl and MBPP's training part. Held-out rows:
GSM8K's test.jsonl and MBPP's held-out part. The parts are those of the shipped adapters (split by
problem, seed 17), so no held-out problem was seen by an adapter either; rows with an adapter for
training come from the adapter's validation part, which it was not trained on. One thread.

"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from adapter_data import Example, code, maths, split

from floe.adapters.source import shipped
from floe.adapters.store import AdapterStore
from floe.assemble import STAND_IN, model_files
from floe.core.config import home
from floe.core.sections import ModelConfig
from floe.engine.llamacpp import LlamaAdapter, LlamaCppEngine
from floe.evaluation.fusion_record import TOP_K, Item, adapted, both
from floe.fusion.recording import Spoken, record, save

SEED, N_HELD_OUT, N_VALIDATION, MAX_TOKENS = 17, 96, 32, 224  # as in train_adapters.py
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def open_model(name: str) -> LlamaCppEngine:
    """An engine with one thread and one session."""
    pulled = model_files(name, home=home())
    return LlamaCppEngine(
        pulled.files["model"],
        name=pulled.name,
        digest=pulled.digest,
        names={pulled.name, *pulled.base_names},
        threads=1,
        context_tokens=1024,
        max_contexts=1,
        sessions_per_context=1,
    )


def raw_rows(name: str, folder: Path) -> list[dict[str, str]]:
    """The data set's own lines, in the order of adapter_data's examples."""
    files = {
        "gsm8k": ["gsm8k/train_first1500.jsonl", "gsm8k/test.jsonl"],
        "mbpp": ["code/mbpp_sanitized_for_code_generation.jsonl"],
    }[name]
    return [json.loads(x) for f in files for x in (folder / f).read_text("utf-8").splitlines()]


def items(name: str, folder: Path, slm: LlamaCppEngine, form: str) -> dict[str, list[Item]]:
    """The parts `train`, `validation` and `held_out`, as the shipped adapters have them.

    `chat` is the form the adapters learned; `raw` has the data set's own fields: GSM8K with its
    calculator marks, MBPP's function head as the prompt and the bare body as the answer.
    """
    examples = list((maths if name == "gsm8k" else code)(folder))
    raw = dict(zip(examples, raw_rows(name, folder), strict=True))
    fitting = [e for e in examples if n_tokens(slm, e) <= MAX_TOKENS]
    parts = split(fitting, seed=SEED, n_held_out=N_HELD_OUT, n_validation=N_VALIDATION)

    def item(e: Example) -> Item:
        if form == "chat":
            return Item(name=name, prompt=e.prompt, answer=e.answer)
        row = raw[e]
        if name == "gsm8k":
            return Item(name=name, prompt=row["question"], answer=row["answer"])
        return Item(name=name, prompt=row["prompt"], answer=row["canonical_solution"])

    return {
        "train": [item(e) for e in parts.train],
        "validation": [item(e) for e in parts.validation],
        "held_out": [item(e) for e in parts.held_out],
    }


def n_tokens(slm: LlamaCppEngine, e: Example) -> int:
    """Length as train_adapters.py counts it."""
    head = (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{e.prompt}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    return len(slm.tokenize(head, special=True)) + len(
        slm.tokenize(e.answer + "<|im_end|>", special=True)
    )


class Recorder:
    """Both engines, and the adapters to record with."""

    def __init__(self, slm: LlamaCppEngine, llm: LlamaCppEngine) -> None:
        self.slm, self.llm = slm, llm
        self.pieces = [slm.token_bytes(t) for t in range(slm.info.n_vocab)]

    def write(
        self, chosen: list[Item], out: Path, adapter: dict[str, LlamaAdapter], facts: dict[str, Any]
    ) -> None:
        """Record `chosen` on the base, and again under the matching adapter, into two files."""
        plain, under, began = [], [], time.perf_counter()
        for n, item in enumerate(chosen):
            plain.append(both(self.slm, self.llm, item))
            if item.name in adapter:
                under.append(adapted(self.slm, item, plain[-1], adapter[item.name]))
            print(
                f"{out.name} {n + 1}/{len(chosen)} {time.perf_counter() - began:.0f} s", flush=True
            )
        self._save(plain, out.with_suffix(".npz"), facts | {"adapter": ""})
        if under:
            path = out.with_name(f"{out.name}-adapter.npz")
            self._save(under, path, facts | {"adapter": "matching"})

    def _save(self, answers: list[Spoken], path: Path, facts: dict[str, Any]) -> None:
        made = record(
            answers, pieces=self.pieces, eos_ids=self.slm.info.eos_ids, facts=facts, top_k=TOP_K
        )
        save(made, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--form", choices=("chat", "raw"), default="chat")
    parser.add_argument("--train", type=int, default=40, help="items a data set")
    parser.add_argument("--validation", type=int, default=20)
    parser.add_argument("--held-out", type=int, default=25)
    parser.add_argument("--only", choices=("train", "validation", "held_out"))
    args = parser.parse_args()
    slm, llm = open_model(ModelConfig().name), open_model(STAND_IN)
    recorder = Recorder(slm, llm)
    counts = {"validation": args.validation, "held_out": args.held_out, "train": args.train}
    try:
        parts = {n: items(n, args.data, slm, args.form) for n in ("gsm8k", "mbpp")}
        with tempfile.TemporaryDirectory() as folder:
            store = AdapterStore(Path(folder), slm.info)
            adapters = {
                name: _adapter(slm, store, adapter)
                for name, adapter in (("gsm8k", "maths"), ("mbpp", "code"))
            }
            for part, count in counts.items():
                if args.only in (None, part) and count:
                    facts = {
                        "slm": slm.info.digest,
                        "slm_tokenizer": slm.info.tokenizer_digest,
                        "cloud_tokenizer": llm.info.tokenizer_digest,
                        "cloud": llm.info.name,
                        "form": args.form,
                        "part": part,
                    }
                    chosen = [i for n in parts for i in parts[n][part][:count]]
                    recorder.write(
                        chosen,
                        args.out / f"{args.form}-{part}",
                        {} if part == "train" else adapters,
                        facts,
                    )
    finally:
        slm.close()
        llm.close()


def _adapter(slm: LlamaCppEngine, store: AdapterStore, name: str) -> LlamaAdapter:
    stored = store.add(next(f for f in shipped() if f.name == name))
    return slm.load_adapter(stored.gguf, key=stored.manifest.digest)


if __name__ == "__main__":
    sys.exit(main())
