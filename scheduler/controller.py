"""How many tokens to draft for each request, decided before anything of the round is drawn."""

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
