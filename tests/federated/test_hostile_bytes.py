"""What a hostile device can send: it is refused by name, and the round goes on without it."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.federated.learning_stand_ins import (
    BASE,
    InProcess,
    a_device,
    a_server,
    a_state,
    signer,
)

from floe.core.errors import BadUpdate
from floe.federated import desk, wire
from floe.federated.desk import means
from floe.federated.identity import MAGIC, seal, unseal
from floe.federated.rounds import FAILED, failure_in
from floe.federated.state import Codec
from floe.federated.update import AdapterState, Factors, Update
from floe.learn import run_rounds

DEEP = b"[" * 4000
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def sealed(header: bytes) -> bytes:
    return MAGIC + struct.pack("<I", len(header)) + header


@pytest.mark.parametrize(
    "header",
    [
        DEEP,
        b"[]",
        b"null",
        b'{"client":"a","round":Infinity,"nonce":"n","signature":"","digest":"%b"}'
        % EMPTY.encode(),
        b'{"client":"a","round":1,"nonce":"n","signature":7,"digest":"%b"}' % EMPTY.encode(),
    ],
)
def test_a_seal_that_no_device_makes_is_corrupt(header: bytes) -> None:
    with pytest.raises(BadUpdate, match="is damaged or no update") as refused:
        unseal(sealed(header))
    assert refused.value.reason == "corrupt"


def test_a_failure_is_a_plain_word_or_none() -> None:
    def told(kind: object) -> bytes:
        return FAILED + json.dumps({"kind": kind}).encode()

    assert failure_in(told("privacy_budget_error")) == "privacy_budget_error"
    for kind in ("\x1b[2Jcleared", "<b>bold</b>", "a" * 41, "", None, 7.5, ["x"]):
        assert failure_in(told(kind)) == "failed"
    for data in (DEEP, b"[1]", b"", b"null"):
        assert failure_in(FAILED + data) == "failed"


def framed(header: bytes, payload: bytes = b"") -> bytes:
    header += b" " * (-(len(header) + wire._HEAD.size) % 8)
    check = zlib.crc32(payload, zlib.crc32(header))
    return wire._HEAD.pack(wire._MAGIC, len(header), len(payload), check) + header + payload


HEADER = {
    "bits": 32, "client": "a", "round_number": 1, "n_examples": 1, "cluster": "",
    "started_from": "", "metrics": {}, "base_digest": "b", "modules": [],
}  # fmt: skip


@pytest.mark.parametrize("field", ["round_number", "n_examples", "bits"])
@pytest.mark.parametrize("number", ["1e999", "NaN", '"x"', "null"])
def test_numbers_that_are_none_make_no_update(field: str, number: str) -> None:
    text = json.dumps({**HEADER, field: 424242}).replace("424242", number)
    with pytest.raises(BadUpdate) as refused:
        wire.decode(framed(text.encode()))
    assert refused.value.reason == "malformed"


def test_a_devices_numbers_stay_within_bounds() -> None:
    one = Update(client="a", round_number=1, state=a_state(1), n_examples=10, metrics={})
    honest = replace(one, client="b", metrics={"loss": 2.0})
    for value in (1.7e308, -1.7e308, 1e13, float("inf"), float("nan")):
        assert means([replace(one, metrics={"loss": value}), honest]) == {"loss": 2.0}
    loud = replace(one, n_examples=10**400, metrics={"loss": 4.0})
    quiet = replace(honest, n_examples=desk.HEAVIEST)
    assert means([loud, quiet]) == {"loss": 3.0}
    names = {"<b>": 1.0, "a" * 41: 1.0, "\x1b[2J": 1.0, "fine_1": 1.0}
    assert means([replace(one, metrics=names)]) == {"fine_1": 1.0}
    many = {f"m{i}": 1.0 for i in range(1000)}
    assert len(means([replace(one, metrics=many)])) == desk.MOST_METRICS


def scaled(by: float) -> Callable[[Update], Update]:
    def change(update: Update) -> Update:
        modules = {
            n: Factors(a_RI=f.a_RI * np.float32(by), b_OR=f.b_OR * np.float32(by))
            for n, f in update.state.modules.items()
        }
        return replace(update, state=AdapterState(base_digest=BASE, modules=modules))

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (scaled(1e18), "norm_too_large"),
        (lambda u: replace(u, n_examples=10**400), "malformed"),
        (lambda u: replace(u, n_examples=-5), "no_examples"),
        (lambda u: replace(u, cluster="../../etc"), "wrong_start"),
        (lambda u: replace(u, client="b"), "impostor"),
    ],
)
def test_a_hostile_device_among_two_is_refused_by_name(
    tmp_path: Path, change: Callable[[Update], Update], reason: str
) -> None:
    codec = Codec(pack=wire.encode, unpack=wire.decode)
    parts = {n: replace(a_device(tmp_path, n), codec=codec) for n in ("a", "b")}
    server = a_server(tmp_path, ("a", "b"))
    server = replace(server, min_clients=1, rules=replace(server.rules, codec=codec))

    def bend(data: bytes) -> bytes:
        was = unseal(data)
        payload = wire.encode(change(wire.decode(was.payload)))
        return seal(payload, client="a", round_number=1, nonce=was.nonce, sign=signer("key-a"))

    reports = []
    run_rounds(InProcess(parts, {"a": bend}), server, rounds=1, tell=reports.append)
    (report,) = reports
    assert [(r.client, r.reason) for r in report.refused] == [("a", reason)]
    assert report.accepted == ("b",)
