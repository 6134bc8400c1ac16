"""What may leave the device, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Action = Literal["local", "mask", "allow"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A private span: [start, end) in code points of the original text of `field`."""

    entity: str
    field: str
    start: int
    end: int
    score: float
    recogniser: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`allow` = the text may leave; `local` = it stays. The reason never quotes the text.

    `mask` = it may leave once every found value has given way to a placeholder.
    """

    action: Action
    reason: str
    findings: tuple[Finding, ...] = ()

    @property
    def may_leave(self) -> bool:
        """Whether the text may leave the device as it is."""
        return self.action == "allow"
