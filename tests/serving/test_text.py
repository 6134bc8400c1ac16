"""Bytes to text in pieces equals bytes to text at once, whatever the pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.core.text import TextStream


def streamed(pieces: list[bytes], stop: tuple[str, ...] = ()) -> list[str]:
    stream = TextStream(stop)
    return [*(stream.feed(piece) for piece in pieces), stream.finish()]


def whole(data: bytes, stop: tuple[str, ...]) -> str:
    """The twin: decode everything, cut at the stop string that is complete first."""
    text = data.decode("utf-8", "replace")
    for end in range(len(text) + 1):
        starts = [end - len(s) for s in stop if s and text[:end].endswith(s)]
        if starts:
            return text[: min(starts)]
    return text


def cut(data: bytes, places: list[int]) -> list[bytes]:
    borders = [0, *sorted(p % (len(data) + 1) for p in places), len(data)]
    return [data[a:b] for a, b in pairwise(borders)]


texts = st.text(alphabet="ab<|>。終😀 é\n", max_size=40).map(str.encode)
noise = st.binary(max_size=30)
stops = st.lists(st.text(alphabet="ab<|>。終😀", max_size=4), max_size=3).map(tuple)


@given(
    st.one_of(texts, noise, st.tuples(texts, noise).map(b"".join)),
    st.lists(st.integers(0, 99)),
    stops,
)
def test_any_chunking_gives_the_text_of_the_whole(
    data: bytes, places: list[int], stop: tuple[str, ...]
) -> None:
    assert "".join(streamed(cut(data, places), stop)) == whole(data, stop)


@given(texts, stops)
def test_what_was_emitted_is_a_prefix_of_what_follows(data: bytes, stop: tuple[str, ...]) -> None:
    final, emitted = whole(data, stop), ""
    stream = TextStream(stop)
    for at in range(len(data)):
        emitted += stream.feed(data[at : at + 1])
        assert final.startswith(emitted)
    assert emitted + stream.finish() == final


def test_a41_an_emoji_in_two_tokens_is_one_character() -> None:
    assert streamed([b"\xf0\x9f", b"\x98\x80"]) == ["", "😀", ""]


def test_a43_text_goes_on_after_a_held_half_character() -> None:
    pieces = ["日".encode()[:1], "日".encode()[1:] + "本".encode()[:2], "本".encode()[2:], b"!"]
    assert streamed(pieces) == ["", "日", "本", "!", ""]


def test_a44_a_byte_that_can_never_be_valid_does_not_stall() -> None:
    assert streamed([b"\xff", b"ab"]) == ["\ufffd", "ab", ""]


def test_a44_a_tail_that_never_completes_is_flushed_at_the_end() -> None:
    assert streamed([b"a\xf0\x9f"]) == ["a", "\ufffd"]


def test_a46_text_that_begins_no_stop_is_not_delayed() -> None:
    assert streamed([b"plain ", b"words"], stop=("x" * 40,)) == ["plain ", "words", ""]


def test_a46_what_is_held_at_the_end_is_flushed() -> None:
    assert streamed([b"ab<|"], stop=("<|end|>",)) == ["ab", "<|"]


def test_a47_a_stop_across_pieces_takes_nothing_back() -> None:
    assert streamed([b"<unk>", b"<unk>"], stop=("><",)) == ["<unk", "", ""]


@pytest.mark.parametrize("length", range(1, len("Observation:")))
def test_a49_every_proper_prefix_of_a_stop_is_held(length: int) -> None:
    stream = TextStream(("Observation:",))
    assert stream.feed(b"long output " + b"Observation:"[:length]) == "long output "
    assert stream.finish() == "Observation:"[:length]


def test_a50_a_stop_of_wide_characters_is_cut_between_characters() -> None:
    data = "好。終わり".encode()
    for at in range(len(data)):
        assert "".join(streamed([data[:at], data[at:]], stop=("。終",))) == "好"


def test_nothing_follows_a_stop() -> None:
    stream = TextStream(("b",))
    assert stream.feed(b"abc") == "a"
    assert stream.stopped
    assert (stream.feed(b"d"), stream.finish()) == ("", "")


def test_the_stop_that_is_complete_first_wins_in_one_piece_as_in_many() -> None:
    assert "".join(streamed([b"abc"], stop=("abc", "b"))) == "a"
    assert "".join(streamed([b"a", b"b", b"c"], stop=("abc", "b"))) == "a"
