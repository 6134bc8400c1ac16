"""Configuration: defaults, unknown keys with the nearest name, wrong types and values, secrets."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest

from floe.cli.init import commented_config
from floe.core.config import Config, Secrets, home, load_config
from floe.core.errors import BadConfig
from floe.core.sections import TenantConfig


def write(folder: Path, text: str) -> Path:
    path = folder / "floe.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_no_file_is_the_defaults() -> None:
    assert load_config(None) == Config()


def test_the_written_configuration_is_the_defaults(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, commented_config())) == Config()


def test_every_setting_is_written() -> None:
    written = tomllib.loads(commented_config())
    for section in dataclasses.fields(Config):
        if section.name == "tenants":
            continue
        record = getattr(Config(), section.name)
        assert set(written[section.name]) == {f.name for f in dataclasses.fields(record)}


def test_values_arrive_and_integers_become_floats(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "[fusion]\nweight = 1\n[serve]\nport = 9000\n"))
    assert config.fusion.weight == 1.0
    assert isinstance(config.fusion.weight, float)
    assert config.serve.port == 9000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[fusion]\nwieght = 0.5", 'unknown key "fusion.wieght".*did you mean "weight"'),
        ("[fuson]\n", 'unknown key "fuson".*did you mean "fusion"'),
        ("[zzz]\n", 'unknown key "zzz".*known: model'),
        ("fusion = 1", r"\[fusion\] must be a table"),
        ("[serve]\nport = true", "serve.port must be int, not bool"),
        ('[serve]\nport = "80"', "serve.port must be int, not str"),
        ("[serve]\nport = 70000", "serve.port must be between 1 and 65535"),
        ("[fusion]\nweight = 1.5", "fusion.weight must be between 0 and 1"),
        ('[fusion]\nweights = ""', 'fusion.weights must be "auto", "off" or the path of a file'),
        ('[fusion]\nweights = " "', "fusion.weights must be"),
        ('[federated]\naddress = "here"', "federated.address must be host:port"),
        ("[federated]\nfraction = 0", "federated.fraction must be above 0 and at most 1"),
        ("[federated]\nsecagg = true", 'federated.mode must be "freeze-a" with federated.secagg'),
        (
            '[federated]\nsecagg = true\nmode = "freeze-a"\nclusters = 1\nrank = 32',
            "federated.min_clients must be 3 or more with federated.secagg",
        ),
        (
            '[federated]\nsecagg = true\nmode = "freeze-a"\nclusters = 1\nmin_clients = 3',
            "federated.rank must be at least the largest of federated.ranks with federated.secagg",
        ),
        (
            '[federated]\nsecagg = true\nmode = "freeze-a"\nclusters = 1\nmin_clients = 3\n'
            'rank = 32\ndp = "central"',
            'federated.dp must be other than "central" with federated.secagg',
        ),
        ('[federated]\ncertificate = "a.pem"', "federated.certificate_key must be given together"),
        ("[federated]\nepsilon = nan", "federated.epsilon must be a number above 0"),
        ("[federated]\nclip_norm = inf", "federated.clip_norm must be a number above 0"),
        ("[federated]\nranks = []", "federated.ranks must be a list of ranks"),
        ('[federated]\nname = "../x"', "federated.name must be named by"),
        ("[fusion]\nweight = nan", "fusion.weight must be between 0 and 1"),
        ("[model]\ncontext_tokens = 8", "model.context_tokens must be 64 or more"),
        ('[cloud]\nkind = "flo"', 'cloud.kind must be one of "none", "floe", "openai".*"floe"'),
        ('[cloud]\nkind = "floe"', "cloud.url must be set for this kind"),
        ("[cloud]\nconnect_timeout_ms = 0", "cloud.connect_timeout_ms must be 1 or more"),
        ('[cloud]\ncontinues = "vlm"', '"no", "vllm", "prefill"; did you mean "vllm"'),
        (
            '[cloud]\nkind = "floe"\nurl = "http://localhost"\ncontinues = "vllm"',
            'cloud.continues must be "no" unless cloud.kind is "openai"',
        ),
        ('[privacy]\nner = "of"', 'privacy.ner must be one of.*did you mean "o'),
        (
            '[power]\ncontroller = "lerned"',
            'power.controller must be one of.*did you mean "learned',
        ),
        ('[power]\nknobs = "auto"', 'power.controller must be set when power.knobs is not "noop"'),
        ('[power]\ndvfs_mode = "eco"', 'power.dvfs_mode must be one of "performance", "balanced"'),
        ("[power]\nttft_slo_ms = -1", r"power.ttft_slo_ms must be 0 \(none\) or more"),
        ("[power]\ntpot_slo_ms = inf", r"power.tpot_slo_ms must be 0 \(none\) or more"),
        ("[power]\npower_budget_w = nan", r"power.power_budget_w must be 0 \(none\) or more"),
        ("[serve\n", "is not valid TOML"),
    ],
)
def test_b23_a_bad_configuration_stops_the_start(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        load_config(write(tmp_path, text))


def test_an_absent_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"cannot read .*floe init"):
        load_config(tmp_path / "absent.toml")


def test_secrets_come_from_the_environment_and_print_as_stars(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLOE_API_KEY", "tulip-7")
    monkeypatch.setenv("FLOE_CLOUD_KEY", "")
    secrets = Secrets.from_environment()
    assert secrets.api_key == "tulip-7"
    assert secrets.cloud_key is None
    assert "tulip" not in repr(secrets)
    assert "***" in repr(secrets)


@pytest.mark.parametrize("name", ["FLOE_API_KEY", "FLOE_CLOUD_KEY", "FLOE_ADMIN_KEY"])
@pytest.mark.parametrize("blank", [" ", "\t \n"])
def test_a_blank_key_is_no_key_and_no_open_door(
    monkeypatch: pytest.MonkeyPatch, name: str, blank: str
) -> None:
    monkeypatch.setenv(name, blank)
    with pytest.raises(BadConfig, match=f"{name} is blank"):
        Secrets.from_environment()


def test_space_around_a_key_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOE_API_KEY", "tulip-7\n")
    assert Secrets.from_environment().api_key == "tulip-7"


@pytest.mark.parametrize("below", ["", "x/y"])
def test_a_home_that_is_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLOE_HOME", str(tmp_path / "file" / below))
    with pytest.raises(BadConfig, match=r"FLOE_HOME=.*file is not a folder"):
        home()
    monkeypatch.setenv("FLOE_HOME", str(tmp_path / "a" / "b"))
    assert home() == tmp_path / "a" / "b"
    monkeypatch.setenv("FLOE_HOME", "x" * 5_000)
    with pytest.raises(BadConfig, match="cannot be used: File name too long"):
        home()


def test_tenants_are_read_by_name(tmp_path: Path) -> None:
    config = load_config(
        write(tmp_path, '[tenants.ward]\nguaranteed_bytes = 5\nadapters = ["law", "maths"]\n')
    )
    assert config.tenants["ward"].adapters == ("law", "maths")
    assert config.tenants["ward"].guaranteed_bytes == 5


def test_the_written_example_of_a_tenant_can_be_used(tmp_path: Path) -> None:
    text = commented_config()
    example = text[text.index("# [tenants.NAME]") :].replace("\n# ", "\n").removeprefix("# ")
    assert load_config(write(tmp_path, example)).tenants == {"NAME": TenantConfig()}


@pytest.mark.parametrize(
    ("adapters", "said"),
    [('"law"', "adapters must be a list"), ('["law", 3]', r"adapters\[1\] must be str")],
)
def test_a_list_in_the_configuration_is_checked(tmp_path: Path, adapters: str, said: str) -> None:
    with pytest.raises(BadConfig, match=said):
        load_config(write(tmp_path, f"[tenants.ward]\nadapters = {adapters}\n"))


def test_power_choices_of_the_configuration_are_those_of_the_part() -> None:
    from typing import get_args, get_type_hints

    from floe.core.sections import PowerConfig
    from floe.power.controllers.rules import RULES
    from floe.power.knobs.probe import NAMES as KNOBS
    from floe.power.meters.probe import NAMES as METERS

    hints = get_type_hints(PowerConfig)
    assert set(get_args(hints["meter"])) == set(METERS)
    assert set(get_args(hints["knobs"])) == set(KNOBS) - {"nvpmodel"}  # modes are not clocks
    assert set(get_args(hints["controller"])) == {"off", "learned", "dqn", *RULES}
