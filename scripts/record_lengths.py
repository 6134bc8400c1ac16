"""Record how the SLM's own answers go, token by token, to learn how many tokens are left.

    python scripts/record_lengths.py --data ../shared/data --out src/floe/power/data/lengths.npz

Prompts: self-instruct seeds and user tasks, MT-bench, IFEval, GSM8K and MBPP training lines, a
fixed draw of each, in an order drawn by seed: `--prompts 120` takes that many of all sources.
Answers are greedy, cut at 256 tokens. Only numbers are kept: no text. One thread, about 15 minutes
on a quiet core; what was recorded is written every 20 prompts.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from floe.assemble import chat_format, open_engine
from floe.core.config import home
from floe.core.files import atomic_write
from floe.core.request import Message, Request, Sampling
from floe.core.sections import ModelConfig
from floe.power.length import EVERY_TOKENS, prompt_features

SEED, MOST_TOKENS = 29, 256
DRAWS = {
    "instructions/self_instruct_seed_tasks.jsonl": 60,
    "instructions/self_instruct_user_oriented.jsonl": 80,
    "instructions/mt_bench_question.jsonl": 40,
    "instructions/ifeval_input_data.jsonl": 80,
    "gsm8k/train_first1500.jsonl": 40,
    "code/mbpp_sanitized_for_code_generation.jsonl": 40,
}


def prompts(folder: Path, most: int) -> Iterator[str]:
    """At most so many prompts of all sources, drawn and put into order by seed."""
    rng = np.random.default_rng(SEED)
    drawn: list[str] = []
    for name, n in DRAWS.items():
        lines = (folder / name).read_text("utf-8").splitlines()
        for k in sorted(rng.choice(len(lines), size=min(n, len(lines)), replace=False)):
            drawn.append(text_of(json.loads(lines[k])))
    for k in rng.permutation(len(drawn))[:most]:
        yield drawn[k]


def text_of(row: dict[str, object]) -> str:
    """The question of a line, whatever the source calls it."""
    if "turns" in row:
        turns = row["turns"]
        assert isinstance(turns, list)
        return str(turns[0])
    if "instruction" in row:
        instances = row.get("instances")
        given = instances[0]["input"] if isinstance(instances, list) else row.get("input", "")
        return f"{row['instruction']}\n{given}".strip()
    return str(row.get("prompt") or row.get("question"))


def main() -> None:
    """Answer every prompt and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=sum(DRAWS.values()))
    given = parser.parse_args()
    engine = open_engine(ModelConfig(threads=1, context_tokens=2048, max_contexts=1), home=home())
    encode = chat_format(engine).encode
    rows: list[np.ndarray] = []
    for n, prompt in enumerate(prompts(given.data, given.prompts)):
        request = Request(
            id="x", messages=(Message(role="user", content=prompt),), sampling=Sampling()
        )
        tokens = encode(request)
        if len(tokens) > 1500:
            continue
        session = engine.session(()).result()
        log_p = session.feed(tokens)
        seen: list[tuple[float, float]] = []
        while len(seen) < MOST_TOKENS:
            p = np.exp(log_p.astype(np.float64))
            eos = float(sum(p[t] for t in engine.info.eos_ids))
            seen.append((float(-(p * log_p).sum()), eos))
            token = int(np.argmax(log_p))
            if token in engine.info.eos_ids:
                break
            log_p = session.feed([token])
        session.close()
        about = prompt_features(prompt, len(tokens))
        ended = len(seen) < MOST_TOKENS
        rows.append(
            np.array(
                [
                    [n, k, len(seen) - k, ended, *(_means(seen, k)), *about]
                    for k in range(0, len(seen), EVERY_TOKENS)
                ],
                dtype=np.float32,
            )
        )
        print(n, len(tokens), len(seen), ended, flush=True)
        if n % 20 == 19:
            write(rows, given.out)
    write(rows, given.out)
    engine.close()


def write(rows: list[np.ndarray], out: Path) -> None:
    """What was recorded so far."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, rows=np.concatenate(rows).astype(np.float16))
    with atomic_write(out) as file:
        file.write(buffer.getvalue())


def _means(seen: list[tuple[float, float]], k: int) -> tuple[float, float, float, float]:
    """Entropy and end probability now, and over the last 16 tokens."""
    last = seen[max(0, k - 15) : k + 1]
    entropy, end = seen[k]
    return (
        entropy,
        float(np.mean([e for e, _ in last])),
        float(np.log10(max(end, 1e-8))),
        float(np.mean([np.log10(max(x, 1e-8)) for _, x in last])),
    )


if __name__ == "__main__":
    main()
