"""A clock and a sleep that the test moves; nothing waits."""

import asyncio

import pytest

from telemetry.loop_lag import LagMonitor

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
    time, seen = await lags(0.25, 0.75, period=0.25)
    assert seen == [0.0, 0.5]
    assert time.asked == [0.25] * 3


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
    assert board.value("event_loop_lag_seconds_count") == 2
    assert board.value("event_loop_lag_seconds_bucket", le="0.25") == 1
    assert board.value("event_loop_lag_seconds_sum") == 0.5


async def test_real_loop_can_cancel_it():
    seen = asyncio.Event()
    clock = asyncio.get_running_loop().time
    task = asyncio.create_task(LagMonitor(lambda _: seen.set(), clock, period=0.0).run())
    async with asyncio.timeout(30):
        await seen.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
