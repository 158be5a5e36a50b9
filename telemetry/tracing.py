"""Makes one trace span of each request, from the engine's stats; knows no exporter.

The spans are made when a request has ended, with the times that were noted meanwhile: nothing is
held open, and a request costs nothing while it waits. Names follow OpenTelemetry's conventions for
generative AI where these have one, and vLLM's (`llm_request`, `gen_ai.latency.*`) for latencies.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from scheduler.events import RequestStats
from scheduler.request import FinishReason
from scheduler.stats import CommitOutcome, FinishedStats, GroupStats, LoadStats, StepStats
from telemetry.slo import judge

__all__ = ["MOST_ROUNDS", "RequestTracer"]

MOST_ROUNDS = 64
"""Rounds of a request that become events, the first ones: two each, as many as the SDK keeps."""

# A stale share is of a request that has ended, and would be kept for good.
_OF_THE_LIVING = frozenset({CommitOutcome.PUBLISHED, CommitOutcome.ABORTED})
_PROPAGATOR = TraceContextTextMapPropagator()
_NANOSECONDS = 1e9
_PARTS = ("queue", "prefill", "rounds")

Attributes = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """One request's share of a round; times on the engine's clock."""

    number: int
    started: float
    ended: float
    commit_seconds: float
    share: GroupStats


@dataclass(slots=True)
class _Life:
    """What is noted of a running request. `rounds` has the first ones only."""

    count: int = 0
    seconds: float = 0.0
    commit_seconds: float = 0.0
    rounds: list[_Round] = field(default_factory=list)


class RequestTracer:
    """A `StatsSink` that gives `tracer` a span a request. All methods belong to the event loop.

    `clock` is the engine's and `now` the calendar, both in seconds; `model` is the served name. A
    request that came with a traceparent becomes part of that trace, and is left out where its
    sampled flag says so.
    """

    def __init__(
        self,
        tracer: Tracer,
        *,
        model: str,
        clock: Callable[[], float],
        now: Callable[[], float],
        most_rounds: int = MOST_ROUNDS,
    ) -> None:
        self._tracer = tracer
        self._model = model
        self._clock = clock
        self._now = now
        self._most_rounds = most_rounds
        self._lives: dict[int, _Life] = {}

    def step(self, stats: StepStats) -> None:
        """Note one round, and trace the requests that ended in it."""
        ended = self._clock()
        for group in stats.groups:
            if group.outcome in _OF_THE_LIVING:
                self._note(group, stats, ended)
        for finished in stats.finished:
            self.finished(finished)

    def load(self, load: LoadStats) -> None:
        """Not traced."""

    def finished(self, finished: FinishedStats) -> None:
        """Trace one request that ended."""
        life = self._lives.pop(finished.request, None) or _Life()
        times = _Times(self._now() - self._clock())
        stats = finished.request_stats
        span = self._tracer.start_span(
            "llm_request",
            context=_parent(finished.trace),
            kind=SpanKind.SERVER,
            start_time=times(stats.arrival),
        )
        if span.is_recording():
            span.set_attributes(_of_request(finished, self._model))
            span.set_attributes(_of_rounds(life))
            if finished.reason is FinishReason.ERROR:
                span.set_status(StatusCode.ERROR)
            for each in life.rounds:
                _add_round(span, each, times)
            self._add_children(span, stats, life, times)
        span.end(times(stats.finished))

    def _note(self, group: GroupStats, stats: StepStats, ended: float) -> None:
        life = self._lives.setdefault(group.request, _Life())
        life.count += 1
        life.seconds += stats.round_seconds
        life.commit_seconds += stats.commit_seconds
        if len(life.rounds) < self._most_rounds:
            note = _Round(
                number=stats.round_id,
                started=ended - stats.round_seconds,
                ended=ended,
                commit_seconds=stats.commit_seconds,
                share=group,
            )
            life.rounds.append(note)

    def _add_children(self, span: Span, stats: RequestStats, life: _Life, times: "_Times") -> None:
        """Queue, prefill and the rounds after the first token, as far as the request came."""
        within = set_span_in_context(span, Context())
        marks = (stats.arrival, stats.admitted, stats.first_token, stats.finished)
        for name, (start, end) in zip(_PARTS, pairwise(marks), strict=True):
            if start is None:
                return
            attributes = _of_rounds(life) if name == "rounds" else {}
            child = self._tracer.start_span(
                name, context=within, attributes=attributes, start_time=times(start)
            )
            child.end(times(stats.finished if end is None else end))


@dataclass(frozen=True, slots=True)
class _Times:
    """From the engine's clock to nanoseconds of the calendar, `shift` seconds ahead of it."""

    shift: float

    def __call__(self, seconds: float) -> int:
        return int((seconds + self.shift) * _NANOSECONDS)


def _parent(trace: str | None) -> Context:
    """The caller's span; an empty context, which begins a trace, without one that can be read."""
    if trace is None:
        return Context()
    return _PROPAGATOR.extract({"traceparent": trace}, context=Context())


def _of_request(finished: FinishedStats, model: str) -> dict[str, str | int | float | list[str]]:
    stats, outcome = finished.request_stats, judge(finished)
    found: dict[str, str | int | float | list[str]] = {
        "gen_ai.provider.name": "fencepost",
        "gen_ai.request.model": model,
        "gen_ai.response.finish_reasons": [finished.reason.value],
        "gen_ai.usage.input_tokens": finished.prompt_tokens,
        "gen_ai.usage.output_tokens": stats.completion_tokens,
        "gen_ai.latency.e2e": stats.finished - stats.arrival,
        "fencepost.request": finished.request,
        "fencepost.drafted": stats.drafted,
        "fencepost.accepted": stats.accepted,
    }
    if stats.admitted is not None:
        found["gen_ai.latency.time_in_queue"] = stats.admitted - stats.arrival
    if stats.first_token is not None:
        found["gen_ai.latency.time_to_first_token"] = stats.first_token - stats.arrival
    if outcome is not None:
        found["fencepost.slo"] = outcome.value
    return found


def _of_rounds(life: _Life) -> Attributes:
    """Rounds are shared: their seconds are not this request's alone."""
    return {
        "fencepost.rounds": life.count,
        "fencepost.rounds_without_event": life.count - len(life.rounds),
        "fencepost.round_seconds": life.seconds,
        "fencepost.commit_seconds": life.commit_seconds,
    }


def _add_round(span: Span, each: _Round, times: _Times) -> None:
    share, speculation = each.share, each.share.speculation
    started: Attributes = {
        "round": each.number,
        "seconds": each.ended - each.started,
        "position": share.position,
        "prefilled": share.prefilled,
        "k": 0 if speculation is None else speculation.k,
    }
    ended: Attributes = {
        "round": each.number,
        "seconds": each.commit_seconds,
        "outcome": share.outcome.value,
        "accepted": 0 if speculation is None else speculation.accepted,
        "committed": share.committed,
        "terminal": "none" if share.terminal is None else share.terminal.value,
    }
    span.add_event("round", started, timestamp=times(each.started))
    span.add_event("commit", ended, timestamp=times(each.ended))
