"""What rounds really cost in a simulation, and the start-up table that a controller is given.

Knows seconds and rows; nothing of acceptance, of requests or of who chooses K.
"""

import random
from dataclasses import dataclass, replace

from scheduler.costs import CostTable, Curve, RoundCurve

_TABLE_EMITTERS = (1, 2, 4, 8, 16, 32, 64)
_MOST_ROWS = 4096

Steps = tuple[tuple[float, float], ...]
"""Factors at rising counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """Seconds of a round: a curve over its target rows, and `emitter` for each request in it.

    `step` is a draft step over the requests in it, `catch_up` a further row of the draft. `row_key`
    is a target row's share for each token of its request beyond `context`. `by_n` multiplies
    rounds by their emitters and `by_k` what decodes in them by its mean K (a prefill chunk takes
    what it takes), both given at a few points, linear between them.
    """

    rows: Curve
    step: Curve
    emitter: float = 0.0
    catch_up: float = 0.0
    context: int = 200
    row_key: float = 0.0
    by_k: Steps = ()
    by_n: Steps = ()

    def target(self, emitters: int, rows: int, keys: float = 0.0) -> float:
        """The round but its draft; `keys` is the sum over rows of the context beyond nominal."""
        seconds = self.rows.at(rows) + self.emitter * emitters
        return max(seconds + self.row_key * keys, 0.0)

    def draft(self, steps: list[int], extra: int) -> float:
        """Draft steps of so many requests each, and `extra` rows that catch up."""
        seconds = sum(self.step.at(requests) for requests in steps)
        if extra and not steps:
            seconds += self.step.at(1)
        return seconds + self.catch_up * extra

    def factors(self, emitters: int, drafts: int) -> tuple[float, float]:
        """By how much a round, and what decodes in it, takes longer than curves say."""
        if not emitters:
            return 1.0, 1.0
        return _at(self.by_n, emitters), _at(self.by_k, drafts / emitters)

    def table(self) -> CostTable:
        """These curves as a start-up profile reports them; it knows nothing of the factors."""
        rounds = tuple(
            RoundCurve(emitters=n, seconds=_raised(self.rows, self.emitter * n))
            for n in _TABLE_EMITTERS
        )
        first = self.step.at(1)
        points = ((1, first), (_MOST_ROWS, first + self.catch_up * (_MOST_ROWS - 1)))
        return CostTable(
            context=self.context,
            rounds=rounds,
            step=self.step,
            catch_up=Curve(points=points),
            row_key=self.row_key,
        )

    def with_factors(
        self,
        *,
        by_k: Steps = (),
        by_n: Steps = (),
    ) -> "Truth":
        """The same curves, wrong by these factors."""
        return replace(self, by_k=by_k, by_n=by_n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What a measured round differs from the truth by: `spread` is the standard deviation of a
    log-normal factor, and a share of `outliers` takes `longer` times as long."""

    spread: float = 0.03
    outliers: float = 0.004
    longer: float = 5.0

    def factor(self, chance: random.Random) -> float:
        """One round's factor."""
        found = chance.lognormvariate(0.0, self.spread) if self.spread else 1.0
        return found * self.longer if chance.random() < self.outliers else found


def line(first: float, slope: float) -> Curve:
    """`first` seconds at a count of 1 and `slope` for each further one."""
    return Curve(points=((1, first), (_MOST_ROWS, first + slope * (_MOST_ROWS - 1))))


def bent(*points: tuple[int, float], slope: float) -> Curve:
    """Through `points`, then on with `slope`."""
    count, seconds = points[-1]
    return Curve(points=(*points, (_MOST_ROWS, seconds + slope * (_MOST_ROWS - count))))


def stairs(sizes: tuple[int, ...], base: float, slope: float) -> Curve:
    """Captured sizes: a count costs what the next size above it does; linear past the last."""
    points: list[tuple[int, float]] = []
    before = 0
    for size in sizes:
        seconds = base + slope * size
        points += [(before + 1, seconds)] if size == before + 1 else []
        points += [(before + 1, seconds), (size, seconds)] if size > before + 1 else []
        before = size
    return bent(*points, slope=slope)


def _raised(curve: Curve, seconds: float) -> Curve:
    return Curve(points=tuple((count, each + seconds) for count, each in curve.points))


def _at(points: Steps, value: float) -> float:
    before = (0.0, 1.0)
    for start, factor in points:
        if value < start:
            share = (value - before[0]) / (start - before[0])
            return before[1] + share * (factor - before[1])
        before = (start, factor)
    return before[1]
