"""Remembers the last rounds as JSON, for a person who asks why K is what it is.

Shows counts, times and request ids, and neither text nor tokens. Knows no route.
"""

import math
from collections import deque
from itertools import islice

from pydantic_core import to_json

from scheduler.stats import (
    Choice,
    FinishedStats,
    GroupStats,
    LoadStats,
    PoolStats,
    StepStats,
)
from telemetry.gains import compare

__all__ = ["RoundLog"]

_DIGITS = 6
"""After the decimal point: microseconds."""


class RoundLog:
    """A `StatsSink` that keeps `size` rounds. All its methods belong to the event loop.

    A round is encoded at once: that keeps the memory small, and a reader does not hold up the loop.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._rounds: deque[bytes] = deque(maxlen=size)

    def step(self, stats: StepStats) -> None:
        """Keep one round."""
        self._rounds.append(to_json(_record(stats)))

    def load(self, load: LoadStats) -> None:
        """Not kept: each round has its load."""

    def finished(self, finished: FinishedStats) -> None:
        """Not kept."""

    def page(self, last: int | None = None) -> bytes:
        """A JSON object with the newest `last` rounds, the oldest of them first; None for all."""
        count = len(self._rounds) if last is None else min(last, len(self._rounds))
        rounds = b",".join(islice(self._rounds, len(self._rounds) - count, None))
        return b'{"size":%d,"rounds":[%b]}' % (self._size, rounds)


def _record(stats: StepStats) -> dict[str, object]:
    committed = sum(group.committed for group in stats.groups)
    seconds = stats.round_seconds
    choices = {} if stats.decision is None else stats.decision.choices
    return {
        "round_id": stats.round_id,
        "seconds": _seconds(stats),
        "rows": {
            "target": stats.target_rows,
            "draft": stats.draft_rows,
            "logit": stats.logit_rows,
        },
        "load": _load(stats.load),
        "preemptions": stats.preemptions,
        "finished": len(stats.finished),
        "committed": committed,
        "tokens_per_second": _number(committed / seconds) if seconds > 0.0 else None,
        "forecast": _forecast(stats),
        "requests": [_request(group, choices.get(group.request)) for group in stats.groups],
    }


def _seconds(stats: StepStats) -> dict[str, float | None]:
    """Times by part. `forward` lies within draft and verify; `round` holds all and the waiting."""
    timings = stats.timings
    return {
        "round": _number(stats.round_seconds),
        "schedule": _number(stats.schedule_seconds),
        "draft": _number(timings.draft),
        "verify": _number(timings.verify),
        "decide": _number(timings.decide),
        "commit": _number(stats.commit_seconds),
        "forward": _number(timings.forward),
    }


def _load(load: LoadStats) -> dict[str, object]:
    return {
        "running": load.running,
        "waiting": load.waiting,
        "target_blocks": _blocks(load.target_pool),
        "draft_blocks": None if load.draft_pool is None else _blocks(load.draft_pool),
    }


def _blocks(pool: PoolStats) -> dict[str, int]:
    return {"used": pool.used, "free": pool.free, "cached": pool.cached}


def _forecast(stats: StepStats) -> dict[str, float | None] | None:
    """What the decision expected; `measured_gain` is null where the round cannot be compared."""
    forecast = None if stats.decision is None else stats.decision.forecast
    if forecast is None:
        return None
    gain = compare(stats)
    return {
        "tokens": _number(forecast.tokens),
        "seconds": _number(forecast.seconds),
        "plain_tokens": _number(forecast.plain_tokens),
        "plain_seconds": _number(forecast.plain_seconds),
        "append_seconds": _number(forecast.append_seconds),
        "gain": _number(forecast.gain),
        "measured_gain": None if gain is None else _number(gain.measured),
    }


def _request(group: GroupStats, choice: Choice | None) -> dict[str, object]:
    """One request's share. `k` is null for one that does not emit; `drafted` is what was proposed
    and published of it."""
    speculation = group.speculation
    return {
        "id": group.request,
        "k": None if choice is None else choice.k,
        "reason": None if choice is None else choice.reason.value,
        "expected_accepted": None if choice is None else _number(choice.accepted),
        "drafted": 0 if speculation is None else speculation.k,
        "accepted": 0 if speculation is None else speculation.accepted,
        "committed": group.committed,
        "prefilled": group.prefilled,
        "outcome": group.outcome.value,
        "terminal": None if group.terminal is None else group.terminal.value,
        "policy": group.policy.value,
        "proposer": group.proposer.value,
        "position": group.position,
    }


def _number(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return round(value, _DIGITS)
