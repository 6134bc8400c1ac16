"""Record what the SLM and the cloud stand-in say over reference answers, for training and tests.

    python scripts/record_fusion.py --data shared/data --out FOLDER

Training rows: GSM8K's first 1,500 lines of train.jsonl and MBPP's training part. Held-out rows:
GSM8K's test.jsonl and MBPP's held-out part. The parts are those of the shipped adapters (split by
problem, seed 17), so no held-out problem was seen by an adapter either; rows with an adapter for
training come from the adapter's validation part, which it was not trained on. One thread.

Legend: T answer tokens, V vocabulary.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from adapter_data import Example, code, maths, split
from numpy.typing import NDArray

from floe.adapters.source import shipped
from floe.adapters.store import AdapterStore
from floe.assemble import STAND_IN, chat_format, model_files
from floe.core.advice import Advice, Candidate
from floe.core.config import ModelConfig, home
from floe.core.request import Message, Request
from floe.engine.llamacpp import LlamaAdapter, LlamaCppEngine
from floe.fusion.recording import Spoken, record, save, spoken

TOP_K = 64
SEED, N_HELD_OUT, N_VALIDATION, MAX_TOKENS = 17, 96, 32, 224  # as in train_adapters.py
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@dataclass(frozen=True, kw_only=True)
class Item:
    """A question and its reference answer."""

    name: str
    prompt: str
    answer: str


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


def teacher_forced(
    engine: LlamaCppEngine, prompt: str, ids: list[int], adapters: Sequence[Any] = ()
) -> NDArray[np.float32]:
    """Log-probabilities (T, V) before each of the answer's tokens."""
    request = Request(id="record", messages=(Message(role="user", content=prompt),))
    head = chat_format(engine).encode(request)
    session = engine.session(adapters, max_tokens=len(head) + len(ids)).result()
    try:
        first_V = session.feed(head)
        rest = [session.feed(ids[:-1], every=True)] if len(ids) > 1 else []
        return np.concatenate([first_V[None, :], *rest])
    finally:
        session.close()


def advices(
    engine: LlamaCppEngine, ids: list[int], log_p_TV: NDArray[np.float32]
) -> tuple[Advice, ...]:
    """The cloud's best tokens where its own tokens begin, as its service would send them."""
    starts = [0, *accumulate(len(engine.token_bytes(t)) for t in ids)]
    eos = engine.info.eos_ids
    out = []
    for start, row_V in zip(starts, log_p_TV, strict=False):
        some = np.argpartition(-row_V, TOP_K)[:TOP_K]
        order = some[np.argsort(-row_V[some], kind="stable")].tolist()
        found = [
            Candidate(
                data=b"" if t in eos else engine.token_bytes(t),
                log_prob=float(row_V[t]),
                end=t in eos,
            )
            for t in order
        ]
        out.append(
            Advice(
                offset_bytes=start,
                candidates=tuple(c for c in found if c.end or c.data),
            )
        )
    return tuple(out)


class Recorder:
    """Both engines, and the adapters to record with."""

    def __init__(self, slm: LlamaCppEngine, llm: LlamaCppEngine) -> None:
        self.slm, self.llm = slm, llm
        self.pieces = [slm.token_bytes(t) for t in range(slm.info.n_vocab)]

    def write(
        self, chosen: list[Item], out: Path, adapter: dict[str, LlamaAdapter], facts: dict[str, Any]
    ) -> None:
        """Record `chosen` on the base, and again under the matching adapter, into two files."""
        base, adapted, began = [], [], time.perf_counter()
        for n, item in enumerate(chosen):
            base.append(self._spoken(item))
            if item.name in adapter:
                adapted.append(self._under(item, base[-1], adapter[item.name]))
            print(
                f"{out.name} {n + 1}/{len(chosen)} {time.perf_counter() - began:.0f} s", flush=True
            )
        self._save(base, out.with_suffix(".npz"), facts | {"adapter": ""})
        if adapted:
            path = out.with_name(f"{out.name}-adapter.npz")
            self._save(adapted, path, facts | {"adapter": "matching"})

    def _spoken(self, item: Item) -> Spoken:
        ids, cloud_ids = self.slm.tokenize(item.answer), self.llm.tokenize(item.answer)
        log_p_TV = teacher_forced(self.llm, item.prompt, cloud_ids)
        return spoken(
            name=item.name,
            data=item.answer.encode(),
            ids=ids,
            log_q_TV=teacher_forced(self.slm, item.prompt, ids),
            advices=advices(self.llm, cloud_ids, log_p_TV),
            llm_log_prob=float(
                log_p_TV[np.arange(len(cloud_ids)), cloud_ids].astype(np.float64).sum()
            ),
        )

    def _under(self, item: Item, base: Spoken, adapter: LlamaAdapter) -> Spoken:
        return spoken(
            name=item.name,
            data=base.data,
            ids=base.ids,
            log_q_TV=teacher_forced(self.slm, item.prompt, list(base.ids), [(adapter, 1.0)]),
            advices=base.advices,
            llm_log_prob=base.llm_log_prob,
        )

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
