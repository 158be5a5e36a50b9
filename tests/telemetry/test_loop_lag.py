"""A clock and a sleep that the test moves; nothing waits."""

import asyncio

import pytest

from telemetry.loop_lag import MOST_TIMERS, LagMonitor

pytestmark = pytest.mark.anyio


class Time:
    """A clock whose sleeps take what the test says, and end the task when there is no more."""

    def __init__(self, *sleeps):
        self.now = 10.0
        self.asked = []
        self._sleeps = iter(sleeps)

    async def sleep(self, seconds):
        self.asked.append(seconds)
        took = next(self._sleeps, None)
        if took is None:
            raise asyncio.CancelledError
        self.now += took


async def lags(*sleeps, period):
    time, seen = Time(*sleeps), []
    monitor = LagMonitor(seen.append, lambda: time.now, period=period, sleep=time.sleep)
    with pytest.raises(asyncio.CancelledError):
        await monitor.run()
    return time, seen


async def test_lag_is_what_a_sleep_took_beyond_its_period():
    time, seen = await lags(0.25, 0.375, 0.5, period=0.25)
    assert seen == [0.0, 0.125, 0.25]
    assert time.asked == [0.25] * 4


async def test_timers_that_a_freeze_swallowed_were_late_too():
    _, seen = await lags(1.125, 0.25, period=0.25)
    assert seen == [0.875, 0.625, 0.375, 0.125, 0.0]


async def test_a_loop_frozen_for_13_of_30_seconds_is_late_that_often():
    """One timer of 17 seconds' worth would be less than one in a hundred."""
    _, seen = await lags(*[0.0625] * 272, 13.0625, period=0.0625)
    assert len(seen) == 480
    assert sum(lag > 0.1 for lag in seen) == 207


async def test_what_one_freeze_reports_is_bounded():
    """A laptop that slept for a day: the longest lags are kept."""
    _, seen = await lags(86400.0, period=0.25)
    assert len(seen) == MOST_TIMERS
    assert seen[0] == 86399.75
    assert min(seen) > 80000


async def test_a_timer_that_fires_early_is_not_late():
    _, seen = await lags(0.125, period=0.25)
    assert seen == [0.0]


async def test_lag_goes_to_the_histogram(board):
    time = Time(0.0625, 0.5625)
    monitor = LagMonitor(
        board.metrics.loop_lag.observe, lambda: time.now, period=0.0625, sleep=time.sleep
    )
    with pytest.raises(asyncio.CancelledError):
        await monitor.run()
    assert board.value("event_loop_lag_seconds_count") == 9
    assert board.value("event_loop_lag_seconds_bucket", le="0.25") == 5
    assert board.value("event_loop_lag_seconds_sum") == 2.25


async def test_real_loop_can_cancel_it():
    seen = asyncio.Event()
    clock = asyncio.get_running_loop().time
    task = asyncio.create_task(LagMonitor(lambda _: seen.set(), clock, period=0.001).run())
    async with asyncio.timeout(30):
        await seen.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
