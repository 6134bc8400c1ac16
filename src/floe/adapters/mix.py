"""Several adapters with weights as one: sum of w B A = [w1 B1, w2 B2, ...] [A1; A2; ...].

The same mathematics at the price of one adapter: measured on SmolLM2-135M (engines.md), each
further active adapter costs 3.4 ms a token, composing costs about 60 ms once.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from floe.adapters.formats import write_lora_gguf
from floe.adapters.lora import LoraPair, LoraTensors
from floe.core.files import sha256_file

MixKey = tuple[tuple[str, float], ...]
"""`Route.key`: (digest, weight) pairs in canonical order."""

SAVED_MS_PER_TOKEN = 3.4
COMPOSE_MS = 60.0


def composing_pays(n_adapters: int, expected_tokens: int, *, is_composed: bool = False) -> bool:
    """Whether composing wins back its price over the tokens expected; always if it is there."""
    if n_adapters < 2:
        return False
    saved_ms = SAVED_MS_PER_TOKEN * (n_adapters - 1) * expected_tokens
    return is_composed or saved_ms > COMPOSE_MS


def compose(parts: Sequence[tuple[LoraTensors, float]]) -> LoraTensors:
    """One adapter equal to the weighted sum of `parts`, its rank the sum of theirs.

    Raises:
        ValueError: no parts, parts for different architectures, or a weight that is not finite.
    """
    architectures = {lora.architecture for lora, _ in parts}
    if len(architectures) != 1 or not all(np.isfinite(weight) for _, weight in parts):
        raise ValueError("compose needs adapters of one architecture and finite weights")
    pairs = {}
    for name in sorted({name for lora, _ in parts for name in lora.pairs}):
        here = [(lora.pairs[name], w) for lora, w in parts if name in lora.pairs]
        pairs[name] = LoraPair(
            a_RI=np.concatenate([pair.a_RI for pair, _ in here]),
            b_OR=np.concatenate([pair.b_OR * np.float32(w) for pair, w in here], axis=1),
        )
    return LoraTensors(architecture=architectures.pop(), pairs=pairs)


def mix_digest(key: MixKey) -> str:
    """The identity of a mix: hex sha256 of its key."""
    return hashlib.sha256(b"floe mix 1\n" + json.dumps(key).encode()).hexdigest()


class MixCache:
    """A folder of composed adapters, at most `max_bytes` of them; the oldest used go first."""

    def __init__(
        self, *, folder: Path, tensors: Callable[[str], LoraTensors], max_bytes: int
    ) -> None:
        """`tensors` gives an adapter's arrays by digest and raises BadAdapter."""
        self._folder, self._tensors, self._max_bytes = folder, tensors, max_bytes
        self._lock = threading.Lock()
        self._pins: Counter[Path] = Counter()
        self.composed_count = 0
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(".*"):
            leftover.unlink()

    def has(self, key: MixKey) -> bool:
        """Whether the mix is on disk."""
        return self._find(key) is not None

    @contextmanager
    def composed(self, key: MixKey) -> Iterator[Path]:
        """The GGUF of a mix, kept while the block runs; composed once however many ask.

        Raises:
            BadAdapter: one of the adapters is broken or gone.
        """
        with self._lock:
            path = self._whole(key) or self._compose(key)
            self._pins[path] += 1
            path.touch()
            self._shrink()
        try:
            yield path
        finally:
            with self._lock:
                self._pins[path] -= 1

    def _find(self, key: MixKey) -> Path | None:
        return next(iter(self._folder.glob(f"{mix_digest(key)}-*.gguf")), None)

    def _whole(self, key: MixKey) -> Path | None:
        """The file of a mix if its bytes are those that were written."""
        path = self._find(key)
        if path is not None and sha256_file(path) != path.stem.rpartition("-")[2]:
            path.unlink()
            return None
        return path

    def _compose(self, key: MixKey) -> Path:
        lora = compose([(self._tensors(digest), weight) for digest, weight in key])
        fresh = self._folder / f".{mix_digest(key)}.new"
        write_lora_gguf(fresh, lora, lora.architecture)
        path = self._folder / f"{mix_digest(key)}-{sha256_file(fresh)}.gguf"
        fresh.replace(path)
        self.composed_count += 1
        return path

    def _shrink(self) -> None:
        files = sorted(self._folder.glob("*.gguf"), key=lambda p: p.stat().st_mtime_ns)
        total = sum(p.stat().st_size for p in files)
        for path in files:
            if total <= self._max_bytes:
                return
            if not self._pins[path]:
                total -= path.stat().st_size
                path.unlink()
