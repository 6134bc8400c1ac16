"""What the apps' processes are told: one JSON file, written by who starts them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from floe.core.files import atomic_write
from floe.core.sections import FederatedConfig


@dataclass(frozen=True, kw_only=True)
class AppSettings:
    """`home` is FLOE_HOME, `model` the model's name where the table gives no base. `rank` is a
    device's own. `simulated`: how many devices one machine plays, 0 = a real federation."""

    home: str
    model: str
    federated: FederatedConfig
    rank: int = 0
    simulated: int = 0

    def write(self, path: Path) -> None:
        """Into a file that only its owner can read."""
        with atomic_write(path) as file:
            file.write(json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def read(cls, path: Path) -> AppSettings:
        """What `write` wrote."""
        data = json.loads(path.read_text(encoding="utf-8"))
        table = data.pop("federated")
        return cls(**data, federated=FederatedConfig(**{**table, "ranks": tuple(table["ranks"])}))
