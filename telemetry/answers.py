"""Counts HTTP answers; knows no request and no path."""

from itertools import product

from prometheus_client import CollectorRegistry

from telemetry.families import PlainCounter

__all__ = ["HttpMetrics"]

HTTP_STATUSES = ("1xx", "2xx", "3xx", "4xx", "499", "503", "5xx")
HTTP_ROUTES = ("other", "generation")
_APART = frozenset({499, 503})


class HttpMetrics:
    """Answers by class of status; 499 stands alone, for clients that left, and so does 503, for
    refusals. Probes and pages are a route of their own: a server that loads is no failure."""

    def __init__(self, registry: CollectorRegistry) -> None:
        family = PlainCounter(
            registry,
            "fencepost_http_requests",
            "HTTP answers. 499: the client left; 503: refused, because the queue is full, or the "
            "server loads or stops; 5xx: all others. Route generation has "
            "completions and chats, other has probes and all else.",
            ("route", "status"),
            product(HTTP_ROUTES, HTTP_STATUSES),
        )
        self._cells = {
            (route == "generation", status): family.cell(route, status)
            for route, status in product(HTTP_ROUTES, HTTP_STATUSES)
        }

    def count(self, status: int, *, generation: bool) -> None:
        """Count one answer with an HTTP status of 100 to 599; `generation`: of a route that gives
        completions."""
        shown = str(status) if status in _APART else f"{status // 100}xx"
        self._cells[generation, shown].value += 1
