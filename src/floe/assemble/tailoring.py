"""Tailoring's concrete choices: the serving engine as the stopwatch, meters, a model's shape.

Opened by `floe tailor` alone (and by `floe serve --manifest` not at all: see tailored.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from floe.engine.llamacpp import LlamaCppEngine, LlamaSession
from floe.power.base import Meter
from floe.tailoring.profile import Timing

_QUIET = 0.2  # of a look's tokens, the quiet fifth: what else runs only makes tokens slower
_WARM_TOKENS = 2


@dataclass(frozen=True, kw_only=True)
class EngineTimer:
    """Times models in llama.cpp as it serves. Implements tailoring.profile.Measure.

    Every look loads the file anew: `repeats` prompts of `prompt_tokens`, `decode_tokens` after
    each. With a meter the joules of the decoded tokens are read too.
    """

    threads: int
    prompt_tokens: int = 64
    decode_tokens: int = 12
    repeats: int = 2
    meter: Meter | None = None

    def __call__(self, path: Path, *, depth_tokens: int | None = None) -> Timing:
        """One look. Raises what the engine raises: BadModel, FloeError."""
        ahead = max(depth_tokens or 0, self.prompt_tokens)
        room = ahead + self.decode_tokens + _WARM_TOKENS
        engine = LlamaCppEngine(
            path, digest="probe", threads=self.threads, context_tokens=room + 8,
            max_contexts=1, sessions_per_context=1,
        )  # fmt: skip
        try:
            session = engine.session().result()
            assert isinstance(session, LlamaSession)
            n_vocab = engine.vocabulary.n_vocab
            prompt = np.random.default_rng(0).integers(n_vocab // 10, n_vocab, ahead).tolist()
            session.feed(prompt[:4])
            return self._look(session, prompt)
        finally:
            engine.close()

    def _look(self, session: LlamaSession, prompt: Sequence[int]) -> Timing:
        prefill_ms: list[float] = []
        decode_ms: list[float] = []
        energy_mj: list[float | None] = []
        for _ in range(self.repeats):
            session.rollback(len(session.tokens))
            head = list(prompt[: self.prompt_tokens])
            prefill_ms.append(_ms(lambda head=head: session.feed(head)))
            if rest := list(prompt[self.prompt_tokens :]):
                session.feed(rest)
            for token in range(_WARM_TOKENS):
                session.feed([token])
            mark = self.meter.begin() if self.meter else None
            decode_ms += [
                _ms(lambda token=token: session.feed([token]))
                for token in range(2, 2 + self.decode_tokens)
            ]
            energy_mj.append(self._energy_mj(mark))
        session.close()
        known = [e for e in energy_mj if e is not None]
        return Timing(
            decode_ms=float(np.quantile(decode_ms, _QUIET)),
            prefill_ms=min(prefill_ms),
            depth_tokens=len(prompt) + _WARM_TOKENS + self.decode_tokens // 2,
            energy_mj=min(known) if len(known) == self.repeats else None,
        )

    def _energy_mj(self, mark: object) -> float | None:
        if self.meter is None:
            return None
        window = self.meter.end(mark)
        if window.energy_j is None or window.label != "measured" or window.energy_j <= 0:
            return None
        return 1000 * window.energy_j / self.decode_tokens


def _ms(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - began_s)
