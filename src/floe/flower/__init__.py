"""Flower's apps: messages in, calls of `learn` out. The only door to `flwr`; no telemetry."""

import os

# Before the first import of flwr, which reads them once; child processes inherit them.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # of Flower's simulation
# Its processes speak over loopback by HTTP, which no proxy of the environment may see.
for _name in ("NO_PROXY", "no_proxy"):
    os.environ[_name] = ",".join(filter(None, [os.environ.get(_name, ""), "127.0.0.1"]))
