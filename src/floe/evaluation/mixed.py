"""Two streams with different adapters: Floe's server beside llama-server, in turn."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from floe.core.errors import FloeError
from floe.evaluation.decode import median, ratio
from floe.evaluation.processes import environment
from floe.evaluation.servers import floe_server, peer_server
from floe.evaluation.streams import FloeServer, PeerServer, Server, Streamed, overlapping

Say = Callable[[str], None]
SIDES = ("floe", "llama_server")
_STORY = (
    "This is story number {n}. Once upon a time there was a small robot who lived in a garden by "
    "the sea. Every morning it counted the birds on the wall and wrote their number in a book. "
    "One day a very old bird came and spoke to it. The story goes on like this, told slowly and "
    "with many details:"
)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Both streams of one run."""

    a: Streamed
    b: Streamed

    @property
    def tokens_s(self) -> float:
        """Tokens of both per second, from A's request to the end of the later stream."""
        wall_s = max(self.a.ended_s, self.b.ended_s) - self.a.began_s
        return (self.a.n_tokens + self.b.n_tokens) / wall_s


@dataclass(kw_only=True)
class Mixed:
    """Runs by side, and Floe's start."""

    runs: dict[str, list[Pair]] = field(default_factory=lambda: {side: [] for side in SIDES})
    ready_cpu_s: list[float] = field(default_factory=list)
    adapters: str = ""
    n_tokens: int = 0


def prepare_adapters(home: Path, config: Path) -> dict[str, list[str]]:
    """Names and files of two adapters put into the store of `home`.

    Raises:
        FloeError: it failed; the child's stderr says why.
    """
    done = subprocess.run(
        [sys.executable, "-m", "floe.evaluation.adapter_pair", str(home), str(config)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(bare=False),
        check=False,
    )
    if done.returncode:
        raise FloeError(f"preparing two adapters ended with code {done.returncode}; see above")
    out: dict[str, list[str]] = json.loads(done.stdout)
    return out


def measure_mixed(
    *,
    model: Path,
    home: Path,
    config: Path,
    pair: dict[str, list[str]],
    threads: int,
    n_tokens: int,
    repeats: int,
    say: Say,
) -> Mixed:
    """`repeats` runs of each server in turn; the other one is idle meanwhile."""
    mixed = Mixed(adapters=",".join(pair["names"]), n_tokens=n_tokens)
    with (
        floe_server(home, config) as running,
        peer_server(model, pair["files"], threads=threads) as peer_url,
    ):
        if running.ready_cpu_s is not None:
            mixed.ready_cpu_s.append(running.ready_cpu_s)
        servers: dict[str, Server] = {
            "floe": FloeServer(running.url, pair["names"]),
            "llama_server": PeerServer(peer_url, 2),
        }
        for server in servers.values():  # loads adapters, makes contexts; not counted
            overlapping(server, ("Warm.", "Up."), 6, after=1)
        for i in range(repeats):
            for side in SIDES if i % 2 == 0 else reversed(SIDES):
                prompts = (_STORY.format(n=2 * i + 11), _STORY.format(n=2 * i + 12))
                a, b = overlapping(servers[side], prompts, n_tokens)
                mixed.runs[side].append(Pair(a=a, b=b))
            say(f"mixed streams: {i + 1} of {repeats}")
    return mixed


def mixed_figures(mixed: Mixed) -> dict[str, Any]:
    """The fields of the mixed part; medians over runs, ratios Floe over llama-server."""
    out: dict[str, Any] = {}
    for side, pairs in mixed.runs.items():
        out[f"{side}_ttft_second_ms"] = median([p.b.ttft_s * 1e3 for p in pairs])
        out[f"{side}_ttft_first_ms"] = median([p.a.ttft_s * 1e3 for p in pairs])
        out[f"{side}_longest_gap_first_ms"] = median([p.a.longest_gap_s * 1e3 for p in pairs])
        out[f"{side}_mixed_tokens_s"] = median([p.tokens_s for p in pairs])
        out[f"{side}_mixed_tokens"] = median([p.a.n_tokens + p.b.n_tokens for p in pairs])
    out["ttft_ratio_mixed"] = ratio(out["floe_ttft_second_ms"], out["llama_server_ttft_second_ms"])
    out["throughput_ratio_mixed"] = ratio(
        out["floe_mixed_tokens_s"], out["llama_server_mixed_tokens_s"]
    )
    floe = mixed.runs["floe"]
    out["mixed_prompt_tokens"] = median([p.b.n_prompt_tokens for p in floe])
    out["mixed_max_tokens"] = mixed.n_tokens or None
    out["mixed_repeats"] = len(floe) or None
    out["mixed_adapters"] = mixed.adapters or None
    return out
