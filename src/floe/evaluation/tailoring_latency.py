"""Part of `floe bench tailoring`: the device's table against plans it has not seen, in the engine.

Plans are drawn at random, as searches draw them, and timed as models of random weights.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from floe.assemble.originals import Original
from floe.assemble.tailoring import Profiler
from floe.evaluation.tailoring_setup import Figures, Say, Setup, open_setup
from floe.tailoring.base import Budgets
from floe.tailoring.genes import Choices
from floe.tailoring.memory import built_layers
from floe.tailoring.plan import GROUPS, Plan
from floe.tailoring.probes import write_probe
from floe.tailoring.profile import DeviceProfile, check_table
from floe.tailoring.profile_file import read_profile, write_profile
from floe.tailoring.space import Space

FULL_QUANTS, QUICK_QUANTS = ("F16", "Q8_0", "Q5_1", "Q4_1", "Q4_0"), ("F16",)
_DEEP_TOKENS = 512


def latency_figures(full: bool, say: Say) -> Figures:
    """`latency_model_mape` of decoding, `_prefill` of prompts, over held-out plans."""
    setup = open_setup(full)
    device = device_of(setup, say)
    quants = FULL_QUANTS if full else QUICK_QUANTS
    plans = held_out_plans(device, quants, n=12 if full else 4)
    with tempfile.TemporaryDirectory(prefix="floe-tailoring-") as folder:
        found = check_table(
            device.table, plans, setup.timer(), base=setup.original.gguf, folder=Path(folder),
            rounds=3 if full else 2,
        )  # fmt: skip
    say(f"the table is off by {found['decode_mape']:.1%} a token on {len(plans)} plans")
    return {
        "latency_model_mape": found["decode_mape"],
        "latency_model_mape_prefill": found["prefill_mape"],
        "latency_model_fit_mape": device.table.decode_mape,
        "latency_model_plans": len(plans),
        "latency_model_quants": ",".join(quants),
    }


def device_of(setup: Setup, say: Say) -> DeviceProfile:
    """The profile of this machine, kept in the results."""
    path = setup.results / "device_profile.json"
    if path.is_file():
        return read_profile(path, here=None)
    original: Original = setup.original
    say("profiling the device")
    profiler = Profiler(model=original.gguf, shape=original.shape, timer=setup.timer())
    quants = FULL_QUANTS if setup.full else QUICK_QUANTS
    found = profiler.run(quants=quants, limit_s=90.0 if setup.full else 4.0)
    write_profile(path, found)
    return found


def held_out_plans(device: DeviceProfile, quants: tuple[str, ...], *, n: int) -> list[Plan]:
    """Random plans between the smallest model's time and the whole one's, each in one type."""
    costs = device.costs()
    rng = np.random.default_rng(11)
    out = []
    for i in range(n):
        types = dict.fromkeys(GROUPS, quants[i % len(quants)])
        choices = Choices(fixed_quants=types, ffn_step=128)
        free = Space(shape=device.shape, cost=costs, budgets=Budgets(), choices=choices)
        least, most = (costs.cost(free.plan(x)).decode_ms for x in (free.lowest, free.highest))
        budgets = Budgets(decode_ms=least + rng.uniform(0.3, 0.9) * (most - least))
        space = Space(shape=device.shape, cost=costs, budgets=budgets, choices=choices)
        out.append(space.plan(space.random(rng)))
    return out


class EngineMeasure:
    """Decode milliseconds of a plan's sizes in F16 in the serving engine, by random weights.

    Implements tailoring_search.MeasureLatency; a plan seen before is looked at once more only
    where `again`, and the quietest look counts.
    """

    def __init__(self, setup: Setup, *, again: bool) -> None:
        """`again`: every question is another look."""
        self._setup, self._again = setup, again
        self._known: dict[str, float] = {}

    def __call__(self, plan: Plan) -> float:
        """Milliseconds a token."""
        key = repr(plan.layers)
        if key in self._known and not self._again:
            return self._known[key]
        with tempfile.TemporaryDirectory(prefix="floe-tailoring-") as folder:
            path = Path(folder) / "plan.gguf"
            write_probe(
                path, self._setup.original.shape, built_layers(plan),
                dict.fromkeys(GROUPS, "F16"), context_tokens=_DEEP_TOKENS,
                base=self._setup.original.gguf,
            )  # fmt: skip
            found = self._setup.timer(decode_tokens=24, repeats=1)(path).decode_ms
        self._known[key] = min(found, self._known.get(key, found))
        return self._known[key]


def search_part(full: bool, say: Say) -> Figures:
    """Searches and baselines at the same decode time; see `tailoring_search`."""
    from floe.evaluation.tailoring_search import search_figures

    setup = open_setup(full)
    device = device_of(setup, say)
    return search_figures(
        setup.whole.folder, full=full, results=setup.results / "search",
        costs=lambda _shape: device.costs(), wikitext=setup.wikitext,
        base_digest=setup.original.shape.base_digest,
        measure=EngineMeasure(setup, again=full), say=say,
    )  # fmt: skip
