"""Which protections go together: what would silently not protect is refused at the start."""

from __future__ import annotations

from collections.abc import Sequence

from floe.core.errors import BadConfig

_CLIENT_NOISE = ("noise-central", "noise-distributed")


def check_shields(
    names: Sequence[str],
    *,
    mode: str,
    aggregation: str = "freeze-a",
    weights: str = "equal",
    secure_sum: bool = False,
    grouped_by_updates: bool = False,
) -> None:
    """Nothing, where the shields `names` (in the device's order) keep what they promise.

    `mode` is the training's. `grouped_by_updates`: clusters are found in the very updates.

    Raises:
        BadConfig: they do not.
    """
    noisy = [n for n in names if n in _CLIENT_NOISE]
    linear = bool(noisy) or secure_sum
    what = noisy[0] if noisy else "secure aggregation"
    if linear and mode != "freeze-a":
        raise BadConfig(
            f'{what} needs mode "freeze-a", not "{mode}": only sums of B over one frozen A are '
            "sums of changes; noise on free factors would bury the product",
            param="mode",
        )
    if linear and "robust" in aggregation:
        raise BadConfig(
            f'{what} needs a plain mean, not "{aggregation}": a robust one looks at single updates',
            param="aggregation",
        )
    if noisy and weights != "equal":
        raise BadConfig(
            f'{what} needs equal weights, not "{weights}": one device would count for more than '
            "the clip norm",
            param="weights",
        )
    if len(noisy) > 1:
        raise BadConfig(f"{noisy[0]} and {noisy[1]} are two ways to one promise: choose one")
    if linear and grouped_by_updates:
        raise BadConfig(
            f"{what} hides single updates, so clusters cannot be found in them: give each device "
            "its cluster, or use one",
            param="clusters",
        )
    if secure_sum and "quantize" in names:
        raise BadConfig(
            "secure aggregation rounds to whole numbers itself: leave quantize out",
            param="quantize",
        )
    if (
        noisy
        and "quantize" in names
        and list(names).index("quantize") < list(names).index(noisy[0])
    ):
        raise BadConfig("quantize comes after the noise: put it last", param="quantize")
