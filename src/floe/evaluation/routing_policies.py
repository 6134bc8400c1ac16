"""Ways to choose an adapter for each request, and the memory they choose for.

Every one sees the same prompts, the same centroids and the utility of what it chose; all learners
have the same prior (the gate) and the same regression, so that what differs is what is compared.

Legend: N adapters; -1 is the plain base.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from floe.adapters.epochs import EpochController, EpochSettings
from floe.core.outcome import Outcome
from floe.core.route import Route, Share
from floe.core.sections import RoutingConfig
from floe.evaluation.routing_worlds import World
from floe.routing.learner import Learner

FloatArray = NDArray[np.float64]
BASE = -1


class Memory:
    """Adapters in memory, by bytes; the least recently used goes, preferred ones last."""

    def __init__(self, n_bytes: Sequence[int], budget_bytes: int) -> None:
        self._sizes, self.budget = n_bytes, budget_bytes
        self._held: OrderedDict[int, None] = OrderedDict()
        self.preferred: frozenset[int] = frozenset()
        self.mask = np.zeros(len(n_bytes), dtype=bool)
        self._used = 0

    def use(self, adapter: int) -> bool:
        """Have it in memory; whether it had to be loaded."""
        if adapter in self._held:
            self._held.move_to_end(adapter)
            return False
        size = self._sizes[adapter]
        if size > self.budget:
            return True  # served once, kept by nobody
        while self._used + size > self.budget:
            victims = [a for a in self._held if a not in self.preferred] or list(self._held)
            self.drop(victims[0])
        self._held[adapter] = None
        self.mask[adapter] = True
        self._used += size
        return True

    def drop(self, adapter: int) -> None:
        """Free it."""
        del self._held[adapter]
        self.mask[adapter] = False
        self._used -= self._sizes[adapter]

    def prefer(self, adapters: Sequence[int]) -> list[int]:
        """Load and protect a set; what had to be loaded."""
        self.preferred = frozenset(adapters)
        return [a for a in adapters if self.use(a)]


class Policy(Protocol):
    """Chooses, learns, and may load ahead."""

    memory: Memory

    def choose(self, embedding: NDArray[np.float32], cos_N: FloatArray) -> int:
        """The adapter for a prompt, or -1."""
        ...

    def learn(
        self, embedding: NDArray[np.float32], cos_N: FloatArray, chosen: int, utility: float
    ) -> list[int]:
        """Take in what came of it; adapters that were loaded meanwhile."""
        ...


class Gate:
    """The nearest adapter, or the base below the threshold; LRU. Learns nothing."""

    def __init__(self, memory: Memory, config: RoutingConfig) -> None:
        self.memory, self._config = memory, config

    def choose(self, embedding: NDArray[np.float32], cos_N: FloatArray) -> int:
        """The nearest."""
        del embedding
        best = int(cos_N.argmax())
        return best if cos_N[best] >= self._config.threshold else BASE

    def learn(
        self, embedding: NDArray[np.float32], cos_N: FloatArray, chosen: int, utility: float
    ) -> list[int]:
        """Nothing."""
        del embedding, cos_N, chosen, utility
        return []


class StaticMemory(Memory):
    """A set that never changes: anything else is loaded, served once and freed again."""

    def __init__(self, n_bytes: Sequence[int], budget_bytes: int, held: Sequence[int]) -> None:
        super().__init__(n_bytes, budget_bytes)
        for adapter in held:
            super().use(adapter)

    def use(self, adapter: int) -> bool:
        """Whether it is not of the set."""
        return not self.mask[adapter]


class EdgeLora(Gate):
    """Among the gate's best `top`, one in memory if there is any (2507.01438); LRU."""

    top = 3

    def choose(self, embedding: NDArray[np.float32], cos_N: FloatArray) -> int:
        """The nearest in memory of the best few, else the nearest."""
        best = super().choose(embedding, cos_N)
        if best == BASE:
            return BASE
        near = np.argsort(-cos_N, kind="stable")[: self.top]
        held = [k for k in near if self.memory.mask[k] and cos_N[k] >= self._config.threshold]
        return int(held[0]) if held else best


class LinUcb:
    """The router's learner; blind to costs unless `costs` (nats for a load of each) are given."""

    def __init__(
        self, memory: Memory, config: RoutingConfig, *, world: World,
        costs: FloatArray | None = None, saves_up: bool = False,
    ) -> None:  # fmt: skip
        self.memory, self._config, self._costs = memory, config, costs
        self.learner = Learner(
            config=config, encoder_digest=world.encoder_digest,
            embedding_width=world.embeddings.shape[1], saves_up=saves_up,
        )  # fmt: skip
        self._digests = tuple(str(n) for n in range(len(memory.mask)))
        self._none = np.zeros(len(memory.mask))

    def choose(self, embedding: NDArray[np.float32], cos_N: FloatArray) -> int:
        """The highest index."""
        costs = self._none if self._costs is None else np.where(self.memory.mask, 0.0, self._costs)
        moved = self.learner.moved(
            self._digests, embedding, cos_N, costs, threshold=self._config.threshold
        ).cos
        best = int(moved.argmax())
        return best if moved[best] >= self._config.threshold else BASE

    def learn(
        self, embedding: NDArray[np.float32], cos_N: FloatArray, chosen: int, utility: float
    ) -> list[int]:
        """As the router learns from a served request."""
        cos = {} if chosen == BASE else {str(chosen): float(cos_N[chosen])}
        self.learner.learn(
            _outcome(chosen, utility), embedding, cos, threshold=self._config.threshold
        )
        return []


class EpsilonGreedy(LinUcb):
    """The same regression and costs without a bonus; now and then any adapter at random."""

    def __init__(
        self, memory: Memory, config: RoutingConfig, *, world: World, costs: FloatArray | None,
        epsilon: float, seed: int,
    ) -> None:  # fmt: skip
        super().__init__(memory, config, world=world, costs=costs)
        self._epsilon, self._rng = epsilon, np.random.default_rng(seed)

    def choose(self, embedding: NDArray[np.float32], cos_N: FloatArray) -> int:
        """The highest index, or by chance one of those the gate would allow."""
        if self._rng.random() < self._epsilon:
            near = np.flatnonzero(cos_N >= self._config.threshold)
            return int(self._rng.choice(near)) if len(near) else BASE
        return super().choose(embedding, cos_N)


class Polar(LinUcb):
    """Cache-aware LinUCB with the epoch controller choosing what is in memory."""

    def __init__(
        self, memory: Memory, config: RoutingConfig, *, world: World, costs: FloatArray,
        epochs: EpochSettings,
    ) -> None:  # fmt: skip
        super().__init__(memory, config, world=world, costs=costs, saves_up=True)
        self._load_costs, self._world = costs, world
        self.controller = EpochController(epochs)
        self._to_try: dict[int, int] = {}

    def choose(self, embedding: NDArray[np.float32], cos_N: FloatArray) -> int:
        """An adapter that should be tried where it is near, else the highest index."""
        self.learner.remember(embedding, threshold=self._config.threshold)
        for adapter, left in self._to_try.items():
            near = cos_N[adapter] >= self._config.threshold
            if left and near and self.memory.mask[adapter]:
                self._to_try[adapter] = left - 1
                return adapter
        return super().choose(embedding, cos_N)

    def learn(
        self, embedding: NDArray[np.float32], cos_N: FloatArray, chosen: int, utility: float
    ) -> list[int]:
        """Learn; at the end of an epoch choose the set anew and load it."""
        super().learn(embedding, cos_N, chosen, utility)
        if not self.controller.tick():
            return []
        outlook = self.learner.outlook(self._digests, self._world.centroids)
        plan = self.controller.plan(
            digests=outlook.digests, utilities=outlook.utilities, costs=self._load_costs,
            n_bytes=self._world.n_bytes, samples=outlook.samples, budget_bytes=self.memory.budget,
            current=[str(k) for k in np.flatnonzero(self.memory.mask)],
        )  # fmt: skip
        self._to_try = {int(digest): pulls for digest, pulls in plan.explore}
        return self.memory.prefer([int(digest) for digest in plan.prefer])


def _outcome(chosen: int, utility: float) -> Outcome:
    name = str(chosen)
    shares = () if chosen == BASE else (Share(name=name, digest=name, weight=1.0),)
    return Outcome(
        request_id="", tenant="default", topic="", wait_ms=0.0, first_token_ms=None, total_ms=0.0,
        route=Route(shares=shares, how="routed" if shares else "base"),
        completion_tokens=64, agreement=utility, agreement_tokens=64,
    )  # fmt: skip
