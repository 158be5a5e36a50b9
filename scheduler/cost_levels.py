"""Tells how fast the machine is from where a cost table is wrong. Knows ratios, nothing of costs.

A round takes `ratio` seconds for each second that the table says. Ratios of one cell (a load and a
K) cannot tell a slow machine from a wrong table. Two cells met one right after the other can:
the machine was the same. So a cell's level is learnt when K or load changes, from the first rounds
after it, and all that moves in between is the speed.
"""

import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

Cell = tuple[int, int]
"""A load, as a class of emitters, and the longest K of a round."""

_SPEED_ROUNDS = 7
_FRESH_ROUNDS = 3
"""Rounds after a change that teach: the machine is still as it was before."""
_NOISE = 0.01
"""Variances, of logarithms: of one round's ratio,"""
_UNKNOWN = 0.04
"""of a level that was never seen,"""
_DRIFT = 1e-5
"""and what a level may have moved between two looks at it."""
_FAR = 2.0
"""Standard deviations beyond which a gap is taken for a disturbance, and counts for no more."""
_MOST = math.log(3.0) / 2.0
"""So that no two levels are further apart than a factor of 3."""


@dataclass(slots=True)
class _Level:
    """The logarithm of a cell's factor, and the variance of what is known of it."""

    value: float
    variance: float = _UNKNOWN


class CostLevels:
    """`speed`: seconds that a second of the table takes of late, whatever the cell."""

    def __init__(self, k_max: int) -> None:
        self.speed = 1.0
        self._k_max = k_max
        self._levels: dict[Cell, _Level] = {}
        self._recent: deque[tuple[float, _Level]] = deque(maxlen=_SPEED_ROUNDS)
        self._stay: deque[float] = deque(maxlen=_SPEED_ROUNDS)
        self._cell: Cell | None = None
        self._before: Cell | None = None
        self._stay_before = 0.0
        self._fresh = 0

    def learn(self, load: int, k: int, ratio: float) -> bool:
        """Take in a round, whose `ratio` must be positive; whether a level moved."""
        level = self._levels.get((load, k))
        if level is None:
            level = self._levels[load, k] = _Level(math.log(self.factors(load)[k]))
        found = math.log(ratio)
        if (load, k) != self._cell:
            self._enter((load, k))
        moved = self._compare(found, level)
        self._stay.append(found)
        self._recent.append((found, level))
        self._show_speed()
        return moved

    def pass_by(self, load: int, k: int, ratio: float) -> None:
        """Take in a round of no cell, with a mean K near `k`: it shows the speed alone, and what
        comes next is not held against what was before it."""
        self._recent.append((math.log(ratio), _Level(math.log(self.factors(load)[k]))))
        self._show_speed()
        self._stay.clear()
        self._cell = self._before = None

    def _show_speed(self) -> None:
        self.speed = math.exp(median(each - of.value for each, of in self._recent))

    def _enter(self, cell: Cell) -> None:
        self._before, self._cell = self._cell, cell
        self._stay_before = median(self._stay) if self._stay else 0.0
        self._stay.clear()
        self._fresh = _FRESH_ROUNDS

    def _compare(self, found: float, level: _Level) -> bool:
        """Hold a round against those of the cell before it, if it comes soon after them."""
        if self._before is None or not self._fresh:
            return False
        self._fresh -= 1
        _draw_together(found - self._stay_before, level, self._levels[self._before])
        return True

    def factors(self, load: int) -> list[float]:
        """Factors of a load by K 0 .. k_max: those seen, lines between them, 1 for none."""
        seen = [
            (k, math.exp(self._levels[load, k].value))
            for k in range(self._k_max + 1)
            if (load, k) in self._levels
        ]
        if not seen:
            return [1.0] * (self._k_max + 1)
        return [_between(seen, k) for k in range(self._k_max + 1)]


def _draw_together(step: float, level: _Level, before: _Level) -> None:
    """Move two levels towards being `step` apart, each by its share of the variance: a scalar
    Kalman filter of their difference."""
    level.variance = min(level.variance + _DRIFT, _UNKNOWN)
    total = level.variance + before.variance + _NOISE
    far = _FAR * math.sqrt(total)
    gap = min(max(step - (level.value - before.value), -far), far)
    for each, sign in ((level, 1.0), (before, -1.0)):
        share = each.variance / total
        each.value = min(max(each.value + sign * share * gap, -_MOST), _MOST)
        each.variance *= 1.0 - share


def _between(points: Sequence[tuple[int, float]], at: int) -> float:
    """Linear through rising `points`, flat beyond them."""
    for (start, low), (end, high) in itertools.pairwise(points):
        if start <= at <= end:
            return low + (high - low) * (at - start) / (end - start)
    return points[0][1] if at <= points[0][0] else points[-1][1]
