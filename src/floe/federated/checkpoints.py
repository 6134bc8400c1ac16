"""A training run on disk: one file, replaced whole, so a killed run goes on bit for bit.

Arrays lie in safetensors, counters as JSON in its header; there is never a pickle.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from floe.core.errors import BadRequest
from floe.core.files import atomic_write

FILE_NAME = "training.safetensors"
_KEY = "floe_training"


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """A run after `step` steps.

    `run` is a digest of all that decides it (settings, seed, data, start, base); `facts` are JSON.
    """

    run: str
    step: int
    arrays: Mapping[str, NDArray[np.float32]]
    facts: Mapping[str, Any] = field(default_factory=dict)


class Checkpoints:
    """The last checkpoint of one folder."""

    def __init__(self, folder: Path, *, every_steps: int = 10, strict: bool = False) -> None:
        """`strict` refuses a checkpoint of another run, which is else passed over."""
        if every_steps < 1:
            raise ValueError("every_steps must be at least 1")
        self.path = folder / FILE_NAME
        self.every_steps = every_steps
        self._strict = strict

    def load(self, run: str) -> Checkpoint | None:
        """Where `run` stopped, None if it never got to a checkpoint.

        Raises:
            BadRequest: the file is damaged, or of another run while that is not allowed.
        """
        if not self.path.is_file():
            return None
        found = self._read()
        if found.run == run:
            return found
        if self._strict:
            raise BadRequest(
                f"{self.path} is of another run: its data, settings, seed or base differ. Train "
                "without --resume to begin anew",
                param="resume",
            )
        return None

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the file; after a crash either the old or the new one is there, whole."""
        head = {"run": checkpoint.run, "step": checkpoint.step, "facts": dict(checkpoint.facts)}
        arrays = {k: np.ascontiguousarray(v) for k, v in checkpoint.arrays.items()}
        data = safetensors.numpy.save(arrays, metadata={_KEY: json.dumps(head)})
        with atomic_write(self.path) as file:
            file.write(data)

    def clear(self) -> None:
        """Forget it."""
        self.path.unlink(missing_ok=True)

    def _read(self) -> Checkpoint:
        data = self.path.read_bytes()
        try:
            arrays = safetensors.numpy.load(data)
            (size,) = struct.unpack_from("<Q", data)
            head = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][_KEY])
            return Checkpoint(
                run=str(head["run"]),
                step=int(head["step"]),
                arrays=arrays,
                facts=dict(head["facts"]),
            )
        except (SafetensorError, struct.error, ValueError, KeyError, TypeError) as error:
            raise BadRequest(
                f"{self.path} is damaged; delete it to begin anew", param="resume"
            ) from error
