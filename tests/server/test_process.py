"""The whole process with models that recite: listens first, announces itself, drains, exits."""

import ctypes
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from scheduler.errors import ModelRefused
from server import main
from server.settings import Settings, SettingsError
from server.tokenizer import TokenizerService
from telemetry import otlp
from tests.oracles.rig import capabilities, config
from tests.server.world import ScriptedRunner, engine_over, new_tokenizer, serving_of


class FakeRunner(ScriptedRunner):
    """Takes no memory to speak of."""

    def memory_bytes(self):
        return 12_345

    def capabilities(self):
        return capabilities()


@dataclass
class FakePair:
    runner: FakeRunner
    target_row_bytes: int = 100
    draft_row_bytes: int = 10
    law_row_bytes: int = 1


class FakeAssembly:
    """Stands where models would be loaded; `gate` holds the loading up."""

    def __init__(self):
        self.gate = threading.Event()
        self.failure = None
        self.runner = None
        self.engine = None
        self.settled = False
        self.loading = None

    def load(self, _settings):
        self.loading = threading.current_thread()
        self.gate.wait(20)
        if self.failure is not None:
            raise self.failure
        tokenizer = new_tokenizer()
        self.runner = FakeRunner(1, len(tokenizer))
        self.pair = FakePair(self.runner)
        self.config = config()
        self.runner.default = tuple(tokenizer.encode("The river.", add_special_tokens=False))
        self.tokenizer = TokenizerService(tokenizer, frozenset({1}))
        return self

    async def warm_up(self, loaded):
        assert loaded is self

    def settle(self):
        self.settled = True

    def build_engine(self, loaded, sink):
        assert loaded is self
        self.engine = engine_over(self.runner, sink)
        return self.engine

    def serving_over(self, engine, loaded, _settings):
        return serving_of(engine, loaded.tokenizer, len(loaded.tokenizer.pieces.table))


@pytest.fixture
def assembly(monkeypatch):
    fake = FakeAssembly()
    monkeypatch.setitem(sys.modules, "server.assembly", fake)
    return fake


@pytest.fixture
def settings(monkeypatch):
    # The process's own set-up of logs would outlive the test.
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return Settings(port=port, drain_seconds=60)


def visit(settings, steps):
    """Run the server in this thread and `steps` in another; the exit status, once both ended."""
    problems = []
    stopper = Stopper()

    def follow():
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{settings.port}", timeout=20) as client:
                until(lambda: reachable(client))
                steps(client, stopper)
        except (AssertionError, httpx.HTTPError, TimeoutError) as problem:
            problems.append(problem)
        finally:
            if not stopper.asked:
                stopper.ask()

    visitor = threading.Thread(target=follow, daemon=True)
    visitor.start()
    status = main.serve(settings)
    visitor.join(20)
    assert problems == []
    return status


class Stopper:
    """Sends the signal that ends the server. Never after its end: it would end the tests."""

    def __init__(self):
        self.asked = False

    def ask(self):
        self.asked = True
        os.kill(os.getpid(), signal.SIGTERM)


def until(condition):
    """Ask again and again: what is awaited is another thread's progress."""
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends
        threading.Event().wait(0.01)


def reachable(client):
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def ready(client):
    return client.get("/ready").status_code == 200


def complete(client):
    return client.post("/v1/completions", json={"prompt": "x", "max_tokens": 4})


def test_it_listens_before_it_can_answer(assembly, settings, capsys):
    def steps(client, _stopper):
        assert not ready(client)
        assert complete(client).status_code == 503
        assembly.gate.set()
        until(lambda: ready(client))
        assert complete(client).status_code == 200
        page = client.get("/metrics").text
        assert "fencepost_device_memory_bytes 12345.0" in page
        assert 'vllm:num_requests_running{engine="0",model_name="fencepost-pair"} 0.0' in page
        assert 'fencepost_http_requests_total{route="generation",status="503"} 1.0' in page
        assert 'fencepost_http_requests_total{route="generation",status="2xx"} 1.0' in page
        assert 'fencepost_http_requests_total{route="generation",status="5xx"} 0.0' in page
        assert 'fencepost_http_requests_total{route="other",status="503"} 0.0' not in page
        accept = {"accept": "application/openmetrics-text; version=1.0.0"}
        assert client.get("/metrics", headers=accept).text.endswith("# EOF\n")

    assert visit(settings, steps) == 0
    assert assembly.settled
    announced = f"Fencepost serves fencepost-pair at http://127.0.0.1:{settings.port}\n"
    assert capsys.readouterr().out == announced


def test_the_server_has_a_wish_for_requests_without_one(assembly, settings):
    assembly.gate.set()
    asked = []

    def steps(client, _stopper):
        until(lambda: ready(client))
        submit = assembly.engine.submit
        assembly.engine.submit = lambda requests: (asked.extend(requests), submit(requests))[1]
        assert complete(client).status_code == 200
        page = client.get("/metrics").text
        assert 'fencepost_slo_seconds{kind="ttft"} 0.4' in page
        assert 'fencepost_slo_seconds{kind="tpot"} 0.05' in page

    wishes = {"slo_ttft_ms": 400.0, "slo_tpot_ms": 50.0}
    assert visit(settings.model_copy(update=wishes), steps) == 0
    assert [(request.ttft, request.tpot) for request in asked] == [(0.4, 0.05)]


def test_a_signal_lets_running_requests_end(assembly, settings):
    assembly.gate.set()

    def steps(client, stopper):
        until(lambda: ready(client))
        assembly.runner.open.clear()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(complete, client)
            assert assembly.runner.waits()
            stopper.ask()
            until(lambda: not ready(client))
            assert complete(client).status_code == 503
            assert client.get("/health").status_code == 200
            assembly.runner.open.set()
            assert running.result(20).status_code == 200

    assert visit(settings, steps) == 0


def test_a_second_signal_ends_them(assembly, settings):
    assembly.gate.set()

    def steps(client, stopper):
        until(lambda: ready(client))
        assembly.runner.open.clear()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(complete, client)
            assert assembly.runner.waits()
            stopper.ask()
            until(lambda: not ready(client))
            stopper.ask()
            try:
                assert running.result(10).status_code == 503
            finally:
                assembly.runner.open.set()

    assert visit(settings, steps) == 0


def test_a_signal_while_loading_ends_it(assembly, settings):
    def steps(_client, stopper):
        until(lambda: assembly.loading is not None)
        stopper.ask()

    try:
        assert visit(settings, steps) == 0
        # What loads is not waited for: neither here nor, as a daemon, when the process ends.
        assert assembly.loading.is_alive()
        assert assembly.loading.daemon
    finally:
        assembly.gate.set()
    assembly.loading.join(20)


def test_what_cannot_be_loaded_ends_it(assembly, settings):
    assembly.failure = ModelRefused("draft: another vocabulary")
    assembly.gate.set()
    with pytest.raises(ModelRefused, match="another vocabulary"):
        main.serve(settings)


def test_the_acceptance_log_is_whole_when_the_server_ends(assembly, settings, tmp_path):
    assembly.gate.set()
    path = tmp_path / "accept.log"

    def steps(client, _stopper):
        until(lambda: ready(client))
        assert complete(client).status_code == 200
        page = client.get("/metrics").text
        assert 'fencepost_acceptance_log_records_total{outcome="dropped"} 0.0' in page
        assert 'fencepost_tokens_committed_total{model="fencepost-pair"} 4.0' in page

    assert visit(settings.model_copy(update={"acceptance_log": path}), steps) == 0
    assert "acceptance-log" not in {thread.name for thread in threading.enumerate()}
    header, *records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert (header["target"], header["dtype"]) == ("fencepost-pair", "f32")
    assert (header["draft"], header["layout"]) == ("d", "replay_frontier")
    assert records
    rounds = {each["round_id"]: each["committed_token_count"] for each in records}
    assert sum(rounds.values()) == 4


def test_the_last_rounds_are_shown_where_that_is_asked_for(assembly, settings):
    assembly.gate.set()

    def steps(client, _stopper):
        assert client.get("/debug/rounds").json() == {"size": 2, "rounds": []}
        until(lambda: ready(client))
        assert complete(client).status_code == 200
        rounds = client.get("/debug/rounds").json()["rounds"]
        assert len(rounds) == 2
        assert rounds[1]["round_id"] == rounds[0]["round_id"] + 1
        assert client.get("/debug/rounds?last=1").json()["rounds"] == rounds[1:]

    assert visit(settings.model_copy(update={"debug_rounds": 2}), steps) == 0


def test_a_log_that_cannot_be_begun_is_named(assembly, settings, tmp_path):
    assembly.gate.set()
    late = settings.model_copy(update={"acceptance_log": tmp_path / "gone" / "accept.log"})
    with pytest.raises(SettingsError, match=r"acceptance_log=.*No such file"):
        main.serve(late)


@pytest.mark.parametrize("kept", [1, 4])
def test_a_file_that_is_no_log_keeps_the_server_from_starting(assembly, settings, tmp_path, kept):
    assembly.gate.set()
    path = tmp_path / "notes"
    path.write_text("mine\n", encoding="utf-8")
    asked = {"acceptance_log": path, "acceptance_log_files": kept}
    with pytest.raises(SettingsError, match=r"acceptance_log=.*no file of this log"):
        main.serve(settings.model_copy(update=asked))
    assert path.read_text(encoding="utf-8") == "mine\n"


def test_bytes_of_rows_are_known_once_the_models_are(assembly, settings):
    assembly.gate.set()

    def steps(client, _stopper):
        until(lambda: ready(client))
        assert complete(client).status_code == 200
        page = client.get("/metrics").text
        kept = int(page.partition("\nfencepost_kv_committed_bytes_total ")[2].partition(".")[0])
        # The rows of all tokens but the last one out, which is one of four; one takes 100 bytes.
        prompt = complete(client).json()["usage"]["prompt_tokens"]
        assert kept == 100 * (prompt + 3)

    assert visit(settings, steps) == 0


def test_traces_leave_with_the_server(assembly, settings, monkeypatch):
    assembly.gate.set()
    exporter = InMemorySpanExporter()
    addresses = []
    monkeypatch.setattr(otlp, "OTLPSpanExporter", lambda url: (addresses.append(url), exporter)[1])
    trace = f"00-{'a' * 32}-{'b' * 16}-01"

    def steps(client, _stopper):
        until(lambda: ready(client))
        client.headers["traceparent"] = trace
        assert complete(client).status_code == 200

    address = "http://127.0.0.1:4318/v1/traces"
    assert visit(settings.model_copy(update={"otel_endpoint": address}), steps) == 0
    assert addresses == [address]
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"llm_request", "queue", "prefill", "rounds"}
    root = spans["llm_request"]
    assert f"{root.context.trace_id:x}" == "a" * 32
    assert root.attributes["gen_ai.request.model"] == "fencepost-pair"
    assert root.attributes["gen_ai.usage.output_tokens"] == 4
    assert abs(root.end_time / 1e9 - time.time()) < 60
    assert "OtelBatchSpanRecordProcessor" not in {each.name for each in threading.enumerate()}


def test_traces_without_what_they_need_are_refused_by_name(settings, monkeypatch):
    monkeypatch.delitem(sys.modules, "telemetry.otlp")
    monkeypatch.setitem(sys.modules, otlp.OTLPSpanExporter.__module__, None)
    late = settings.model_copy(update={"otel_endpoint": "http://127.0.0.1:4318/v1/traces"})
    with pytest.raises(SettingsError, match=r"otel_endpoint=http://127.*the extra otel.*\[otel\]"):
        main.serve(late)


def test_nothing_of_traces_is_loaded_without_an_address():
    """In a process of its own: this one has loaded it already."""
    code = (
        "import sys, asyncio\n"
        "from server import main\n"
        "from server.settings import Settings\n"
        "main._Process(Settings())\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry.sdk')]\n"
        "assert 'telemetry.tracing' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)


def test_a_port_in_use_is_named(settings):
    taken = socket.create_server(("127.0.0.1", settings.port))
    with taken, pytest.raises(SettingsError, match=f"port={settings.port}"):
        main.serve(settings)


def test_signals_are_ours_whatever_loading_puts_below_them(assembly, settings):
    """Ray's own handler of SIGTERM, which Python does not see, would end a drain."""
    handle = ctypes.CDLL(None).signal
    handle.restype, handle.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    load, ours = assembly.load, []

    def load_over_ray(given):
        ours.append(handle(signal.SIGTERM, int(signal.SIG_IGN)))
        return load(given)

    def steps(client, _):
        until(lambda: ready(client))
        assert handle(signal.SIGTERM, ours[0]) == ours[0]

    assembly.load = load_over_ray
    assembly.gate.set()
    assert visit(settings, steps) == 0
