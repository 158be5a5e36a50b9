"""Chooses K per request for the most committed tokens a second; plain decoding is one choice.

Decides by history and load alone (contract section 3): estimates of acceptance, a cost model, and
what requests want. No clock: time is what finished rounds took.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler.acceptance import AcceptanceBook
from scheduler.allocation import Allocation, Candidate, best, priced
from scheduler.controller import DraftView, LoadView
from scheduler.cost_model import CostModel, RoundCosts
from scheduler.costs import CostTable
from scheduler.plan import Layout
from scheduler.probing import Plan, Prober
from scheduler.request import ProposerKind
from scheduler.resting import Rest
from scheduler.sharing import Turns
from scheduler.stats import Choice, Decision, Forecast, Reason, StepStats
from scheduler.time_price import KEEP_PLAIN, decode_rate, staggered_rate

_KEEP = 0.01
"""A choice stands unless another one is better by this share."""
_OUTPUT = 128.0
"""Tokens of an output before any has ended,"""
_OUTPUTS = 32
"""and how many of those that ended their mean is over, about."""
_FLOOR_PASSES = 4
_UNTAKEN = 8
"""Finished rounds that wait for the next decision, at most."""


@dataclass(frozen=True, slots=True)
class _Round:
    """What one decision is made from. `at_will` are the requests whose K is free."""

    view: LoadView
    candidates: Sequence[Candidate]
    at_will: Mapping[int, DraftView]
    fixed: Mapping[int, int]
    costs: RoundCosts


class _Outputs:
    """How long outputs are of late, in tokens."""

    def __init__(self) -> None:
        self.mean = _OUTPUT
        self._count = 1

    def learn(self, stats: StepStats) -> None:
        for each in stats.finished:
            self._count = min(self._count + 1, _OUTPUTS)
            self.mean += (each.request_stats.completion_tokens - self.mean) / self._count


class GoodputController:
    """`decide` maximises tokens a second; `learn` keeps estimates and costs true."""

    def __init__(
        self, table: CostTable, k_max: int, layout: Layout = Layout.REPLAY_FRONTIER
    ) -> None:
        self._k_max = k_max
        self._book = AcceptanceBook(k_max)
        self._model = CostModel(table, k_max, layout)
        self._prober = Prober(self._book, self._model)
        self._last: Mapping[int, int] = {}
        self._rows = 0
        self._rest = Rest()
        self._outputs = _Outputs()
        self._ended: set[int] = set()
        self._untaken: list[StepStats] = []

    def decide(self, view: LoadView) -> Decision:
        """K for each request of the view, with what is expected of it."""
        if not view.requests:
            return Decision()
        unthought = self._rest.lengths(view, self._last)
        if unthought is not None:
            if any(unthought.values()):
                self._prober.rest()
            return _as_before(unthought)
        self._take_in()
        now, price = self._priced_round(view)
        floors = self._floors(now)
        chosen = best(now.candidates, floors, now.costs, price, rows=view.spare)
        rate = chosen.rate if price is None else price
        chosen = self._kept(now, chosen, floors, rate)
        if self._breaks_wishes(now, chosen):  # what was filled in beside the floors made it long
            chosen = priced(now.candidates, floors, now.costs)
        reasons = {each: self._reason(each, chosen.lengths, floors, view) for each in now.at_will}
        before = self._last
        self._last = {
            each: chosen.lengths.get(each, 0) for each, seen in now.at_will.items() if seen.room
        }
        self._rest.settle(drafts=bool(chosen.lengths), same=self._last == before)
        self._rows = view.rows
        plan = Plan(
            candidates=now.candidates,
            at_will=now.at_will,
            lengths=chosen.lengths,
            costs=now.costs,
            rate=rate,
            rows=view.spare,
        )
        free = floors == now.fixed
        probe = None if view.prefill_rows else self._prober.probe(plan, chosen, at_liberty=free)
        if probe is not None:
            reasons |= dict.fromkeys(probe.lengths, probe.reason)
            lengths = {**chosen.lengths, **probe.lengths}
            chosen = priced(now.candidates, lengths, now.costs)
        self._rest.count(plain=not chosen.lengths)
        return self._decision(now, chosen, reasons)

    def learn(self, stats: StepStats) -> None:
        """Take in a finished round, by the next decision that needs thought.

        After a round the processor's caches hold the model: rounds taken in one after another cost
        half.
        """
        self._untaken.append(stats)
        if len(self._untaken) == _UNTAKEN:
            self._take_in()

    def _take_in(self) -> None:
        """Learn from what waits. What cannot be learnt from is not met again."""
        untaken, self._untaken = self._untaken, []
        try:
            for stats in untaken:
                self._model.learn(stats)
                self._book.learn(stats.groups)
                self._prober.learn(stats)
                self._outputs.learn(stats)
        finally:
            for request in self._ended:
                self._book.forget(request)
            self._ended.clear()

    def forget(self, request: int) -> None:
        """The request ended; its last round is still to be learnt from."""
        self._ended.add(request)

    def _round(self, view: LoadView) -> _Round:
        emitters = len(view.requests)
        at_will: dict[int, DraftView] = {}
        fixed: dict[int, int] = {}
        for each in view.requests:
            self._book.enter(each.request, own_seed=each.own_seed)
            if each.asked is not None:
                fixed[each.request] = min(each.asked, each.room)
            elif each.shared_seed:
                fixed[each.request] = 0
            else:
                at_will[each.request] = each
        candidates = [self._candidate(each, fixed.get(each.request)) for each in view.requests]
        most = sum(len(each.survivals) for each in candidates)
        context = sum(each.context for each in view.requests) / emitters
        costs = self._model.costs(emitters, view.rows, context, most)
        return _Round(view, candidates, at_will, fixed, costs)

    def _candidate(self, view: DraftView, fixed: int | None) -> Candidate:
        room = view.room if fixed is None else fixed
        survivals = self._book.survivals(view.request, (view.proposer, view.policy), room)
        modelled = view.proposer is ProposerKind.DRAFT_MODEL
        again, wake = self._catching_up(view) if modelled else (0.0, 0.0)
        return Candidate(
            request=view.request, survivals=survivals, again=again, wake=wake, modelled=modelled
        )

    def _catching_up(self, view: DraftView) -> tuple[float, float]:
        """Seconds of catching up that are charged for each round, and for each token.

        A lag of one token comes again and again. A longer one comes once, and is spread over the
        request's whole output: by what is left of it, requests that are half over would keep a load
        from drafting that gains by it.
        """
        often = min(view.lag, 1)
        again = self._model.catch_up(often)
        if view.lag == often:
            return again, 0.0
        output = view.emitted + max(min(view.left, self._outputs.mean), 1.0)
        return again, (self._model.catch_up(view.lag) - again) / output

    def _priced_round(self, view: LoadView) -> tuple[_Round, float | None]:
        """The round, and the price of time in it when it prefills: tokens a second once all that
        run decode (Dinkelbach's method). None for a round of decoding only.

        By its own ratio a round that prefills would draft too much: the prefill is to be paid
        anyway. And where pure decoding would not draft, no cache is woken for such a round alone.
        Nor is a round taken by itself in which others append (retained layout).
        """
        now = self._round(view)
        if not view.prefill_rows:
            return now, staggered_rate(view, now.candidates, now.fixed, now.costs)
        price, k = decode_rate(view, now.candidates, self._model, self._k_max)
        if k:
            return now, price
        lags = {each.request: each.lag for each in view.requests}
        candidates = [
            replace(each, again=self._model.catch_up(lags[each.request]), wake=0.0)
            if each.wake
            else each
            for each in now.candidates
        ]
        return replace(now, candidates=candidates), price

    def _floors(self, now: _Round) -> dict[int, int]:
        """The fixed K, and for each request with a wish the least K that meets it in a round as
        long as all floors make it. Hopeless ones get none, nor those that rows do not reach."""
        floors = dict(now.fixed)
        wishes = [each for each in now.at_will.values() if each.tpot is not None and each.room]
        if not wishes:
            return floors
        survivals = {each.request: each.survivals for each in now.candidates}
        for _ in range(_FLOOR_PASSES):
            seconds = priced(now.candidates, floors, now.costs).seconds * self._model.speed
            wanted = {
                each.request: _least(survivals[each.request], seconds / each.tpot)
                for each in wishes
                if each.tpot is not None
            }
            wanted = _within(wanted, now.view.spare - sum(now.fixed.values()))
            if all(floors.get(request, 0) == k for request, k in wanted.items()):
                break
            floors |= wanted
        return floors

    def _breaks_wishes(self, now: _Round, chosen: Allocation) -> bool:
        """Whether a wish that has a floor is not met in the round as chosen."""
        if all(view.tpot is None for view in now.at_will.values()):
            return False
        survivals = {each.request: each.survivals for each in now.candidates}
        seconds = chosen.seconds * self._model.speed
        for request, view in now.at_will.items():
            k = chosen.lengths.get(request, 0)
            if view.tpot is not None and view.room:
                able = 1.0 + sum(survivals[request]) >= seconds / view.tpot
                if (k or able) and 1.0 + sum(survivals[request][:k]) < seconds / view.tpot:
                    return True
        return False

    def _kept(
        self, now: _Round, chosen: Allocation, floors: Mapping[int, int], rate: float
    ) -> Allocation:
        """The K of the round before as far as rows allow, where the new choice is hardly better."""
        if not any(each in self._last for each in now.at_will):
            return chosen
        lengths = dict(floors)
        for each, view in now.at_will.items():
            before = self._last.get(each, chosen.lengths.get(each, 0))
            lengths[each] = max(min(before, view.room), floors.get(each, 0))
        lengths = _lowered(lengths, floors, now.view.spare)
        if not _differs(lengths, chosen.lengths):
            return chosen
        same = priced(now.candidates, lengths, now.costs)
        plain = not any(self._last.get(each, 0) for each in now.at_will)
        margin = KEEP_PLAIN if plain else _KEEP
        better = chosen.value(rate) - same.value(rate)
        return same if better <= margin * same.tokens else chosen

    def _reason(
        self, request: int, lengths: Mapping[int, int], floors: Mapping[int, int], view: LoadView
    ) -> Reason:
        k = lengths.get(request, 0)
        if k and k == floors.get(request, 0):
            return Reason.SLO
        if self._last.get(request) == k:
            return Reason.KEPT
        others = len(self._last) != len(view.requests) or view.rows != self._rows
        return Reason.LOAD if others or request not in self._last else Reason.ACCEPTANCE

    def _decision(self, now: _Round, chosen: Allocation, reasons: Mapping[int, Reason]) -> Decision:
        plain = chosen
        if chosen.lengths != now.fixed:
            plain = priced(now.candidates, now.fixed, now.costs)
        choices = {}
        for view, candidate in zip(now.view.requests, now.candidates, strict=True):
            k = chosen.lengths.get(view.request, 0)
            other = Reason.FIXED if view.asked is not None else Reason.SHARED_SEED
            choices[view.request] = Choice(
                k=k,
                reason=reasons.get(view.request, other),
                accepted=sum(candidate.survivals[:k]),
            )
        # Where others append in this round, what these append is part of another forecast.
        append = 0.0 if now.view.rows else now.costs.append
        own = now.costs.append - append
        forecast = Forecast(
            tokens=chosen.tokens,
            seconds=(chosen.seconds - own) * self._model.speed,
            plain_tokens=plain.tokens,
            plain_seconds=(plain.seconds - own) * self._model.speed,
            append_seconds=append * self._model.speed,
        )
        return Decision(choices=choices, forecast=forecast)


def _as_before(lengths: Mapping[int, int]) -> Decision:
    return Decision(choices={each: Choice(k=k, reason=Reason.KEPT) for each, k in lengths.items()})


def _differs(lengths: Mapping[int, int], others: Mapping[int, int]) -> bool:
    return any(k != others.get(request, 0) for request, k in lengths.items())


def _within(wanted: Mapping[int, int], rows: int) -> dict[int, int]:
    """These K in their order; 0 for one that is beyond the rows which those before it left."""
    found = {}
    for request, k in wanted.items():
        found[request] = k if k <= rows else 0
        rows -= found[request]
    return found


def _lowered(lengths: Mapping[int, int], floors: Mapping[int, int], rows: int) -> dict[int, int]:
    """These K, none of which is below its floor; where they need more `rows`, what is above the
    floors is cut alike."""
    if sum(lengths.values()) <= rows:
        return dict(lengths)
    more = {each: k - floors.get(each, 0) for each, k in lengths.items()}
    more = Turns().share(more, rows - sum(lengths.values()) + sum(more.values()))
    return {each: floors.get(each, 0) + k for each, k in more.items()}


def _least(survivals: Sequence[float], tokens: float) -> int:
    """The least K that is expected to commit `tokens`; 0 when none is."""
    total = 1.0
    for k, survival in enumerate(survivals, 1):
        if total >= tokens:
            return k - 1
        total += survival
    return len(survivals) if total >= tokens else 0
