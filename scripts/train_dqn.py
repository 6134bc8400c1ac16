"""Train the Q network of one board with Stable-Baselines3, and keep it as plain numbers.

    python scripts/train_dqn.py orin-nano-super src/floe/power/data/dqn-orin-nano-super.json

Needs the extra `power-train`. One thread, a few minutes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from stable_baselines3 import DQN

from floe.power.boards.catalogue import fitted
from floe.power.controllers.learned import N_FEATURES
from floe.power.controllers.policy import blank, save
from floe.power.env import board_env

STEPS, SEED, HIDDEN = 60_000, 3, 24


def main() -> None:
    """Train and save."""
    name, out = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    model = fitted(name).model
    learner = DQN(
        "MlpPolicy",
        board_env(model, seed=SEED),
        learning_rate=1e-3,
        gamma=0.9,
        buffer_size=50_000,
        learning_starts=2_000,
        batch_size=64,
        target_update_interval=1_000,
        exploration_fraction=0.4,
        exploration_final_eps=0.02,
        policy_kwargs={"net_arch": [HIDDEN, HIDDEN], "activation_fn": torch.nn.Tanh},
        seed=SEED,
        device="cpu",
    )
    learner.learn(STEPS, progress_bar=False)
    layers = [m for m in learner.q_net.q_net if isinstance(m, torch.nn.Linear)]
    flat = [part for m in layers for part in (m.weight.detach().numpy().T, m.bias.detach().numpy())]
    policy = blank(N_FEATURES, HIDDEN, model.n_settings).with_flat(
        np.concatenate([part.ravel() for part in flat]).astype(np.float64)
    )
    policy.card.update({"board": name, "steps": STEPS, "seed": SEED, "learner": "DQN, SB3"})
    save(policy, out)


if __name__ == "__main__":
    main()
