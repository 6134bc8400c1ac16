"""Tailoring's concrete choices: the serving engine as the stopwatch, meters, a model's shape.

Opened by `floe tailor` and benchmarks; serving a tailored model needs `tailored.py` alone.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from floe.assemble.models import model_files
from floe.assemble.names import cpu_count
from floe.assemble.tailored import this_board
from floe.core.errors import BadPlan, BadRequest
from floe.core.files import sha256_file
from floe.core.gguf import n_bytes_of, read_header
from floe.engine.base import Session
from floe.engine.gguf_checks import head_width, per_layer
from floe.engine.llamacpp import LlamaCppEngine
from floe.engine.load_child import COMMAND
from floe.engine.load_child import CONTEXT_TOKENS as CHILD_CONTEXT_TOKENS
from floe.models.sources import Progress
from floe.power.base import Meter
from floe.power.meters.probe import open_meter
from floe.tailoring.child_load import Loaded, try_load
from floe.tailoring.gguf_quant import TYPE_IDS, weights_bytes
from floe.tailoring.plan import ModelShape
from floe.tailoring.profile import (
    PROFILE_QUANTS,
    DeviceProfile,
    Limits,
    Timing,
    Told,
    kv_bytes_of,
    profile_rows,
)
from floe.tailoring.shapes import shape_of_gguf
from floe.tailoring.tune import Look, Settings

_QUIET = 0.1  # of a look's tokens, the quiet tenth: what else runs only makes tokens slower
_WARM_TOKENS = 2
MOST_THREADS_A_CORE = 4  # threads wait for each other busily: thousands stop the machine


@dataclass(frozen=True, kw_only=True)
class EngineTimer:
    """Times models in llama.cpp as it serves. Implements tailoring.profile.Measure.

    Every look loads the file anew: `repeats` prompts of `prompt_tokens`, `decode_tokens` after
    each. With a meter the joules of the decoded tokens are read too. `settings.context_tokens`
    does not count, unless `whole_context`: the context is as long as the look needs.

    `cpu_time` counts the process's CPU time, which for one thread is what a machine that does
    nothing else would take; with more it would count all of them.
    """

    settings: Settings = field(default_factory=lambda: Settings(threads=cpu_count()))
    prompt_tokens: int = 64
    decode_tokens: int = 16
    repeats: int = 2
    meter: Meter | None = None
    whole_context: bool = False
    cpu_time: bool = False

    def __post_init__(self) -> None:
        """Raise BadRequest for threads no machine has use for, or CPU time of several."""
        most = MOST_THREADS_A_CORE * cpu_count()
        if self.settings.threads > most:
            raise BadRequest(
                f"{self.settings.threads} threads for {cpu_count()} cores; give at most {most}",
                param="threads",
            )
        if self.cpu_time and (self.settings.threads or cpu_count()) != 1:
            raise BadRequest("CPU time stands for time with one thread only: add --threads 1")

    def __call__(self, path: Path, *, depth_tokens: int | None = None) -> Timing:
        """One look. Raises what the engine raises: BadModel, BadConfig, FloeError."""
        ahead = max(depth_tokens or 0, self.prompt_tokens)
        room = ahead + self.decode_tokens + _WARM_TOKENS
        tokens = max(self.settings.context_tokens, room) if self.whole_context else room
        engine = LlamaCppEngine(
            path, digest="timed", threads=self.settings.threads or cpu_count(),
            context_tokens=tokens, max_contexts=1, sessions_per_context=1,
            kv_type=self.settings.kv_type, flash_attention=self.settings.flash_attention,
            batch_tokens=self.settings.batch_tokens,
        )  # fmt: skip
        try:
            n_vocab = engine.vocabulary.n_vocab
            prompt = np.random.default_rng(0).integers(n_vocab // 10, n_vocab, ahead).tolist()
            session = engine.session().result()
            session.feed(prompt[:4])
            timing = self._look(session, prompt)
            session.close()
            return timing
        finally:
            engine.close()

    def _look(self, session: Session, prompt: Sequence[int]) -> Timing:
        prefill_ms: list[float] = []
        decode_ms: list[float] = []
        energy_mj: list[float | None] = []
        for _ in range(self.repeats):
            session.rollback(len(session.tokens))
            prefill_ms.append(self._fed_ms(session, prompt[: self.prompt_tokens]))
            if rest := prompt[self.prompt_tokens :]:
                session.feed(rest)
            session.feed(range(_WARM_TOKENS))
            mark = self.meter.begin() if self.meter else None
            decode_ms += [self._fed_ms(session, [token]) for token in range(self.decode_tokens)]
            energy_mj.append(self._energy_mj(mark))
        known = [e for e in energy_mj if e is not None]
        return Timing(
            decode_ms=float(np.quantile(decode_ms, _QUIET)),
            prefill_ms=min(prefill_ms),
            depth_tokens=len(prompt) + _WARM_TOKENS + self.decode_tokens // 2,
            energy_mj=min(known) if len(known) == self.repeats else None,
        )

    def _fed_ms(self, session: Session, tokens: Sequence[int]) -> float:
        clock_s = time.process_time if self.cpu_time else time.perf_counter
        began_s = clock_s()
        session.feed(tokens)
        return 1000 * (clock_s() - began_s)

    def _energy_mj(self, mark: object) -> float | None:
        if self.meter is None:
            return None
        window = self.meter.end(mark)
        if window.energy_j is None or window.label != "measured" or window.energy_j <= 0:
            return None
        return 1000 * window.energy_j / self.decode_tokens


@dataclass(frozen=True, kw_only=True)
class Profiler:
    """Profiles one model's layers on this machine; see `open_profiler`."""

    model: Path
    shape: ModelShape
    timer: EngineTimer

    def run(
        self,
        *,
        limits: Limits | None = None,
        quants: Sequence[str] = PROFILE_QUANTS,
        fine: bool = False,
        limit_s: float = 60.0,
        watts: float | None = None,
        told: Told = lambda _done, _all: None,
    ) -> DeviceProfile:
        """The profile. Energy is measured where the meter was read for every model, else
        modelled with `watts`, or the power budget in their place; without both it is unknown.
        `facts` compare what the model's file and cache were counted to with what was resident.

        Raises:
            BadPlan, BadModel: a type or model that cannot be profiled.
        """
        limits, board = limits or Limits(), this_board()
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="floe-profile-") as folder:
            table, rows = profile_rows(
                self.shape, self.timer, base=self.model, folder=Path(folder), quants=quants,
                fine=fine, limit_s=limit_s, told=told,
            )  # fmt: skip
        watts = limits.power_budget_w if watts is None else watts
        metered = table.energy is not None
        counted = weights_bytes(read_header(self.model)) + file_kv_bytes(
            self.model, Settings(context_tokens=CHILD_CONTEXT_TOKENS)
        )
        return DeviceProfile(
            limits=limits,
            table=table,
            rows=rows,
            machine=board.machine,
            engine=board.engine,
            settings={
                "threads": self.timer.settings.threads or cpu_count(),
                "flash_attention": self.timer.settings.flash_attention,
                "kv_type": self.timer.settings.kv_type,
                "batch_tokens": self.timer.settings.batch_tokens,
                "clock": "cpu" if self.timer.cpu_time else "wall",
            },
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            energy="measured" if metered else "unknown" if watts is None else "modelled",
            watts=None if metered else watts,
            kv_token_bytes=kv_bytes_of(self.shape),
            facts={
                "model": self.model.name, "models_timed": len(rows),
                "took_s": round(time.monotonic() - began_s, 1),
                "meter": self.timer.meter.name if self.timer.meter else "none",
                "model_counted_bytes": counted,
                "model_resident_bytes": check_in_child(self.model).rss_bytes,
            },
        )  # fmt: skip


@contextmanager
def open_profiler(
    name: str, *, home: Path, threads: int = 0, meter: str = "auto", cpu_time: bool = False,
    progress: Progress | None = None,
) -> Iterator[Profiler]:  # fmt: skip
    """A profiler for a model's name, reference or GGUF path, with the meter there is.

    Raises:
        NotFound, PullFailed, BadModel, Missing: no such model, or none that can be tailored.
        BadConfig: no such meter. BadRequest: CPU time of more than one thread.
    """
    pulled = model_files(name, home=home, progress=progress)
    path = pulled.files["model"]
    shape = shape_of_gguf(read_header(path), base_digest=pulled.digest or sha256_file(path))
    opened = open_meter(meter)
    try:
        timer = EngineTimer(
            settings=Settings(threads=threads or cpu_count()),
            cpu_time=cpu_time,
            meter=None if opened.name == "none" else opened,
        )
        yield Profiler(model=path, shape=shape, timer=timer)
    finally:
        opened.close()


@dataclass(frozen=True, kw_only=True)
class EngineLook:
    """Looks at a model under engine settings, for `tailoring.tune.tune`."""

    model: Path
    timer: EngineTimer

    def __call__(self, settings: Settings) -> Look:
        """One look. Raises what the engine raises."""
        timing = replace(self.timer, settings=settings)(self.model)
        return Look(
            prefill_ms=timing.prefill_ms,
            decode_ms=timing.decode_ms,
            kv_bytes=file_kv_bytes(self.model, settings),
        )


def file_kv_bytes(model: Path, settings: Settings) -> int:
    """The cache of one full context of a model's file, each layer with its own KV heads.

    Raises:
        BadModel: no such file. BadPlan: a cache type that there is not.
    """
    if settings.kv_type not in TYPE_IDS:
        raise BadPlan(f"kv type {settings.kv_type!r} is not one of {', '.join(TYPE_IDS)}")
    header = read_header(model)
    architecture = header.metadata["general.architecture"]
    layers = int(header.metadata[f"{architecture}.block_count"])
    heads = per_layer(header, "attention.head_count", layers)
    kv_heads = per_layer(header, "attention.head_count_kv", layers, default=heads)
    values = n_bytes_of((head_width(header),), TYPE_IDS[settings.kv_type])
    cells = -(-settings.context_tokens // 256) * 256
    return 2 * cells * values * sum(kv_heads)


def check_in_child(path: Path, *, timeout_s: float = 120.0) -> Loaded:
    """Load an untried file in a process of its own, as it is served, and decode two tokens.

    Raises:
        BadModel: it cannot be used, with what was found.
    """
    return try_load(path, command=COMMAND, timeout_s=timeout_s)


def settings_of(profile_settings: Mapping[str, int | float | str | bool]) -> Settings:
    """The engine settings that a profile was measured with."""
    return Settings(
        threads=int(profile_settings["threads"]),
        batch_tokens=int(profile_settings["batch_tokens"]),
        kv_type=str(profile_settings["kv_type"]),
        flash_attention=bool(profile_settings["flash_attention"]),
    )
