"""What must hold of a configuration, section by section, and what is said where it does not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from floe.core.errors import BadConfig

if TYPE_CHECKING:
    from floe.core.config import Config
    from floe.core.sections import AdaptersConfig, FederatedConfig, PowerConfig

DEFAULT = "default"
"""The tenant of whoever has no key of its own."""
_MOST_THREADS = 1024
"""Each has a stack of its own: with thousands a machine stalls."""
_TENANT = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
_FEDERATION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
Rule = tuple[bool, str, str]
"""Whether it holds, the setting, what it must be."""


def check(config: Config) -> None:
    """Raise BadConfig for values that no part could work with."""
    rules = [
        *_fusion_rules(config),
        *_routing_rules(config),
        *_serve_rules(config),
        *_model_rules(config),
        *_privacy_rules(config),
        *_cloud_rules(config),
        (config.adapters.budget_bytes >= 0, "adapters.budget_bytes", "0 or more"),
        (config.cloud.kind == "none" or bool(config.cloud.url), "cloud.url", "set for this kind"),
        *_adapter_rules(config.adapters),
        *_power_rules(config.power),
        *_round_rules(config.federated),
        *_protection_rules(config.federated),
        *_training_rules(config.federated),
        *_tenant_rules(config),
    ]
    for holds, name, wanted in rules:
        if not holds:
            raise BadConfig(f"{name} must be {wanted}", param=name)


def _fusion_rules(config: Config) -> list[Rule]:
    """What must hold of weights and waits."""
    return [
        (0.0 <= config.fusion.weight <= 1.0, "fusion.weight", "between 0 and 1"),
        (0.0 <= config.fusion.cloud_share <= 1.0, "fusion.cloud_share", "between 0 and 1"),
        (
            bool(config.fusion.weights.strip()),
            "fusion.weights",
            '"auto", "off" or the path of a file',
        ),
        (config.fusion.token_budget_ms >= 0, "fusion.token_budget_ms", "0 or more"),
        (config.fusion.first_token_budget_ms >= 0, "fusion.first_token_budget_ms", "0 or more"),
    ]


def _routing_rules(config: Config) -> list[Rule]:
    """What must hold of the gate and the learner."""
    return [
        (config.routing.temperature > 0, "routing.temperature", "above 0"),
        (config.routing.epoch_requests >= 1, "routing.epoch_requests", "1 or more"),
        (config.routing.top_k >= 1, "routing.top_k", "1 or more"),
        (
            0.0 <= config.routing.miss_cost_per_s < float("inf"),
            "routing.miss_cost_per_s",
            "0 (loads are free) or more",
        ),
        (
            0.0 < config.routing.nats_per_cosine < float("inf"),
            "routing.nats_per_cosine",
            "above 0",
        ),
        (0.0 <= config.routing.exploration <= 10.0, "routing.exploration", "between 0 and 10"),
        (0.5 <= config.routing.forgetting <= 1.0, "routing.forgetting", "between 0.5 and 1"),
        (1 <= config.routing.context_width <= 512, "routing.context_width", "between 1 and 512"),
    ]


def _serve_rules(config: Config) -> list[Rule]:
    """What must hold of the server."""
    return [
        (0 < config.serve.port < 65536, "serve.port", "between 1 and 65535"),
        (config.serve.default_max_tokens >= 1, "serve.default_max_tokens", "1 or more"),
        (config.serve.max_body_bytes >= 1, "serve.max_body_bytes", "1 or more"),
        (config.serve.hot_answers_bytes >= 0, "serve.hot_answers_bytes", "0 (off) or more"),
        (config.serve.hot_answers_ttl_s >= 1, "serve.hot_answers_ttl_s", "1 or more"),
        (
            0.0 <= config.serve.hot_answers_cosine <= 1.0,
            "serve.hot_answers_cosine",
            "between 0 (off) and 1",
        ),
        (config.serve.usage_log_bytes >= 0, "serve.usage_log_bytes", "0 (off) or more"),
    ]


def _model_rules(config: Config) -> list[Rule]:
    """What must hold of the engine."""
    return [
        (config.model.context_tokens >= 64, "model.context_tokens", "64 or more"),
        (config.model.max_contexts >= 1, "model.max_contexts", "1 or more"),
        (config.model.sessions_per_context >= 1, "model.sessions_per_context", "1 or more"),
        (0 <= config.model.threads <= _MOST_THREADS, "model.threads", "0 (all cores) to 1024"),
        (config.model.batch_tokens >= 32, "model.batch_tokens", "32 or more"),
        (
            config.model.kv_type != "Q8_0" or config.model.flash_attention,
            "model.kv_type",
            "F16 or F32 where model.flash_attention is off",
        ),
    ]


def _privacy_rules(config: Config) -> list[Rule]:
    """What must hold of the gate."""
    return [
        (config.privacy.max_chars >= 1, "privacy.max_chars", "1 or more"),
        (
            config.privacy.ner != "gliner" or bool(config.privacy.ner_model),
            "privacy.ner_model",
            'the folder of a model when privacy.ner is "gliner"',
        ),
        (
            0.0 <= config.privacy.semantic_threshold < 1.0,
            "privacy.semantic_threshold",
            "0 (as calibrated) or more, and below 1",
        ),
        (config.privacy.timeout_ms >= 1, "privacy.timeout_ms", "1 or more"),
    ]


def _cloud_rules(config: Config) -> list[Rule]:
    """What must hold of the endpoint."""
    return [
        (1 <= config.cloud.top_k <= 1000, "cloud.top_k", "between 1 and 1000"),
        (config.cloud.connect_timeout_ms >= 1, "cloud.connect_timeout_ms", "1 or more"),
        (
            config.cloud.continues == "no" or config.cloud.kind == "openai",
            "cloud.continues",
            '"no" unless cloud.kind is "openai"',
        ),
    ]


def _adapter_rules(adapters: AdaptersConfig) -> list[Rule]:
    """What must hold of the adapters' tiers: (holds, setting, what it must be)."""
    scheme, found, place = adapters.remote.partition("://")
    remote = not adapters.remote or (bool(scheme and found and place) and "@" not in place)
    return [
        (bool(adapters.policy.strip()), "adapters.policy", "the name of a policy"),
        (adapters.host_bytes >= 0, "adapters.host_bytes", "0 (none) or more"),
        (adapters.disk_bytes >= 0, "adapters.disk_bytes", "0 or more"),
        (
            not adapters.disk_bytes or bool(adapters.remote),
            "adapters.disk_bytes",
            "0 without adapters.remote: it bounds only what came from there",
        ),
        (remote, "adapters.remote", "a URL such as file:///srv/adapters, without a password"),
        (adapters.wait_ms >= 0, "adapters.wait_ms", "0 or more"),
        (adapters.max_rank >= 0, "adapters.max_rank", "0 (any) or more"),
        (adapters.max_overtaken >= 0, "adapters.max_overtaken", "0 or more"),
        (
            len(set(adapters.pinned)) == len(adapters.pinned),
            "adapters.pinned",
            "a list of different names",
        ),
    ]


def _power_rules(power: PowerConfig) -> list[Rule]:
    """What must hold of goals and budgets: (holds, setting, what it must be)."""
    amounts = ("ttft_slo_ms", "tpot_slo_ms", "power_budget_w")
    return [
        *(
            (0.0 <= getattr(power, n) < float("inf"), f"power.{n}", "0 (none) or more")
            for n in amounts
        ),
        (
            power.knobs == "noop" or power.controller != "off",
            "power.controller",
            'set when power.knobs is not "noop": somebody has to choose the clocks',
        ),
    ]


def _round_rules(fed: FederatedConfig) -> list[Rule]:
    """What must hold of rounds, who takes part and how they meet."""
    name, end = "named by at most 64 letters, digits, dot, dash, underscore", 65536
    host, _, port = fed.address.rpartition(":")
    there = bool(host) and port.isdecimal() and 0 < int(port) < end
    return [
        (_FEDERATION.fullmatch(fed.name) is not None, "federated.name", name),
        (
            not fed.device or _FEDERATION.fullmatch(fed.device) is not None,
            "federated.device",
            name,
        ),
        (there, "federated.address", "host:port"),
        (
            bool(fed.certificate) == bool(fed.certificate_key),
            "federated.certificate_key",
            "given together with federated.certificate",
        ),
        (fed.rounds >= 1, "federated.rounds", "1 or more"),
        (0.0 < fed.fraction <= 1.0, "federated.fraction", "above 0 and at most 1"),
        (fed.min_clients >= 1, "federated.min_clients", "1 or more"),
        (0.0 < fed.deadline_s < float("inf"), "federated.deadline_s", "above 0"),
        (0.0 <= fed.dropout < 1.0, "federated.dropout", "0 or more, and below 1"),
        (0.0 <= fed.byzantine < 0.5, "federated.byzantine", "0 or more, and below 0.5"),
        (fed.min_members >= 1, "federated.min_members", "1 or more"),
        (fed.clusters >= 0, "federated.clusters", "0 (found) or more"),
        (0.0 <= fed.max_norm < float("inf"), "federated.max_norm", "0 (any) or more"),
        (0.0 <= fed.gate_margin < float("inf"), "federated.gate_margin", "0 or more"),
    ]


def _protection_rules(fed: FederatedConfig) -> list[Rule]:
    """What secure sums and privacy of clients ask of the other settings."""
    return [
        (
            not fed.secagg or fed.mode == "freeze-a",
            "federated.mode",
            '"freeze-a" with federated.secagg: sums of both factors are no sum of adapters',
        ),
        (
            not fed.secagg or fed.clusters == 1,
            "federated.clusters",
            "1 with federated.secagg: the server sees no single update to group by",
        ),
        (
            not fed.secagg or fed.min_clients >= 3,
            "federated.min_clients",
            "3 or more with federated.secagg: a sum of two tells each the other's",
        ),
        (
            not fed.secagg or max(fed.ranks, default=0) <= fed.rank,
            "federated.rank",
            "at least the largest of federated.ranks with federated.secagg: more is cut off",
        ),
        (
            not fed.secagg or fed.dp != "central",
            "federated.dp",
            'other than "central" with federated.secagg: the server must see each to bound it',
        ),
        (
            fed.dp != "distributed" or fed.secagg,
            "federated.secagg",
            'true with federated.dp = "distributed": one device\'s share of noise hides nothing',
        ),
        (
            fed.dp in ("off", "example") or fed.mode == "freeze-a",
            "federated.mode",
            f'"freeze-a" with federated.dp = "{fed.dp}": noise on both factors buries the product',
        ),
        (
            fed.dp in ("off", "example") or fed.clusters == 1,
            "federated.clusters",
            f'1 with federated.dp = "{fed.dp}": groups found in the updates would tell of them',
        ),
    ]


def _training_rules(fed: FederatedConfig) -> list[Rule]:
    """What must hold of training and of what protects it."""
    positive = ("clip_norm", "noise_multiplier", "epsilon", "learning_rate")
    return [
        (
            bool(fed.ranks) and all(1 <= r <= 256 for r in fed.ranks),
            "federated.ranks",
            "a list of ranks between 1 and 256",
        ),
        (1 <= fed.rank <= 256, "federated.rank", "between 1 and 256"),
        *(
            (0.0 < getattr(fed, n) < float("inf"), f"federated.{n}", "a number above 0")
            for n in positive
        ),
        (0.0 < fed.delta < 1.0, "federated.delta", "between 0 and 1"),
        (0.0 <= fed.step_limit_ms < float("inf"), "federated.step_limit_ms", "0 (any) or more"),
        (0.0 <= fed.clip_updates < float("inf"), "federated.clip_updates", "0 (off) or more"),
        (0.0 <= fed.proximal < float("inf"), "federated.proximal", "0 (off) or more"),
        *(
            (getattr(fed, n) >= 1, f"federated.{n}", "1 or more")
            for n in ("steps", "batch", "accumulate")
        ),
        (fed.max_tokens >= 16, "federated.max_tokens", "16 or more"),
        (
            0.0 <= fed.min_battery_percent <= 100.0,
            "federated.min_battery_percent",
            "0 (any) to 100",
        ),
        *(
            (0.0 <= getattr(fed, n) < float("inf"), f"federated.{n}", "0 or more")
            for n in ("max_celsius", "max_load", "patience_s")
        ),
        (fed.seed >= 0, "federated.seed", "0 or more"),
    ]


def _tenant_rules(config: Config) -> list[Rule]:
    """What must hold of each tenant and of all together: (holds, setting, what it must be)."""
    rules = []
    for name, tenant in config.tenants.items():
        at = f"tenants.{name}"
        named = "named by at most 32 letters, digits, _ and -, a letter first"
        rules += [
            (_TENANT.fullmatch(name) is not None, at, named),
            (tenant.guaranteed_bytes >= 0, f"{at}.guaranteed_bytes", "0 or more"),
            (0.0 < tenant.share <= 1e6, f"{at}.share", "above 0 and at most 1000000"),
        ]
    keys = [key_name(name) for name in config.tenants]
    promised = sum(tenant.guaranteed_bytes for tenant in config.tenants.values())
    return [
        *rules,
        (len(keys) == len(set(keys)), "tenants", "told apart by their names with - read as _"),
        (
            promised <= config.adapters.budget_bytes,
            "tenants.NAME.guaranteed_bytes",
            f"at most adapters.budget_bytes in all, not {promised}",
        ),
    ]


def key_name(tenant: str) -> str:
    """The variable of the environment that holds a tenant's key."""
    if tenant == DEFAULT:
        return "FLOE_API_KEY"
    return f"FLOE_API_KEY_{tenant.upper().replace('-', '_')}"
