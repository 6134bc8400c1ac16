"""A cache of names only: what a policy would have held and paid, had it been in charge."""

from __future__ import annotations

from floe.adapters.policy import ReplacementPolicy, Use


class Ghost:
    """One policy with the bytes it would keep. `loss_ms` is what its last request cost it."""

    def __init__(self, policy: ReplacementPolicy) -> None:
        self.policy = policy
        self.resident: dict[str, int] = {}
        self.n_bytes = 0
        self.loss_ms = 0.0
        self.total_ms = 0.0

    def request(self, use: Use, budget_bytes: int | None) -> None:
        """Serve one request; with no budget known nothing is evicted."""
        held = use.key in self.resident
        self.loss_ms = 0.0 if held else use.load_ms
        self.total_ms += self.loss_ms
        self.policy.used(use, resident=held)
        if held or (budget_bytes is not None and use.n_bytes > budget_bytes):
            return
        self.fit(budget_bytes, use.n_bytes, use.at_s)
        self.resident[use.key] = use.n_bytes
        self.n_bytes += use.n_bytes
        self.policy.admitted(use)

    def fit(self, budget_bytes: int | None, room_bytes: int, at_s: float) -> None:
        """Evict until `room_bytes` more fit."""
        need = 0 if budget_bytes is None else self.n_bytes + room_bytes - budget_bytes
        if need > 0:
            for key in self.policy.victims(need, self.resident, at_s=at_s):
                self.n_bytes -= self.resident.pop(key)
                self.policy.evicted(key)

    def forget(self, key: str) -> None:
        """The adapter is gone for good."""
        self.n_bytes -= self.resident.pop(key, 0)
        self.policy.forget(key)
