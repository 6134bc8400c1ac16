"""Seals and the register of devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.federated.learning_stand_ins import signer

from floe.core.errors import BadConfig, BadRequest, BadUpdate
from floe.federated.identity import read_devices, seal, signed_text, unseal, write_devices

SEAL = seal(b"payload", client="a", round_number=2, nonce="n", sign=signer("key"))


def test_a_seal_opens_to_what_was_sealed() -> None:
    one = unseal(SEAL)
    assert (one.client, one.round_number, one.nonce, one.payload) == ("a", 2, "n", b"payload")
    assert one.signature == signer("key")(one.signed)


@given(at=st.integers(0, len(SEAL) - 1), flip=st.integers(1, 255))
def test_one_bent_byte_is_noticed(at: int, flip: int) -> None:
    bent = bytearray(SEAL)
    bent[at] ^= flip
    try:
        one = unseal(bytes(bent))
    except BadUpdate as error:
        assert error.reason == "corrupt"
    else:
        assert one.signature != signer("key")(one.signed)


@pytest.mark.parametrize("data", [b"", b"FLOESEAL", SEAL[:20], SEAL[:-1], b"\x80\x04pickle"])
def test_what_is_no_seal_is_corrupt(data: bytes) -> None:
    with pytest.raises(BadUpdate, match="is damaged or no update; send it again") as refused:
        unseal(data)
    assert refused.value.reason == "corrupt"


def test_no_two_seals_share_what_is_signed() -> None:
    assert signed_text("a", 1, "2,3", "d") != signed_text("a", 1, "2", "3,d")
    assert signed_text('a", 1', 1, "n", "d") != signed_text("a", 1, "n", "d")


def test_devices_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "devices.toml"
    write_devices(path, {"clinic-b": "22", "clinic.a": "11"})
    assert read_devices(path) == {"clinic-b": "22", "clinic.a": "11"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = ", "is not valid TOML"),
        ("a = 5", "the public key of device 'a' must be text"),
        ('a = " "', "the public key of device 'a' must be text"),
        ('a = "1"\nb = "1"', "b and a have the same key: each device needs its own"),
    ],
)
def test_a_bad_register_says_so(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "devices.toml"
    path.write_text(text)
    with pytest.raises(BadConfig, match=says):
        read_devices(path)


def test_a_missing_register_and_a_bad_name_say_so(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"cannot read the devices in .*floe fed join"):
        read_devices(tmp_path / "none.toml")
    (tmp_path / "devices.toml").write_text('"../a" = "1"')
    with pytest.raises(BadRequest, match="device name is not allowed"):
        read_devices(tmp_path / "devices.toml")
