"""The matrix of faults: every kind at every token, every client, every fuser, nothing lost."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator

import pytest

from floe.core.token import Draw
from floe.fusion.generate import Fuser
from floe.testing import takeovers as matrix
from floe.testing.broken_network import FAULTS, Network
from floe.testing.takeovers import CLIENTS, FUSERS, takeovers
from floe.testing.virtual_time import run_virtual

N_TOKENS = 10


@pytest.mark.parametrize("fuser", FUSERS)
@pytest.mark.parametrize("client", CLIENTS)
def test_b40_b41_b43_the_slm_goes_on_at_every_token_of_every_fault(client: str, fuser: str) -> None:
    found = takeovers(n_tokens=N_TOKENS, clients=[client], fusers=[fuser])
    assert found.failed == ()
    assert found.cases == found.continued == len(FAULTS) * N_TOKENS
    assert (found.repeats, found.gaps) == (0, 0)
    # tokens before the fault came from both: the matrix is not one of dead clouds
    assert found.fused >= found.cases


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_greedy_and_hot_answers(temperature: float) -> None:
    found = takeovers(n_tokens=4, temperature=temperature, clients=["floe", "vllm"])
    assert found.failed == () and found.continued == found.cases


class Twice(Fuser):
    """Says its fourth token twice."""

    async def __call__(self, *args) -> AsyncGenerator[Draw, None]:
        n = 0
        async for draw in super().__call__(*args):
            yield draw
            n += 1
            if n == 4:
                yield draw


class Loses(Fuser):
    """Keeps its fourth token for itself."""

    async def __call__(self, *args) -> AsyncGenerator[Draw, None]:
        n = 0
        async for draw in super().__call__(*args):
            n += 1
            if n != 4:
                yield draw


class Elsewhere(Fuser):
    """Draws its fifth token from another place."""

    async def __call__(self, *args) -> AsyncGenerator[Draw, None]:
        n = 0
        async for draw in super().__call__(*args):
            n += 1
            yield dataclasses.replace(draw, log_prob=-3.3, origin="edge") if n == 5 else draw


@pytest.mark.parametrize("broken", [Twice, Loses, Elsewhere])
def test_the_matrix_sees_a_fuser_that_repeats_or_loses(
    broken: type[Fuser], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix, "Fuser", broken)
    found = takeovers(n_tokens=6, clients=["floe"], fusers=["token by token"], faults=["reset"])
    assert len(found.failed) == found.cases == 6
    assert found.failed[0] == "floe, token by token, reset at token 0"
    assert found.repeats + found.gaps > 0


def drawn(
    client: str, fuser: str, temperature: float, network: Network, n_tokens: int = N_TOKENS
) -> list[Draw]:
    bench = matrix._Bench(client, fuser, n_tokens=n_tokens, temperature=temperature)
    bench._network = network
    return run_virtual(bench._answer())[0]


@pytest.mark.parametrize("temperature", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("client", ["floe", "openai"])
def test_over_http_checking_drafts_gives_the_answer_of_asking_place_by_place(
    client: str, temperature: float
) -> None:
    for fault, at_bytes in [(None, 0), ("cut", 20), ("reset", 9), ("malformed event", 12)]:
        checked, asked = (
            drawn(client, fuser, temperature, Network(matrix._advice, fault, at_bytes=at_bytes))
            for fuser in ("cloud drafts", "token by token")
        )
        assert [d.id for d in checked] == [d.id for d in asked]
        assert [d.origin for d in checked] == [d.origin for d in asked]


def test_a_stream_that_can_be_continued_serves_more_of_the_answer() -> None:
    def fused(client: str) -> int:
        draws = drawn(client, "cloud drafts", 1.3, Network(matrix._advice), 30)
        return sum(d.origin != "edge" for d in draws)

    assert fused("vllm") > fused("openai")
