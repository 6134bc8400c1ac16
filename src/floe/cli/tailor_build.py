"""`floe tailor build | validate | report`: the model of a plan, checked, and a page about it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floe.cli.common import ConfigOption, JsonOption, ModelOption, read_config, say

if TYPE_CHECKING:
    from floe.assemble.building import Wishes
    from floe.deploy import Built, Told
    from floe.tailoring.plan_file import PlanFile


def build(
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder for the model.")],
    config: ConfigOption = None,
    model: ModelOption = None,
    plan: Annotated[
        Path | None, typer.Option(help="From floe tailor search; default: search for one now.")
    ] = None,
    profile: Annotated[
        Path, typer.Option(help="The device's profile, for a search; measured if not there.")
    ] = Path("device_profile.json"),
    latency_ratio: Annotated[
        float | None, typer.Option(min=0, max=1, help="For a search: share of the F16 model's.")
    ] = None,
    evaluations: Annotated[int, typer.Option(min=1, help="Plans that a search judges.")] = 24,
    folder: Annotated[
        Path | None,
        typer.Option(help="The model as a Hugging Face folder; default: made from the GGUF, once."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What the model is called; default: the folder's name.")
    ] = None,
    quant: Annotated[
        str, typer.Option(help="Q4_1 for all, or embedding=Q5_1,ffn=Q4_0; default: as it was.")
    ] = "",
    recover_steps: Annotated[int, typer.Option(min=0, help="Training steps; 0 = none.")] = 0,
    distill: Annotated[
        float, typer.Option(min=0, max=1, help="Share of learning from the original.")
    ] = 0.5,
    learning_rate: Annotated[float, typer.Option(help="Of the recovery.")] = 5e-4,
    text: Annotated[
        Path | None,
        typer.Option(help="Text: its first half is learned, its second judges."),
    ] = None,
    adapters: Annotated[
        str, typer.Option(help="Adapters to carry over: names or folders, with commas.")
    ] = "",
    repair: Annotated[
        Path | None,
        typer.Option(help="Folder of NAME.jsonl examples to train carried adapters on again."),
    ] = None,
    repair_steps: Annotated[int, typer.Option(min=1, help="Steps for each.")] = 10,
    max_ratio: Annotated[float, typer.Option(help="Perplexity over the original's, at most.")] = 2,
    force: Annotated[bool, typer.Option("--force", help="Build it however bad it is.")] = False,
    context: Annotated[int, typer.Option(min=64, help="Tokens of a context.")] = 2048,
    tuned: Annotated[
        bool, typer.Option("--tune/--no-tune", help="Find the engine's settings by measuring.")
    ] = True,
    keep_hf: Annotated[
        bool, typer.Option("--keep-hf/--no-keep-hf", help="Keep the Hugging Face folder too.")
    ] = True,
    threads: Annotated[int, typer.Option(min=0, help="Threads; 0 = all cores.")] = 0,
    any_board: Annotated[bool, typer.Option(help="Take a profile of another board.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Build the model of a plan: prune, recover, export, check, quantize, carry adapters, tune.

    The folder is there whole or not at all. Serve it with: floe serve --manifest FOLDER

    Example: floe tailor build --plan plan.json --recover-steps 60 --adapters maths --out tailored
    """
    from floe.assemble.building import Workshop
    from floe.assemble.originals import open_original, types_of_file
    from floe.assemble.planning import Asked, search_plan
    from floe.core.config import home
    from floe.deploy import Order, deploy
    from floe.tailoring.plan_file import read_plan
    from floe.tailoring.shapes import check_plan

    settings = read_config(config, model=model)
    file = None if plan is None else read_plan(plan)
    asked_quants = _quants(quant)
    original = open_original(settings.model.name, home=home(), folder=folder)
    if file is not None:
        file = _with(file, asked_quants)
        check_plan(file.plan, original.shape, rules=file.rules)
    wishes = _wishes(
        text, recover_steps=recover_steps, distill=distill, learning_rate=learning_rate,
        repair=repair, repair_steps=repair_steps, context=context, tuned=tuned, threads=threads,
    )  # fmt: skip
    workshop = Workshop(original, wishes, home=home(), config=settings)
    asked = Asked(
        latency_ratio=latency_ratio, context_tokens=context, evaluations=evaluations,
        adapters=len(_listed(adapters)),
    )  # fmt: skip

    def find_plan(told: Told) -> PlanFile:
        from floe.assemble.tailored import this_board
        from floe.tailoring.profile_file import read_profile, write_profile

        if profile.is_file():
            device = read_profile(profile, here=this_board(), any_board=any_board)
        else:
            device = _profiled(settings.model.name, threads=threads, told=told)
            write_profile(profile, device)
        return search_plan(workshop, device, asked, told)

    order = Order(
        name=name or out.resolve().name,
        base_digest=original.shape.base_digest,
        base_names=original.names,
        plan=file,
        quants={**types_of_file(original.gguf), **asked_quants},
        adapters=tuple(_listed(adapters)),
        max_ratio=max_ratio,
        force=force,
        keep_hf=keep_hf,
        trials=None if plan is None else plan.with_suffix(".trials.jsonl"),
        facts={"recover_steps": recover_steps, "distill": distill if recover_steps else None},
    )
    with _steps() as told:
        built = deploy(order, out, workshop.parts(find_plan=find_plan), told=told)
    _print(built, as_json=as_json)


def validate(
    path: Annotated[Path, typer.Argument(help="A GGUF, or the folder of a tailored model.")],
    load: Annotated[
        bool, typer.Option("--load/--no-load", help="Also load it in a process of its own.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Judge a model file without risk: its header, its manifest's digest, then a trial load.

    Example: floe tailor validate tailored/model.gguf
    """
    from floe.assemble.tailored import manifest_at
    from floe.tailoring.manifest import model_path, read_manifest
    from floe.tailoring.validate import validate_gguf

    found: dict[str, Any] = {"path": str(path), "is_ok": True}
    manifest = manifest_at(str(path))
    if manifest is not None:
        about = read_manifest(manifest, here=None)
        path = model_path(manifest, about)
        found |= {"name": about.name, "adapters": list(about.adapters)}
    facts = validate_gguf(path)
    found |= {
        "architecture": facts.architecture,
        "layers": len(facts.layers),
        "n_vocab": facts.n_vocab,
        "weight_bytes": facts.weight_bytes,
        "kv_bytes_per_token": 2 * sum(facts.kv_values),
    }
    if load:
        from floe.assemble.tailored import try_model

        loaded = try_model(path)
        found |= {"load_ms": loaded.load_ms, "rss_bytes": loaded.rss_bytes}
    if as_json:
        print(json.dumps(found))
        return
    print(
        f"ok: {found['architecture']}, {found['layers']} layers, "
        f"{found['weight_bytes'] / 1e6:.1f} MB of weights, "
        f"{found['kv_bytes_per_token']} bytes of cache a token"
        + (f", loaded in {found['load_ms']:.0f} ms" if load else "")
    )


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a tailored model.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Default: report.html in the folder.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a page: what stays of each layer, the trials, perplexity and speed before and after.

    Example: floe tailor report tailored
    """
    from floe.evaluation.tailoring_report import write_report

    path = write_report(folder, out or folder / "report.html")
    print(json.dumps({"page": str(path)}) if as_json else str(path))


def _wishes(
    text: Path | None,
    *,
    recover_steps: int,
    distill: float,
    learning_rate: float,
    repair: Path | None,
    repair_steps: int,
    context: int,
    tuned: bool,
    threads: int,
) -> Wishes:
    from floe.assemble.building import Repair, Wishes
    from floe.assemble.names import cpu_count
    from floe.federated.examples import read_examples
    from floe.tailoring.on_torch.recover import RecoverySettings
    from floe.tailoring.text import read_text, sample_text
    from floe.tailoring.tune import Settings

    threads = threads or cpu_count()
    again = None
    if repair is not None:
        files = sorted(repair.glob("*.jsonl"))
        again = Repair(examples={p.stem: read_examples(p) for p in files}, steps=repair_steps)
    return Wishes(
        text=sample_text() if text is None else read_text(text),
        recovery=RecoverySettings(
            steps=recover_steps, distill=distill, learning_rate=learning_rate, threads=threads
        ) if recover_steps else None,
        repair=again,
        settings=Settings(threads=threads, context_tokens=context),
        tune=tuned,
        threads=threads,
    )  # fmt: skip


def _with(file: PlanFile, quants: dict[str, str]) -> PlanFile:
    """What is asked for here wins over the plan's types."""
    import dataclasses

    plan = dataclasses.replace(file.plan, quants={**file.plan.quants, **quants})
    return dataclasses.replace(file, plan=plan)


def _quants(text: str) -> dict[str, str]:
    from floe.tailoring.gguf_quant import check_quants
    from floe.tailoring.plan import GROUPS

    parts = _listed(text)
    if len(parts) == 1 and "=" not in parts[0]:
        found = dict.fromkeys(GROUPS, parts[0])
    else:
        pairs = [part.partition("=") for part in parts]
        found = {group.strip(): quant.strip() for group, _, quant in pairs}
    check_quants(found)
    return found


def _profiled(name: str, *, threads: int, told: Told) -> Any:
    from floe.assemble.tailoring import open_profiler
    from floe.core.config import home

    with open_profiler(name, home=home(), threads=threads) as profiler:
        return profiler.run(told=lambda done, total: told("profiling", done / total))


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


@contextmanager
def _steps() -> Iterator[Told]:
    """A bar on a terminal, else a line for each new step."""
    if not sys.stderr.isatty():
        seen = [""]

        def line(text: str, _share: float) -> None:
            step = text.partition(",")[0]
            if step != seen[0]:
                seen[0] = step
                say(f"floe: {text}")

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("building", total=1.0)
        yield lambda text, share: bars.update(bar, completed=share, description=text)


def _print(built: Built, *, as_json: bool) -> None:
    m = built.manifest
    figures = {
        "folder": str(built.folder),
        "name": m.name,
        "model_sha256": m.model_sha256,
        "perplexity": dict(built.perplexities),
        "decode_ms": m.cost.decode_ms,
        "prefill_ms": m.cost.prefill_ms,
        "memory_bytes": m.cost.memory_bytes,
        "logit_max_error": built.logits.max_error,
        "logit_greedy_same": built.logits.greedy_same,
        "adapters": {c.name: {"modules": c.modules, "error": c.max_error} for c in built.carried},
        "threads": m.settings.threads,
    }
    if as_json:
        print(json.dumps(figures))
        return
    found = built.perplexities
    print(
        f"perplexity {found['original']:.1f} before, {found['pruned']:.1f} pruned, "
        f"{found['built']:.1f} as built; {m.cost.decode_ms:.2f} ms a token, "
        f"{m.cost.memory_bytes / 1e6:.1f} MB"
    )
    for one in built.carried:
        print(f"adapter {one.name}: {one.modules} of {one.modules_before} modules stay")
    say(f"wrote {built.folder}; serve it with: floe serve --manifest {built.folder}")
