from __future__ import annotations

import json
import struct
from dataclasses import replace

import numpy as np
import pytest
from array_cases import flat_state, state, update
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.core.errors import BadUpdate
from floe.federated import wire
from floe.federated.chunks import Chunk, Reassembler, chunks
from floe.federated.products import relative_error, state_difference, state_norm, state_scaled
from floe.federated.update import AdapterState, Update


def an_update(seed: int = 0, rank: int = 3) -> Update:
    return Update(
        client="device-ä",
        round_number=4,
        state=state(np.random.default_rng(seed), rank),
        n_examples=17,
        cluster="c1",
        started_from="abc",
        metrics={"loss": 1.25, "step_ms": 3.0},
    )


def reason_of(data: bytes, **limits: int) -> str:
    with pytest.raises(BadUpdate) as refused:
        wire.decode(data, **limits)
    assert "device" not in refused.value.message or refused.value.reason != "corrupt"
    return refused.value.reason


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 9999), rank=st.integers(1, 9))
def test_an_update_comes_back_bit_for_bit(seed, rank):
    sent = an_update(seed, rank)
    back = wire.decode(wire.encode(sent))
    assert list(back.state.modules) == list(sent.state.modules)
    for name, found in back.state.modules.items():
        assert np.array_equal(found.a_RI, sent.state.modules[name].a_RI)
        assert np.array_equal(found.b_OR, sent.state.modules[name].b_OR)
        assert found.a_RI.dtype == found.b_OR.dtype == np.float32
    for field in ("client", "round_number", "n_examples", "cluster", "started_from", "metrics"):
        assert getattr(back, field) == getattr(sent, field)
    assert back.state.base_digest == "base"
    assert wire.encode(back) == wire.encode(sent)


def test_decoding_copies_nothing_and_cannot_be_written_into():
    data = wire.encode(an_update())
    back = wire.decode(memoryview(data))
    held = np.frombuffer(data, np.uint8)
    for module in back.state.modules.values():
        assert np.shares_memory(module.a_RI, held) and np.shares_memory(module.b_OR, held)
        with pytest.raises(ValueError, match="read-only"):
            module.a_RI[0, 0] = 1.0


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 9999), size=st.sampled_from([1e-6, 1.0, 1e6]))
def test_8_bits_are_within_half_a_step_of_each_row(seed, size):
    sent = replace(an_update(seed), state=state_scaled(an_update(seed).state, size))
    back = wire.decode(wire.encode(sent, bits=8))
    for name, found in back.state.modules.items():
        one = sent.state.modules[name]
        for x, y in ((one.a_RI, found.a_RI), (one.b_OR.T, found.b_OR.T)):
            step = np.abs(x).max(axis=1, keepdims=True) / 127
            assert np.all(np.abs(x - y) <= 0.501 * step)


def test_8_bits_take_a_row_of_zeros_and_are_stable():
    sent = an_update()
    sent.state.modules["q"].b_OR[...] = 0.0
    once = wire.decode(wire.encode(sent, bits=8))
    assert not np.any(once.state.modules["q"].b_OR)
    twice = wire.decode(wire.encode(once, bits=8))
    np.testing.assert_allclose(flat_state(twice.state), flat_state(once.state), rtol=1e-5)


def test_only_32_and_8_bits_are_spoken():
    with pytest.raises(ValueError, match="32 or 8 bits a value, not 16"):
        wire.encode(an_update(), bits=16)


def test_c29_the_size_of_an_upload_is_known_before_training():
    sent = an_update(rank=8)
    places = tuple((n, f.rank, *f.shape) for n, f in sent.state.modules.items())
    for bits in (32, 8):
        data = wire.encode(sent, bits=bits)
        header = len(data) - wire.payload_bytes(places, bits=bits)
        assert 0 < header < 600
    assert wire.payload_bytes(places, bits=8) < wire.payload_bytes(places) / 2


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damage_anywhere_is_found(data):
    frame = bytearray(wire.encode(an_update()))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadUpdate) as refused:
        wire.decode(bytes(frame))
    assert refused.value.reason in ("corrupt", "too_large")  # the length of a header may grow


@pytest.mark.parametrize("cut", [0, 1, 23, 24, 100, -1])
def test_a_frame_cut_short_or_grown_is_corrupt(cut):
    data = wire.encode(an_update())
    assert reason_of(data[:cut]) == "corrupt"
    assert reason_of(data + b"x") == "corrupt"
    with pytest.raises(BadUpdate, match=r"damaged on its way: .*; send it again"):
        wire.decode(data[:-1])


def test_c28_c31_too_large_is_said_with_the_number_before_anything_is_read():
    data = wire.encode(an_update())
    with pytest.raises(BadUpdate, match=rf"{len(data)} bytes is above the limit of 100; train at"):
        wire.decode(data, max_bytes=100)
    assert reason_of(b"\0" * 200, max_bytes=100) == "too_large"
    head = struct.pack("<8sIQI", b"floe-up1", 2**31, 0, 0)
    with pytest.raises(BadUpdate, match="a header of 2147483648 bytes is above the limit"):
        wire.decode(head)


def framed(text: bytes, payload: bytes = b"") -> bytes:
    """A frame whose checksum holds, whatever is in it."""
    check = wire._check(text, payload)
    return struct.pack("<8sIQI", b"floe-up1", len(text), len(payload), check) + text + payload


def forged(**changes: object) -> bytes:
    header = {
        "bits": 32, "client": "c", "round_number": 1, "n_examples": 1, "cluster": "",
        "started_from": "", "metrics": {}, "base_digest": "b", "modules": [["m", 1, 2, 3]],
    }  # fmt: skip
    return framed(json.dumps(header | changes).encode(), b"\0" * 20)


@pytest.mark.parametrize(
    "changes",
    [
        {"modules": [["m", 1, 2, 4]]},
        {"modules": [["m", 0, 2, 3]]},
        {"modules": [["m", -1, -2, -3]]},
        {"modules": [["m", 1, 1, 1], ["m", 1, 1, 2]]},
        {"modules": [["m", 10**30, 2, 3]]},
        {"modules": [["m", 1, 2]]},
        {"modules": {"m": 3}},
        {"modules": [[7, 1, 2, 3]]},
        {"bits": 16},
        {"bits": 8},
        {"bits": None},
        {"client": 3},
        {"client": "x" * 301},
        {"n_examples": "many"},
        {"metrics": {"loss": "low"}},
        {"metrics": {"loss": float("nan")}},
        {"metrics": {"loss": True}},
        {"metrics": [1.0]},
        {"round_number": None},
    ],
)
def test_a_header_that_describes_no_update_is_malformed(changes):
    assert wire.decode(forged()).state.rank == 1
    assert reason_of(forged(**changes)) == "malformed"


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_a_header_that_is_none_is_malformed(text):
    with pytest.raises(BadUpdate, match="does not describe an update") as refused:
        wire.decode(framed(text))
    assert refused.value.reason == "malformed"


def test_a_metric_that_is_no_number_does_not_leave():
    with pytest.raises(ValueError, match="not JSON compliant"):
        wire.encode(replace(an_update(), metrics={"loss": float("nan")}))


def test_what_rounding_lost_is_kept_and_sent_with_the_next_upload():
    """Error feedback: the mean of many rounds goes to the truth, without it the error stays."""
    truth = an_update(3, rank=4)
    residual, sums = None, {"with": None, "without": None}
    n = 24
    for _ in range(n):
        data, residual = wire.quantize(truth, residual)
        plain = wire.encode(truth, bits=8)
        for key, sent in (("with", data), ("without", plain)):
            got = wire.decode(sent).state
            old = sums[key]
            minus = state_scaled(got, -1.0)
            sums[key] = got if old is None else state_difference(old, minus)
    errors = {k: relative_error(state_scaled(s, 1 / n), truth.state) for k, s in sums.items()}
    assert errors["without"] > 1e-3
    assert errors["with"] < errors["without"] / 5


def test_the_residual_is_the_difference_in_product_space():
    sent = an_update(5)
    data, residual = wire.quantize(sent)
    got = wire.decode(data).state
    lost = state_difference(sent.state, got)
    assert state_norm(residual) > 0.0
    assert relative_error(residual, lost) < 0.6  # kept at the adapter's rank, its best part
    assert residual.rank <= sent.state.rank


def test_a_shared_half_stays_shared_through_quantization():
    first, residual = wire.quantize(an_update(6))
    again, _ = wire.quantize(an_update(6), residual, keep_factors=True)
    assert first == again
    moved, _ = wire.quantize(an_update(6), residual)
    assert moved != first


def test_pieces_come_back_in_any_order_and_some_twice():
    data = wire.encode(an_update())
    pieces = list(chunks(data, size=100))
    assert pieces[0].count == len(pieces) == -(-len(data) // 100)
    whole = Reassembler()
    assert whole.missing == () and not whole.complete
    for piece in [*reversed(pieces), pieces[0]]:
        whole.add(piece)
    assert whole.complete and whole.data() == data


def test_c28_a_broken_transfer_is_resumed_with_what_is_missing():
    data = bytes(range(256)) * 5
    whole = Reassembler()
    for piece in list(chunks(data, size=200))[::2]:
        whole.add(piece)
    assert whole.missing == (1, 3, 5)
    with pytest.raises(BadUpdate, match="3 pieces of the transfer are still to come") as early:
        whole.data()
    assert early.value.reason == "incomplete"
    for piece in chunks(data, size=200, only=whole.missing):
        whole.add(piece)
    assert whole.data() == data


def test_nothing_and_one_piece_are_transfers_too():
    for data in (b"", b"x"):
        whole = Reassembler()
        for piece in chunks(data, size=10):
            whole.add(piece)
        assert whole.data() == data
    with pytest.raises(ValueError, match="at least 1 byte, not 0"):
        list(chunks(b"x", size=0))


def test_a_damaged_piece_is_refused_and_may_come_again():
    data = bytes(1000)
    first, second = chunks(data, size=500)
    whole = Reassembler()
    whole.add(first)
    with pytest.raises(BadUpdate, match="piece 1 of 2 was damaged on its way") as refused:
        whole.add(replace(second, data=b"\1" + second.data[1:]))
    assert refused.value.reason == "corrupt" and whole.missing == (1,)
    whole.add(second)
    assert whole.data() == data


@pytest.mark.parametrize(
    "changes",
    [
        {"index": 2},
        {"index": -1},
        {"count": 3},
        {"size": 0},
        {"size": 400},
        {"data": b"short"},
        {"whole": "another"},
        {"n_bytes": 999},
    ],
)
def test_a_piece_of_another_transfer_is_refused(changes):
    first, second = chunks(bytes(1000), size=500)
    whole = Reassembler()
    whole.add(first)
    with pytest.raises(BadUpdate, match="is not one of this transfer's 2") as refused:
        whole.add(replace(second, **changes))
    assert refused.value.reason == "malformed"


def test_c28_a_transfer_above_the_limit_is_refused_at_its_first_piece():
    piece = next(chunks(bytes(1000), size=10))
    with pytest.raises(BadUpdate, match="a transfer of 1000 bytes is above the limit of 999"):
        Reassembler(max_bytes=999).add(piece)


def test_pieces_that_hold_but_are_another_whole_are_found():
    pieces = [replace(p, whole="0" * 64) for p in chunks(bytes(100), size=50)]
    whole = Reassembler()
    for piece in pieces:
        whole.add(piece)
    with pytest.raises(BadUpdate, match="the whole is not what was sent") as refused:
        whole.data()
    assert refused.value.reason == "corrupt"


def test_a_first_piece_that_is_none_leaves_the_transfer_open():
    piece: Chunk = next(chunks(bytes(10), size=10))
    whole = Reassembler()
    with pytest.raises(BadUpdate):
        whole.add(replace(piece, sha256="0"))
    whole.add(piece)
    assert whole.data() == bytes(10)


def test_an_empty_adapter_travels_and_is_refused_by_who_adds_up():
    nothing = update(AdapterState(base_digest="b", modules={}))
    assert wire.decode(wire.encode(nothing)).state.modules == {}
