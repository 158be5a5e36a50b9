"""Whether requests kept the times that were wished for: judged jointly, a request at a time.

Histograms of either time cannot give this: they forget which first token went with which pace.
"""

from enum import Enum

from prometheus_client import CollectorRegistry, Gauge

from scheduler.request import FinishReason
from scheduler.stats import FinishedStats
from telemetry.families import PlainCounter

__all__ = ["SloMetrics", "SloOutcome", "WishKind", "judge", "seconds_a_token"]


class SloOutcome(Enum):
    """What became of a request's wishes. BOTH: both times were missed."""

    MET = "met"
    TTFT_MISS = "ttft_miss"
    TPOT_MISS = "tpot_miss"
    BOTH = "both"
    ERROR = "error"


class WishKind(Enum):
    """Time to the first token, and time of each token after it."""

    TTFT = "ttft"
    TPOT = "tpot"


_MISSED = {
    (False, False): SloOutcome.MET,
    (True, False): SloOutcome.TTFT_MISS,
    (False, True): SloOutcome.TPOT_MISS,
    (True, True): SloOutcome.BOTH,
}


def judge(finished: FinishedStats) -> SloOutcome | None:
    """The outcome of one request; None for one that its client gave up, which says nothing.

    A wish is met by a time that is no longer, and by a request that is too short to have the time.
    """
    if finished.reason is FinishReason.ABORT:
        return None
    if finished.reason is FinishReason.ERROR:
        return SloOutcome.ERROR
    first = finished.request_stats.first_token
    ttft = None if first is None else first - finished.request_stats.arrival
    return _MISSED[_over(ttft, finished.ttft), _over(seconds_a_token(finished), finished.tpot)]


def seconds_a_token(finished: FinishedStats) -> float | None:
    """Seconds of a token after the first (TPOT); None for a request without such a token."""
    stats = finished.request_stats
    if stats.first_token is None or stats.completion_tokens < 2:
        return None
    return (stats.finished - stats.first_token) / (stats.completion_tokens - 1)


def _over(seconds: float | None, wish: float | None) -> bool:
    return seconds is not None and wish is not None and seconds > wish


class SloMetrics:
    """Outcomes, the tokens of requests that met all their wishes, and the server's own wishes."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        outcomes = PlainCounter(
            registry,
            "fencepost_request_slo",
            "Requests that ended, by whether they kept all the times wished for (headers "
            "x-slo-ttft-ms and x-slo-tpot-ms, else the server's); without a wish any time will "
            "do. Requests that their clients cancelled count nowhere; those that the server ended "
            "are errors, also in a crash and in a drain cut short.",
            ("outcome",),
            [(outcome.value,) for outcome in SloOutcome],
        )
        tokens = PlainCounter(
            registry,
            "fencepost_tokens_goodput",
            "Completion tokens of requests that ended by themselves with all their wishes met "
            "(outcome met of request_slo); those of cancelled requests count nowhere.",
            ("model",),
            [(model,)],
        )
        self._outcomes = {outcome: outcomes.cell(outcome.value) for outcome in SloOutcome}
        self._tokens = tokens.cell(model)
        self._seconds = Gauge(
            "fencepost_slo_seconds",
            "Times that the server wishes for requests that name none; no series, no wish.",
            ("kind",),
            registry=registry,
        )

    def wish(self, kind: WishKind, seconds: float) -> None:
        """Show a wish of the server."""
        self._seconds.labels(kind.value).set(seconds)

    def count(self, finished: FinishedStats) -> None:
        """Count one request that ended."""
        outcome = judge(finished)
        if outcome is None:
            return
        self._outcomes[outcome].value += 1
        if outcome is SloOutcome.MET:
            self._tokens.value += finished.request_stats.completion_tokens
