"""`floe cache`: the adapters' memory of a running server, and policies on your own trace."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floe.cli.common import ConfigOption, JsonOption, read_config, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from floe.evaluation.cache_simulate import Simulated
    from floe.evaluation.cache_trace import Trace

app = typer.Typer(
    help="The adapters' memory: look at it, simulate policies, learn from a log.",
    no_args_is_help=True,
)
TraceArgument = Annotated[
    Path, typer.Argument(help="Lines of time,key,size[,load_ms]: seconds, name, bytes, ms.")
]
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


@app.callback()
def _root() -> None:
    """Commands about the adapters' memory."""


@app.command("status")
def status(
    url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8741",
    watch: Annotated[
        float, typer.Option(min=0, help="Show it again every so many seconds; 0 = once.")
    ] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Ask a running server where its adapters are and how well its memory works.

    The key is FLOE_ADMIN_KEY or FLOE_API_KEY; a tenant's key shows the tenant's adapters.

    Example: floe cache status
    """
    from floe.cli.client import server_adapters

    key = os.environ.get("FLOE_ADMIN_KEY") or os.environ.get("FLOE_API_KEY")
    while True:
        found = server_adapters(url, key)
        print(json.dumps(found) if as_json else _as_table(found, now_s=time.time()), flush=True)
        if watch <= 0:
            return
        time.sleep(watch)
        print()


@app.command("simulate")
def simulate(
    trace: TraceArgument,
    policy: Annotated[
        str, typer.Option(help="Names with commas, or 'all'.")
    ] = "learned,lru,lfu,gdsf",
    budget: Annotated[
        str, typer.Option(help="Bytes (K, M, G, Ki, ...) or a share of all adapters' bytes.")
    ] = "25%",
    as_json: JsonOption = False,
) -> None:
    """Run a trace of requests through replacement policies: what would each have cost?

    The server writes such a trace to FLOE_HOME/usage.csv when serve.usage_log_bytes is set.

    Example: floe cache simulate usage.csv --policy learned,lru --budget 25%
    """
    from floe.adapters.policies import POLICIES, make_policy
    from floe.evaluation.cache_simulate import simulate as run

    names = list(POLICIES) if policy == "all" else [n.strip() for n in policy.split(",")]
    for name in names:
        make_policy(name)  # an unknown name is known before the first run
    requests = _read(trace)
    n_bytes = bytes_of(budget, total_bytes=requests.total_bytes)
    rows = [run(requests, policy=name, budget_bytes=n_bytes) for name in names]
    if as_json:
        print(json.dumps([_simulated(row, n_bytes) for row in rows]))
        return
    print(_comparison(rows, requests, n_bytes))


@app.command("fit")
def fit(
    log: Annotated[
        Path | None, typer.Argument(help="A trace; default: the server's own usage log.")
    ] = None,
    policy: Annotated[str, typer.Option(help="The policy that learns.")] = "learned",
    config: ConfigOption = None,
) -> None:
    """Let the policy learn from a log, so that the next `floe serve` starts warm.

    Example: floe cache fit usage.csv
    """
    from floe.adapters.policies import make_policy
    from floe.assemble import policy_state
    from floe.core.config import home
    from floe.core.errors import BadConfig
    from floe.core.files import atomic_write
    from floe.evaluation.cache_simulate import simulate as run
    from floe.serving.usage_log import USAGE

    learner = make_policy(policy)
    if not learner.state():
        raise BadConfig(f"policy {policy!r} learns nothing that could be kept", param="policy")
    settings = read_config(config)
    trace = _read(log or home() / USAGE)
    result = run(trace, policy=learner, budget_bytes=max(settings.adapters.budget_bytes, 1))
    target = policy_state(home(), policy)
    with atomic_write(target) as file:
        file.write(json.dumps(learner.state(), allow_nan=False).encode())
    say(
        f"{policy}: learned from {len(trace)} requests for {len(trace.names)} adapters (hit rate "
        f"{result.hit_rate:.3f} on the way); the next floe serve starts from {target}"
    )


def bytes_of(budget: str, *, total_bytes: int) -> int:
    """Bytes of "25%", "64M", "64000000" and the like.

    Raises:
        BadRequest: none of these, or not above 0.
    """
    from floe.core.errors import BadRequest

    text = budget.strip().lower().removesuffix("b")
    try:
        if text.endswith("%"):
            found = total_bytes * float(text[:-1]) / 100
        else:
            number = text.rstrip("kmgi")
            found = float(number) * _UNITS[text[len(number) :]]
    except (ValueError, KeyError):
        found = 0.0
    if not 1 <= found < 2**63:
        raise BadRequest(
            "--budget must be bytes (64000000, 64M, 64Mi) or a share (25%), above 0", param="budget"
        )
    return int(found)


def _read(path: Path) -> Trace:
    """The trace in a file; of the server's own log both halves."""
    from floe.core.errors import BadRequest, NotFound
    from floe.evaluation.cache_sources import FOLDER
    from floe.evaluation.cache_trace import LoadTimes, read_csv
    from floe.serving.usage_log import joined

    if not path.is_file():
        raise NotFound(
            f"no trace at {path}; let the server write one with serve.usage_log_bytes",
            param="trace",
        )
    table = json.loads((FOLDER / "load_times.json").read_text())["rank_bytes_ms"]
    times = LoadTimes(
        bytes_M=tuple(int(row[1]) for row in table), load_ms_M=tuple(row[2] for row in table)
    )
    try:
        with joined(path) as whole:
            return read_csv(whole, load_ms_of=times)
    except UnicodeDecodeError as error:
        raise BadRequest(f"{path} is no text: lines must be time,key,size[,load_ms]") from error


def _simulated(row: Simulated, budget_bytes: int) -> dict[str, Any]:
    return {
        "policy": row.policy,
        "budget_bytes": budget_bytes,
        "requests": row.requests,
        "hits": row.hits,
        "misses": row.misses,
        "hit_rate": row.hit_rate,
        "cost_ms_per_request": row.cost_ms_per_request,
        "evictions": row.evictions,
    }


def _comparison(rows: Sequence[Simulated], trace: Trace, budget_bytes: int) -> str:
    share = budget_bytes / trace.total_bytes
    lines = [
        f"{len(trace)} requests for {len(trace.names)} adapters of {_mb(trace.total_bytes)}; "
        f"budget {_mb(budget_bytes)} ({share:.0%})",
        f"{'policy':<12} {'hit rate':>8} {'misses':>8} {'load ms a request':>18} {'evictions':>10}",
    ]
    lines += [
        f"{r.policy:<12} {r.hit_rate:>8.3f} {r.misses:>8} {r.cost_ms_per_request:>18.3f} "
        f"{r.evictions:>10}"
        for r in sorted(rows, key=lambda r: r.cost_ms)
    ]
    return "\n".join(lines)


def _as_table(found: dict[str, Any], *, now_s: float) -> str:
    rows = sorted(found["data"], key=lambda r: (-(r.get("last_used") or 0), r["id"]))
    lines = [
        f"{'adapter':<24} {'tier':<7} {'state':<10} {'pins':>4} {'size':>9} {'fit':>4} "
        f"{'last use':>9}  digest"
    ]
    lines += [_line(row, now_s) for row in rows]
    if not rows:
        lines = ["no adapters; add one with: floe adapters add FOLDER"]
    if found.get("cache"):
        lines += ["", *_summary(found["cache"])]
    lines += [f"note     {note}" for note in found.get("notes") or ()]
    return "\n".join(lines)


def _line(row: dict[str, Any], now_s: float) -> str:
    used = row.get("last_used")
    pins = f"{row.get('pins') or 0}{'*' if row.get('pinned') else ''}"
    reason = f"  {row['reason']}" if row.get("reason") else ""
    return (
        f"{row['id'][:24]:<24} {row.get('tier') or '-':<7} {row.get('state') or '-':<10} "
        f"{pins:>4} {_mb(row.get('bytes') or 0):>9} {row.get('fit') or 0:>4} "
        f"{_ago(now_s - used) if used else 'never':>9}  {(row.get('digest') or '-')[:12]}{reason}"
    )


def _summary(cache: dict[str, float]) -> list[str]:
    def n(name: str) -> float:
        return cache.get(name, 0.0)

    uses = n("hits") + n("misses")
    rate = f"{n('hits') / uses:.3f}" if uses else "-"
    return [
        f"memory   {_mb(n('resident_bytes'))} of {_mb(n('budget_bytes'))} in {n('resident'):.0f} "
        f"adapters; {n('pinned'):.0f} pinned (*), {n('active'):.0f} in use",
        f"uses     hit rate {rate}: {n('hits'):.0f} hits, {n('misses'):.0f} misses, "
        f"{n('evictions'):.0f} evictions, {n('failures'):.0f} failures",
        f"thrash   {n('reloads_per_min'):.1f} reloads a minute ({n('reloads'):.0f} in all)",
        f"prefetch {n('prefetches'):.0f} begun, {n('prefetch_used'):.0f} used, "
        f"{n('prefetch_wasted'):.0f} wasted",
    ]


def _mb(n_bytes: float) -> str:
    return f"{n_bytes / 1e6:.1f} MB"


def _ago(passed_s: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if passed_s >= size:
            return f"{passed_s / size:.0f} {unit}"
    return f"{max(passed_s, 0):.0f} s"
