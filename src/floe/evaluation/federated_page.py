"""Goals and plots of `floe bench federated`."""

from __future__ import annotations

from floe.evaluation.goals import Chart, Goal
from floe.evaluation.plot import Lines

SURVIVES = (
    ("nan", "a client that sends NaN"),
    ("sign_flip", "a fifth of the clients with flipped signs, robust aggregation"),
    ("dropout", "half of the clients drop out"),
    ("server_kill", "the server killed in a round (kill -9)"),
    ("duplicate", "the same upload twice"),
    ("corrupt", "an upload of damaged bytes"),
)
"""Faults that a federation must survive, with what they are."""

GOALS = (
    Goal(
        field="product_error", value=1e-5, at_most=True,
        about="error of aggregation against dense averaging, mixed ranks",
    ),
    Goal(
        field="padding_above_product", value=1e-5,
        about="zero padding's error above that, same updates",
    ),
    Goal(
        field="factor_mean_above_product", value=1e-5,
        about="error of averaging factors above that, same updates",
    ),
    Goal(field="cluster_ari", value=0.9, about="clusters against the tasks, adjusted Rand index"),
    Goal(
        field="clustered_below_fedavg", value=0.0001,
        about="held-out loss: FedAvg's less ours by clusters, nats",
    ),
    Goal(
        field="clustered_below_local", value=0.0001,
        about="held-out loss: local training's less ours, nats",
    ),
    Goal(
        field="gap_closed", value=0.8,
        about="share of the gap from FedAvg to known groups that clusters close",
    ),
    Goal(
        field="ratio_vs_flower", value=1.5,
        about="updates a second over Flower's FedAvg, from received bytes",
    ),
    Goal(
        field="factor_mean_updates_per_s", value=500,
        about="updates a second of our factor mean",
    ),
    Goal(
        field="rss_growth_mb", value=20, at_most=True,
        about="memory growth from 50 to 500 clients, MB",
    ),
    Goal(
        field="epsilon_abs_err", value=0.01, at_most=True,
        about="epsilon against Opacus' PRV accountant, largest relative difference",
    ),
    Goal(
        field="canary_exposure", value=40,
        about="median rank of inserted secrets with DP, percent (chance: 50)",
    ),
    Goal(
        field="canary_exposure", value=60, at_most=True,
        about="the same from above",
    ),
    *(Goal(field=f"survives_{key}", value=1, about=f"{what} (1 = survived)")
      for key, what in SURVIVES),
    Goal(
        field="fault_loss_worst", value=0.02, at_most=True,
        about="final loss beside the clean run's, largest relative difference",
    ),
)  # fmt: skip
_LOSSES = (
    ("base", "loss_base"),
    ("local", "loss_local"),
    ("FedAvg", "loss_fedavg"),
    ("clusters", "loss_clustered"),
    ("known groups", "loss_oracle_groups"),
)
CHARTS = (
    Chart(title="Held-out loss of unlike tasks", unit="nats a token", bars=_LOSSES),
    Chart(
        title="Updates aggregated a second, from bytes", unit="1/s",
        bars=(
            ("Flower FedAvg", "flower_updates_per_s"),
            ("exact products", "updates_per_s"),
            ("factor mean", "factor_mean_updates_per_s"),
        ),
    ),
    Chart(
        title="Upload of one client in one round", unit="bytes",
        bars=(("32 bit", "upload_bytes"), ("8 bit", "upload_bytes_8bit")),
    ),
    Chart(
        title="Median rank of an inserted secret among 1,000", unit="percent",
        bars=(
            ("no privacy", "canary_exposure_none"),
            ("epsilon 8", "canary_exposure_eps8"),
            ("epsilon 3", "canary_exposure_eps3"),
        ),
    ),
)  # fmt: skip
PLOTS = (
    Lines(
        title="Held-out loss with example-level privacy, delta 1e-5",
        unit="nats a token",
        x_unit="epsilon",
        series=(
            (
                "DP-SGD",
                ((1.0, "loss_dp_eps1"), (3.0, "loss_dp_eps3"), (8.0, "loss_dp_eps8")),
            ),
            ("no privacy", ((1.0, "loss_dp_none"), (8.0, "loss_dp_none"))),
        ),
    ),
)
