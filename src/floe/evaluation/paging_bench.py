"""`floe bench paging`: a live server with more adapters than fit, beside one with LRU alone.

Two `floe serve` processes answer the same requests in turn, a stretch each: one with the learned
policy, both prefetches and a router that knows what is in memory, the other with LRU, no prefetch
and the gate alone. Requests follow ServeGen's clients, one client an adapter, in order and bursts;
four clients send them. Neither keeps adapters in host memory: a miss is a read.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from floe.assemble import EMBEDDING
from floe.core.config import home
from floe.core.errors import FloeError
from floe.core.sections import ModelConfig
from floe.evaluation.cache_sources import packed_servegen, servegen
from floe.evaluation.machine import versions
from floe.evaluation.paging_clients import Got, Wanted, ask_all, cache_figures
from floe.evaluation.paging_topics import prompts_of
from floe.evaluation.processes import environment
from floe.evaluation.servers import floe_server
from floe.models.pull import ensure

Say = Callable[[str], None]
Figures = dict[str, Any]
SEED = 7
ADAPTERS, SLOTS, CLIENTS, MAX_TOKENS = 64, 8, 4, 2
SIDES = ("floe", "lru")
TRACE_REQUESTS = 1_000
OURS: dict[tuple[str, str], str | float] = {
    ("adapters", "policy"): "learned",
    ("adapters", "prefetch"): "both",
    ("routing", "learner"): "bandit",
    ("routing", "epochs"): "doubling",
    ("routing", "miss_cost_per_s"): 1.0,
}
PLAIN: dict[tuple[str, str], str | float] = {
    ("adapters", "policy"): "lru",
    ("adapters", "prefetch"): "off",
    ("routing", "learner"): "gate",
    ("routing", "epochs"): "off",
    ("routing", "miss_cost_per_s"): 0.1,
}


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One kind of requests: `routed` ones say "auto", the others an adapter's name.

    `read_mb_s` is the modelled bandwidth of reads of adapters, 0 = the disk's own.
    """

    name: str
    routed: bool
    read_mb_s: float
    requests: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured. The first `warmup` requests of a phase are not counted."""

    phases: tuple[Phase, ...]
    warmup: int
    stretches: int
    rate_s: float
    latency_ms: float = 30.0


SLOW_MB_S = 4.0
QUICK = Plan(
    phases=(
        Phase(name="named", routed=False, read_mb_s=SLOW_MB_S, requests=20),
        Phase(name="", routed=True, read_mb_s=SLOW_MB_S, requests=32),
        Phase(name="disk", routed=True, read_mb_s=0.0, requests=12),
    ),
    warmup=6, stretches=2, rate_s=4.0,
)  # fmt: skip
FULL = Plan(
    phases=(
        Phase(name="named", routed=False, read_mb_s=SLOW_MB_S, requests=400),
        Phase(name="", routed=True, read_mb_s=SLOW_MB_S, requests=400),
        Phase(name="disk_named", routed=False, read_mb_s=0.0, requests=200),
        Phase(name="disk", routed=True, read_mb_s=0.0, requests=200),
    ),
    warmup=40, stretches=4, rate_s=3.0,
)  # fmt: skip


def paging_benchmark(full: bool, say: Say) -> Figures:
    """The figures of the live server's paging; a field that was not measured is None."""
    plan = FULL if full else QUICK
    ensure(ModelConfig().name, home=home())
    ensure(EMBEDDING, home=home())
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="floe-paging-") as scratch:
        folder = Path(scratch)
        say(f"adding {ADAPTERS} adapters to a store")
        fleet = make_fleet(folder)
        with _servers(folder, fleet) as servers:
            for phase in plan.phases:
                servers.read_at(phase.read_mb_s, plan.latency_ms)
                wanted = requests_of(phase, plan, fleet["names"], seed=SEED)
                measured = _measured(servers.urls, phase, plan, wanted, say)
                figures |= phase_figures(phase, measured, plan)
    return {
        **goal_figures(figures),
        **figures,
        "model": ModelConfig().name,
        "threads": 1,
        "seed": SEED,
        "adapters": ADAPTERS,
        "adapters_that_fit": SLOTS,
        "adapter_bytes": fleet["most_bytes"],
        "clients": CLIENTS,
        "max_tokens": MAX_TOKENS,
        "arrivals": "ServeGen m-small, 43 clients and 21 of them half a trace later",
        "reads": f"modelled: {SLOW_MB_S:g} MB/s and {plan.latency_ms:g} ms a read; disk_* as it is",
        "ours": ", ".join(f"{s}.{k}={v}" for (s, k), v in OURS.items()),
        "baseline": ", ".join(f"{s}.{k}={v}" for (s, k), v in PLAIN.items()),
        **versions(llama_build=None),
    }


def goal_figures(figures: Mapping[str, Any]) -> Figures:
    """The headline, and what must be none: errors of any phase."""
    errors = [v for k, v in figures.items() if k.endswith("errors")]
    return {"errors": sum(errors), "requests": sum(
        v for k, v in figures.items() if k.endswith("requests_each")
    ) * len(SIDES)}  # fmt: skip


# --- the two servers


def config_text(side: str, budget_bytes: int) -> str:
    """The configuration of one side."""
    sections: dict[str, dict[str, str]] = {
        "model": {"threads": "1", "context_tokens": "512"},
        "privacy": {"ner": '"off"', "semantic": '"off"', "ledger": "false"},
        "adapters": {"budget_bytes": str(budget_bytes), "host_bytes": "0", "shipped": "false"},
        "routing": {"top_k": "1"},
    }
    for (section, key), value in (PLAIN if side == "lru" else OURS).items():
        sections[section][key] = f'"{value}"' if isinstance(value, str) else str(value)
    return "\n".join(
        f"[{section}]\n" + "".join(f"{k} = {v}\n" for k, v in values.items())
        for section, values in sections.items()
    )


def make_fleet(folder: Path) -> dict[str, Any]:
    """A store with the adapters under `folder`/fleet, made by a child process.

    Raises:
        FloeError: it failed; the child's stderr says why.
    """
    base = folder / "fleet"
    base.mkdir()
    (base / "models").symlink_to((home() / "models").resolve())
    config = base / "floe.toml"
    config.write_text(config_text("floe", 0), encoding="utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "floe.evaluation.paging_fleet"),
            *(str(base), str(config), str(ADAPTERS)),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(bare=False),
        check=False,
    )
    if done.returncode:
        raise FloeError(f"making the adapters ended with code {done.returncode}; see above")
    out: dict[str, Any] = json.loads(done.stdout)
    return out


@dataclass(frozen=True, kw_only=True)
class _Servers:
    """Addresses by side, and the file that says how fast both read adapters."""

    urls: Mapping[str, str]
    pace: Path

    def read_at(self, mb_s: float, latency_ms: float) -> None:
        """From now on reads take so long; 0 MB/s = as the disk is."""
        self.pace.write_text(f"{mb_s} {latency_ms}", encoding="utf-8")


@contextmanager
def _servers(folder: Path, fleet: Mapping[str, Any]) -> Iterator[_Servers]:
    """Both servers with homes of their own, which share the adapters' files."""
    pace = folder / "pace"
    pace.write_text("0 0", encoding="utf-8")
    urls = {}
    with ExitStack() as stack:
        for side in SIDES:
            own = folder / side
            own.mkdir()
            (own / "models").symlink_to((home() / "models").resolve())
            (own / "adapters").symlink_to(folder / "fleet" / "adapters")
            config = own / "floe.toml"
            text = config_text(side, SLOTS * fleet["most_bytes"])
            config.write_text(text, encoding="utf-8")
            module = ("floe.evaluation.slow_reads", str(pace))
            urls[side] = stack.enter_context(floe_server(own, config, module=module)).url
        yield _Servers(urls=urls, pace=pace)


# --- what is asked


def requests_of(phase: Phase, plan: Plan, names: Sequence[str], *, seed: int) -> list[Wanted]:
    """A piece of the trace, an eighth in, sped up so that `rate_s` arrive a second on average."""
    at_s, key = arrivals(len(names), seed=seed)
    n = plan.warmup + phase.requests
    start = len(at_s) // 8
    piece = slice(start, start + n)
    due_s = at_s[piece] - at_s[start]
    due_s *= n / plan.rate_s / max(float(due_s[-1]), 1.0)
    turns = np.random.default_rng([seed, n]).integers(0, 1 << 30, n)
    wanted = []
    for due, topic, turn in zip(due_s.tolist(), key[piece].tolist(), turns.tolist(), strict=True):
        prompts = prompts_of(topic)
        model = "auto" if phase.routed else names[topic]
        prompt = prompts[turn % len(prompts)]
        wanted.append(
            Wanted(
                at_s=due, model=model, prompt=prompt, max_tokens=MAX_TOKENS, adapter=names[topic]
            )
        )
    return wanted


def arrivals(n_adapters: int, *, seed: int) -> tuple[Any, Any]:
    """Times and adapters of the whole trace: ServeGen's clients, some twice, half a trace apart."""
    rates_CW, variations_CW = packed_servegen()
    extra = n_adapters - len(rates_CW)
    half = rates_CW.shape[1] // 2
    rates = np.concatenate([rates_CW, np.roll(rates_CW[:extra], half, axis=1)])[:n_adapters]
    variations = np.concatenate([variations_CW, np.roll(variations_CW[:extra], half, axis=1)])
    return servegen(rates, variations[:n_adapters], n=TRACE_REQUESTS, seed=seed)


# --- measuring


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One side's answers without the warm-up, and what its cache counted meanwhile.

    `asked` are the adapters of the requests' topics, in the order of `got`.
    """

    got: tuple[Got, ...]
    asked: tuple[str, ...]
    counted: Mapping[str, float]


def _measured(
    urls: Mapping[str, str], phase: Phase, plan: Plan, wanted: Sequence[Wanted], say: Say
) -> dict[str, Measured]:
    got: dict[str, list[Got]] = {side: [] for side in SIDES}
    asked: dict[str, list[str]] = {side: [] for side in SIDES}
    for side in SIDES:
        ask_all(urls[side], _shifted(wanted[: plan.warmup]), clients=CLIENTS)
    before = {side: cache_figures(urls[side]) for side in SIDES}
    pieces = np.array_split(np.arange(plan.warmup, len(wanted)), plan.stretches)
    for i, piece in enumerate(pieces):
        stretch = _shifted([wanted[j] for j in piece])
        for side in SIDES if i % 2 == 0 else reversed(SIDES):
            got[side] += ask_all(urls[side], stretch, clients=CLIENTS)
            asked[side] += [w.adapter for w in stretch]
        say(f"paging {phase.name or 'routed'}: stretch {i + 1} of {plan.stretches}")
    after = {side: cache_figures(urls[side]) for side in SIDES}
    return {
        side: Measured(
            got=tuple(got[side]),
            asked=tuple(asked[side]),
            counted={k: v - before[side].get(k, 0.0) for k, v in after[side].items()},
        )
        for side in SIDES
    }


def _shifted(wanted: Sequence[Wanted]) -> list[Wanted]:
    """The same requests, the first one due at once."""
    first_s = wanted[0].at_s if wanted else 0.0
    return [dataclasses.replace(w, at_s=w.at_s - first_s) for w in wanted]


def phase_figures(phase: Phase, measured: Mapping[str, Measured], plan: Plan) -> Figures:
    """The fields of one phase, their names behind the phase's."""
    prefix = f"{phase.name}_" if phase.name else ""
    out: Figures = {}
    for side, one in measured.items():
        ttft_ms = [1000 * g.ttft_s for g in one.got if g.ttft_s is not None]
        counted = one.counted
        loads = counted.get("loads_total", 0)
        uses = counted.get("hits_total", 0) + counted.get("misses_total", 0)
        out |= {
            f"{side}_ttft_p50_ms": _percentile(ttft_ms, 50),
            f"{side}_ttft_p95_ms": _percentile(ttft_ms, 95),
            f"{side}_ttft_mean_ms": float(np.mean(ttft_ms)) if ttft_ms else None,
            f"{side}_hit_rate": counted.get("hits_total", 0) / uses if uses else None,
            f"{side}_errors": sum(g.ttft_s is None for g in one.got),
            f"{side}_same_field": _answered_by(one, lambda name: name.partition("-")[0]),
            f"{side}_same_topic": _answered_by(one, lambda name: name),
            f"{side}_base": sum(not g.adapter for g in one.got) / max(len(one.got), 1),
            f"{side}_load_ms": counted["load_ms_total"] / loads if loads else None,
        }
        for name in ("reloads", "evictions", "prefetches", "prefetch_used", "prefetch_wasted"):
            out[f"{side}_{name}"] = counted.get(f"{name}_total")
    for name in ("p95", "p50", "mean"):
        ours, theirs = (out[f"{side}_ttft_{name}_ms"] for side in SIDES)
        out[f"ttft_{name}_ratio_lru"] = ours / theirs if ours and theirs else None
    out["requests_each"] = phase.requests
    out["read_mb_s"] = phase.read_mb_s or None
    out["rate_s"] = plan.rate_s
    return {f"{prefix}{name}": value for name, value in out.items()}


def _answered_by(one: Measured, part: Callable[[str], str]) -> float | None:
    """Share of answers by an adapter whose name has the same `part` as the topic's own."""
    same = [
        part(g.adapter) == part(asked)
        for g, asked in zip(one.got, one.asked, strict=True)
        if g.ttft_s is not None
    ]
    return sum(same) / len(same) if same else None


def _percentile(values: Sequence[float], q: float) -> float | None:
    return float(np.percentile(values, q)) if values else None
