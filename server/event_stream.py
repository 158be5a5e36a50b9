"""Sends server-sent events while watching that the client is still there."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.flow import until_gone
from server.outcomes import record_of

__all__ = ["EventStream"]


class EventStream(Response):
    """`first`, then `rest` as it comes. `close` is awaited however the stream ends.

    No comment lines keep an idle stream alive: some clients count them as tokens.
    """

    media_type = "text/event-stream"

    def __init__(
        self, first: bytes, rest: AsyncGenerator[bytes], close: Callable[[], Awaitable[None]]
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._first = first
        self._rest = rest
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end or until the client leaves."""
        writer = asyncio.ensure_future(self._write(send))
        gone = asyncio.ensure_future(until_gone(receive))
        try:
            await asyncio.wait((writer, gone), return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                writer.result()
            else:
                record_of(scope).client_left = True
        finally:
            writer.cancel()
            gone.cancel()
            await self._close()
            await asyncio.gather(writer, gone, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _send_part(send, self._first, more=True)
        async with aclosing(self._rest) as rest:
            async for part in rest:
                await _send_part(send, part, more=True)
        await _send_part(send, b"", more=False)


async def _send_part(send: Send, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
