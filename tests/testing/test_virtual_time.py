from __future__ import annotations

import asyncio
import time

import pytest

from floe.testing.virtual_time import run_virtual


def test_waits_are_exact_and_take_no_time() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        at: list[float] = []

        async def sleeper(seconds: float) -> None:
            await asyncio.sleep(seconds)
            at.append(loop.time())

        await asyncio.gather(sleeper(3600.0), sleeper(0.5), sleeper(7.25))
        return at

    started = time.monotonic()
    assert run_virtual(main()) == pytest.approx([0.5, 7.25, 3600.0])
    assert time.monotonic() - started < 60


def test_a_wait_that_cannot_end_is_an_error_and_not_a_hang() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="every task waits for something that nothing will set"):
        run_virtual(main())
