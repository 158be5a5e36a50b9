"""The page parses in both text formats, starts at zero, and never shows what is not a number."""

import math

import pytest
from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_page
from prometheus_client.parser import text_string_to_metric_families

from scheduler.request import FinishReason
from telemetry.metrics import Metrics, new_registry
from telemetry.page import render
from telemetry.sink import PrometheusSink
from telemetry.slo import WishKind
from tests.telemetry.conftest import Board
from tests.telemetry.rounds import decided, drafted, ended, forecast, plain, step

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def read(board, accept=""):
    """Families by name, by the parser of the format that came."""
    page, content_type = render(board.registry, accept)
    parse = (
        openmetrics.text_string_to_metric_families
        if content_type.startswith("application/openmetrics-text")
        else text_string_to_metric_families
    )
    return {family.name: family for family in parse(page.decode())}


def traffic(board):
    """A few rounds and the ends of some requests."""
    groups = (drafted(4, 2), drafted(4, 4), plain())
    chosen = decided(4, 4, 0, forecast=forecast())
    board.sink.step(step(*groups, itl_seconds=((0.02, 8),), decision=chosen, round_seconds=0.5))
    board.sink.finished(ended())
    board.sink.finished(ended(FinishReason.ERROR, first_token=None))


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
@pytest.mark.parametrize("busy", [False, True])
def test_page_parses_and_is_finite(board, accept, busy):
    if busy:
        traffic(board)
    families = read(board, accept)
    samples = [sample for family in families.values() for sample in family.samples]
    assert len(samples) > 300
    assert all(math.isfinite(sample.value) and sample.value >= 0 for sample in samples)


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
@pytest.mark.parametrize("busy", [False, True])
def test_the_page_is_what_the_client_library_renders(board, accept, busy):
    if busy:
        traffic(board)
        board.sink.step(step(plain(), round_seconds=1e7, itl_seconds=((1e-9, 10**7),)))
        board.metrics.slo.wish(WishKind.TTFT, math.inf)
    odd = CounterMetricFamily("odd", 'with "quotes", a \\ and\na line', labels=("b", "a"))
    odd.add_metric(('say "x"', "back\\slash\nand line, é"), 1.5)
    board.registry.register(Fixed(odd))
    # Of the process, as it was a moment ago: it changes from one look to the next.
    board.registry.register(Fixed(*processes(board.registry)))
    ours = render(board.registry, accept)[0]
    theirs = openmetrics_page if accept else generate_latest
    assert ours == theirs(board.registry, escaping=ALLOWUTF8)


class Fixed:
    """Families that do not change."""

    def __init__(self, *families):
        self._families = families

    def collect(self):
        return self._families


def processes(registry):
    """Takes the collector of the process out, and gives what it said."""
    found = [each for each in registry._collector_to_names if isinstance(each, ProcessCollector)]
    for each in found:
        registry.unregister(each)
    return [family for each in found for family in each.collect()]


def test_format_follows_the_accept_header(board):
    assert render(board.registry)[1].startswith("text/plain")
    assert render(board.registry, "*/*")[1].startswith("text/plain")
    assert render(board.registry, OPENMETRICS)[1].startswith("application/openmetrics-text")


@pytest.mark.parametrize(
    ("name", "label_sets"),
    [
        ("spec_reached_total", 4 * 2 * 4 * 3 * 4),
        ("spec_accepted_total", 4 * 2 * 4 * 3 * 4),
        ("spec_proposed_total", 4 * 2),
        ("spec_verified_total", 4 * 2),
        ("spec_acceptance_mass_total", 4 * 2 * 4),
        ("spec_acceptance_base_total", 4 * 2 * 4),
        ("spec_rounds_total", (1 + 2 + 3 + 4 + 5) * 4),
        ("tokens_committed_total", 1),
        ("tokens_goodput_total", 1),
        ("request_slo_total", 5),
        ("kv_temporary_bytes_total", 1),
        ("kv_committed_bytes_total", 1),
        ("row_buffer_bytes", 1),
        ("draft_stale_total", 1),
        ("round_seconds_total", 6 * 10),
        ("round_rows_count", 3),
        ("round_k_count", 1),
        ("kv_blocks", 6),
        ("commit_total", 4),
        ("request_ttft_seconds_count", 2),
        ("request_tpot_seconds_count", 2),
        ("inter_token_seconds_count", 1),
        ("request_seconds_count", 1),
        ("queue_seconds_count", 1),
        ("requests_total", 4),
        ("http_requests_total", 14),
        ("requests_running", 1),
        ("requests_waiting", 1),
        ("kv_cache_usage_ratio", 1),
        ("preemptions_total", 1),
        ("host_syncs_total", 1),
        ("residual_fallbacks_total", 1),
        ("event_loop_lag_seconds_count", 1),
        ("controller_k_count", 1),
        ("controller_decisions_total", 10),
        ("controller_predicted_tokens_total", 1),
        ("controller_predicted_seconds_total", 1),
        ("controller_predicted_plain_seconds_total", 1),
        ("controller_committed_tokens_total", 1),
        ("controller_round_seconds_total", 1),
        ("controller_plain_seconds_total", 1),
        ("controller_goodput_predicted", 1),
    ],
)
def test_every_label_set_exists_at_zero_before_traffic(board, name, label_sets):
    assert board.select(f"fencepost_{name}") == [0] * label_sets


def series(registry):
    """Name and labels of every sample."""
    return {
        (sample.name, *sorted(sample.labels.items()))
        for family in registry.collect()
        for sample in family.samples
    }


def test_every_series_exists_before_the_engine_does():
    registry = new_registry()
    metrics = Metrics(registry, model="m", k_max=2, domains=(), device_memory=lambda: 0.0, build={})
    before = series(registry)
    PrometheusSink(metrics)
    assert series(registry) == before


def test_traffic_adds_no_series(board):
    before = series(board.registry)
    traffic(board)
    board.sink.step(step(drafted(4, 1, domain="a new one")))
    for status in (200, 404, 499, 503):
        board.metrics.http.count(status, generation=True)
    assert series(board.registry) == before


def test_every_name_is_ours_an_alias_or_of_the_process(board):
    first_words = {name.split("_")[0].split(":")[0] for name in read(board)}
    assert first_words == {"fencepost", "vllm", "process"}


# What Prometheus 2 and 3 send, shortened: the aliases must keep their colon.
@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "application/openmetrics-text;version=1.0.0;escaping=underscores;q=0.5,*/*;q=0.1",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,*/*;q=0.1",
        "text/plain;version=0.0.4",
    ],
)
def test_aliases_keep_their_colon_in_every_format(board, accept):
    page = render(board.registry, accept)[0].decode()
    assert '\nvllm:num_requests_running{engine="0",model_name="pair"} 0.0\n' in page


def test_counters_end_in_total_and_only_they(board):
    board.metrics.slo.wish(WishKind.TTFT, 0.5)
    for family in board.registry.collect():
        names = {sample.name for sample in family.samples}
        assert all(name.endswith("_total") for name in names) == (family.type == "counter")


def test_device_memory_is_asked_for_at_each_scrape(board):
    assert board.value("device_memory_bytes") == 4096
    board.memory = 8192.0
    assert board.value("device_memory_bytes") == 8192


def test_build_info_carries_the_versions(board):
    assert board.value("build_info", version="0.1.0", torch="2.13.0") == 1


def test_http_statuses_by_class_with_clients_that_left_and_refusals_apart(board):
    for status in (200, 201, 404, 429, 499, 500, 503, 503):
        board.metrics.http.count(status, generation=True)
    board.metrics.http.count(503, generation=False)
    counts = {
        status: board.value("http_requests_total", route="generation", status=status)
        for status in ("2xx", "4xx", "499", "503", "5xx")
    }
    assert counts == {"2xx": 2, "4xx": 2, "499": 1, "503": 2, "5xx": 1}
    assert board.value("http_requests_total", route="other", status="503") == 1
    assert board.total("fencepost_http_requests_total") == 9


def test_two_engines_share_nothing():
    first, second = Board(), Board()
    traffic(first)
    assert second.total("fencepost_tokens_committed_total") == 0


def test_k_max_of_zero_has_rounds_and_no_positions():
    board = Board(k_max=0)
    board.sink.step(step(plain()))
    assert board.value("spec_rounds_total", k="0", accepted="0", terminal="plain") == 1
    assert board.select("fencepost_spec_reached_total") == []
    assert "vllm:spec_decode_num_accepted_tokens" in read(board, OPENMETRICS)


def test_process_is_measured_on_the_same_registry(board):
    assert board.registry.get_sample_value("process_resident_memory_bytes") > 1e6
