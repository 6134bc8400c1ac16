"""What each shipped adapter, and the plain base, lose on held-out answers: adapter x prompt.

    python scripts/adapter_losses.py --data shared/data --out src/floe/evaluation/routing_data

Seven kinds of prompts: the adapters' five (maths, code, medicine, law, finance), geography (MMLU)
and general instructions (self-instruct's seed tasks, written by people). The five come from the
parts that the adapters were not trained on: `tune` from the validation part, `report` from the
held-out part. Loss is the mean negative log-likelihood of an answer's tokens in nats, the end mark
included, by llama.cpp on one thread with the weights that serve.

No text is stored: `adapter_losses.npz` holds losses, embeddings (int8), kinds and parts, and
`adapter_losses.json` says what they are. Rows are kept in `adapter_losses.jsonl` of --work while
it runs, so that a broken run goes on. Loads of adapters of several sizes are timed at the end.

Legend: P prompts, A adapters (the base first), D width of the embedding.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from adapter_data import SOURCES, split

from floe.adapters.formats import write_lora_gguf
from floe.adapters.mix import compose
from floe.adapters.store import AdapterStore
from floe.assemble import chat_format, open_embedding, open_engine, open_store
from floe.core.config import Config, home
from floe.core.request import Message, Request
from floe.core.sections import AdaptersConfig, ModelConfig
from floe.engine.llamacpp import LlamaAdapter, LlamaCppEngine
from floe.evaluation.machine import machine, today, versions

SEED, HELD_OUT, VALIDATION = 17, 96, 32
COUNT = {"tune": 12, "report": 24}
MAX_TOKENS = 160
LOADS = 15


@dataclass(frozen=True, kw_only=True)
class Prompt:
    kind: str
    part: str
    prompt: str
    answer: str


def trained_kinds(data: Path) -> Iterator[Prompt]:
    """As `train_adapters.py` parted them, less what it left out by length."""
    for source in SOURCES:
        parts = split(
            list(source.load(data)), seed=SEED, n_held_out=HELD_OUT, n_validation=VALIDATION
        )
        for part, examples in (("tune", parts.validation), ("report", parts.held_out)):
            for e in examples:
                yield Prompt(kind=source.name, part=part, prompt=e.prompt, answer=e.answer)


def other_kinds(data: Path) -> Iterator[Prompt]:
    path = data / "mmlu" / "general" / "high_school_geography_test.csv"
    with path.open(encoding="utf-8", newline="") as file:
        geography = [
            (row["question"], f"{row['choice' + row['answer']].rstrip('.')}.")
            for row in csv.DictReader(file)
        ]
    path = data / "instructions" / "self_instruct_seed_tasks.jsonl"
    tasks = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    general = [
        (f"{t['instruction']}\n\n{t['instances'][0]['input']}".strip(), t["instances"][0]["output"])
        for t in tasks
    ]
    for kind, pairs in (("geography", geography), ("general", general)):
        for n, (prompt, answer) in enumerate(sorted(pairs)):
            part = "tune" if random.Random(f"{SEED} {kind} {n}").random() < 1 / 3 else "report"
            yield Prompt(kind=kind, part=part, prompt=prompt, answer=answer)


def chosen(prompts: list[Prompt], fits: Any) -> list[Prompt]:
    """COUNT of each kind and part that are short enough, seeded."""
    out = []
    for key in sorted({(p.kind, p.part) for p in prompts}):
        mine = [p for p in prompts if (p.kind, p.part) == key]
        random.Random(SEED).shuffle(mine)
        out += [p for p in mine if fits(p)][: COUNT[key[1]]]
    random.Random(SEED).shuffle(out)
    return out


class Scorer:
    """Losses of answers under each adapter."""

    def __init__(self, engine: LlamaCppEngine, store: AdapterStore) -> None:
        self.engine, self._format = engine, chat_format(engine)
        self.stored = list(store.list())
        self.handles = [engine.load_adapter(s.gguf, key=s.manifest.digest) for s in self.stored]

    def ids(self, p: Prompt) -> tuple[list[int], list[int]]:
        head = self._format.encode(
            Request(id="r", messages=(Message(role="user", content=p.prompt),))
        )
        end = self.engine.tokenize("<|im_end|>", special=True)
        return head, [*self.engine.tokenize(p.answer), *end]

    def fits(self, p: Prompt) -> bool:
        head, answer = self.ids(p)
        return len(head) + len(answer) <= MAX_TOKENS

    def losses(self, p: Prompt) -> list[float]:
        head, answer = self.ids(p)
        routes: list[list[tuple[LlamaAdapter, float]]] = [[], *([(h, 1.0)] for h in self.handles)]
        return [self._loss(route, head, answer) for route in routes]

    def _loss(
        self, route: list[tuple[LlamaAdapter, float]], head: list[int], answer: list[int]
    ) -> float:
        session = self.engine.session(route).result()
        first_V = session.feed(head)
        total = -float(first_V[answer[0]])
        if len(answer) > 1:
            rest_TV = session.feed(answer[:-1], every=True)
            total -= float(rest_TV[np.arange(len(answer) - 1), answer[1:]].sum())
        session.close()
        return total / len(answer)


def time_loads(engine: LlamaCppEngine, store: AdapterStore) -> list[dict[str, float | int]]:
    """Milliseconds of real loads by size: 1 to 5 shipped adapters put together, thrice each rank.

    `cold_ms`: the file's pages were dropped before, so it is read from disk; `warm_ms`: not.
    The sha256 that the store checks at each load is part of the time.
    """
    parts = [store.tensors(s) for s in store.list()]
    out: list[dict[str, float | int]] = []
    with tempfile.TemporaryDirectory() as folder:
        for n in (1, 2, 3, 5, 8, 12, 20):
            lora = compose([(parts[i % len(parts)], 1.0 / n) for i in range(n)])
            path = Path(folder) / f"{n}.gguf"
            write_lora_gguf(path, lora, lora.architecture)
            times: dict[str, list[float]] = {"cold_ms": [], "warm_ms": []}
            for name in ["cold_ms", "warm_ms"] * LOADS:
                if name == "cold_ms":
                    drop_pages(path)
                begin = time.perf_counter()
                path.read_bytes()
                handle = engine.load_adapter(path, key=f"timed {n}")
                times[name].append(1000 * (time.perf_counter() - begin))
                engine.unload_adapter(handle)
            size = path.stat().st_size
            medians = {k: round(float(np.median(v)), 3) for k, v in times.items()}
            out.append({"bytes": size, "rank": lora.rank, "loads": LOADS, **medians})
    return out


def drop_pages(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--most", type=int, help="stop after so many of the shuffled prompts")
    args = parser.parse_args()
    began = time.process_time()
    engine = open_engine(ModelConfig(threads=1, max_contexts=1), home=home())
    with tempfile.TemporaryDirectory() as folder:
        config = Config(adapters=AdaptersConfig(folder=folder))
        store = open_store(config, engine, home=home())
        loads = time_loads(engine, store)
        scorer = Scorer(engine, store)
        prompts = chosen([*trained_kinds(args.data), *other_kinds(args.data)], scorer.fits)
        prompts = prompts[: args.most]
        rows = args.work / "adapter_losses.jsonl"
        done = [json.loads(x) for x in rows.read_text().splitlines()] if rows.exists() else []
        with rows.open("a") as file:
            done = done[: len(prompts)]
            for n, prompt in enumerate(prompts[len(done) :], start=len(done)):
                done.append(scorer.losses(prompt))
                file.write(json.dumps(done[-1]) + "\n")
                file.flush()
                print(f"{n + 1} of {len(prompts)}", flush=True)
        write(args.out, scorer, prompts, done, loads, time.process_time() - began)
    engine.close()


def write(
    out: Path,
    scorer: Scorer,
    prompts: list[Prompt],
    losses: list[list[float]],
    loads: list[dict[str, float | int]],
    cpu_s: float,
) -> None:
    embedding = open_embedding(home=home())
    vectors_PD = np.array([embedding(p.prompt) for p in prompts])
    kinds = sorted({p.kind for p in prompts})
    np.savez_compressed(
        out / "adapter_losses.npz",
        loss_PA=np.array(losses, dtype=np.float32),
        vector_PD=np.rint(127 * vectors_PD / np.abs(vectors_PD).max(1, keepdims=True)).astype("i1"),
        kind_P=np.array([kinds.index(p.kind) for p in prompts], dtype="i1"),
        is_report_P=np.array([p.part == "report" for p in prompts]),
        answer_tokens_P=np.array([len(scorer.ids(p)[1]) for p in prompts], dtype="i2"),
    )
    card = {
        "what": "mean negative log-likelihood of reference answers, nats a token, end mark "
        "included; columns: the plain base, then `adapters`",
        "command": "python scripts/adapter_losses.py --data shared/data --out "
        "src/floe/evaluation/routing_data",
        "made_at": today(),
        "cpu_s": round(cpu_s),
        **machine(),
        **versions(llama_build=None),
        "model": scorer.engine.info.name,
        "model_digest": scorer.engine.info.digest,
        "encoder_digest": embedding.digest,
        "seed": SEED,
        "max_tokens": MAX_TOKENS,
        "adapters": [
            {"name": s.manifest.name, "digest": s.manifest.digest, "bytes": s.manifest.file_bytes}
            for s in scorer.stored
        ],
        "kinds": kinds,
        "counts": {part: sum(p.part == part for p in prompts) for part in COUNT},
        "loads": loads,
        "data": {
            **{s.name: f"{s.data}; {s.licence}; {s.attribution}" for s in SOURCES},
            "geography": "MMLU high_school_geography test (Hendrycks et al.), MIT, from "
            "HaeChan0305/MLILAB-FedLLM, commit d92730e8bacd7b3a61e551e015e40588e10234b4",
            "general": "self-instruct seed tasks, yizhongw/self-instruct, commit "
            "0b26ccaa415992100fa32df62d41b994cf928e23, Apache-2.0",
        },
        "note": "no text of the data is stored; vectors are the prompts' embeddings in int8, "
        "each scaled by its largest component",
    }
    (out / "adapter_losses.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
