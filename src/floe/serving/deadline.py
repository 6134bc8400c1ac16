"""The `floe` object of a request: may the cloud be used, how long and how costly may things be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from floe.core.errors import BadRequest
from floe.core.request import Budgets, DvfsMode, PowerWish
from floe.serving import fields

MOST_MS = 86_400_000
MOST_W = 10_000
_BUDGETS = {
    "token_budget_ms": ("token_ms", 0),
    "first_token_budget_ms": ("first_token_ms", 0),
    "deadline_ms": ("deadline_ms", 1),
}
_POWER = ("latency_slo", "power_budget", "dvfs_mode")


def extension_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `floe` that have a value.

    Raises:
        BadRequest: not an object, or a field that is not known.
    """
    extension = fields.members(given.get("floe", {}), "floe")
    fields.only(extension, {"cloud", *_BUDGETS, *_POWER}, where="floe.")
    return {name: value for name, value in extension.items() if value is not None}


def may_use_cloud(extension: Mapping[str, Any]) -> bool:
    """Whether the caller lets the cloud take part. Raises BadRequest for what is no boolean."""
    return fields.boolean(extension.get("cloud", True), "floe.cloud")


def budgets_of(extension: Mapping[str, Any]) -> Budgets:
    """The waits that the caller asks for, in milliseconds.

    Raises:
        BadRequest: naming the field whose value is no number of milliseconds within a day.
    """
    values = {
        field: fields.number(extension[name], f"floe.{name}", low=low, high=MOST_MS)
        for name, (field, low) in _BUDGETS.items()
        if name in extension
    }
    return Budgets(**values)


def power_of(extension: Mapping[str, Any]) -> PowerWish:
    """What the caller asks of power: milliseconds a token, watts, a mode.

    Raises:
        BadRequest: naming the field that is wrong.
    """
    latency = extension.get("latency_slo")
    budget = extension.get("power_budget")
    mode = extension.get("dvfs_mode")
    if mode is not None and mode not in get_args(DvfsMode):
        known = ", ".join(get_args(DvfsMode))
        raise BadRequest(f"floe.dvfs_mode must be one of {known}", param="floe.dvfs_mode")
    if latency is not None:
        latency = fields.number(latency, "floe.latency_slo", low=0.1, high=MOST_MS)
    if budget is not None:
        budget = fields.number(budget, "floe.power_budget", low=0.1, high=MOST_W)
    return PowerWish(latency_slo_ms=latency, power_budget_w=budget, dvfs_mode=mode)
