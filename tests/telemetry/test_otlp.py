"""Spans leave by OTLP over HTTP, to a collector that is a socket of this test."""

from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from telemetry.otlp import Traces
from tests.telemetry.rounds import ended


@pytest.fixture
def collector():
    """(address, what was posted there)."""
    posted = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            posted.append((self.path, self.headers["content-type"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", posted
        server.shutdown()
        thread.join()


def test_what_was_traced_is_sent_before_the_end(collector):
    address, posted = collector
    traces = Traces(f"{address}/v1/traces", version="1.2.3")
    sink = traces.sink("pair", lambda: 106.0, lambda: 1106.0)
    for number in range(3):
        sink.finished(ended(request=number))
    traces.close()
    assert {(path, kind) for path, kind, _ in posted} == {("/v1/traces", "application/x-protobuf")}
    groups = [
        group
        for _, _, body in posted
        for group in ExportTraceServiceRequest.FromString(body).resource_spans
    ]
    resources = [{one.key: one.value.string_value for one in g.resource.attributes} for g in groups]
    assert all(each["service.name"] == "fencepost" for each in resources)
    assert all(each["service.version"] == "1.2.3" for each in resources)
    names = [span.name for g in groups for scope in g.scope_spans for span in scope.spans]
    assert sorted(names) == sorted(["llm_request", "queue", "prefill", "rounds"] * 3)


def test_nothing_is_sent_without_a_request(collector):
    address, posted = collector
    Traces(f"{address}/v1/traces", version="1.2.3").close()
    assert posted == []
