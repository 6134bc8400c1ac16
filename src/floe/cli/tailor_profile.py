"""`floe tailor profile`: what this device can do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from floe.cli.common import ConfigOption, JsonOption, ModelOption, progress_bar, read_config, say

if TYPE_CHECKING:
    from floe.tailoring.profile import DeviceProfile, Told


def profile(
    config: ConfigOption = None,
    model: ModelOption = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the profile.")] = Path(
        "device_profile.json"
    ),
    memory_mb: Annotated[
        float | None, typer.Option(min=0, help="Memory budget: weights, cache and adapters.")
    ] = None,
    power_w: Annotated[float | None, typer.Option(min=0, help="Power budget in watts.")] = None,
    slo_ms: Annotated[
        float | None, typer.Option(min=0, help="Latency goal: milliseconds a token.")
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option(help="A task it is for; again for more.")
    ] = None,
    quants: Annotated[
        str, typer.Option(help="Quantization types to time, with commas.")
    ] = "F16,Q8_0,Q5_1,Q4_1,Q4_0",
    threads: Annotated[int, typer.Option(min=0, help="Threads; 0 = all cores.")] = 0,
    meter: Annotated[str, typer.Option(help="Energy meter: auto, hwmon, rapl, ... none.")] = "auto",
    watts: Annotated[
        float | None, typer.Option(min=0, help="Mean watts, to model energy without a meter.")
    ] = None,
    fine: Annotated[bool, typer.Option("--fine", help="More widths and models: minutes.")] = False,
    seconds: Annotated[float, typer.Option(min=1, help="Go on timing for so long.")] = 60.0,
    cpu_time: Annotated[
        bool,
        typer.Option("--cpu-time", help="Count CPU time, on a busy machine; needs --threads 1."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Time layers of every width and type in the serving engine, and write the device's profile.

    Example: floe tailor profile --memory-mb 80 --out device_profile.json
    """
    from floe.assemble.tailoring import open_profiler
    from floe.core.config import home
    from floe.tailoring.profile import Limits
    from floe.tailoring.profile_file import write_profile

    settings = read_config(config, model=model)
    limits = Limits(
        memory_budget_mb=memory_mb, power_budget_w=power_w, latency_slo_ms=slo_ms,
        target_tasks=tuple(task or ()),
    )  # fmt: skip
    with (
        progress_bar() as progress,
        open_profiler(
            settings.model.name, home=home(), threads=threads or settings.model.threads,
            meter=meter, cpu_time=cpu_time, progress=progress,
        ) as profiler,
        _looks() as told,
    ):  # fmt: skip
        found = profiler.run(
            limits=limits,
            quants=_listed(quants),
            fine=fine,
            limit_s=seconds,
            watts=watts,
            told=told,
        )
    digest = write_profile(out, found)
    _print(found, digest, as_json=as_json)
    say(f"wrote {out}")


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


@contextmanager
def _looks() -> Iterator[Told]:
    """A bar of looks on a terminal, else a line every tenth of them."""
    import sys

    if not sys.stderr.isatty():
        yield _tenths
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("timing models"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("", total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)


def _tenths(done: int, total: int) -> None:
    if done == total or done % max(total // 10, 1) == 0:
        say(f"floe: timed {done} of {total} models")


def _print(found: DeviceProfile, digest: str, *, as_json: bool) -> None:
    """The whole model's times by the table, and how well it fits."""
    import json

    from floe.tailoring.plan import GROUPS
    from floe.tailoring.shapes import whole_plan

    table, layers = found.table, whole_plan(found.shape).layers
    times = {}
    for quant in table.grid.quants:
        types = dict.fromkeys(GROUPS, quant)
        decode_ms = table.decode_ms(layers, types, depth_tokens=64)
        times[quant] = (decode_ms, table.prefill_ms(layers, types))
    if as_json:
        figures = {
            "digest": digest, "engine": found.engine, **found.machine,
            "decode_mape": table.decode_mape, "prefill_mape": table.prefill_mape,
            "energy": found.energy, "kv_token_bytes": found.kv_token_bytes,
            **{f"decode_ms_{quant}": ms for quant, (ms, _) in times.items()},
            **{f"prefill_ms_{quant}": ms for quant, (_, ms) in times.items()},
            **found.facts,
        }  # fmt: skip
        print(json.dumps(figures))
        return
    print(f"{'type':<6} {'token ms':>9} {'prompt ms':>10}   of the whole model, by the table")
    for quant, (decode_ms, prefill_ms) in times.items():
        print(f"{quant:<6} {decode_ms:>9.2f} {prefill_ms:>10.1f}")
    print(
        f"fit error {table.decode_mape:.1%} of tokens, {table.prefill_mape:.1%} of prompts "
        f"({table.prompt_tokens} tokens); cache {found.kv_token_bytes} bytes a token; "
        f"energy {found.energy}"
    )
