"""Train the learned controller's policy on the training half of the traces.

    python scripts/train_power_policy.py src/floe/power/data/policy.json

Four boards in a conversation and in a queue. One thread, a few minutes on a quiet core. Compare
what comes out on other seeds before shipping it: so far zeros were better (see the card of
data/policy.json).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from floe.power.controllers.policy import save
from floe.power.train import Judged, scenarios, train

BOARDS = ("orin-nano-super", "odroid-xu3", "a40", "v100")
SEED, JOBS, GENERATIONS = 2, 100, 22
NOTE = "evolution strategies from the middle margin and price, in small steps; modelled boards"


def main() -> None:
    """Train and save."""
    kinds = ("conversation", "queue")
    every = scenarios("train", seed=SEED, n_jobs=JOBS, boards=BOARDS)
    where = [one for one in every if one.name.split()[-1] in kinds]

    def say(n: int, now: Judged) -> None:
        print(n, round(now.energy, 4), round(now.excess, 5), flush=True)

    policy = train(where, generations=GENERATIONS, seed=5, say=say)
    save(replace(policy, card={"note": NOTE, **policy.card}), Path(sys.argv[1]))


if __name__ == "__main__":
    main()
