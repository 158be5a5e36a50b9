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
_SAVED_ROUNDS = 16.0
"""So many rounds' time is the most that is saved up for one."""
_KNOWN = 30.0
"""Observations of a position after which the next one is looked at."""
_OTHER_EVERY = 256
"""Rounds of drafting after which a plain one is due, and the other way round."""
_ENOUGH = 3
"""Plain rounds that a load has to show before drafting is taken for granted there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was chosen for a round: K by request, for `at_will` requests freely, at most `rows` of
    all together."""

    candidates: Sequence[Candidate]
    at_will: Mapping[int, DraftView]
    lengths: Mapping[int, int]
    costs: RoundCosts
    rate: float
    rows: int

    @property
    def spare(self) -> int:
        """Rows for further drafts."""
        return max(self.rows - sum(self.lengths.values()), 0)


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
        self._plain: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self._turn = 0
        self._rested = 0
        self._hope: tuple[tuple[RoundCosts, int], bool] | None = None

    def rest(self) -> None:
        """A drafting round went by unasked; its share of the time is saved up."""
        self._rested += 1

    def learn(self, stats: StepStats) -> None:
        """Count at each load the rounds of decoding since the last plain one, and since the last
        other one."""
        emitters = sum(group.terminal is not None for group in stats.groups)
        if not emitters or any(group.prefilled for group in stats.groups):
            return
        drafted = any(group.speculation is not None for group in stats.groups)
        load = emitters.bit_length()
        mine, other = (self._drafted, self._plain) if drafted else (self._plain, self._drafted)
        mine[load] = mine.get(load, 0) + 1
        other[load] = 0
        self._seen[load] = self._seen.get(load, 0) + (not drafted)

    def probe(self, plan: Plan, chosen: Allocation, *, at_liberty: bool) -> Probe | None:
        """A change to the plan, when one is due and within the budget.

        `at_liberty`: nobody has a wish that a round of another K would break.
        """
        saved = self._credit + _SHARE * chosen.seconds * (1 + self._rested)
        self._rested = 0
        self._credit = min(saved, _SAVED_ROUNDS * chosen.seconds)
        load = plan.costs.emitters.bit_length()
        if any(plan.lengths.get(each) for each in plan.at_will):
            drafted = self._drafted.get(load, 0)
            due = drafted >= _OTHER_EVERY or self._seen.get(load, 0) < _ENOUGH
            if at_liberty and due:  # and until it can be paid nothing else is looked at
                return self._everybody(plan, chosen, 0)
        elif at_liberty and self._plain.get(load, 0) >= _OTHER_EVERY and self._hopeful(plan):
            found = self._everybody(plan, chosen, 1)
            if found is not None:
                return found
        return self._deeper(plan, chosen)

    def _hopeful(self, plan: Plan) -> bool:
        """Whether drafting would pay if all drafts of all were accepted."""
        longest = max((view.room for view in plan.at_will.values()), default=0)
        asked = (plan.costs, longest)
        if self._hope is None or self._hope[0] != asked:
            self._hope = (asked, _may_pay(*asked))
        return self._hope[1]

    def _everybody(self, plan: Plan, chosen: Allocation, k: int) -> Probe | None:
        """All that may draft `k` tokens: what such rounds cost is seen in no other way. Where rows
        do not go round, those that are nearest."""
        lengths = {request: min(k, view.room) for request, view in plan.at_will.items()}
        if sum(lengths.values()) > plan.spare:  # then k is 1
            nearest = sorted(lengths, key=lambda each: _behind(plan.at_will[each]))
            lengths = {each: lengths[each] for each in nearest[: plan.spare]}
        if k and not any(lengths.values()):
            return None
        other = priced(plan.candidates, {**plan.lengths, **lengths}, plan.costs)
        if k:
            cost = other.seconds - chosen.seconds
            cost += sum(self._model.catch_up(_behind(view)) for view in plan.at_will.values())
        else:
            cost = (chosen.value(plan.rate) - other.value(plan.rate)) / plan.rate
        if not self._pays(cost):
            return None
        return Probe(lengths=lengths, reason=Reason.PROBE if k else Reason.BASELINE)

    def _deeper(self, plan: Plan, chosen: Allocation) -> Probe | None:
        """One request drafts further than planned, to the first position that is little known."""
        asked = self._whom(plan)
        if asked is None or not plan.spare or not self._hopeful(plan):
            return None
        k = plan.lengths.get(asked.request, 0)
        lengths = {asked.request: min(self._depth(asked, k), k + plan.spare)}
        longer = priced(plan.candidates, {**plan.lengths, **lengths}, plan.costs)
        cost = longer.seconds - chosen.seconds
        if not k:
            cost += self._model.catch_up(_behind(asked))
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
        places = range(k, min(view.room, len(known)))
        little = (place + 1 for place in places if known[place] < _KNOWN)
        return next(little, k + 1)

    def _pays(self, seconds: float) -> bool:
        """Take `seconds` from the budget if they are in it."""
        if seconds > self._credit:
            return False
        self._credit -= max(seconds, 0.0)
        self._turn += 1
        return True


def _may_pay(costs: RoundCosts, longest: int) -> bool:
    rates = ((1 + k) / costs.alike(k) for k in range(1, longest + 1))
    return max(rates, default=0.0) > 1.0 / costs.alike(0)


def _behind(view: DraftView) -> int:
    """Rows to catch up, beyond the one that may lag in the course of things."""
    return max(view.lag - 1, 0)
