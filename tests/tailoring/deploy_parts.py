"""Parts of `deploy` without a model: every step writes a small file in place of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from floe.core.errors import NotFound
from floe.deploy import Carried, Order, Parts, Pruned
from floe.tailoring.base import Cost
from floe.tailoring.board import Board
from floe.tailoring.child_load import Loaded
from floe.tailoring.cut import whole_cut
from floe.tailoring.logit_check import LogitCheck
from floe.tailoring.plan import ModelShape
from floe.tailoring.plan_file import PlanFile, write_cut
from floe.tailoring.shapes import whole_plan
from floe.tailoring.tune import Settings

BOARD = Board(machine={"cpu": "made up"}, engine="made up")


def order_of(shape: ModelShape, **more: Any) -> Order:
    return Order(
        name="small", base_digest=shape.base_digest, base_names=("large",),
        plan=PlanFile(plan=whole_plan(shape)), **more,
    )  # fmt: skip


def stub_parts(shape: ModelShape, *, after: float = 30.0) -> Parts:
    def perplexity(model: Any, quants: Mapping[str, str]) -> float:
        return 20.0 if model is None else after if quants or after != 30.0 else 30.0

    def export_hf(_model: Any, target: Path, cut: Any) -> None:
        target.mkdir()
        (target / "model.safetensors").write_bytes(b"weights")
        write_cut(target / "floe_cut.json", cut)

    def carry(names: Any, _pruned: Any, _model: Any, folder: Path, _told: Any) -> Any:
        for name in names:
            (folder / name).mkdir(parents=True)
        return tuple(Carried(name=n, modules=1, modules_before=2, max_error=0.0) for n in names)

    def no_plan(_told: Any) -> PlanFile:
        raise NotFound("no plan")

    return Parts(
        find_plan=no_plan,
        prune=lambda _plan: Pruned(model="small", cut=whole_cut(shape)),
        recover=None,
        perplexity=perplexity,
        export_hf=export_hf,
        export_gguf=lambda _hf, path, _name: path.write_bytes(b"gguf") and None,
        check_logits=lambda *_: LogitCheck(
            is_ok=True, max_error=1e-4, greedy_same=8, greedy_tokens=8, tolerance=0.01
        ),
        quantize=lambda _model, source, target, *_: (
            target.write_bytes(source.read_bytes()) and None
        ),
        try_file=lambda _: Loaded(tokens=(1, 2), n_vocab=9, rss_bytes=None, load_ms=1.0),
        find_adapters=lambda names: names,
        carry=carry,
        tune=lambda *_: Settings(threads=1),
        measure=lambda *_: Cost(prefill_ms=1.0, decode_ms=1.0, memory_bytes=10, source="measured"),
        board=lambda: BOARD,
    )
