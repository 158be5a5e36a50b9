"""Puts routes, middleware and error answers together; everything else comes in as arguments."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from server.api import Api
from server.errors import ApiError, Problem, error_response
from server.flow import ClientGoneError
from server.middleware import ApiKeys, FrontDoor
from server.openapi import describe
from server.outcomes import CLIENT_CLOSED, OutcomeSink
from server.routes.chat import chat_routes
from server.routes.completions import completion_routes
from server.routes.debug import RoundsPage, debug_routes
from server.routes.models import model_routes
from server.routes.operations import MetricsPage, operation_routes
from server.routes.page import page_routes
from server.version import version

__all__ = ["create_app"]

Handler = Callable[[Request, Any], Coroutine[Any, Any, Response]]


def create_app(
    api: Api,
    *,
    metrics: MetricsPage,
    outcomes: OutcomeSink,
    rounds: RoundsPage | None = None,
    page: bool = False,
) -> FastAPI:
    """The ASGI application over `api`. `metrics` renders /metrics, `outcomes` is told how each
    call ended; without `rounds` there is no /debug/rounds, without `page` nothing at /."""
    app = FastAPI(
        title="Fencepost",
        version=version(),
        middleware=[
            Middleware(FrontDoor, sink=outcomes, clock=api.clock),
            Middleware(ApiKeys, keys=api.options.api_keys),
        ],
        exception_handlers=_handlers(),
        docs_url=None,
        redoc_url=None,
    )
    for routes in (completion_routes(api), chat_routes(api), model_routes(api)):
        app.include_router(routes)
    app.include_router(operation_routes(api, metrics))
    if rounds is not None:
        app.include_router(debug_routes(rounds))
    if page:
        app.include_router(page_routes())
    describe(app)
    return app


def _handlers() -> dict[int | type[Exception], Handler]:
    return {
        ApiError: _on_api_error,
        ClientGoneError: _on_client_gone,
        HTTPException: _on_http_exception,
    }


async def _on_api_error(_request: Request, problem: ApiError) -> Response:
    return error_response(problem.problem)


async def _on_client_gone(_request: Request, _problem: ClientGoneError) -> Response:
    # Nobody reads it: its status is what is counted.
    return Response(status_code=CLIENT_CLOSED)


async def _on_http_exception(_request: Request, problem: HTTPException) -> Response:
    code = {404: "unknown_url", 405: "method_not_supported"}.get(problem.status_code)
    response = error_response(
        Problem(status=problem.status_code, message=f"{problem.detail}.", code=code)
    )
    response.headers.update(problem.headers or {})
    return response
