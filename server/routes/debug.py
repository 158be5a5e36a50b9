"""GET /debug/rounds: the last rounds, with how K was chosen in each; knows not who keeps them."""

from collections.abc import Callable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.errors import refusal

__all__ = ["RoundsPage", "debug_routes"]

RoundsPage = Callable[[int | None], bytes]
"""JSON of the newest so many rounds, of all with None; for the event loop."""

_LONGEST_NUMBER = 9


def debug_routes(page: RoundsPage) -> APIRouter:
    """The routes over `page`."""
    router = APIRouter()

    @router.get("/debug/rounds")
    async def rounds(request: Request) -> Response:
        """The newest `last` rounds, the oldest of them first; all that are kept without it."""
        return Response(page(_last(request)), media_type="application/json")

    return router


def _last(request: Request) -> int | None:
    """The query's `last`. Raises ApiError (400) for anything but a whole number from 1."""
    text = request.query_params.get("last")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER and int(text)):
        raise refusal("last", f"last: must be a whole number of 1 to {10**_LONGEST_NUMBER - 1}")
    return int(text)
