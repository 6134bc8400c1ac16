"""The engine's settings for a device, found by measuring: one setting after the other.

Candidates of a setting are looked at in turns, forwards and backwards, with what is best so far
among them, and the quietest look counts: what else the machine does hits all of them. A change
must be worth more than the noise seen, so a tie keeps what there was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from floe.core.errors import BadPlan, FloeError

MIN_GAIN = 0.02  # a setting must be this much better to be changed
Told = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the engine runs a model; `threads` 0 = all cores."""

    threads: int = 0
    batch_tokens: int = 512
    kv_type: str = "F16"
    flash_attention: bool = True
    context_tokens: int = 2048


@dataclass(frozen=True, kw_only=True)
class Look:
    """One measurement under some settings: a prompt, a token, the cache's bytes."""

    prefill_ms: float
    decode_ms: float
    kv_bytes: int


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is made fast: the time of a request of so many tokens, in and out."""

    prompt_tokens: int = 128
    answer_tokens: int = 96

    def cost_ms(self, look: Look, *, prompt_tokens: int) -> float:
        """Milliseconds a request takes; `look.prefill_ms` is for `prompt_tokens`."""
        prompt_ms = look.prefill_ms * self.prompt_tokens / prompt_tokens
        return prompt_ms + look.decode_ms * self.answer_tokens


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A candidate of the search: milliseconds of the workload's request, and why it was refused."""

    settings: Settings
    cost_ms: float | None
    refused: str = ""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The best settings, what they cost and all that was tried.

    `start_ms`: what the start cost when it was first looked at, None where it cannot be run.
    """

    settings: Settings
    cost_ms: float
    start_ms: float | None
    tried: tuple[Tried, ...]


def candidates(*, cores: int, kv_budget_bytes: int | None = None) -> dict[str, tuple[Any, ...]]:
    """The values worth a look on a machine with so many cores.

    A Q8_0 cache is tried only where memory is short: it saves bytes, hardly time.
    """
    threads = {1, cores, max(1, cores // 2), max(1, cores - 1)}
    return {
        "threads": tuple(sorted(threads)),
        "flash_attention": (True, False),
        "kv_type": ("F16", "Q8_0") if kv_budget_bytes is not None else ("F16",),
        "batch_tokens": (128, 256, 512),
    }


def tune(
    space: Mapping[str, Sequence[Any]],
    measure: Callable[[Settings], Look],
    *,
    start: Settings,
    prompt_tokens: int,
    workload: Workload | None = None,
    kv_budget_bytes: int | None = None,
    rounds: int = 3,
    sweeps: int = 2,
    told: Told = lambda _text: None,
) -> Tuned:
    """Coordinate search from `start`; settings whose cache is over the budget do not count.

    A second sweep looks again at settings that hang together; it ends early when nothing changed.
    What the engine refuses is noted and left out.

    Raises:
        BadPlan: an unknown setting, or not even the start can be run within the budget.
    """
    _check_space(space)
    work = workload or Workload()
    seen: dict[Settings, Tried] = {}

    def look_at(choices: Sequence[Settings]) -> None:
        looks: dict[Settings, list[Look]] = {c: [] for c in choices}
        refused: dict[Settings, str] = {}
        for turn in range(rounds):
            for one in choices if turn % 2 == 0 else list(reversed(choices)):
                if one not in refused:
                    try:
                        looks[one].append(measure(one))
                    except FloeError as error:
                        refused[one] = error.message
        for one, found in looks.items():
            seen[one] = _tried(one, found, refused.get(one, ""), work, prompt_tokens,
                               kv_budget_bytes)  # fmt: skip

    best = start
    look_at([start])
    start_ms = seen[start].cost_ms
    for _ in range(sweeps):
        before = best
        for name, values in space.items():
            choices = list(dict.fromkeys([best, *(replace(best, **{name: v}) for v in values)]))
            if len(choices) > 1:
                look_at(choices)
                best = _better(best, choices, seen)
                told(f"{name}: {asdict(best)[name]}")
        if best == before:
            break
    found_ms = seen[best].cost_ms
    if found_ms is None:
        raise BadPlan(
            f"no settings of the engine can run this model here: {seen[best].refused}. Raise the "
            "memory budget, or shorten the context"
        )
    return Tuned(settings=best, cost_ms=found_ms, start_ms=start_ms, tried=tuple(seen.values()))


def _check_space(space: Mapping[str, Sequence[Any]]) -> None:
    known = asdict(Settings())
    for name in space:
        if name not in known:
            raise BadPlan(f"the engine has no setting {name!r}; it has {', '.join(known)}")


def _tried(
    settings: Settings,
    looks: Sequence[Look],
    refused: str,
    work: Workload,
    prompt_tokens: int,
    kv_budget_bytes: int | None,
) -> Tried:
    if refused or not looks:
        return Tried(settings=settings, cost_ms=None, refused=refused)
    kv_bytes = max(look.kv_bytes for look in looks)
    if kv_budget_bytes is not None and kv_bytes > kv_budget_bytes:
        why = f"its cache takes {kv_bytes} bytes, the budget leaves {kv_budget_bytes}"
        return Tried(settings=settings, cost_ms=None, refused=why)
    quiet = Look(
        prefill_ms=min(look.prefill_ms for look in looks),
        decode_ms=min(look.decode_ms for look in looks),
        kv_bytes=kv_bytes,
    )
    return Tried(settings=settings, cost_ms=work.cost_ms(quiet, prompt_tokens=prompt_tokens))


def _better(
    best: Settings, choices: Sequence[Settings], seen: Mapping[Settings, Tried]
) -> Settings:
    known = {c: cost for c in choices if (cost := seen[c].cost_ms) is not None}
    if not known:
        return best
    winner = min(known, key=lambda c: known[c])
    if best in known and known[winner] > (1 - MIN_GAIN) * known[best]:
        return best
    return winner
