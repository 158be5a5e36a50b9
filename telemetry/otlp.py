"""Sends the traces of requests away by OTLP over HTTP.

Needs the extra `otel`: whoever imports this module without it is told so by an ImportError.
"""

from collections.abc import Callable

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from telemetry.tracing import RequestTracer

__all__ = ["Traces"]


class Traces:
    """Collects spans and sends them in batches from a thread of its own; a full queue drops.

    `endpoint` is the whole URL. One that cannot be reached is logged, and nothing waits for it.
    """

    def __init__(self, endpoint: str, *, version: str) -> None:
        resource = Resource.create({"service.name": "fencepost", "service.version": version})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))

    def sink(
        self, model: str, clock: Callable[[], float], now: Callable[[], float]
    ) -> RequestTracer:
        """What makes the spans of an engine on `clock`; `now` is the calendar, in seconds."""
        tracer = self._provider.get_tracer("fencepost")
        return RequestTracer(tracer, model=model, clock=clock, now=now)

    def close(self) -> None:
        """Send what is left. Blocks."""
        self._provider.shutdown()
