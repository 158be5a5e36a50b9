"""Reads and checks the body of a call; every fault is an ApiError that names it."""

import asyncio
from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from server.errors import ApiError, Problem, from_validation
from server.flow import ClientGoneError
from server.protocol.fields import Body

__all__ = ["read_body"]

# Larger bodies are parsed in a thread: what Python checks of them then lets others run between. The
# parser itself, compiled code that keeps the interpreter's lock, does not, wherever it runs: some
# tens of milliseconds a MiB.
_OFF_LOOP_BYTES = 1 << 18

B = TypeVar("B", bound=Body)


async def read_body(request: Request, kind: type[B], limit: int) -> B:
    """The body as `kind`. Raises ApiError with 400, 413 (more than `limit` bytes) or 415."""
    _check_content_type(request.headers.get("content-type"))
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared[:20]) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise _too_large(limit)
    except ClientDisconnect:
        raise ClientGoneError from None
    if len(body) > _OFF_LOOP_BYTES:
        return await asyncio.to_thread(_parsed, kind, bytes(body))
    return _parsed(kind, bytes(body))


def _parsed(kind: type[B], body: bytes) -> B:
    try:
        return kind.model_validate_json(body)
    except ValidationError as problem:
        raise from_validation(problem) from None


def _check_content_type(header: str | None) -> None:
    kind = (header or "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        message = "The Content-Type of the request must be application/json."
        raise ApiError(Problem(status=415, message=message, code="unsupported_media_type"))


def _too_large(limit: int) -> ApiError:
    message = f"The request body is larger than {limit} bytes."
    return ApiError(Problem(status=413, message=message, code="request_too_large"))
