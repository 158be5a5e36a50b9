"""Measures how late the event loop is; knows nothing of requests."""

import asyncio
from collections.abc import Awaitable, Callable

__all__ = ["MOST_TIMERS", "LagMonitor"]

MOST_TIMERS = 6000
"""Timers reported for one sleep at most: the five minutes that the alert looks at."""


class LagMonitor:
    """Sleeps `period` seconds (above 0) again and again and reports how late each sleep ended.

    A sleep that is late by more than a period swallowed the timers that were due meanwhile, and
    each of them was late too: they are reported as well, or a freeze of any length would be one
    timer of a hundred thousand. This is Gil Tene's correction for coordinated omission, as in
    HdrHistogram's recordValueWithExpectedInterval.

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
            self._report(max(self._clock() - due, 0.0))

    def _report(self, lag: float) -> None:
        """Report this timer and those that it swallowed, the latest first."""
        self._observe(lag)
        for swallowed in range(1, MOST_TIMERS):
            late = lag - swallowed * self._period
            if late <= 0.0:
                return
            self._observe(late)
