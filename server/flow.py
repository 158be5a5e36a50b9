"""The events of one API call, of all its choices, in the order in which they come.

Also the watch on the client: a call whose client left is ended at once.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TypeVar

from starlette.types import Receive

from scheduler.events import Finish, OutputEvent
from scheduler.request import FinishReason
from server.backend import EnginePort, EventSource
from server.errors import INTERNAL, ApiError, Problem, unavailable

__all__ = ["ClientGoneError", "Flow", "attended", "until_gone"]

T = TypeVar("T")
Indexed = tuple[int, OutputEvent]


class ClientGoneError(Exception):
    """The client closed its connection before the answer was complete."""


class Flow:
    """Reads several event sources as one. Used by one task; `close` ends what still runs."""

    def __init__(self, engine: EnginePort, sources: Sequence[EventSource]) -> None:
        self._engine = engine
        self._sources = sources
        self._open = len(sources)
        self._events: asyncio.Queue[Indexed | None] = asyncio.Queue()
        self._pumps: list[asyncio.Task[None]] = []

    async def next(self) -> Indexed | None:
        """The next event with the index of its choice; None after the last finish of all.

        Raises ApiError when a choice ended in a failure or without a finish.
        """
        if not self._open:
            return None
        found = await (self._merged() if len(self._sources) > 1 else self._single())
        if found is None:
            raise self._interrupted()
        finish = found[1].finish
        if finish is not None:
            self._open -= 1
            _check_finish(finish)
        return found

    async def close(self) -> None:
        """Abort every choice that still runs."""
        for source in self._sources:
            self._engine.abort(source.request_id)
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _single(self) -> Indexed | None:
        try:
            return 0, await anext(self._sources[0])
        except StopAsyncIteration:
            return None

    async def _merged(self) -> Indexed | None:
        if not self._pumps:
            self._pumps = [asyncio.create_task(self._pump(i)) for i in range(len(self._sources))]
        return await self._events.get()

    async def _pump(self, index: int) -> None:
        source = self._sources[index]
        finished = False
        while not finished:
            try:
                event = await anext(source)
            except StopAsyncIteration:
                self._events.put_nowait(None)
                return
            self._events.put_nowait((index, event))
            finished = event.finish is not None

    def _interrupted(self) -> ApiError:
        if self._engine.health().alive:
            return unavailable("The server is shutting down.")
        return ApiError(INTERNAL)


def _check_finish(finish: Finish) -> None:
    if finish.reason is FinishReason.ABORT:
        raise unavailable("The request was cancelled by the server.")
    if finish.reason is FinishReason.ERROR:
        message = finish.error or INTERNAL.message
        raise ApiError(Problem(status=500, message=message, kind="server_error"))


async def attended(receive: Receive, work: Coroutine[None, None, T]) -> T:
    """The result of `work`. Raises ClientGoneError, and cancels it, when the client leaves."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def until_gone(receive: Receive) -> None:
    """Wait until the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
