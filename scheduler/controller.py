"""How many tokens to draft for each request, decided before anything of the round is drawn.

A biased policy needs a drawn token, or something that follows from one, before it settles what is
verified (contract section 3). Nobody who chooses here has that: a controller decides on a
`LoadView` of numbers, a proposer on published tokens, and then the plan is frozen and digested.
The drafter itself holds a row against a threshold before it draws from that row. `learn` shows
counts of rounds that are over, and no draw. A request's own keys never come again, unless a round
broke, and that one is tried again with the K that it had. Requests with one seed do share keys, so
a controller that pools counts pools none of a request whose client chose the seed, and does not
choose for one that ever lived beside another with its keys: the view says both. What is left of a
request that ended before its twin came (load, times, mean lengths) is not hidden from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from scheduler.request import ProposerKind
from scheduler.stats import Choice, Decision, LoadStats, Policy, Reason, StepStats


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftView:
    """One request that will emit this round.

    `room` is the longest draft that its budget, its context and the server allow; `asked` the K
    that the request fixed, if it did. `context` counts its tokens, `emitted` those of its output,
    `left` those that may still come; `lag` is the rows that its draft cache is behind. `tpot` is
    the most seconds a token that its client wants, None for no wish. `own_seed` says that the
    client chose the seed, `shared_seed` that a request which lived beside this one has or had the
    very same draws, for good: both only where draws decide what is accepted.
    """

    request: int
    asked: int | None
    room: int
    policy: Policy
    proposer: ProposerKind
    lag: int
    context: int
    emitted: int
    left: int
    tpot: float | None = None
    own_seed: bool = False
    shared_seed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadView:
    """What a controller may look at: history and load, nothing of the coming round's rows.

    `rows` are the target rows of the round besides drafts; `prefill_rows` those of them that are
    no frontier's. `spare` are the rows that frontiers leave of a round's budget: there is no place
    for more drafts, nor for as many where prefill has its share of them. What is wanted beyond
    that is cut to what all can have.
    """

    requests: tuple[DraftView, ...]
    rows: int
    prefill_rows: int
    spare: int
    load: LoadStats


class Controller(Protocol):
    """Chooses K per request. Must not look at this round's draws (contract section 3)."""

    def decide(self, view: LoadView) -> Decision:
        """K for each request of the view; never above its room."""
        ...

    def learn(self, stats: StepStats) -> None:
        """Take in what a finished round showed."""
        ...

    def forget(self, request: int) -> None:
        """The request ended."""
        ...


def fixed(lengths: Mapping[int, int]) -> Decision:
    """The decision for these K, which nothing but a rule fixed."""
    choices = {each: Choice(k=k, reason=Reason.FIXED) for each, k in lengths.items()}
    return Decision(choices=choices)


class FixedController:
    """The same K for every request that does not name its own."""

    def __init__(self, k: int) -> None:
        self._k = k

    def decide(self, view: LoadView) -> Decision:
        """The request's own K, else the fixed one, cut to the room."""
        return fixed(
            {
                each.request: min(self._k if each.asked is None else each.asked, each.room)
                for each in view.requests
            }
        )

    def learn(self, stats: StepStats) -> None:
        """A fixed policy has nothing to learn."""

    def forget(self, request: int) -> None:
        """It keeps nothing about a request."""
