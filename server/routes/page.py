"""GET / and what it needs from /page: a page that shows what speculation does; knows no engine.

The page asks /metrics and /v1 like any other client. It is open where /v1 asks for a key, since it
holds nothing but itself.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePath

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

__all__ = ["page_routes"]

_FOLDER = "playground"
_INDEX = "index.html"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing from elsewhere, nothing inline, and no other page around it.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Kept, but asked about each time: the files of one version belong together.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asset:
    """One file of the page. `tag` is its entity tag, with the quotes."""

    name: str
    body: bytes
    tag: str

    @property
    def path(self) -> str:
        return "/" if self.name == _INDEX else f"/page/{self.name}"

    @property
    def headers(self) -> dict[str, str]:
        kind = _KINDS[PurePath(self.name).suffix]
        return _HEADERS | {"Content-Type": kind, "ETag": self.tag}


def page_routes() -> APIRouter:
    """One route a file. Reads them all, so that no request waits for a disk."""
    router = APIRouter(include_in_schema=False)
    for asset in _assets():
        router.add_api_route(asset.path, _answering(asset), methods=["GET", "HEAD"])
    return router


def _assets() -> list[_Asset]:
    folder = files("server").joinpath(_FOLDER)
    found = []
    for file in folder.iterdir():
        if PurePath(file.name).suffix in _KINDS:
            body = file.read_bytes()
            digest = hashlib.sha256(body).hexdigest()[:32]
            found.append(_Asset(name=file.name, body=body, tag=f'"{digest}"'))
    return found


def _answering(asset: _Asset) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        known = request.headers.get("if-none-match", "")
        if asset.tag in {tag.strip().removeprefix("W/") for tag in known.split(",")}:
            return Response(status_code=304, headers=asset.headers)
        return Response(asset.body, headers=asset.headers)

    return answer
