"""How many tokens to draft for each request, decided before anything of the round is drawn.

A biased policy needs a drawn token, or something that follows from one, before it settles what is
verified (contract section 3). Nobody who chooses here has that: a controller decides on a
`LoadView` of numbers, a proposer on published tokens, and then the plan is frozen and digested.
The drafter itself holds a row against a threshold before it draws from that row. `learn` shows
counts of rounds that are over, and no draw. A request's own keys never come again, unless a round
broke, and that one is tried again with the K that it had. Two requests with one seed do share keys:
a controller that pools their counts must not let one of them choose the other's K.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from scheduler.stats import LoadStats, Policy, StepStats


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftView:
    """One request that will emit this round. `room` is the longest draft that its budget, its
    context and the server allow; `asked` the K that the request fixed, if it did."""

    request: int
    asked: int | None
    room: int
    policy: Policy
    lag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadView:
    """What a controller may look at: history and load, nothing of the coming round's rows."""

    requests: tuple[DraftView, ...]
    prefill_rows: int
    load: LoadStats


class Controller(Protocol):
    """Chooses K per request. Must not look at this round's draws (contract section 3)."""

    def decide(self, view: LoadView) -> Mapping[int, int]:
        """K for each request of the view; never above its room."""
        ...

    def learn(self, stats: StepStats) -> None:
        """Take in what a finished round showed."""
        ...


class FixedController:
    """The same K for every request that does not name its own."""

    def __init__(self, k: int) -> None:
        self._k = k

    def decide(self, view: LoadView) -> Mapping[int, int]:
        """The request's own K, else the fixed one, cut to the room."""
        return {
            each.request: min(self._k if each.asked is None else each.asked, each.room)
            for each in view.requests
        }

    def learn(self, stats: StepStats) -> None:
        """A fixed policy has nothing to learn."""
