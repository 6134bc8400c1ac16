"""Fit the prior of the learned cache policy on the tuning traces (`cache_cells`: seeds below 100).

Each trace and budget is learned alone, from a weak hand-made prior. The mean and the covariance of
the weights they end with are the prior of all. Usage: python scripts/fit_cache_prior.py
"""

from __future__ import annotations

import json

import numpy as np

from floe.adapters.policies import predictor as predictors
from floe.adapters.policies import value
from floe.adapters.policies.history import FEATURES
from floe.adapters.policies.learned import Learned
from floe.evaluation.cache_cells import BUDGET_PERCENTS, budget_bytes, traces
from floe.evaluation.cache_simulate import simulate

SEEDS, REQUESTS = (5, 6, 7), 3000
MEAN = {"horizon": 1.0, "rate_100": 0.3, "rate_400": 0.4, "rate_1600": 0.3}
PRECISION, LEAST_VARIANCE = 3.0, 0.02
UNSEEN = ("context", "tenant")
"""The tuning traces have neither, so they say nothing of their weights."""


def main() -> None:
    """Write `prior.json`."""
    scale = np.array([4.0 if f.startswith("rate") else 1.0 + (f == "log_age") for f in FEATURES])
    weak = predictors.Prior(
        mean_F=np.array([MEAN.get(f, 0.0) for f in FEATURES]),
        precision_FF=PRECISION * np.diag(scale),
    )
    value.shipped_priors = lambda: (weak,) * (len(value.SHARES) + 1)
    ends = []
    for seed in SEEDS:
        for trace in traces(REQUESTS, seed):
            for percent in BUDGET_PERCENTS:
                policy = Learned(is_guarded=False)
                simulate(trace, policy=policy, budget_bytes=budget_bytes(trace, percent))
                state = policy.state()["predictors"]
                ends.append([row["weights"] for row in state])
    unseen = np.diag([0.5 * (f in UNSEEN) for f in FEATURES])
    priors = []
    for end_CF in np.array(ends).transpose(1, 0, 2):
        spread = np.cov(end_CF.T) + LEAST_VARIANCE * np.eye(len(FEATURES)) + unseen
        precision = np.linalg.inv(spread)
        precision = np.round((precision + precision.T) / 2, 3)
        priors.append({"mean": end_CF.mean(0).round(4).tolist(), "precision": precision.tolist()})
    about = {"features": FEATURES, "seeds": SEEDS, "requests": REQUESTS, "priors": priors}
    predictors.PRIOR_FILE.write_text(json.dumps(about) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
