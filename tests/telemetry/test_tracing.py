"""Spans of requests whose times were worked out by hand, and of requests of a live engine."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from scheduler.request import FinishReason
from scheduler.stats import CommitOutcome
from telemetry.tracing import RequestTracer
from tests.oracles.desk import desk, outcomes
from tests.oracles.rig import TARGET, request
from tests.telemetry.rounds import LOAD, drafted, ended, plain, step

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Studio:
    """A tracer on a clock that a test sets; the calendar is 1000 s ahead of it."""

    def __init__(self, **options):
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.time = 106.0
        self.tracer = RequestTracer(
            provider.get_tracer("test"),
            model="pair",
            clock=lambda: self.time,
            now=lambda: self.time + 1000.0,
            **options,
        )

    def round(self, *groups, at, **changes):
        self.time = at
        self.tracer.step(step(*groups, **{"round_seconds": 0.5, "commit_seconds": 0.125} | changes))

    @property
    def spans(self):
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def studio():
    return Studio()


def seconds(span):
    """Start and end on the engine's clock."""
    return span.start_time / 1e9 - 1000.0, span.end_time / 1e9 - 1000.0


def test_one_span_a_request_with_its_parts(studio):
    studio.round(plain(prefilled=6), at=102.0)
    studio.round(drafted(4, 3), at=106.0, finished=(ended(),))
    spans = studio.spans
    assert {name: seconds(span) for name, span in spans.items()} == {
        "llm_request": (100.0, 106.0),
        "queue": (100.0, 100.5),
        "prefill": (100.5, 102.0),
        "rounds": (102.0, 106.0),
    }
    root = spans["llm_request"]
    assert (root.kind, root.parent, root.status.status_code) == (
        SpanKind.SERVER,
        None,
        StatusCode.UNSET,
    )
    parts = [spans[name] for name in ("queue", "prefill", "rounds")]
    assert {part.parent.span_id for part in parts} == {root.context.span_id}
    assert {part.context.trace_id for part in parts} == {root.context.trace_id}
    assert dict(root.attributes) == {
        "gen_ai.provider.name": "fencepost",
        "gen_ai.request.model": "pair",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.latency.e2e": 6.0,
        "gen_ai.latency.time_in_queue": 0.5,
        "gen_ai.latency.time_to_first_token": 2.0,
        "fencepost.request": 1,
        "fencepost.drafted": 4,
        "fencepost.accepted": 2,
        "fencepost.slo": "met",
        "fencepost.rounds": 2,
        "fencepost.rounds_without_event": 0,
        "fencepost.round_seconds": 1.0,
        "fencepost.commit_seconds": 0.25,
    }
    assert spans["rounds"].attributes["fencepost.rounds"] == 2


def test_rounds_and_commits_are_events(studio):
    studio.round(plain(prefilled=6), at=102.0, round_id=8)
    studio.round(drafted(4, 3), at=106.0, round_id=9, finished=(ended(),))
    events = studio.spans["llm_request"].events
    assert [(each.name, each.timestamp / 1e9 - 1000.0) for each in events] == [
        ("round", 101.5),
        ("commit", 102.0),
        ("round", 105.5),
        ("commit", 106.0),
    ]
    assert dict(events[2].attributes) == {
        "round": 9,
        "seconds": 0.5,
        "position": 10,
        "prefilled": 0,
        "k": 4,
    }
    assert dict(events[3].attributes) == {
        "round": 9,
        "seconds": 0.125,
        "outcome": "published",
        "accepted": 3,
        "committed": 4,
        "terminal": "correction",
    }
    assert events[0].attributes["prefilled"] == 6


def test_events_are_bounded_and_counts_are_not():
    studio = Studio(most_rounds=3)
    for place in range(10):
        studio.round(plain(), at=100.0 + place, round_id=place)
    studio.tracer.finished(ended())
    root = studio.spans["llm_request"]
    assert [event.attributes["round"] for event in root.events] == [0, 0, 1, 1, 2, 2]
    assert root.attributes["fencepost.rounds"] == 10
    assert root.attributes["fencepost.rounds_without_event"] == 7
    assert root.attributes["fencepost.round_seconds"] == 5.0


def test_as_many_events_as_the_sdk_keeps(studio):
    for place in range(100):
        studio.round(plain(), at=100.0 + place, round_id=place)
    studio.tracer.finished(ended())
    root = studio.spans["llm_request"]
    assert (len(root.events), root.dropped_events) == (128, 0)


@pytest.mark.parametrize("flags", ["01", "00"])
def test_a_traceparent_is_honoured(studio, flags):
    studio.tracer.finished(ended(trace=f"00-{TRACE}-{CALLER}-{flags}"))
    if flags == "00":  # the caller does not sample
        assert studio.spans == {}
        return
    root = studio.spans["llm_request"]
    assert root.context.trace_id == int(TRACE, 16)
    assert root.parent.span_id == int(CALLER, 16)
    assert studio.spans["queue"].context.trace_id == int(TRACE, 16)


@pytest.mark.parametrize(
    "trace",
    [
        *(None, "", "no", f"ff-{TRACE}-{CALLER}-01", f"00-{'0' * 32}-{CALLER}-01"),
        *(f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{CALLER}", "é" * 60, "0" * 100_000),
    ],
)
def test_what_is_no_traceparent_begins_a_trace(studio, trace):
    studio.tracer.finished(ended(trace=trace))
    root = studio.spans["llm_request"]
    assert root.parent is None
    assert root.context.trace_id not in {0, int(TRACE, 16)}


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"admitted": None, "first_token": None}, {"queue": (100.0, 106.0)}),
        ({"first_token": None}, {"queue": (100.0, 100.5), "prefill": (100.5, 106.0)}),
    ],
)
def test_a_request_that_did_not_come_so_far(studio, changes, parts):
    studio.tracer.finished(ended(FinishReason.ERROR, completion_tokens=0, **changes))
    root = studio.spans.pop("llm_request")
    assert root.status.status_code is StatusCode.ERROR
    assert root.attributes["gen_ai.response.finish_reasons"] == ("error",)
    found = {name: seconds(span) for name, span in studio.spans.items() if name != "llm_request"}
    assert found == parts


def test_a_stale_share_of_a_request_that_ended_is_not_kept(studio):
    studio.round(drafted(4, 2), at=101.0)
    studio.tracer.finished(ended(FinishReason.ABORT))
    studio.round(drafted(4, 0, outcome=CommitOutcome.STALE), at=102.0)
    assert studio.tracer._lives == {}
    root = studio.spans["llm_request"]
    assert root.attributes["fencepost.rounds"] == 1
    assert root.status.status_code is StatusCode.UNSET
    assert "fencepost.slo" not in root.attributes


def test_the_load_is_no_span(studio):
    studio.tracer.load(LOAD)
    assert studio.spans == {}


@pytest.mark.anyio
async def test_requests_of_a_live_engine():
    studio = Studio()
    trace = f"00-{TRACE}-{CALLER}-01"
    async with desk(draft=TARGET) as d:
        asked = [request(1, (1, 2), k=4, max_tokens=20, trace=trace), request(2, (3,), k=0)]
        found = await outcomes(d.ask(*asked))
    for stats in d.sink.steps:
        studio.tracer.step(stats)
    assert studio.tracer._lives == {}
    roots = {
        span.attributes["fencepost.request"]: span
        for span in studio.exporter.get_finished_spans()
        if span.name == "llm_request"
    }
    for number, (tokens, _, finish) in enumerate(found, 1):
        root = roots[number]
        commits = [event.attributes for event in root.events if event.name == "commit"]
        assert sum(each["committed"] for each in commits) == len(tokens)
        assert len(commits) == root.attributes["fencepost.rounds"] == finish.stats.rounds
        assert root.end_time - root.start_time == pytest.approx(
            1e9 * (finish.stats.finished - finish.stats.arrival), abs=2000
        )
    assert roots[1].context.trace_id == int(TRACE, 16)
    assert roots[2].parent is None
