"""Holds a decision's forecast against its round; knows no metric, no log and no clock."""

from dataclasses import dataclass, fields

from scheduler.stats import CommitOutcome, StepStats

__all__ = ["Gain", "compare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What rounds were expected to do and what they did; sums over rounds add up.

    `plain_seconds` is what plain decoding would have needed for the `committed_tokens` by the
    forecast, `predicted_plain_seconds` the same for the `predicted_tokens`. `round_seconds` are
    measured, but for appends of the retained layout that are rounds of their own: those are
    forecast.
    """

    predicted_tokens: float = 0.0
    predicted_seconds: float = 0.0
    predicted_plain_seconds: float = 0.0
    committed_tokens: float = 0.0
    round_seconds: float = 0.0
    plain_seconds: float = 0.0

    def __add__(self, other: "Gain") -> "Gain":
        sums = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in _FIELDS}
        return Gain(**sums)

    @property
    def predicted(self) -> float | None:
        """How often faster than plain decoding, as expected; None before anything was."""
        return _ratio(self.predicted_plain_seconds, self.predicted_seconds)

    @property
    def measured(self) -> float | None:
        """How often faster than plain decoding, by measured time; None before any."""
        return _ratio(self.plain_seconds, self.round_seconds)


_FIELDS = fields(Gain)


def compare(stats: StepStats) -> Gain | None:
    """One round's gain; None for a round that says nothing about it.

    That is a round without a forecast, one that did anything but decode, and one of which a
    request's share was not published. A prefill is paid once, however many rounds its neighbours
    need: by tokens alone, plain decoding would be charged for it again and again.
    """
    forecast = None if stats.decision is None else stats.decision.forecast
    if forecast is None or not (forecast.seconds > 0.0 and forecast.plain_tokens > 0.0):
        return None
    if any(g.prefilled or g.outcome is not CommitOutcome.PUBLISHED for g in stats.groups):
        return None
    committed = float(sum(group.committed for group in stats.groups))
    token = forecast.plain_seconds / forecast.plain_tokens
    return Gain(
        predicted_tokens=forecast.tokens,
        predicted_seconds=forecast.seconds,
        predicted_plain_seconds=forecast.tokens * token,
        committed_tokens=committed,
        round_seconds=stats.round_seconds + forecast.append_seconds,
        plain_seconds=committed * token,
    )


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator > 0.0 else None
