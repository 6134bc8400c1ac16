"""Configuration: TOML read once into frozen records, one section per part.

Unknown keys are errors that suggest the nearest name. Secrets come from the environment only.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from floe.core.config_rules import DEFAULT, check, key_name
from floe.core.errors import BadConfig
from floe.core.sections import (
    AdaptersConfig,
    CloudConfig,
    FederatedConfig,
    FusionConfig,
    ModelConfig,
    PowerConfig,
    PrivacyConfig,
    RoutingConfig,
    ServeConfig,
    TenantConfig,
)


def home() -> Path:
    """Where models, adapters and the ledger live: FLOE_HOME, else ~/.cache/floe.

    Raises:
        BadConfig: something that is no folder is there, or above it.
    """
    folder = Path(os.environ.get("FLOE_HOME") or Path.home() / ".cache" / "floe").expanduser()
    try:
        there = next(p for p in (folder, *folder.parents) if p.exists())
        fault = "" if there.is_dir() else f"{there} is not a folder"
    except OSError as error:
        fault = error.strerror or type(error).__name__
    if fault:
        raise BadConfig(f"FLOE_HOME={folder} cannot be used: {fault}", param="FLOE_HOME")
    return folder


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything `floe.toml` can say."""

    model: ModelConfig = field(default_factory=ModelConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    adapters: AdaptersConfig = field(default_factory=AdaptersConfig)
    cloud: CloudConfig = field(default_factory=CloudConfig)
    fusion: FusionConfig = field(default_factory=FusionConfig)
    power: PowerConfig = field(default_factory=PowerConfig)
    federated: FederatedConfig = field(default_factory=FederatedConfig)
    tenants: Mapping[str, TenantConfig] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """Keys, from the environment only; they print as stars.

    `tenant_keys`: tenant -> key, without the tenant "default", whose key is `api_key`.
    """

    api_key: str | None = None
    cloud_key: str | None = None
    admin_key: str | None = None
    tenant_keys: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        shown = {f.name: "***" if getattr(self, f.name) else None for f in dataclasses.fields(self)}
        return f"Secrets({shown})"

    @property
    def any_key(self) -> str | None:
        """A key that the server lets in; None where it needs none."""
        return self.api_key or next(iter(self.tenant_keys.values()), None)

    @classmethod
    def from_environment(cls, tenants: Collection[str] = ()) -> Secrets:
        """FLOE_API_KEY guards the server, FLOE_CLOUD_KEY is sent to the cloud, FLOE_ADMIN_KEY.

        Of `tenants`, each but "default" has its own FLOE_API_KEY_NAME. An empty key is none;
        space around one is no part of it.

        Raises:
            BadConfig: nothing but space, which would look like a key; a tenant without a key;
                two doors with one key.
        """
        secrets = cls(
            api_key=_secret("FLOE_API_KEY"),
            cloud_key=_secret("FLOE_CLOUD_KEY"),
            admin_key=_secret("FLOE_ADMIN_KEY"),
            tenant_keys={
                name: _needed(key_name(name), tenant=name) for name in tenants if name != DEFAULT
            },
        )
        secrets._tell_apart()
        return secrets

    def _tell_apart(self) -> None:
        """Raise BadConfig when one key would open two doors."""
        keys = {key_name(name): key for name, key in self.tenant_keys.items()}
        keys |= {"FLOE_API_KEY": self.api_key or "", "FLOE_ADMIN_KEY": self.admin_key or ""}
        owner: dict[str, str] = {}
        for name, key in keys.items():
            if key and owner.setdefault(key, name) != name:
                raise BadConfig(
                    f"{name} and {owner[key]} are the same key: give each its own", param=name
                )


def _needed(name: str, *, tenant: str) -> str:
    key = _secret(name)
    if key is None:
        raise BadConfig(f"tenant {tenant!r} has no key: set {name}", param=name)
    return key


def _secret(name: str) -> str | None:
    given = os.environ.get(name, "")
    if given and not given.strip():
        raise BadConfig(f"{name} is blank: set it to a key, or unset it", param=name)
    return given.strip() or None


def load_config(path: Path | None) -> Config:
    """The configuration in `path`, or the defaults when there is none.

    Raises:
        BadConfig: unreadable file, unknown key (with the nearest name), wrong type or value.
    """
    if path is None:
        return Config()
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadConfig(
            f"cannot read {path}: {error.strerror}. Write one with: floe init"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path} is not valid TOML: {error}") from error
    config: Config = _build(Config, data, where="")
    check(config)
    return config


def _build(cls: type[Any], data: Mapping[str, Any], *, where: str) -> Any:
    hints = get_type_hints(cls)
    for key in data:
        if key not in hints:
            near = difflib.get_close_matches(key, hints, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else f"; known: {', '.join(hints)}"
            raise BadConfig(f'unknown key "{where}{key}" in the configuration{hint}', param=key)
    values = {k: _value(hints[k], v, where=f"{where}{k}") for k, v in data.items()}
    return cls(**values)


def _value(hint: Any, value: Any, *, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise BadConfig(f"[{where}] must be a table", param=where)
        return _build(typing.cast("type[Any]", hint), value, where=f"{where}.")
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            near = difflib.get_close_matches(str(value), [str(a) for a in get_args(hint)], n=1)
            hint_text = f'; did you mean "{near[0]}"?' if near else ""
            choices = ", ".join(f'"{a}"' for a in get_args(hint))
            raise BadConfig(f"{where} must be one of {choices}{hint_text}", param=where)
        return value
    if get_origin(hint) is Mapping:
        if not isinstance(value, dict):
            raise BadConfig(f"[{where}] must be a table", param=where)
        return {k: _value(get_args(hint)[1], v, where=f"{where}.{k}") for k, v in value.items()}
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise BadConfig(f"{where} must be a list", param=where)
        return tuple(
            _value(get_args(hint)[0], v, where=f"{where}[{n}]") for n, v in enumerate(value)
        )
    if isinstance(hint, UnionType):
        hint = next(a for a in get_args(hint) if a is not type(None))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise BadConfig(f"{where} must be {hint.__name__}, not {type(value).__name__}", param=where)
    return value
