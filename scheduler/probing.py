"""Spends a small share of the time on finding out: one request's draft, or one plain round.

Acceptance is seen only where K reached, and what plain decoding costs only where it was chosen; a
choice that is never tried again is never corrected. When to look follows from a budget of time,
whom to ask from whose draft cache is nearest, both from history alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler.acceptance import AcceptanceBook
from scheduler.allocation import Allocation, Candidate, priced
from scheduler.controller import DraftView
from scheduler.cost_model import CostModel, RoundCosts
from scheduler.stats import Reason, StepStats

_SHARE = 0.005
"""Of all time, spent on probes at most."""
_SAVED_ROUNDS = 4.0
"""So many rounds' time is the most that is saved up for one."""
_KNOWN = 30.0
"""Observations of a position after which the next one is looked at."""
_PLAIN_EVERY = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was chosen for a round: K by request, for `at_will` requests freely."""

    candidates: Sequence[Candidate]
    at_will: Mapping[int, DraftView]
    lengths: Mapping[int, int]
    costs: RoundCosts
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Changes to a plan, and why."""

    lengths: Mapping[int, int]
    reason: Reason


class Prober:
    """The budget, in seconds at the cost table's speed."""

    def __init__(self, book: AcceptanceBook, model: CostModel) -> None:
        self._book, self._model = book, model
        self._credit = 0.0
        self._drafted: dict[int, int] = {}
        self._turn = 0

    def learn(self, stats: StepStats) -> None:
        """Count the rounds since the last plain one at each load."""
        emitters = sum(group.terminal is not None for group in stats.groups)
        drafted = any(group.speculation is not None for group in stats.groups)
        load = emitters.bit_length()
        self._drafted[load] = self._drafted.get(load, 0) + 1 if drafted else 0

    def probe(self, plan: Plan, chosen: Allocation, *, plain_allowed: bool) -> Probe | None:
        """A change to the plan, when one is due and within the budget."""
        saved = self._credit + _SHARE * chosen.seconds
        self._credit = min(saved, _SAVED_ROUNDS * chosen.seconds)
        drafting = any(plan.lengths.get(each) for each in plan.at_will)
        if drafting and plain_allowed and self._plain_is_due(plan.costs.emitters):
            found = self._plain(plan, chosen)
            if found is not None:
                return found
        return self._deeper(plan, chosen)

    def _plain_is_due(self, emitters: int) -> bool:
        rounds = self._drafted.get(emitters.bit_length(), 0)
        return rounds >= _PLAIN_EVERY or not self._model.trusts_plain(emitters)

    def _plain(self, plan: Plan, chosen: Allocation) -> Probe | None:
        lengths = dict.fromkeys(plan.at_will, 0)
        plain = priced(plan.candidates, {**plan.lengths, **lengths}, plan.costs)
        lost = (chosen.value(plan.rate) - plain.value(plan.rate)) / plan.rate
        if not self._pays(lost):
            return None
        return Probe(lengths=lengths, reason=Reason.BASELINE)

    def _deeper(self, plan: Plan, chosen: Allocation) -> Probe | None:
        """One request drafts further than planned, to the first position that is little known."""
        asked = self._whom(plan)
        if asked is None:
            return None
        k = plan.lengths.get(asked.request, 0)
        depth = self._depth(asked, k)
        lengths = {asked.request: depth}
        longer = priced(plan.candidates, {**plan.lengths, **lengths}, plan.costs)
        cost = longer.seconds - chosen.seconds
        if depth - k <= plan.rate * cost:  # even if all were accepted it would not pay
            return None
        if not k:
            cost += max(self._model.catch_up(asked.lag) - self._model.catch_up(1), 0.0)
        return Probe(lengths=lengths, reason=Reason.PROBE) if self._pays(cost) else None

    def _whom(self, plan: Plan) -> DraftView | None:
        """In turn one of those whose draft cache has least to catch up."""
        able = [
            view
            for request, view in sorted(plan.at_will.items())
            if view.room > plan.lengths.get(request, 0)
        ]
        if not able:
            return None
        nearest = min(map(_behind, able))
        near = [view for view in able if _behind(view) == nearest]
        return near[self._turn % len(near)]

    def _depth(self, view: DraftView, k: int) -> int:
        known = self._book.known((view.proposer, view.policy))
        little = (place + 1 for place in range(k, view.room) if known[place] < _KNOWN)
        return next(little, k + 1)

    def _pays(self, seconds: float) -> bool:
        """Take `seconds` from the budget if they are in it."""
        if seconds > self._credit:
            return False
        self._credit -= max(seconds, 0.0)
        self._turn += 1
        return True


def _behind(view: DraftView) -> int:
    """Rows to catch up, beyond the one that may lag in the course of things."""
    return max(view.lag - 1, 0)
