"""Placement against a slow obvious twin, and its promises under random use."""

from __future__ import annotations

from itertools import pairwise

from fake_kv import FakeKv, Recorder
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.engine.kv_context import KvContext
from floe.engine.placement import (
    Place,
    common_prefix,
    place_bound,
    place_idle,
    reserved_tokens,
    rows_to_forget,
)

N_CTX = 24
MANY = settings(max_examples=150, deadline=None)
TOKENS = st.lists(st.integers(0, 1), max_size=12)


@st.composite
def contexts(draw: st.DrawFn) -> list[KvContext]:
    """Contexts as they can be in use: reserves within n_ctx, open rows within their reserve."""
    made = []
    clock = draw(st.permutations(range(1, 13)))
    for c in range(draw(st.integers(0, 3))):
        context = FakeKv(Recorder(), n_ctx=N_CTX, n_seq=draw(st.integers(1, 4)))
        context.key = draw(st.sampled_from([(), (), (), (("a", 1.0),), None]))
        room = N_CTX
        for row in context.sequences:
            row.tokens[:] = draw(TOKENS) if context.key is not None else []
            row.last_used = clock[c * 4 + row.id]
            need = draw(st.integers(max(len(row.tokens), 1), 16))
            if context.key is not None and need <= room and draw(st.booleans()):
                row.open, row.reserved_tokens = True, need
                room -= need
        made.append(context)
    return made  # type: ignore[return-value]


def _prefix(a: list[int], b: list[int]) -> int:
    return max(n for n in range(min(len(a), len(b)) + 1) if a[:n] == b[:n])


@MANY
@given(TOKENS, TOKENS)
def test_common_prefix_is_the_longest_equal_start(a: list[int], b: list[int]) -> None:
    assert common_prefix(a, b) == _prefix(a, b)


@MANY
@given(contexts(), TOKENS, st.integers(1, N_CTX))
def test_the_best_prefix_under_the_same_adapters_is_found(
    made: list[KvContext], prompt: list[int], need: int
) -> None:
    """Best over every row, open ones too, of every context with room; None only without room."""
    place = place_bound(made, (), prompt, need)
    fit = [
        c
        for c in made
        if c.key == ()
        and not all(s.open for s in c.sequences)
        and sum(s.reserved_tokens for s in c.sequences if s.open) + need <= c.n_ctx
    ]
    if place is None:
        assert not fit
        return
    assert place.context in fit
    assert place.n_prefix == max(_prefix(s.tokens, prompt[:need]) for c in fit for s in c.sequences)
    assert place.source.tokens[: place.n_prefix] == prompt[: place.n_prefix]
    assert place.source in place.context.sequences
    assert place.row in place.context.sequences
    assert not place.rebind


@MANY
@given(contexts(), TOKENS, st.integers(1, N_CTX))
def test_an_open_row_is_never_taken_and_the_oldest_cache_goes_first(
    made: list[KvContext], prompt: list[int], need: int
) -> None:
    place = place_bound(made, (), prompt, need)
    if place is None:
        return
    assert not place.row.open
    if place.row is not place.source:
        free = [s for s in place.context.sequences if not s.open]
        empty = [s for s in free if not s.tokens]
        assert place.row in empty or not empty
        assert empty or place.row.last_used == min(s.last_used for s in free)


def _take(place: Place, prompt: list[int], need: int) -> None:
    """What the scheduler does with a place."""
    place.row.tokens[:] = prompt[: place.n_prefix]
    place.row.open, place.row.reserved_tokens = True, need
    for row in rows_to_forget(place.context, place.row):
        assert not row.open
        assert row is not place.row
        row.tokens.clear()


@MANY
@given(contexts(), TOKENS, st.integers(1, N_CTX))
def test_every_promise_can_be_kept(made: list[KvContext], prompt: list[int], need: int) -> None:
    """Reserves and what stays cached fit together, however the sessions use their reserve."""
    place = place_bound(made, (), prompt, need)
    if place is None:
        return
    _take(place, prompt, need)
    cached = sum(len(s.tokens) for s in place.context.sequences if not s.open)
    assert len(place.row.tokens) <= place.row.reserved_tokens
    assert reserved_tokens(place.context) <= N_CTX
    assert reserved_tokens(place.context) + cached <= N_CTX


@MANY
@given(contexts(), st.integers(1, 4))
def test_only_the_oldest_cached_rows_are_forgotten_and_no_more_than_needed(
    made: list[KvContext], over: int
) -> None:
    for context in made:
        free = [s for s in context.sequences if not s.open and s.tokens]
        gone = rows_to_forget(context, context.sequences[0])
        assert all(a.last_used <= b.last_used for a, b in pairwise(gone))
        others = [s for s in free if s not in gone and s is not context.sequences[0]]
        assert all(a.last_used <= b.last_used for a in gone for b in others)
        if gone:
            # context.sequences[0] is the row to keep: its reserve counts, its cache does not
            held = [s for s in free if s is not context.sequences[0] and s not in gone[:-1]]
            assert reserved_tokens(context) + sum(len(s.tokens) for s in held) > N_CTX


@MANY
@given(contexts(), st.integers(1, N_CTX + 2))
def test_an_idle_context_unused_for_longest_is_rebound(made: list[KvContext], need: int) -> None:
    place = place_idle(made, need)
    idle = [c for c in made if not any(s.open for s in c.sequences)]
    if need > N_CTX or not idle:
        assert place is None
        return
    assert place is not None
    assert place.rebind
    assert place.n_prefix == 0
    assert place.context in idle
    used = [max(s.last_used for s in c.sequences) for c in idle]
    assert max(s.last_used for s in place.context.sequences) == min(used)


def test_a_row_holds_no_more_than_was_promised_to_it() -> None:
    """A session that asks for 3 tokens gets 3 of a cached prefix of 12, not 12."""
    context = FakeKv(Recorder(), n_ctx=N_CTX, n_seq=2)
    context.key = ()
    context.sequences[0].tokens[:] = [1] * 12
    place = place_bound([context], (), [1] * 12, 3)  # type: ignore[list-item]
    assert place is not None
    assert place.n_prefix == 3
