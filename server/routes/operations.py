"""GET /health, /ready, /version, /load and /metrics: what operators and probes ask."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api import Api
from server.version import version

__all__ = ["MetricsPage", "operation_routes"]

MetricsPage = Callable[[str], Awaitable[tuple[bytes, str]]]
"""The page and its content type for an Accept header."""


def operation_routes(api: Api, page: MetricsPage) -> APIRouter:
    """The routes over `api`."""
    router = APIRouter()

    @router.head("/health", include_in_schema=False)
    @router.get("/health")
    async def health() -> Response:
        """200 while a restart would not help; 503 once the engine's loop ended or hangs."""
        return Response(status_code=200 if api.backend.healthy else 503)

    @router.head("/ready", include_in_schema=False)
    @router.get("/ready")
    async def ready() -> Response:
        """200 when requests are taken; 503 while loading or draining."""
        return Response(status_code=200 if api.backend.ready else 503)

    @router.get("/version")
    async def show_version() -> dict[str, str]:
        """The server's version."""
        return {"version": version()}

    @router.get("/load")
    async def load() -> dict[str, Any]:
        """How much is running and waiting."""
        now = api.backend.serving().engine.load()
        return {
            "server_load": now.running + now.waiting,
            "running": now.running,
            "waiting": now.waiting,
        }

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        """All counters."""
        body, kind = await page(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": kind})

    return router
