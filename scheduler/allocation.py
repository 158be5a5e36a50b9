"""Shares out draft slots for the most tokens a second. Pure: survivals and costs in, K out.

Slot k of a request is worth S_k, the chance that its first k drafts are all accepted, and S never
rises along a request. Slots are taken in order of S, and of all prefixes the best one wins: costs
may have stairs, so that no first local maximum is trusted. A draft step costs nearly the same for
one request as for many, so the deepest step is then given up as a whole, and the next, to see
whether the rest does better: by S alone, a second step for one good request may come before the
first step of many others that would pay for it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from scheduler.cost_model import RoundCosts

_WORTHLESS = 0.01
"""A slot that is reached less often than this is not looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A request that may draft. `survivals` are S_1 .. S_room; `modelled` says that its drafts are
    steps of the draft model. Catching up is charged to it when it drafts at all: `again` seconds
    a round, and `wake` for each token that it is expected to commit."""

    request: int
    survivals: tuple[float, ...]
    again: float = 0.0
    wake: float = 0.0
    modelled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """K by request (those with none are left out), expected tokens, and seconds at the table's
    speed."""

    lengths: Mapping[int, int]
    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds

    def value(self, rate: float) -> float:
        """Tokens beyond what the time would bring at `rate`."""
        return self.tokens - rate * self.seconds


class _Sum:
    """Tokens, drafts and seconds of drafting, slot by slot; `steps[d]` counts slots of depth d, and
    `longest` is the deepest of all."""

    def __init__(self, costs: RoundCosts) -> None:
        self.costs = costs
        self.tokens = float(costs.emitters)
        self.drafts = 0
        self.drafting = 0.0
        self.longest = 0
        self.steps: list[int] = [0]

    def take(self, candidate: Candidate, depth: int) -> None:
        """Add the slot of `depth`, counted from 1."""
        self.tokens += candidate.survivals[depth - 1]
        self.drafts += 1
        self.longest = max(self.longest, depth)
        if candidate.modelled:
            self.steps += [0] * (depth + 1 - len(self.steps))
            count = self.steps[depth]
            self.drafting += self.costs.step[count + 1] - self.costs.step[count]
            self.steps[depth] = count + 1
            self.drafting += candidate.wake * candidate.survivals[depth - 1]
            if depth == 1:
                self.drafting += candidate.again + candidate.wake

    def take_all(self, candidates: Iterable[Candidate], lengths: Mapping[int, int]) -> None:
        """Add the first slots of every candidate."""
        for each in candidates:
            for depth in range(1, lengths.get(each.request, 0) + 1):
                self.take(each, depth)

    @property
    def seconds(self) -> float:
        """The whole round's."""
        return self.costs.seconds(self.drafts, self.drafting, self.longest)


def priced(
    candidates: Sequence[Candidate], lengths: Mapping[int, int], costs: RoundCosts
) -> Allocation:
    """What these K give."""
    total = _Sum(costs)
    total.take_all(candidates, lengths)
    kept = {request: k for request, k in lengths.items() if k}
    return Allocation(lengths=kept, tokens=total.tokens, seconds=total.seconds)


def best(
    candidates: Sequence[Candidate],
    floors: Mapping[int, int],
    costs: RoundCosts,
    rate: float | None = None,
    *,
    rows: int,
) -> Allocation:
    """The K with the most tokens a second, or with the most `value` at a given rate.

    Nobody gets less than its floor, and all together no more drafts than `rows`, unless floors do.
    Of equal ones the shorter drafts win.
    """
    start = _Sum(costs)
    start.take_all(candidates, floors)
    found = _Prefix(start, rate)
    free = max(rows - start.drafts, 0)
    for slots in _rankings(candidates, floors, start):
        for tried in _ever_shallower(start, rate, slots, free):
            if tried.score > found.score:
                found = tried
    lengths = {request: k for request, k in floors.items() if k}
    for _, depth, each in found.slots:
        lengths[each.request] = depth
    return Allocation(lengths=lengths, tokens=found.tokens, seconds=found.seconds)


_Slot = tuple[float, int, Candidate]
_depth = itemgetter(1)


class _Prefix:
    """The best prefix of ranked slots on top of what is given to all."""

    def __init__(self, start: "_Sum", rate: float | None) -> None:
        self._start, self._rate = start, rate
        self.slots: Sequence[_Slot] = ()
        self.tokens, self.seconds = start.tokens, start.seconds
        self.score = self._score(start)

    def extend(self, slots: Sequence[_Slot]) -> None:
        """Look at every prefix of `slots`. The loop of the engine's every round: kept flat."""
        start, costs, rate = self._start, self._start.costs, self._rate
        tokens, drafts, drafting = start.tokens, start.drafts, start.drafting
        verify, relative, step, append = costs.verify, costs.relative, costs.step, costs.append
        counts = start.steps + [0] * (1 + _deepest(slots))
        longest, highest, length = start.longest, self.score, 0
        for number, (survival, depth, each) in enumerate(slots, 1):
            tokens += survival
            drafts += 1
            if each.modelled:
                count = counts[depth]
                counts[depth] = count + 1
                drafting += step[count + 1] - step[count] + each.wake * survival
                if depth == 1:
                    drafting += each.again + each.wake
            if depth > longest:  # noqa: PLR1730 - a call for each slot would be felt
                longest = depth
            seconds = (verify[drafts] + drafting) * relative[longest] + append
            score = tokens / seconds if rate is None else tokens - rate * seconds
            if score > highest:
                highest, length = score, number
                self.tokens, self.seconds = tokens, seconds
        self.score, self.slots = highest, slots[:length]

    def _score(self, total: "_Sum") -> float:
        if self._rate is None:
            return total.tokens / total.seconds
        return total.tokens - self._rate * total.seconds


def _ever_shallower(
    start: "_Sum", rate: float | None, slots: Sequence[_Slot], rows: int
) -> Iterator[_Prefix]:
    """The best prefix of all slots, of all but those of the deepest step, and so on; each of as
    many as there are rows for, so that slots may come in where deeper ones are given up.

    Where a step's slots were the last ones, all prefixes without them have been looked at.
    """
    tried = slots[:rows]
    yield _best_prefix(start, rate, tried)
    for limit in range(_deepest(tried) - 1, 0, -1):
        slots = [slot for slot in slots if slot[1] <= limit]
        within = slots[:rows]
        if within != tried[: len(within)]:
            tried = within
            yield _best_prefix(start, rate, tried)


def _deepest(slots: Sequence[_Slot]) -> int:
    return max(map(_depth, slots), default=0)


def _best_prefix(start: "_Sum", rate: float | None, slots: Sequence[_Slot]) -> _Prefix:
    found = _Prefix(start, rate)
    found.extend(slots)
    return found


def _rankings(
    candidates: Sequence[Candidate], floors: Mapping[int, int], start: "_Sum"
) -> Iterator[list[_Slot]]:
    """Free slots by falling S. Where some must catch up, once more by what S is worth with that:
    a long request does not stand before its neighbours. And where there are both kinds, those that
    need no draft model."""
    slots = _ranked(candidates, floors)
    yield slots
    if any((each.wake or each.again) and not floors.get(each.request) for each in candidates):
        others = _ranked(candidates, floors, start.tokens / start.seconds)
        if others != slots:
            yield others
    free = [slot for slot in slots if not slot[2].modelled]
    if 0 < len(free) < len(slots):
        yield free


def _ranked(
    candidates: Sequence[Candidate], floors: Mapping[int, int], rate: float = 0.0
) -> list[_Slot]:
    """Free slots by falling worth, ties to the smaller depth.

    Worth is S, but no slot of a request is worth more than its first one less what waking the
    request costs at `rate`.
    """
    ranked = []
    for each in candidates:
        taken = floors.get(each.request, 0)
        most = 1.0
        if not taken and each.survivals:
            first = each.survivals[0]
            most = first - rate * (each.again + each.wake * (1.0 + first))
        for depth, survival in enumerate(each.survivals[taken:], taken + 1):
            if survival <= _WORTHLESS:
                break
            worth = survival if survival < most else most  # noqa: FURB136 - as above
            ranked.append((worth, depth, (survival, depth, each)))
    ranked.sort(key=_depth)
    ranked.sort(key=itemgetter(0), reverse=True)
    return [slot for _, _, slot in ranked]
