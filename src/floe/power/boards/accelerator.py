"""A LoRA unit and a special-function unit beside a Jetson, by formula: always modelled.

The unit takes the low-rank products, the adapters' swaps and the special functions off the Jetson,
which keeps the large products: what stays is `1 - s` of the software's time. Activations cross PCIe
at every layer; the unit computes while the Jetson does. Only the unit's own clock changes in
nanoseconds (LDO and all-digital PLL); the Jetson's clocks are held at their fastest here.

    time   = (1 - s) t + link + max(0, unit - (1 - s) t)
    power  = k P + unit

`s` and `k` are calibrated on ONE row of CLONE's Table 3, the Nano's; the NX's row is the check
(`ratios`). Where each constant is from:

    28 nm, eNVM store, LDO, PLL, AXI, PCIe   CLONE, section on the accelerator (no tape-out there)
    watt-hours and seconds                   CLONE, Table 3, with and without the accelerator
    s, k                                     calibrated, see above
    PCIe 3.0 x4, 8 GT/s, 128b/130b           the standard; 0.85 of it for headers (assumed)
    AXI 128 bit at the unit's clock          assumed width; one read and one write of activations
    256 multiply-accumulates                 assumed: under 0.5 mm2 of CLONE's 1.588 mm2 in 28 nm
    0.6 to 0.9 V over 200 to 1000 MHz        assumed, usual for 28 nm
    0.15 W at 1000 MHz, 0.01 W leakage       assumed
    100 ns a change of clock                 assumed: CLONE shows LDO transitions, names no figure
    1 us an adapter's swap                   assumed: a change of address in the store
    rank 8 on seven modules                  CLONE's and Floe's usual adapter
    341,469 tokens of WikiText-2's test      Llama's tokeniser, as commonly reported
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from floe.power.base import Board, Domain
from floe.power.boards.jetson import orin_nano, orin_nx
from floe.power.boards.model import BoardModel, Fitted, Vector, grid

UNIT = Domain(name="lora", steps_mhz=(200, 400, 600, 800, 1000))
SWITCH_MS = 1e-4
SWAP_MS = 1e-3
_MACS = 256
_AXI_BYTES = 16
_LINK_BYTES_PER_MS = 4 * 8e9 * (128 / 130) / 8 * 0.85 / 1000
_LOW_V, _HIGH_V = 0.6, 0.9
_UNIT_W, _LEAK_W = 0.15, 0.01
_WIKITEXT_TOKENS = 341_469


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What of a model the unit sees."""

    layers: int
    width: int
    hidden: int
    rank: int = 8
    kv_width: int = 0

    @property
    def macs(self) -> float:
        """Multiply-accumulates of a token's low-rank products, seven modules a layer."""
        d, m, kv = self.width, self.hidden, self.kv_width or self.width
        ends = 2 * (d + d) + 2 * (d + kv) + 3 * (d + m)
        return float(self.layers * self.rank * ends)

    @property
    def bytes_moved(self) -> float:
        """Over the link for a token: 16-bit activations of every layer, there and back."""
        return float(self.layers * 2 * 2 * self.width)


LLAMA_7B = Shape(layers=32, width=4096, hidden=11008)
QWEN_1_5B = Shape(layers=28, width=1536, hidden=8960, kv_width=256)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A board's row of Table 3: a pass over WikiText-2 in software and with the accelerator."""

    software_s: float
    software_wh: float
    unit_s: float
    unit_wh: float


TABLE_3 = {
    "orin-nano": Row(software_s=552.18, software_wh=5.56, unit_s=392.15, unit_wh=3.54),
    "orin-nx": Row(software_s=462.72, software_wh=4.81, unit_s=322.76, unit_wh=3.46),
}
CALIBRATED_ON = "orin-nano"


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """`taken` is s, `power` is k."""

    taken: float
    power: float


@dataclass(frozen=True, kw_only=True)
class Ratios:
    """Accelerator over software, modelled and published."""

    time: float
    time_published: float
    energy: float
    energy_published: float

    @property
    def time_error(self) -> float:
        """In shares of the published ratio."""
        return self.time / self.time_published - 1

    @property
    def energy_error(self) -> float:
        """In shares of the published ratio."""
        return self.energy / self.energy_published - 1


@cache
def calibration() -> Calibration:
    """s and k that give the calibrated row exactly."""
    row = TABLE_3[CALIBRATED_ON]
    software_ms = 1000 * row.software_s
    link_ms = float(_link_ms(LLAMA_7B, _WIKITEXT_TOKENS)[-1])
    taken = 1 - (1000 * row.unit_s - link_ms) / software_ms
    software_w, unit_w = (3600 * row.software_wh / row.software_s), 3600 * row.unit_wh / row.unit_s
    return Calibration(taken=taken, power=(unit_w - float(unit_watts()[-1])) / software_w)


def ratios(board: str) -> Ratios:
    """The pass over WikiText-2 on "orin-nano" (calibrated) or "orin-nx" (the check)."""
    row, how = TABLE_3[board], calibration()
    made_ms = float(_step_ms(1000 * row.software_s, LLAMA_7B, _WIKITEXT_TOKENS, how)[-1])
    made_w = how.power * 3600 * row.software_wh / row.software_s + float(unit_watts()[-1])
    return Ratios(
        time=made_ms / 1000 / row.software_s,
        time_published=row.unit_s / row.software_s,
        energy=made_w * made_ms / 1000 / 3600 / row.software_wh,
        energy_published=row.unit_wh / row.software_wh,
    )


@cache
def accelerated(board: str) -> Fitted:
    """The Jetson "orin-nano" or "orin-nx" with the unit, serving Qwen2.5-1.5B."""
    base = (orin_nano() if board == "orin-nano" else orin_nx()).model
    how, at = calibration(), base.fastest
    prefill_w, decode_w = (how.power * float(w[at]) for w in (base.prefill_w_S, base.decode_w_S))
    layer_ms = float(base.decode_ms(0)[at]) / QWEN_1_5B.layers
    model = BoardModel(
        board=Board(
            name=f"{base.board.name}-lora-unit",
            domains=(UNIT,),
            facts={
                "layers": QWEN_1_5B.layers,
                "layer_ms": layer_ms,
                "switch_share_of_layer": SWITCH_MS / layer_ms,
                "jetson_switch_share_of_layer": base.switch_ms / layer_ms,
                "swap_ms": SWAP_MS,
            },
        ),
        settings_SD=grid((UNIT,)),
        prefill_ms=lambda n: _step_ms(float(base.prefill_ms(n)[at]), QWEN_1_5B, max(n, 1), how),
        decode_ms=lambda context: _step_ms(float(base.decode_ms(context)[at]), QWEN_1_5B, 1, how),
        prefill_w_S=prefill_w + unit_watts(),
        decode_w_S=decode_w + unit_watts(),
        idle_w_S=np.full(len(UNIT.steps_mhz), float(base.idle_w_S[at]) + _LEAK_W),
        switch_ms=SWITCH_MS,
        thermal=replace(base.thermal),
    )
    return Fitted(
        model=model,
        latency_mape=None,
        power_mape=None,
        notes={
            "source": "CLONE, Table 3 and the accelerator's section; see boards/accelerator.py",
            "calibrated_on": CALIBRATED_ON,
            "time_error_of_check": ratios("orin-nx").time_error,
            "energy_error_of_check": ratios("orin-nx").energy_error,
        },
    )


def unit_watts() -> Vector:
    """The unit's power at each of its clocks: leakage and C V^2 f."""
    mhz = np.array(UNIT.steps_mhz, dtype=np.float64)
    low, high = mhz[0], mhz[-1]
    volts = _LOW_V + (_HIGH_V - _LOW_V) * (mhz - low) / (high - low)
    made: Vector = _LEAK_W + (_UNIT_W - _LEAK_W) * (volts / _HIGH_V) ** 2 * mhz / high
    return made


def _link_ms(shape: Shape, tokens: int) -> Vector:
    """PCIe, and AXI at each clock of the unit, one after the other."""
    moved = shape.bytes_moved * tokens
    axi_bytes_per_ms = _AXI_BYTES * np.array(UNIT.steps_mhz) * 1e3
    made: Vector = moved / _LINK_BYTES_PER_MS + moved / axi_bytes_per_ms
    return made


def _step_ms(software_ms: float, shape: Shape, tokens: int, how: Calibration) -> Vector:
    """Milliseconds at each clock of the unit."""
    kept_ms = (1 - how.taken) * software_ms
    unit_ms = shape.macs * tokens / (_MACS * np.array(UNIT.steps_mhz) * 1e3)
    made: Vector = kept_ms + _link_ms(shape, tokens) + np.maximum(0.0, unit_ms - kept_ms)
    return made
