"""What a user hands in, a PEFT folder or a GGUF file, with the notes that lie beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from floe.adapters.formats import read_lora_gguf
from floe.adapters.lora import LoraTensors, refuse
from floe.adapters.manifest import centroid_of
from floe.adapters.peft import CONFIG, WEIGHTS, read_peft
from floe.adapters.statement import Seal, parse_seal
from floe.core.adapter import Centroid
from floe.core.errors import BadAdapter
from floe.core.model import ModelInfo

Fact = float | int | str | None

SIGNATURE = "signature.json"
_MAX_NOTE_BYTES = 1 << 20
_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """An adapter read and checked, not yet stored."""

    lora: LoraTensors
    description: str = ""
    centroid: Centroid | None = None
    facts: dict[str, Fact] = field(default_factory=dict)
    seal: Seal | None = None


def shipped() -> Iterator[Path]:
    """Folders of the adapters that come with Floe, by name."""
    root = Path(__file__).parent / "shipped"
    if root.is_dir():
        yield from sorted(p for p in root.iterdir() if (p / CONFIG).is_file())


def existing(path: Path) -> Path:
    """The absolute path. Raises BadAdapter if nothing is there, with the path as it was given."""
    if not path.expanduser().exists():
        raise BadAdapter(_unknown(path))
    return path.expanduser().resolve()


def signed_name(path: Path) -> str:
    """The name that was signed with the folder; "" where nothing was, or nothing readable."""
    data = _note(path / SIGNATURE, []) if path.is_dir() else None
    try:
        return parse_seal(data).statement.name if data is not None else ""
    except (ValueError, TypeError, KeyError, AttributeError):
        return ""  # `read_source` says what is wrong with it


def read_source(path: Path, model: ModelInfo, *, any_base: bool = False) -> Source:
    """The adapter at `path`; centroid.json, card.json and signature.json in its folder too.

    Raises:
        BadAdapter: with what is wrong and what to do; nothing was changed.
    """
    path = path.expanduser()
    if path.is_dir():
        folder = path
        lora = read_peft(path, model, any_base=any_base)
    elif path.suffix.lower() == ".gguf" and path.is_file():
        folder = path.parent
        lora = read_lora_gguf(path, model, any_base=any_base)
        return Source(lora=lora, facts={"format": "gguf"})
    else:
        raise BadAdapter(_unknown(path))
    faults: list[str] = []
    centroid, card = None, _note(folder / "card.json", faults)
    if (data := _note(folder / "centroid.json", faults)) is not None:
        try:
            centroid = centroid_of(data)
        except ValueError as error:
            faults.append(f"centroid.json: {error}")
    seal = None
    if (data := _note(folder / SIGNATURE, faults)) is not None:
        try:
            seal = parse_seal(data)
        except (ValueError, TypeError, KeyError, AttributeError):
            faults.append(f"{SIGNATURE}: is damaged. Copy it again, or remove it")
    facts: dict[str, Fact] = {"format": "peft"}
    if card is not None and not isinstance(card, dict):
        faults.append("card.json: must be an object of facts")
    elif card:
        facts |= {k: v for k, v in card.items() if isinstance(v, float | int | str | None)}
    if lora.notes:
        facts["notes"] = "; ".join(lora.notes)
    refuse(str(path), faults)
    description = str(facts.pop("description", None) or "")
    return Source(lora=lora, description=description, centroid=centroid, facts=facts, seal=seal)


def _note(path: Path, faults: list[str]) -> Any:
    """A small JSON file, or None where there is none."""
    if not path.exists():
        return None
    if not (path.is_file() or path.is_dir()):
        faults.append(f"{path.name}: is no regular file")
        return None
    try:
        if path.stat().st_size > _MAX_NOTE_BYTES:
            faults.append(f"{path.name}: larger than {_MAX_NOTE_BYTES} bytes")
            return None
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (OSError, ValueError, RecursionError):
        faults.append(f"{path.name}: cannot be read as JSON")
        return None


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _unknown(path: Path) -> str:
    expected = f"expected a PEFT folder ({CONFIG}, {WEIGHTS}) or a .gguf file"
    if path.suffix.lower() in _PICKLED:
        return (
            f"{path} is a pickle, which can run code when loaded and is never opened. "
            f"Save the adapter with PEFT and safe_serialization=True; {expected}"
        )
    if path.suffix == ".safetensors":
        return f"{path} lacks its config: give the folder that holds it; {expected}"
    if not path.expanduser().exists():
        return f"there is nothing at {path}; {expected}"
    return f"{path} is not an adapter; {expected}"
