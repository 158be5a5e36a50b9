"""How often drafts are accepted, by position: estimates from published rounds, nothing else.

Reach acceptance alpha_i by the low-variance estimator of contract section 10, sum of masses over
sum of bases. Labels run up to and including the first rejection; what lies behind it is censored.
A position is seen only where K reached it, so its estimate is one of the rounds that were given
such a K (a selection), until a probe goes deeper.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.request import ProposerKind
from scheduler.stats import GroupStats, Policy, SpeculationStats

Kind = tuple[ProposerKind, Policy]

_START = 0.85
"""What the first position is expected to accept before anything was seen: much, since a good draft
that is not tried is lost for long and a bad one shows soon."""
_START_WEIGHT = 8.0
"""Observations that this counts for; later positions start from the one before them. So many that
a good draft outlives a few early rejections, which are chance where outcomes are 0 or 1."""
_POOL_WEIGHT = 20.0
"""Observations that the pool counts for beside a request's own."""
_POOL_WINDOW = 300.0
_OWN_WINDOW = 64.0
"""Observations of a position after which an old one counts 1/e,"""
_IDLE_WINDOW = 400.0
"""and rounds that show nothing of its kind: what was true once may have changed."""
_IDLE = 1.0 - 1.0 / _IDLE_WINDOW


class Tally:
    """Sums by position, in which what is old fades as new comes in."""

    def __init__(self, positions: int, window: float) -> None:
        self._kept = 1.0 - 1.0 / window
        self.mass = [0.0] * positions
        self.base = [0.0] * positions

    def fade(self) -> None:
        """A round went by that showed nothing."""
        self.mass = [_IDLE * mass for mass in self.mass]
        self.base = [_IDLE * base for base in self.base]

    def add(self, speculation: SpeculationStats) -> None:
        """Take in one round's reached positions."""
        observed = zip(speculation.mass, speculation.base, strict=True)
        for place, (mass, base) in enumerate(observed):
            self.mass[place] = self.mass[place] * self._kept + mass
            self.base[place] = self.base[place] * self._kept + base


@dataclass(slots=True, kw_only=True)
class _Own:
    """One request's tally. `teaches`: whether the pool may learn from it."""

    tally: Tally
    teaches: bool


class AcceptanceBook:
    """Estimates of every request, each shrunk to the pool of its proposer and policy.

    A request whose client chose its seed teaches the pool nothing where draws decide: another one
    may have the same draws ahead of it.
    """

    def __init__(self, k_max: int) -> None:
        self._positions = k_max
        self._pools: dict[Kind, Tally] = {}
        self._own: dict[int, _Own] = {}
        self._pooled: dict[Kind, list[float]] = {}

    def enter(self, request: int, *, own_seed: bool) -> None:
        """Keep an account for `request` from now on."""
        if request not in self._own:
            tally = Tally(self._positions, _OWN_WINDOW)
            self._own[request] = _Own(tally=tally, teaches=not own_seed)

    def forget(self, request: int) -> None:
        """The request ended; the pool keeps what it taught."""
        self._own.pop(request, None)

    def learn(self, groups: Sequence[GroupStats]) -> None:
        """Take in a round. A pool that it taught nothing fades a little."""
        taught = set()
        for group in groups:
            own = self._own.get(group.request)
            if group.speculation is None or own is None:
                continue
            own.tally.add(group.speculation)
            if own.teaches:
                kind = (group.proposer, group.policy)
                self._pool(kind).add(group.speculation)
                taught.add(kind)
        for kind, pool in self._pools.items():
            if kind not in taught:
                pool.fade()
        self._pooled.clear()

    def survivals(self, request: int, kind: Kind, room: int) -> tuple[float, ...]:
        """S_1 .. S_room: the chance that so many drafts of `request` are accepted."""
        tally, found, survival = self._own[request].tally, [], 1.0
        alphas = self._alphas(kind)[:room]
        for alpha, mass, base in zip(alphas, tally.mass, tally.base, strict=False):
            own = (mass + _POOL_WEIGHT * alpha) / (base + _POOL_WEIGHT)
            survival *= min(own, 1.0)
            found.append(survival)
        return tuple(found)

    def known(self, kind: Kind) -> Sequence[float]:
        """How many observations of late stand behind each position of the pool."""
        return self._pool(kind).base

    def _pool(self, kind: Kind) -> Tally:
        if kind not in self._pools:
            self._pools[kind] = Tally(self._positions, _POOL_WINDOW)
        return self._pools[kind]

    def _alphas(self, kind: Kind) -> list[float]:
        """The pool's estimates of all positions."""
        if kind not in self._pooled:
            pool, before, found = self._pool(kind), _START, []
            for mass, base in zip(pool.mass, pool.base, strict=True):
                before = min((mass + _START_WEIGHT * before) / (base + _START_WEIGHT), 1.0)
                found.append(before)
            self._pooled[kind] = found
        return self._pooled[kind]
