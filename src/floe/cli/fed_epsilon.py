"""`floe fed epsilon`: planning questions about privacy, answered before anything is trained."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floe.cli.common import JsonOption

if TYPE_CHECKING:
    from floe.federated.sampling import Mechanism

TABLE_RATES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 1.0)
QUOTED_EPSILON = 3.0
_MOST_STEPS = 1_000_000


def epsilon(
    rate: Annotated[float, typer.Option(help="Share of members in a step (examples or clients).")],
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 1,
    noise: Annotated[
        float | None, typer.Option(help="Noise's standard deviation over the clip norm.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Noised steps in a round; 1 for client level.")] = 1,
    delta: Annotated[float, typer.Option(help="delta of the promise.")] = 1e-5,
    target_epsilon: Annotated[
        float | None, typer.Option(help="Ask for the noise, or with --noise for the rounds.")
    ] = None,
    adjacency: Annotated[
        str, typer.Option(help="Neighbours: add_remove or replace_one.")
    ] = "add_remove",
    sampling: Annotated[
        str, typer.Option(help="How members are drawn: poisson, fixed, shuffled or all.")
    ] = "poisson",
    as_json: JsonOption = False,
) -> None:
    """Print epsilon of noise, rate and rounds, or what a target epsilon asks for.

    With --noise alone: the epsilon, and a table of the rates at which this noise stays within 3.
    With --target-epsilon: the least noise; with both: how many rounds fit.

    Example: floe fed epsilon --noise 0.5 --rate 0.01 --rounds 100 --delta 1e-5
    """
    from floe.core.errors import BadConfig
    from floe.federated.accountant import noise_for, rounds_within
    from floe.federated.sampling import Mechanism, Sampling

    drawn = Sampling(kind=sampling, rate=rate)  # type: ignore[arg-type]
    terms: dict[str, Any] = {"delta": delta, "adjacency": adjacency}
    out: dict[str, Any] = {
        "noise": noise, "rate": rate, "rounds": rounds, "steps": steps, "sampling": sampling,
        **terms, "target_epsilon": target_epsilon,
    }  # fmt: skip
    if rounds < 1 or steps < 1 or rounds * steps > _MOST_STEPS:
        raise BadConfig(
            f"rounds and steps are whole numbers from 1, together at most {_MOST_STEPS:,}",
            param="rounds",
        )
    if noise is None and target_epsilon is None:
        raise BadConfig("say --noise, or --target-epsilon, or both", param="noise")
    if noise is None:
        assert target_epsilon is not None
        asked = noise_for(target_epsilon, sampling=drawn, steps=rounds * steps, **terms)
        out["noise_needed"] = asked
        out["epsilon"] = _cost(
            Mechanism(noise_multiplier=asked, sampling=drawn, steps=steps), rounds, terms
        )
    else:
        one = Mechanism(noise_multiplier=noise, sampling=drawn, steps=steps)
        out["epsilon"] = _cost(one, rounds, terms)
        if target_epsilon is not None:
            out["rounds_allowed"] = rounds_within(target_epsilon, one, **terms)
        else:
            out["table"] = _table(one, rounds, terms)
    if as_json:
        print(json.dumps(_finite(out)))
    else:
        _print(out)


def _finite(value: Any) -> Any:
    """The same with None for an infinite epsilon, which JSON has no word for."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def _cost(one: Mechanism, rounds: int, terms: dict[str, Any]) -> float:
    from floe.federated.accountant import epsilon as cost

    return cost([one] * rounds if one.sampling.kind == "shuffled" else [_times(one, rounds)],
                **terms)  # fmt: skip


def _times(one: Mechanism, rounds: int) -> Mechanism:
    from dataclasses import replace

    return replace(one, steps=one.steps * rounds)


def _table(one: Mechanism, rounds: int, terms: dict[str, Any]) -> list[dict[str, float | bool]]:
    """The same noise and rounds at other rates: where the quoted epsilon holds."""
    from dataclasses import replace

    from floe.federated.sampling import Sampling

    kind, rows = one.sampling.kind, []
    for rate in sorted({*TABLE_RATES, one.sampling.rate} if kind != "all" else {1.0}):
        found = _cost(replace(one, sampling=Sampling(kind=kind, rate=rate)), rounds, terms)
        rows.append({"rate": rate, "epsilon": found, "within": found <= QUOTED_EPSILON})
    return rows


def _print(out: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from floe.federated.accountant import MAX_ROUNDS

    console = Console(highlight=False, width=100)
    what = f'{out["rounds"]} rounds of {out["steps"]}, "{out["sampling"]}" at rate {out["rate"]:g}'
    terms = f"delta {out['delta']:g}, {out['adjacency']}"
    if "noise_needed" in out:
        console.print(
            f"noise {out['noise_needed']:.4g} keeps {what} within epsilon "
            f"{out['target_epsilon']:g} ({terms})"
        )
        return
    console.print(f"epsilon {out['epsilon']:.4g} for noise {out['noise']:g}, {what} ({terms})")
    if "rounds_allowed" in out:
        more = "or more " if out["rounds_allowed"] >= MAX_ROUNDS else ""
        console.print(
            f"{out['rounds_allowed']} {more}such rounds fit in epsilon {out['target_epsilon']:g}"
        )
    if "table" in out:
        table = Table("rate", "epsilon", f"within {QUOTED_EPSILON:g}")
        for row in out["table"]:
            table.add_row(
                f"{row['rate']:g}", f"{row['epsilon']:.3g}", "yes" if row["within"] else "no"
            )
        console.print(table)
