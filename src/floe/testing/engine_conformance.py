"""What every engine must do, as a list of checks; an engine is finished when the list passes.

@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_conformance(check, subject):
    check(subject)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from floe.core.errors import ContextTooLong, FloeError
from floe.engine.base import AdapterHandle, Engine, FloatArray, Session


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An engine with two different adapters loaded. `atol` bounds log-probability differences.

    `mixes` tells whether two adapters may be active at once.
    """

    engine: Engine
    adapters: tuple[AdapterHandle, AdapterHandle]
    atol: float
    text: str = "the cat and the dog in the rain"
    context_tokens: int = 512


def _open(subject: Subject, *adapters: tuple[AdapterHandle, float]) -> Session:
    return subject.engine.session(adapters, max_tokens=128).result()


def _fresh(
    subject: Subject, tokens: Sequence[int], *adapters: tuple[AdapterHandle, float]
) -> FloatArray:
    session = _open(subject, *adapters)
    try:
        return session.feed(tokens)
    finally:
        session.close()


def _same(subject: Subject, a: FloatArray, b: FloatArray) -> None:
    worst = float(np.abs(a - b).max())
    assert worst <= subject.atol, f"log-probabilities differ by {worst}, allowed {subject.atol}"


def _prompt(subject: Subject) -> list[int]:
    tokens = subject.engine.tokenize(subject.text)
    assert len(tokens) >= 6, "the check needs a longer text"
    return tokens


def log_probs_are_a_distribution(subject: Subject) -> None:
    """Shape (V,) over real ids, finite, mass 1."""
    log_probs_V = _fresh(subject, _prompt(subject))
    assert log_probs_V.shape == (subject.engine.info.n_vocab,)
    assert np.isfinite(log_probs_V).all()
    assert abs(float(np.exp(log_probs_V.astype(np.float64)).sum()) - 1) < 1e-4


def tokens_carry_the_text(subject: Subject) -> None:
    """The bytes of the ids are the text; control tokens stand for none."""
    engine = subject.engine
    for text in (subject.text, "naïve 雪 🙂 \n\t end"):
        data = b"".join(engine.token_bytes(t) for t in engine.tokenize(text))
        assert data == text.encode()
    assert all(engine.token_bytes(t) == b"" for t in engine.info.eos_ids)


def every_equals_step_by_step(subject: Subject) -> None:
    """`every` gives after each token what feeding them one by one gives."""
    prompt = _prompt(subject)
    whole = _open(subject)
    all_TV = whole.feed(prompt, every=True)
    assert all_TV.shape == (len(prompt), subject.engine.info.n_vocab)
    steps = _open(subject)
    for i, token in enumerate(prompt):
        _same(subject, all_TV[i], steps.feed([token]))
    whole.close()
    steps.close()


def rollback_equals_fresh(subject: Subject) -> None:
    """After a rollback the session is as if the tokens had never been fed."""
    prompt = _prompt(subject)
    session = _open(subject)
    session.feed(prompt)
    session.feed(prompt[::-1])
    session.rollback(len(prompt) + 2)
    assert list(session.tokens) == prompt[:-2]
    _same(subject, session.feed(prompt[-2:]), _fresh(subject, prompt))
    session.close()


def fork_goes_on_alone(subject: Subject) -> None:
    """Both branches give what fresh sessions give; neither sees the other."""
    prompt = _prompt(subject)
    session = _open(subject)
    session.feed(prompt[:-1])
    branch = session.fork()
    other = prompt[0]
    _same(subject, branch.feed([other]), _fresh(subject, [*prompt[:-1], other]))
    _same(subject, session.feed([prompt[-1]]), _fresh(subject, prompt))
    assert list(session.tokens) == prompt
    branch.close()
    session.close()


def a_prefix_is_reused_without_effect(subject: Subject) -> None:
    """A second session with the same prompt answers the same (bug-log A38: never an empty rest)."""
    prompt = _prompt(subject)
    first = _fresh(subject, prompt)
    for tokens in (prompt, prompt[:-2], [*prompt, prompt[0]]):
        session = subject.engine.session((), prompt=tokens, max_tokens=128).result()
        again = session.feed(tokens)
        assert 0 <= session.cached_tokens < len(tokens)
        _same(subject, again, _fresh(subject, tokens))
        session.close()
    _same(subject, first, _fresh(subject, prompt))


def an_adapter_changes_the_answer(subject: Subject) -> None:
    """On is not off, one is not the other, scale 0 is off, and off comes back (bug-log A37)."""
    prompt, (a, b) = _prompt(subject), subject.adapters
    off = _fresh(subject, prompt)
    with_a, with_b = _fresh(subject, prompt, (a, 1.0)), _fresh(subject, prompt, (b, 1.0))
    for x, y in ((with_a, off), (with_b, off), (with_a, with_b)):
        assert np.abs(x - y).max() > max(10 * subject.atol, 1e-3), "an adapter has no effect"
    _same(subject, _fresh(subject, prompt, (a, 0.0)), off)
    _same(subject, _fresh(subject, prompt), off)
    _same(subject, _fresh(subject, prompt, (a, 1.0)), with_a)


def a_mix_is_neither_part(subject: Subject) -> None:
    """Two adapters at once: order does not matter, and the mix is its own answer."""
    prompt, (a, b) = _prompt(subject), subject.adapters
    mix = _fresh(subject, prompt, (a, 0.7), (b, 0.3))
    _same(subject, mix, _fresh(subject, prompt, (b, 0.3), (a, 0.7)))
    assert np.abs(mix - _fresh(subject, prompt, (a, 0.7))).max() > max(2 * subject.atol, 1e-3)


def interleaved_sessions_stay_apart(subject: Subject) -> None:
    """Three streams, token by token in turn, base and two adapters (bug-log A19)."""
    prompt, (a, b) = _prompt(subject), subject.adapters
    routes: list[tuple[tuple[AdapterHandle, float], ...]] = [(), ((a, 1.0),), ((b, 1.0),)]
    sessions = [_open(subject, *route) for route in routes]
    for token in prompt[:-1]:
        for session in sessions:
            session.feed([token])
    for session, route in zip(sessions, routes, strict=True):
        _same(subject, session.feed([prompt[-1]]), _fresh(subject, prompt, *route))
        session.close()


def sessions_run_at_once(subject: Subject) -> None:
    """Jobs submitted together all finish with what they give alone."""
    prompt, (a, _) = _prompt(subject), subject.adapters
    routes: list[tuple[tuple[AdapterHandle, float], ...]] = [(), (), ((a, 1.0),)]
    sessions = [_open(subject, *route) for route in routes]
    futures = [s.submit(prompt) for s in sessions]
    for session, future, route in zip(sessions, futures, routes, strict=True):
        _same(subject, future.result(timeout=120), _fresh(subject, prompt, *route))
        session.close()


def bad_calls_harm_nobody(subject: Subject) -> None:
    """Empty feeds, unknown ids, too much rollback and closed sessions are clear errors."""
    prompt = _prompt(subject)
    bystander = _open(subject)
    bystander.feed(prompt[:-1])
    session = _open(subject)
    session.feed(prompt)
    bad: list[Callable[[], object]] = [
        lambda: session.feed([]),
        lambda: session.feed([subject.engine.info.n_vocab]),
        lambda: session.feed([-1]),
        lambda: session.rollback(len(prompt) + 1),
        lambda: session.feed(prompt * 64),
    ]
    for call in bad:
        assert isinstance(_error_of(call), FloeError)
    assert list(session.tokens) == prompt
    session.close()
    session.close()
    assert isinstance(_error_of(lambda: session.feed(prompt)), FloeError)
    _same(subject, bystander.feed([prompt[-1]]), _fresh(subject, prompt))
    bystander.close()


def too_long_is_refused_at_once(subject: Subject) -> None:
    """More than the context holds is ContextTooLong before any work."""
    opening = subject.engine.session((), max_tokens=subject.context_tokens + 1)
    assert isinstance(_error_of(opening.result), ContextTooLong)


def _error_of(call: Callable[[], object]) -> BaseException | None:
    try:
        call()
    except Exception as error:  # the check is which error it is
        return error
    return None


CHECKS: tuple[Callable[[Subject], None], ...] = (
    log_probs_are_a_distribution,
    tokens_carry_the_text,
    every_equals_step_by_step,
    rollback_equals_fresh,
    fork_goes_on_alone,
    a_prefix_is_reused_without_effect,
    an_adapter_changes_the_answer,
    a_mix_is_neither_part,
    interleaved_sessions_stay_apart,
    sessions_run_at_once,
    bad_calls_harm_nobody,
    too_long_is_refused_at_once,
)
