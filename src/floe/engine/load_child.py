"""`python -m floe.engine.load_child MODEL.gguf`: load it as it is served, decode two tokens.

Prints one JSON object. Run in a process of its own, since ggml aborts on what it cannot compute.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from floe.core.errors import FloeError
from floe.engine.llamacpp import LlamaCppEngine

PROMPT_TOKENS, DECODED_TOKENS, CONTEXT_TOKENS = 8, 2, 256
COMMAND = (sys.executable, "-m", "floe.engine.load_child")


def main(path: Path) -> int:
    """Load, decode, print; the exit code is the error's."""
    before = resident_bytes()
    began_s = time.perf_counter()
    try:
        engine = LlamaCppEngine(
            path, digest="untried", threads=1, context_tokens=CONTEXT_TOKENS, max_contexts=1,
            sessions_per_context=1,
        )  # fmt: skip
        load_ms = 1000 * (time.perf_counter() - began_s)
        n_vocab = engine.vocabulary.n_vocab
        session = engine.session().result()
        row = session.feed([1 + i % (n_vocab - 1) for i in range(PROMPT_TOKENS)])
        tokens = []
        for _ in range(DECODED_TOKENS):
            tokens.append(int(row.argmax()))
            row = session.feed(tokens[-1:])
        after = resident_bytes()
        session.close()
        engine.close()
    except FloeError as error:
        print(json.dumps({"error": error.message}), flush=True)
        return error.exit_code
    rss = None if before is None or after is None else after - before
    found = {"tokens": tokens, "n_vocab": n_vocab, "rss_bytes": rss, "load_ms": load_ms}
    print(json.dumps(found), flush=True)
    return 0


def resident_bytes() -> int | None:
    """This process's resident memory; None where /proc does not tell."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
