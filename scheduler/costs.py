"""What rounds cost, as measured at start-up: frozen tables, read by interpolation.

Knows seconds and rows; nothing of clocks, requests or what is done with the numbers.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

_LEAST = 0.1
"""The share of a measured time that is left of it at least where contexts are short: a slope over
contexts is drawn from few of them, and no round takes no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Seconds over a count, through measured points that rise in both.

    Between two points it is linear, so a stair is two points one apart; past the last it goes on
    as steeply as on average between first and last; before the first it is flat.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        """Raises ValueError for no points, or for such that do not rise."""
        if not self.points:
            raise ValueError("a curve needs one point at least")
        counts = [count for count, _ in self.points]
        times = [seconds for _, seconds in self.points]
        if counts != sorted(set(counts)) or times != sorted(times) or times[0] < 0:
            raise ValueError(f"points of a curve must rise from 0 on: {self.points}")

    def at(self, count: float) -> float:
        """Seconds at `count`."""
        place = bisect_right(self.points, (count, float("inf")))
        if place == 0:
            return self.points[0][1]
        start, low = self.points[place - 1]
        if place < len(self.points):
            end, high = self.points[place]
            return low + (high - low) * (count - start) / (end - start)
        return low + self._steepness() * (count - start)

    def over(self, first: int, number: int) -> list[float]:
        """Seconds at `number` counts from `first` on, one apart."""
        found: list[float] = []
        ends = [count for count, _ in self.points if count > first]
        for end in (*ends, first + number):
            start = first + len(found)
            low, each = self.at(start), self.at(start + 1)
            more = min(end, first + number) - start
            found += [low + (each - low) * place for place in range(more)]
        return found

    def _steepness(self) -> float:
        (first, low), (last, high) = self.points[0], self.points[-1]
        return (high - low) / (last - first) if last > first else 0.0


def rising(points: Iterable[tuple[int, float]]) -> Curve:
    """A curve through `points` in order of their counts, each no lower than those before it:
    measured times may dip, costs do not."""
    ordered = sorted(points)
    times = accumulate((seconds for _, seconds in ordered), max)
    return Curve(points=tuple(zip((count for count, _ in ordered), times, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCurve:
    """Rounds in which `emitters` requests emit: seconds without drafting over target rows."""

    emitters: int
    seconds: Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTable:
    """A start-up profile of one pair on one machine, at `context` cached tokens a request.

    `rounds`, by rising emitters, is the whole round but its draft; `step` a draft step over the
    requests in it; `catch_up` rows of the draft alone, over rows. `row_key` and `draft_row_key`
    are seconds that a row takes longer for each further token in its request's cache.
    """

    context: int
    rounds: tuple[RoundCurve, ...]
    step: Curve
    catch_up: Curve
    row_key: float = 0.0
    draft_row_key: float = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError where the rounds do not rise in their emitters, or take no time."""
        emitters = [each.emitters for each in self.rounds]
        if not emitters or emitters != sorted(set(emitters)) or emitters[0] < 1:
            raise ValueError(f"rounds must have rising numbers of emitters, not {emitters}")
        if min(each.seconds.points[0][1] for each in self.rounds) <= 0.0:
            raise ValueError("a round takes some time: rates are tokens over seconds")

    def round(self, emitters: int, rows: int, context: float) -> float:
        """Seconds of a round with `rows` target rows, its draft left out, when the requests have
        `context` tokens each."""
        return self.by_rows(emitters, rows, 1, context)[0]

    def by_rows(self, emitters: int, rows: int, number: int, context: float) -> list[float]:
        """Seconds of `number` rounds, one with `rows` target rows and each with one more than that
        before it. Linear between the two nearest numbers of emitters, at equal rows."""
        low, high = _around(self.rounds, emitters)
        found = low.seconds.over(rows, number)
        if high is not low:
            share = (emitters - low.emitters) / (high.emitters - low.emitters)
            above = high.seconds.over(rows, number)
            found = [each + share * (more - each) for each, more in zip(found, above, strict=True)]
        further = self.row_key * (context - self.context)
        return [max(each + further * at, _LEAST * each) for at, each in enumerate(found, rows)]

    def draft_step(self, requests: int, context: float) -> float:
        """Seconds of one draft step of `requests` requests; 0 for none."""
        if not requests:
            return 0.0
        further = self.draft_row_key * requests * (context - self.context)
        measured = self.step.at(requests)
        return max(measured + further, _LEAST * measured)

    def draft_rows(self, rows: int) -> float:
        """Seconds that `rows` further rows add to a draft step."""
        return max(self.catch_up.at(rows + 1) - self.catch_up.at(1), 0.0)


def _around(rounds: Sequence[RoundCurve], emitters: int) -> tuple[RoundCurve, RoundCurve]:
    """The curves of the next lower and the next higher number; one twice at either end."""
    place = bisect_right([each.emitters for each in rounds], emitters)
    if place == 0:
        return rounds[0], rounds[0]
    return rounds[place - 1], rounds[min(place, len(rounds) - 1)]
