"""A network between a stream and its cloud, emulated in process: delay, jitter, loss, stalls, ends.

It stands around an `Advise`, so what is asked and answered is real and only time is made.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from floe.core.advice import Advice, Advise, Question

_RESEND_MS = 200.0  # the least retransmission time-out of Linux's TCP


@dataclass(frozen=True, kw_only=True)
class Network:
    """How one way to the cloud behaves.

    `rtt_ms` is the round trip without load; each exchange takes up to `jitter_ms` more, evenly
    spread. With the share `loss` a packet is sent again after 200 ms, with the share `stalls` an
    exchange waits `stall_ms` more. `dead` swallows everything without an error (a black hole).
    """

    rtt_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    stalls: float = 0.0
    stall_ms: float = 0.0
    dead: bool = False

    def delay_ms(self, rng: random.Random) -> float:
        """What one exchange takes, apart from the cloud's own work."""
        drawn = [rng.random() for _ in range(3)]  # always three: one draw shifts no other
        delay_ms = self.rtt_ms + drawn[0] * self.jitter_ms
        delay_ms += _RESEND_MS if drawn[1] < self.loss else 0.0
        return delay_ms + (self.stall_ms if drawn[2] < self.stalls else 0.0)


def through(advise: Advise, network: Network, *, seed: int = 0) -> Advise:
    """`advise` as seen over `network`; half of the delay lies before it, half behind.

    The same seed and number of the question give the same delay.
    """
    rng = random.Random(seed)

    async def over(question: Question) -> tuple[Advice, ...]:
        half_s = network.delay_ms(rng) / 2000
        if network.dead:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(half_s)
        found = await advise(question)
        await asyncio.sleep(half_s)
        return found

    return over
