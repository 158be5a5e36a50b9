"""The HTTP/1.1 connection: tells every call on it that the client has left; knows no route.

uvicorn tells the call that came in last. With pipelined calls that one still waits for its turn,
and the call that runs would find out only when it writes.
"""

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

__all__ = ["Connection"]


class Connection(HttpToolsProtocol):
    """uvicorn's connection, which remembers the call that runs."""

    _running: RequestResponseCycle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """End the call that runs, as well as the one that came in last."""
        running = self._running
        super().connection_lost(exc)
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()

    def on_headers_complete(self) -> None:
        """Start or queue a call; one that waits does not stop the watch for the client's leaving.

        More than one do, as in uvicorn: what a client sends ahead must not fill the memory.
        """
        super().on_headers_complete()
        if len(self.pipeline) == 1:
            self.flow.resume_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:  # noqa: ANN401
        self._running = cycle
        super()._start_asgi_task(cycle, app)
