"""`floe fusion`: learn the weight and the gate, map a cloud's tokenizer, show what is in use."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floe.cli.common import ConfigOption, JsonOption, ModelOption, progress_bar, read_config, say

if TYPE_CHECKING:
    from floe.fusion.fit import Fitted
    from floe.fusion.recording import Recording

app = typer.Typer(help="Learn and show how SLM and cloud are mixed.", no_args_is_help=True)
_TOP_KS = (64, 20)


@app.command("fit")
def fit(
    files: Annotated[
        list[Path],
        typer.Argument(help="JSONL of prompt and answer, plain text, or recordings (.npz)."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; default: where it is found again.")
    ] = None,
    limit: Annotated[int, typer.Option(help="At most so many answers, evenly chosen.")] = 120,
    seed: Annotated[int, typer.Option(help="Of the split and the start of training.")] = 17,
    config: ConfigOption = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Learn the fusion weight and the gate from your own answers, with the configured cloud.

    Text that the privacy gate keeps here is left out. Example: floe fusion fit answers.jsonl
    """
    from floe.core.errors import BadRequest

    recorded = [f for f in files if f.suffix == ".npz"]
    if recorded and len(recorded) < len(files):
        raise BadRequest("give either texts or recordings, not both", param="files")
    if recorded:
        from floe.fusion.recording import load

        recordings, skipped = [load(f) for f in recorded], 0
    else:
        settings = read_config(config, model=model)
        made, skipped = asyncio.run(_record(files, limit, settings, quiet=as_json))
        recordings = [made]
    fitted, pair, facts = _learn(recordings, seed=seed)
    facts |= {"data_sha256": {f.name: _digest(f) for f in files}, "kept_here": skipped}
    path = _write(fitted, pair, facts, out)
    if as_json:
        print(json.dumps({"file": str(path), **facts, **fitted.report}))
        return
    bits = fitted.report["validation_bits_per_byte"]
    say(f"wrote {path}; {skipped} answers were kept here")
    for name, value in bits.items():
        print(f"{name:<14} {value:.4f} bits per byte")


async def _record(
    files: list[Path], limit: int, settings: Any, *, quiet: bool
) -> tuple[Recording, int]:
    from floe.assemble import edge
    from floe.cli.fusion_text import read_pairs, record_pairs
    from floe.core.config import Secrets, home
    from floe.core.errors import BadConfig

    pairs = read_pairs(files, limit=limit)
    if settings.cloud.kind != "floe":
        raise BadConfig(
            'floe fusion fit needs a logit service: set cloud.kind = "floe" and cloud.url '
            "(floe cloud starts one)",
            param="cloud.kind",
        )
    with (
        progress_bar(quiet=quiet) as progress,
        edge(settings, Secrets.from_environment(), home=home(), progress=progress) as device,
    ):
        try:
            return await record_pairs(device, pairs, top_k=settings.cloud.top_k, quiet=quiet)
        finally:
            await device.close_cloud()


def _learn(recordings: list[Recording], *, seed: int) -> tuple[Fitted, Any, dict[str, Any]]:
    """Fit on every recording, each with the cloud's best 64 and again with its best 20."""
    from floe.core.config import home
    from floe.core.errors import BadRequest
    from floe.fusion.align import Alignment
    from floe.fusion.evaluate import joined, rows_of
    from floe.fusion.fit import Settings
    from floe.fusion.fit import fit as learn
    from floe.fusion.longer import LongerMaps
    from floe.fusion.weigh import Standing
    from floe.fusion.weights import Pair

    keys = ("slm", "slm_tokenizer", "cloud_tokenizer")
    found = {tuple(str(r.facts.get(k, "")) for k in keys) for r in recordings}
    if len(found) != 1:
        raise BadRequest("the recordings are of different models; give those of one pair")
    pair = Pair(**dict(zip(keys, found.pop(), strict=True)))
    first = recordings[0]
    maps = LongerMaps(
        own_tokenizer=pair.slm_tokenizer, n_vocab=len(first.pieces), folder=home() / "fusion"
    )
    alignment = Alignment(token_bytes=first.pieces, eos_ids=first.eos_ids, longer=maps)
    parts, groups = [], []
    for top_k in _TOP_KS:
        for r in recordings:
            confidence = 1.0 if r.facts.get("adapter") else 0.0
            standing = Standing(route_confidence=confidence)
            parts.append(rows_of(r, alignment, top_k=top_k, standing=standing))
            groups += r.groups()
    fitted = learn(joined(parts), groups, Settings(seed=seed))
    facts = {
        "recordings": [{k: v for k, v in r.facts.items() if k not in keys} for r in recordings]
    }
    return fitted, pair, facts


def _write(fitted: Fitted, pair: Any, facts: dict[str, Any], out: Path | None) -> Path:
    from floe.core.config import home
    from floe.fusion.weights import save_weights, weights_name

    path = out or home() / "fusion" / weights_name(pair.slm)
    save_weights(fitted, path, pair=pair, facts=facts)
    return path


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@app.command("map")
def map_(
    cloud_model: Annotated[str, typer.Argument(help="Name or GGUF of the cloud's model.")],
    out: Annotated[Path | None, typer.Option(help="Folder; default: where it is found.")] = None,
    config: ConfigOption = None,
    model: ModelOption = None,
) -> None:
    """Compute which of the SLM's tokens a cloud's tokenizer parts, from a model that has it.

    Example: floe fusion map qwen2.5-coder-0.5b-instruct
    """
    from dataclasses import replace

    from floe.assemble import open_engine
    from floe.core.config import home
    from floe.fusion.longer import longer_tokens, map_name, save_map

    settings = read_config(config, model=model)
    with progress_bar() as progress:
        slm = open_engine(settings.model, home=home(), progress=progress)
        try:
            llm = open_engine(
                replace(settings.model, name=cloud_model), home=home(), progress=progress
            )
            try:
                longer = longer_tokens(
                    pieces=[slm.token_bytes(t) for t in range(slm.info.n_vocab)],
                    cloud_pieces=[llm.token_bytes(t) for t in range(llm.info.n_vocab)],
                    cloud_tokenize=llm.tokenize,
                )
                pair = (slm.info.tokenizer_digest, llm.info.tokenizer_digest)
            finally:
                llm.close()
        finally:
            slm.close()
    path = (out or home() / "fusion") / map_name(*pair)
    save_map(longer, path, pair=pair)
    say(f"wrote {path}: {sum(map(len, longer.values()))} tokens")


@app.command("show")
def show(
    config: ConfigOption = None, model: ModelOption = None, as_json: JsonOption = False
) -> None:
    """What was learned for this SLM, on which data, and what it won there.

    Example: floe fusion show
    """
    from floe.assemble import open_engine, open_weights
    from floe.core.config import home
    from floe.core.errors import NotFound

    settings = read_config(config, model=model)
    with progress_bar(quiet=as_json) as progress:
        engine = open_engine(settings.model, home=home(), progress=progress)
    try:
        learned = open_weights(settings, engine, home=home())
    finally:
        engine.close()
    if learned is None:
        raise NotFound("nothing was learned for this model; use: floe fusion fit TEXTFILE")
    if as_json:
        print(json.dumps(dict(learned.report)))
        return
    print(f"cloud tokenizer  {learned.pair.cloud_tokenizer[:12]}")
    for name, value in learned.report["validation_bits_per_byte"].items():
        print(f"{name:<16} {value:.4f} bits per byte")
