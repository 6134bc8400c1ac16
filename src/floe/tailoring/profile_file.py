"""device_profile.json: a device profile on disk.

The owner's limits may be edited by hand; what was measured is under the digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from floe.core.errors import BadPlan
from floe.tailoring.board import Board, refuse_other
from floe.tailoring.json_file import number, optional_number, read_json, text, whole, write_json
from floe.tailoring.latency_table import Grid, LatencyTable, Row
from floe.tailoring.plan import LayerPlan, ModelShape
from floe.tailoring.profile import DeviceProfile, Limits

KIND, VERSION = "device profile", 1
FILE_NAME = "device_profile.json"
_LIMITS = ("memory_budget_mb", "power_budget_w", "latency_slo_ms")
_SEALED = (
    "machine", "engine", "settings", "made_at", "shape", "grid", "table", "measurements",
    "energy", "watts", "kv_token_bytes",
)  # fmt: skip
ENERGY = ("measured", "modelled", "unknown")


def write_profile(path: Path, profile: DeviceProfile) -> str:
    """Write it whole or not at all; gives its digest.

    Raises:
        BadPlan: a figure that is no finite number.
    """
    table = asdict(profile.table)
    shape, grid = table.pop("shape"), table.pop("grid")
    data = {
        **asdict(profile.limits),
        "machine": dict(profile.machine),
        "engine": profile.engine,
        "settings": dict(profile.settings),
        "made_at": profile.made_at,
        "energy": profile.energy,
        "watts": profile.watts,
        "kv_token_bytes": profile.kv_token_bytes,
        "facts": dict(profile.facts),
        "shape": shape,
        "grid": _listed(grid),
        "table": table,
        "measurements": [_row_data(row) for row in profile.rows],
    }
    data["target_tasks"] = list(profile.limits.target_tasks)
    return write_json(path, data, kind=KIND, version=VERSION, sealed=_SEALED)


def read_profile(path: Path, *, here: Board | None, any_board: bool = False) -> DeviceProfile:
    """The profile of a file, of this board unless `any_board`; `here` None = not compared.

    Raises:
        BadPlan: unreadable, damaged, of a newer version, or of another machine or engine.
    """
    data = read_json(path, kind=KIND, version=VERSION, sealed=_SEALED)
    try:
        profile = _profile(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadPlan(
            f"{path} is damaged ({type(error).__name__}: {str(error)[:80]}); profile again with: "
            "floe tailor profile"
        ) from error
    if here is not None:
        made_for = Board(machine=profile.machine, engine=profile.engine)
        refuse_other(f"the profile {path}", made_for, here, any_board=any_board)
    return profile


def _profile(data: Mapping[str, Any]) -> DeviceProfile:
    limits = {key: optional_number(data[key]) for key in _LIMITS}
    if data["energy"] not in ENERGY:
        raise ValueError("energy has an unknown label")
    return DeviceProfile(
        limits=Limits(**limits, target_tasks=tuple(text(t) for t in data["target_tasks"])),
        table=_table(data),
        rows=tuple(_row(row) for row in data["measurements"]),
        machine={text(k): text(v) for k, v in data["machine"].items()},
        engine=text(data["engine"]),
        settings=dict(data["settings"]),
        made_at=text(data["made_at"]),
        energy=data["energy"],
        watts=optional_number(data["watts"]),
        kv_token_bytes=whole(data["kv_token_bytes"]),
        facts=dict(data["facts"]),
    )


def _table(data: Mapping[str, Any]) -> LatencyTable:
    table, shape = data["table"], dict(data["shape"])
    for key, value in shape.items():
        if key not in ("base_digest", "tied_embeddings"):
            whole(value, least=1)
    grid = {key: tuple(value) for key, value in data["grid"].items()}
    energy = table["energy"]
    return LatencyTable(
        shape=ModelShape(**shape),
        grid=Grid(**grid),
        prompt_tokens=whole(table["prompt_tokens"], least=1),
        decode=_costs(table["decode"]),
        prefill=_costs(table["prefill"]),
        energy=None if energy is None else _costs(energy),
        decode_mape=number(table["decode_mape"], least=0.0),
        prefill_mape=number(table["prefill_mape"], least=0.0),
    )


def _costs(data: Mapping[str, Any]) -> dict[str, float]:
    return {text(name): number(value, least=0.0) for name, value in data.items()}


def _row_data(row: Row) -> dict[str, Any]:
    layers = [[one.n_kv_heads, one.q_per_kv, one.n_ffn] for one in row.layers]
    return {**asdict(row), "layers": layers, "quants": dict(row.quants)}


def _row(data: Mapping[str, Any]) -> Row:
    layers = tuple(
        LayerPlan(n_kv_heads=whole(kv), q_per_kv=whole(q), n_ffn=whole(ffn))
        for kv, q, ffn in data["layers"]
    )
    return Row(
        layers=layers,
        quants={text(k): text(v) for k, v in data["quants"].items()},
        n_vocab=whole(data["n_vocab"], least=1),
        depth_tokens=whole(data["depth_tokens"]),
        decode_ms=number(data["decode_ms"], least=0.0),
        prefill_ms=number(data["prefill_ms"], least=0.0),
        energy_mj=optional_number(data["energy_mj"]),
    )


def _listed(grid: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) for key, value in grid.items()}
