"""Values of a JSON object, checked one by one; messages name the field, never quote the value."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from floe.core.errors import BadRequest


def shown(key: str) -> str:
    """A key fit to print: ASCII, at most 64 characters."""
    plain = ascii(key)[1:-1]
    return plain if len(plain) <= 64 else plain[:61] + "..."


def only(given: Mapping[str, Any], known: Collection[str], *, where: str = "") -> None:
    """Refuse a key that is not known, with the nearest one that is."""
    for key in given:
        if key in known:
            continue
        near = difflib.get_close_matches(key[:64], known, n=1)
        hint = f'did you mean "{where}{near[0]}"?' if near else "remove it"
        name = where + shown(key)
        raise BadRequest(f'unknown field "{name}": {hint}', param=name)


def members(value: Any, param: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise BadRequest(f"{param} must be an object", param=param)
    return value


def elements(value: Any, param: str, *, least: int, most: int) -> list[Any]:
    """A JSON array of `least` to `most` elements."""
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise BadRequest(f"{param} must be an array of {least} to {most} elements", param=param)
    return value


def text(value: Any, param: str, *, least: int = 0, most: int | None = None) -> str:
    """A string of Unicode scalar values (no lone surrogates)."""
    if not isinstance(value, str):
        raise BadRequest(f"{param} must be a string", param=param)
    if len(value) < least:
        raise BadRequest(f"{param} must not be empty", param=param)
    if most is not None and len(value) > most:
        raise BadRequest(f"{param} must have at most {most} characters", param=param)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRequest(
            f"{param} holds a lone surrogate (half of a UTF-16 pair): send valid Unicode",
            param=param,
        ) from None
    return value


def boolean(value: Any, param: str) -> bool:
    """true or false, nothing that only looks like it."""
    if not isinstance(value, bool):
        raise BadRequest(f"{param} must be true or false", param=param)
    return value


def integer(value: Any, param: str, *, low: int, high: int) -> int:
    """A whole number in [low, high]; true is not 1."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadRequest(f"{param} must be a whole number from {low} to {high}", param=param)
    return value


def number(value: Any, param: str, *, low: float, high: float) -> float:
    """A finite number in [low, high]; true is not 1."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if not fits:
        raise BadRequest(f"{param} must be a number from {low:g} to {high:g}", param=param)
    return float(value)
