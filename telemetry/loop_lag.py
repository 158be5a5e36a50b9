"""Measures how late the event loop is; knows nothing of requests."""

import asyncio
from collections.abc import Awaitable, Callable

__all__ = ["LagMonitor"]


class LagMonitor:
    """Sleeps `period` seconds again and again and reports how much longer each sleep took.

    `observe` gets seconds, never negative. `clock` counts seconds and does not step back.
    """

    def __init__(
        self,
        observe: Callable[[float], None],
        clock: Callable[[], float],
        *,
        period: float = 0.05,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._observe = observe
        self._clock = clock
        self._period = period
        self._sleep = sleep

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            due = self._clock() + self._period
            await self._sleep(self._period)
            self._observe(max(self._clock() - due, 0.0))
