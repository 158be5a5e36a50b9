"""Says in the log why K is what it is: a line when drafting begins or ends, all else for debugging.

A line is one JSON object under the logger `fencepost.controller`. Knows no clock of its own.
"""

import json
import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.stats import (
    Choice,
    Decision,
    FinishedStats,
    LoadStats,
    Reason,
    StepStats,
)
from telemetry.gains import Gain, compare

__all__ = ["HELD_ROUNDS", "LINES_A_SECOND", "DecisionLog"]

logger = logging.getLogger("fencepost.controller")

HELD_ROUNDS = 4
"""Rounds that a regime holds before it counts: a request's first round and its last have no room
for a draft, and say nothing about the choice."""
LINES_A_SECOND = 10

# K that nobody chose, or chose only to see something.
_NOT_AT_WILL = frozenset({Reason.FIXED, Reason.SHARED_SEED, Reason.PROBE, Reason.BASELINE})
_ALARMS = (Reason.SLO, Reason.MEMORY)
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@dataclass(slots=True)
class _Spell:
    """Rounds in a row with drafts or without. `first` is the line of the one that began it."""

    drafting: bool
    first: dict[str, object]
    rounds: int = 0
    gain: Gain = field(default_factory=Gain)

    def add(self, rounds: int, gain: Gain) -> None:
        """Make it longer."""
        self.rounds += rounds
        self.gain += gain


class DecisionLog:
    """A `StatsSink` for the event loop. `clock` counts seconds and does not step back.

    INFO: the round that begins a regime (all at-will K are 0, or not) once it has held, and the
    first round with a K for a time a token or cut for memory. DEBUG: every round that emits. No
    more than `LINES_A_SECOND` INFO lines a second; the next one says how many were dropped.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times: deque[float] = deque(maxlen=LINES_A_SECOND)
        self._dropped = 0
        self._alarms = list(_ALARMS)
        self._spell: _Spell | None = None
        self._next: _Spell | None = None

    def step(self, stats: StepStats) -> None:
        """Log what one round has to say."""
        decision = stats.decision
        if decision is None or not decision.choices:
            return
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s", _encode({"event": "round", **_line(stats, decision)}))
        if logger.isEnabledFor(logging.INFO):
            self._sound_alarms(stats, decision)
            self._follow(stats, decision)

    def load(self, load: LoadStats) -> None:
        """Not logged."""

    def finished(self, finished: FinishedStats) -> None:
        """Not logged."""

    def _sound_alarms(self, stats: StepStats, decision: Decision) -> None:
        if not self._alarms:
            return
        seen = {each.reason for each in decision.choices.values()}
        for reason in [each for each in self._alarms if each in seen]:
            self._alarms.remove(reason)
            self._info({"event": "first", "reason": reason.value, **_line(stats, decision)})

    def _follow(self, stats: StepStats, decision: Decision) -> None:
        """Add the round to the regime, or to the one that may follow it."""
        choices = [each for each in decision.choices.values() if each.reason not in _NOT_AT_WILL]
        if not choices:
            return
        drafting = any(choice.k for choice in choices)
        gain = compare(stats) or Gain()
        if self._spell is not None and self._spell.drafting == drafting:
            if self._next is not None:
                self._spell.add(self._next.rounds, self._next.gain)
                self._next = None
            self._spell.add(1, gain)
            return
        if self._next is None or self._next.drafting != drafting:
            self._next = _Spell(drafting, _line(stats, decision) | {"reason": _cause(choices)})
        self._next.add(1, gain)
        if self._next.rounds == HELD_ROUNDS:
            self._turn(self._next)

    def _turn(self, begun: _Spell) -> None:
        """A new regime has held."""
        before = None if self._spell is None else _told(self._spell)
        self._info({"event": "regime", **begun.first, **_told(begun), "before": before})
        self._spell, self._next = begun, None

    def _info(self, line: Mapping[str, object]) -> None:
        now = self._clock()
        if len(self._times) == LINES_A_SECOND and now - self._times[0] < 1.0:
            self._dropped += 1
            return
        self._times.append(now)
        logger.info("%s", _encode({**line, "dropped": self._dropped}))
        self._dropped = 0


def _line(stats: StepStats, decision: Decision) -> dict[str, object]:
    """What every line says of its round. `k` and `reasons` are by request and by reason."""
    ks = {request: choice.k for request, choice in decision.choices.items()}
    forecast, gain = decision.forecast, compare(stats)
    return {
        "round_id": stats.round_id,
        "k": ks,
        "mean_k": _number(sum(ks.values()) / len(ks)),
        "reasons": _reasons(decision.choices.values()),
        "predicted_gain": None if forecast is None else _number(forecast.gain),
        "measured_gain": None if gain is None else _number(gain.measured),
        "running": stats.load.running,
        "waiting": stats.load.waiting,
    }


def _reasons(choices: Iterable[Choice]) -> dict[str, int]:
    return {each.value: count for each, count in Counter(c.reason for c in choices).items()}


def _cause(choices: Sequence[Choice]) -> str:
    """The reason of most of the choices, of those that changed if any did."""
    changed = [each.reason for each in choices if each.reason is not Reason.KEPT]
    return Counter(changed).most_common(1)[0][0].value if changed else Reason.KEPT.value


def _told(spell: _Spell) -> dict[str, object]:
    """What a regime came to so far: one round's gain is noise, that of many is less."""
    return {
        "regime": _name(spell),
        "rounds": spell.rounds,
        "predicted_gain": _number(spell.gain.predicted),
        "measured_gain": _number(spell.gain.measured),
    }


def _name(spell: _Spell) -> str:
    return "drafting" if spell.drafting else "plain"


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 3)
