"""Work in a thread that nothing waits for; knows no engine."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

__all__ = ["detached"]

P = ParamSpec("P")
T = TypeVar("T")


async def detached(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` gives or raises, run in a daemon thread of its own.

    Cancelling gives it up: unlike `asyncio.to_thread`, neither the loop's end nor the process's
    waits until it has ended.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        if not outcome.set_running_or_notify_cancel():
            return
        try:
            outcome.set_result(work(*args, **kwargs))
        except BaseException as problem:  # noqa: BLE001 - whoever waits raises it
            outcome.set_exception(problem)

    threading.Thread(target=run, name="detached", daemon=True).start()
    return await asyncio.wrap_future(outcome)
