"""What happens around every call, as pure ASGI: request ids, timing, outcomes, keys, accidents."""

import hashlib
import hmac
import logging
import re
import uuid
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import INTERNAL, Problem, error_response
from server.outcomes import CLIENT_CLOSED, CallOutcome, CallRecord, OutcomeSink

__all__ = ["ApiKeys", "FrontDoor"]

logger = logging.getLogger(__name__)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_UNKNOWN_ROUTE = "unknown"
_GUARDED = ("/v1", "/debug")


class FrontDoor:
    """Names and times every call, turns an accident into a 500 and tells the sink how it ended."""

    def __init__(self, app: ASGIApp, *, sink: OutcomeSink, clock: Callable[[], float]) -> None:
        self._app = app
        self._sink = sink
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an HTTP call on; other scopes go through untouched."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = self._clock()
        record = CallRecord(_request_id(Headers(scope=scope)))
        record.place(scope)
        answer = _Answer(send, record, lambda: self._clock() - started)
        try:
            await self._app(scope, receive, answer.send)
        except _UndeliverableError:
            record.client_left = True
            logger.debug("request %s: the client left", record.request_id)
        except Exception:
            logger.exception("request %s broke", record.request_id)
            if not answer.started:
                await error_response(INTERNAL)(scope, receive, answer.send)
        finally:
            self._sink.call(
                CallOutcome(
                    method=scope["method"],
                    route=_route_of(scope),
                    status=CLIENT_CLOSED if record.client_left else record.status,
                    seconds=self._clock() - started,
                )
            )


class _UndeliverableError(Exception):
    """The connection is closed. No route knows it, so that nothing tries to answer instead."""


class _Answer:
    """Adds the headers of every answer to its start and notes its status."""

    def __init__(self, send: Send, record: CallRecord, elapsed: Callable[[], float]) -> None:
        self._send = send
        self._record = record
        self._elapsed = elapsed
        self.started = False

    async def send(self, message: Message) -> None:
        """Pass one message on."""
        if message["type"] == "http.response.start":
            self.started = True
            self._record.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self._record.request_id
            headers["openai-processing-ms"] = str(round(self._elapsed() * 1000))
        try:
            await self._send(message)
        except (OSError, RuntimeError) as problem:
            if not _is_closed(problem):
                raise
            raise _UndeliverableError from problem


def _is_closed(problem: Exception) -> bool:
    # uvloop has no class of its own for it, and a RuntimeError may be a mistake of the server too.
    return isinstance(problem, OSError) or "the handler is closed" in str(problem)


class ApiKeys:
    """Asks for a bearer key on /v1 and /debug, if there are any keys."""

    def __init__(self, app: ASGIApp, *, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = tuple(hashlib.sha256(key.encode()).digest() for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401, or pass the call on."""
        if scope["type"] == "http" and self._digests and _guarded(scope["path"]):
            problem = self._refused(_header(scope, b"authorization"))
            if problem is not None:
                await error_response(problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refused(self, header: bytes) -> Problem | None:
        scheme, _, key = header.partition(b" ")
        given = hashlib.sha256(key.strip()).digest()
        # All keys are compared, each in constant time: timing tells neither which nor how much.
        known = [hmac.compare_digest(given, digest) for digest in self._digests]
        if scheme.lower() == b"bearer" and any(known):
            return None
        message = "Incorrect API key provided." if header else "No API key provided."
        return Problem(status=401, message=message, code="invalid_api_key")


def _header(scope: Scope, name: bytes) -> bytes:
    # As bytes: a key may hold characters that header text cannot.
    return next((value for key, value in scope["headers"] if key == name), b"")


def _guarded(path: str) -> bool:
    return any(path == room or path.startswith(f"{room}/") for room in _GUARDED)


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _route_of(scope: Scope) -> str:
    route = scope.get("route")
    return str(getattr(route, "path", _UNKNOWN_ROUTE))
