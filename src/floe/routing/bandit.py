"""LinUCB over arms that come and go: a ridge regression for each arm around one that all share.

For an arm with observations (x, y), each counted with a weight w:

    A = ridge * I + sum w x x'        b = sum w y x        theta = A^-1 (b + ridge * centre)

`centre` is what is believed before anything was seen: the regression over all arms (what a prompt
is worth whoever answers it, so that a new arm is expected to be as good as the rest), or, for a
warm start, a step from there towards an arm like it. The bonus of an arm is

    beta * sqrt(x' A^-1 x),   beta = exploration * (sqrt(ridge) + noise * sqrt(2 log(1/delta)
                                                    + D log(1 + n / (ridge D))))

with n the number of observations. `A^-1` follows by Sherman and Morrison. Costs of paging never
enter here: the caller subtracts them from what `scores` says, so that being resident cannot make
an arm look better than it is.

Legend: N arms with observations, K arms asked about, D width of a context, P = D (D + 1) / 2.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadConfig, BadRequest

FloatArray = NDArray[np.float64]
Phase = Literal["cold", "warm", "trained"]

SHORTLIST = 96
"""How many bonuses are worked out at once; more only while another arm could still be better."""
REFRESH = 32
"""With many arms, their centres follow the shared regression once in so many observations."""
_FEW = 64
_DELTA = 0.05


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`noise` is the spread of one observation in the unit of utilities, `ridge` > 0.

    `forgetting` 1.0 remembers all; below, an arm's older observations fade with each new one.
    `most_arms` with observations are kept, the longest unused are dropped first. What is learned
    of an arm counts by n / (n + `doubt`) after n observations: the first of them say little.
    """

    width: int
    exploration: float = 0.1
    ridge: float = 0.3
    shared_ridge: float = 0.1
    noise: float = 0.5
    forgetting: float = 1.0
    most_arms: int = 4096
    doubt: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Expected utilities and bonuses (K,), both relative to an arm that nothing is known of.

    So both are 0 for a cold arm: an arm's index is its prior + learned + bonus - cost.
    """

    learned: FloatArray
    bonus: FloatArray


class Bandit:
    """The arms' regressions. Thread-safe; a decision reads, an update replaces one arm."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lock = threading.RLock()
        self._upper = np.triu_indices(settings.width)
        self._twice = np.where(self._upper[0] == self._upper[1], 1.0, 2.0)
        self._clear()

    def _clear(self) -> None:
        D = self.settings.width
        self._row: dict[str, int] = {}
        self._asked: tuple[tuple[str, ...], NDArray[np.intp]] | None = None
        self._phase: dict[str, Phase] = {}
        self._warm: dict[str, FloatArray] = {}  # offsets of centres, by arm
        self._inverse = np.zeros((0, D, D))
        self._packed = np.zeros((0, len(self._twice)), dtype=np.float32)
        self._b = np.zeros((0, D))
        self._theta = np.zeros((0, D))
        self._count = np.zeros(0)
        self._used = np.zeros(0)
        self._shared_inverse = np.eye(D) / self.settings.shared_ridge
        self._shared_b, self._shared = np.zeros(D), np.zeros(D)
        self.observations = 0
        self._stale = 0

    # --- deciding

    @property
    def beta(self) -> float:
        """The factor of the bonus, after what was seen so far."""
        s, n = self.settings, self.observations
        spread = 2 * math.log(1 / _DELTA) + s.width * math.log1p(n / (s.ridge * s.width))
        return s.exploration * (math.sqrt(s.ridge) + s.noise * math.sqrt(spread))

    def scores(
        self,
        arms: Sequence[str],
        x_D: FloatArray,
        offset_K: FloatArray | None = None,
        *,
        top: int = 1,
    ) -> Scores:
        """What was learned about each of `arms` in a context.

        `offset_K` is what the caller adds to each arm (its prior less its cost). The bonus is
        exact for every arm that can be among the best `top`; for others it may be too low.
        """
        learned, bonus = np.zeros(len(arms)), np.zeros(len(arms))
        with self._lock:
            if not self._row and not self._warm:
                return Scores(learned=learned, bonus=bonus)
            at = self._rows_of(arms)
            known = np.flatnonzero(at >= 0)
            rows, beta = at[known], self.beta
            learned[known] = self._theta[rows] @ x_D - self._shared @ x_D
            if self.settings.doubt:
                learned[known] *= self._count[rows] / (self._count[rows] + self.settings.doubt)
            for k, arm in enumerate(arms) if self._warm else ():
                if at[k] < 0 and arm in self._warm:
                    learned[k] = self._warm[arm] @ x_D
            cold = math.sqrt(float(x_D @ x_D) / self.settings.ridge)
            base = learned if offset_K is None else learned + offset_K
            bonus[known] = self._bonuses(rows, x_D, base, known, cold=cold, beta=beta, top=top)
        return Scores(learned=learned, bonus=bonus)

    def _rows_of(self, arms: Sequence[str]) -> NDArray[np.intp]:
        """Rows (K,), -1 for arms without observations; kept for a tuple that comes again."""
        if self._asked is None or self._asked[0] is not arms:
            at = np.array([self._row.get(arm, -1) for arm in arms], dtype=np.intp)
            if not isinstance(arms, tuple):
                return at
            self._asked = (arms, at)
        return self._asked[1]

    def _bonuses(
        self,
        rows: NDArray[np.intp],
        x_D: FloatArray,
        base_K: FloatArray,
        known: NDArray[np.intp],
        *,
        cold: float,
        beta: float,
        top: int,
    ) -> FloatArray:
        """beta * (width - cold width) of each row: at most 0, the lowest value where not needed."""
        D = self.settings.width
        outer_P = (np.outer(x_D, x_D)[self._upper] * self._twice).astype(np.float32)
        lowest = -beta * cold

        def exact(which: NDArray[np.intp]) -> FloatArray:
            squares = self._packed[which] @ outer_P if D else np.zeros(len(which))
            widths: FloatArray = np.sqrt(np.maximum(squares, 0.0)).astype(np.float64)
            return beta * (np.minimum(widths, cold) - cold)

        if len(rows) <= SHORTLIST:
            return exact(rows)
        out = np.full(len(rows), lowest)
        upper = base_K[known]
        order = np.argpartition(-upper, SHORTLIST - 1)
        first, rest = order[:SHORTLIST], order[SHORTLIST:]
        out[first] = exact(rows[first])
        others = np.ones(len(base_K), dtype=bool)
        others[known] = False
        reached = np.concatenate([base_K[others], upper[first] + out[first]])
        needed = -np.partition(-reached, min(top, len(reached)) - 1)[min(top, len(reached)) - 1]
        could = rest[upper[rest] > needed]
        out[could] = exact(rows[could])
        return out

    def predicted(self, arms: Sequence[str], x_TD: FloatArray) -> FloatArray:
        """Expected utilities (T, K) without bonus, relative to a cold arm; for planning."""
        with self._lock:
            out = np.zeros((len(x_TD), len(arms)))
            for k, arm in enumerate(arms):
                if arm in self._row:
                    row = self._row[arm]
                    trust = self._count[row] / (self._count[row] + self.settings.doubt)
                    out[:, k] = trust * (x_TD @ (self._theta[row] - self._shared))
                elif arm in self._warm:
                    out[:, k] = x_TD @ self._warm[arm]
            return out

    # --- learning

    def update(self, arm: str, x_D: FloatArray, reward: float, *, weight: float = 1.0) -> None:
        """One observation of an arm: its utility less the prior's, for `weight` in (0, 1].

        Raises:
            BadRequest: a reward, weight or context that is not finite; nothing changes (F03).
        """
        if not (math.isfinite(reward) and np.isfinite(x_D).all() and 0 < weight <= 1):
            raise BadRequest("an observation must be finite, with a weight above 0 and up to 1")
        s = self.settings
        with self._lock:
            self.observations += 1
            scaled = math.sqrt(weight) * x_D
            self._shared_inverse = _with(self._shared_inverse, scaled, s.forgetting, s.shared_ridge)
            self._shared_b = s.forgetting * self._shared_b + weight * reward * x_D
            self._shared = self._shared_inverse @ self._shared_b
            self._observe(arm, x_D, reward, weight)

    def update_relative(
        self, arm: str, x_D: FloatArray, better: float, *, weight: float = 1.0
    ) -> None:
        """The arm did better than arms do on such prompts, by so much; nothing else is learned.

        People mean it: one such word counts as many observations as are doubted.

        Raises:
            BadRequest: as `update`.
        """
        with self._lock:
            if not (math.isfinite(better) and np.isfinite(x_D).all() and 0 < weight <= 1):
                raise BadRequest("an observation must be finite, with a weight above 0 and up to 1")
            self.observations += 1
            self._observe(arm, x_D, float(self._shared @ x_D) + better, weight)
            self._count[self._row[arm]] += weight * self.settings.doubt

    def _observe(self, arm: str, x_D: FloatArray, reward: float, weight: float) -> None:
        s, row = self.settings, self._row_of(arm)
        scaled = math.sqrt(weight) * x_D
        self._inverse[row] = _with(self._inverse[row], scaled, s.forgetting, s.ridge)
        self._packed[row] = self._inverse[row][self._upper]
        self._b[row] = s.forgetting * self._b[row] + weight * reward * x_D
        self._count[row] += weight
        self._used[row] = self.observations
        self._phase[arm] = "trained"
        self._stale += 1
        if len(self._row) <= _FEW or self._stale >= REFRESH:
            self.refresh()
        else:
            centre = self._shared + self._warm.get(arm, 0.0)
            self._theta[row] = self._inverse[row] @ (self._b[row] + s.ridge * centre)

    def refresh(self) -> None:
        """Let every arm's centre follow the shared regression."""
        with self._lock:
            n = len(self._row)
            centres = np.repeat(self._shared[None], n, axis=0)
            for arm, offset in self._warm.items():
                if arm in self._row:
                    centres[self._row[arm]] += offset
            goal = self._b[:n] + self.settings.ridge * centres
            self._theta[:n] = np.matmul(self._inverse[:n], goal[:, :, None])[:, :, 0]
            self._stale = 0

    def _row_of(self, arm: str) -> int:
        if arm in self._row:
            return self._row[arm]
        if len(self._row) >= self.settings.most_arms:
            self.forget(min(self._row, key=lambda a: self._used[self._row[a]]))
        row, D = len(self._row), self.settings.width
        if row == len(self._b):
            more = max(8, row // 2)
            self._inverse = np.concatenate([self._inverse, np.zeros((more, D, D))])
            self._packed = np.concatenate(
                [self._packed, np.zeros((more, self._packed.shape[1]), dtype=np.float32)]
            )
            self._b = np.concatenate([self._b, np.zeros((more, D))])
            self._theta = np.concatenate([self._theta, np.zeros((more, D))])
            self._count = np.concatenate([self._count, np.zeros(more)])
            self._used = np.concatenate([self._used, np.zeros(more)])
        self._inverse[row] = np.eye(D) / self.settings.ridge
        self._b[row], self._count[row], self._used[row] = 0.0, 0.0, 0.0
        self._row[arm] = row
        self._asked = None
        return row

    # --- arms

    def phase(self, arm: str) -> Phase:
        """cold: nothing known; warm: begun from another arm; trained: observed itself."""
        return self._phase.get(arm, "cold")

    def count(self, arm: str) -> float:
        """The weight of an arm's observations."""
        with self._lock:
            return float(self._count[self._row[arm]]) if arm in self._row else 0.0

    def arms(self) -> tuple[str, ...]:
        """Every arm that is not cold."""
        with self._lock:
            return tuple(self._phase)

    def warm_start(self, arm: str, like: str, *, trust: float) -> bool:
        """Let a cold arm begin `trust` (0 to 1) of the way from the shared to `like`'s regression.

        False, and nothing changes, unless `arm` is cold and `like` is trained: an arm that began
        from another is no source itself, and none begins twice (F17).
        """
        with self._lock:
            if self.phase(arm) != "cold" or self.phase(like) != "trained":
                return False
            self._warm[arm] = trust * (self._theta[self._row[like]] - self._shared)
            self._phase[arm] = "warm"
            return True

    def forget(self, arm: str) -> None:
        """Drop what is known of an arm; it is cold again (F19). Unknown ones are no error."""
        with self._lock:
            self._phase.pop(arm, None)
            self._warm.pop(arm, None)
            row = self._row.pop(arm, None)
            if row is None:
                return
            self._asked = None
            last = len(self._row)
            if row != last:
                moved = next(a for a, r in self._row.items() if r == last)
                for table in (self._inverse, self._packed, self._b, self._theta):
                    table[row] = table[last]
                self._count[row], self._used[row] = self._count[last], self._used[last]
                self._row[moved] = row

    # --- state

    def arrays(self) -> tuple[dict[str, Any], dict[str, FloatArray]]:
        """Everything that was learned, as plain values and arrays; copies."""
        with self._lock:
            n = len(self._row)
            plain = {
                "arms": sorted(self._row, key=lambda a: self._row[a]),
                "phases": dict(self._phase),
                "warm": list(self._warm),
                "observations": self.observations,
            }
            tables = {
                "inverse": self._inverse[:n].copy(),
                "b": self._b[:n].copy(),
                "count": self._count[:n].copy(),
                "used": self._used[:n].copy(),
                "warm": np.array(list(self._warm.values())).reshape(-1, self.settings.width),
                "shared_inverse": self._shared_inverse.copy(),
                "shared_b": self._shared_b.copy(),
            }
            return plain, tables

    def restore(self, plain: Mapping[str, Any], tables: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `arrays` gave.

        Raises:
            BadConfig: it does not fit together or this width; the bandit is left as it was.
        """
        n, D = len(plain["arms"]), self.settings.width
        shapes = {
            "inverse": (n, D, D), "b": (n, D), "count": (n,), "used": (n,),
            "warm": (len(plain["warm"]), D), "shared_inverse": (D, D), "shared_b": (D,),
        }  # fmt: skip
        for name, shape in shapes.items():
            if name not in tables or tables[name].shape != shape:
                raise BadConfig(f"the router's state has no table {name} of shape {shape}")
            if not np.isfinite(tables[name]).all():
                raise BadConfig(f"the router's state has numbers in {name} that are not finite")
        with self._lock:
            self._clear()
            for arm in plain["arms"]:
                self._row_of(str(arm))
            self._inverse[:n], self._b[:n] = tables["inverse"], tables["b"]
            self._count[:n], self._used[:n] = tables["count"], tables["used"]
            self._packed[:n] = self._inverse[:n][:, self._upper[0], self._upper[1]]
            self._warm = {
                str(arm): np.array(offset, dtype=np.float64)
                for arm, offset in zip(plain["warm"], tables["warm"], strict=True)
            }
            self._phase = {str(arm): phase for arm, phase in plain["phases"].items()}
            self._shared_inverse = np.array(tables["shared_inverse"], dtype=np.float64)
            self._shared_b = np.array(tables["shared_b"], dtype=np.float64)
            self._shared = self._shared_inverse @ self._shared_b
            self.observations = int(plain["observations"])
            self.refresh()


def _with(inverse: FloatArray, x_D: FloatArray, forgetting: float, ridge: float) -> FloatArray:
    """The inverse after one more observation; Sherman and Morrison while nothing is forgotten."""
    if forgetting < 1.0:
        whole = np.linalg.inv(inverse)
        whole = forgetting * whole + (1.0 - forgetting) * ridge * np.eye(len(x_D))
        fresh = np.linalg.inv(whole + np.outer(x_D, x_D))
        return np.asarray((fresh + fresh.T) / 2)
    v_D = inverse @ x_D
    v_D /= math.sqrt(1.0 + float(x_D @ v_D))
    return inverse - np.multiply(v_D[:, None], v_D)
