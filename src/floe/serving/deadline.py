"""The `floe` object of a request: may the cloud be used, and how long may things take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floe.core.request import Budgets
from floe.serving import fields

MOST_MS = 86_400_000
_BUDGETS = {
    "token_budget_ms": ("token_ms", 0),
    "first_token_budget_ms": ("first_token_ms", 0),
    "deadline_ms": ("deadline_ms", 1),
}


def extension_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `floe` that have a value.

    Raises:
        BadRequest: not an object, or a field that is not known.
    """
    extension = fields.members(given.get("floe", {}), "floe")
    fields.only(extension, {"cloud", *_BUDGETS}, where="floe.")
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
