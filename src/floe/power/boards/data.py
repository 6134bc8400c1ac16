"""The measurements that the board models stand on, as shipped (see data/NOTICE.md)."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def measurements(name: str) -> dict[str, Any]:
    """The object in data/NAME.json."""
    text = (files("floe.power.boards") / "data" / f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
