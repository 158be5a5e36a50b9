"""How often drafts are accepted, by position: estimates from published rounds, nothing else.

Reach acceptance alpha_i by the low-variance estimator of contract section 10, sum of masses over
sum of bases. Labels run up to and including the first rejection; what lies behind it is censored.
By block verification every draft has one, with its base for a weight: the share of rounds that
reach a position is in the base, and where it is small the position was hardly seen.
A position is seen only where K reached it, so its estimate is one of the rounds that were given
such a K (a selection), until a probe goes deeper. Where acceptance changes along an output, easy
parts are given long drafts and hard ones short: the selection would show deep positions as easy.
Therefore estimates are kept by stage of the output too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.request import ProposerKind
from scheduler.stats import GroupStats, Policy, SpeculationStats

Kind = tuple[ProposerKind, Policy]

_START = 0.85
"""What the first position is expected to accept before anything was seen: much, since a good draft
that is not tried is lost for long and a bad one shows soon."""
_START_WEIGHT = 8.0
"""Observations that this counts for; later positions start from the one before them. So many that
a good draft outlives a few early rejections, which are chance where outcomes are 0 or 1."""
_STAGE_WEIGHT = 30.0
"""Observations that all stages together count for beside those of one: fewer, and a little bad luck
at the start of a stage, where all requests of a load may be at once, ends drafting."""
_STAGE_TOKENS = 32
_STAGES = 8
"""Output tokens of the first stage; each further one doubles what went before. The last is open."""
_POOL_WEIGHT = 20.0
"""Observations that the pool counts for beside a request's own."""
_POOL_WINDOW = 300.0
_OWN_WINDOW = 64.0
"""Observations of a position after which an old one counts 1/e,"""
_IDLE_WINDOW = 400.0
"""and rounds that show nothing of its kind: what was true once may have changed."""
_IDLE_ROUNDS = 16
"""So many of them at a time, since plain decoding is to cost nothing."""
_IDLE = (1.0 - 1.0 / _IDLE_WINDOW) ** _IDLE_ROUNDS


class Tally:
    """Sums by position, in which what is old fades as new comes in."""

    def __init__(self, positions: int, window: float) -> None:
        self._kept = 1.0 - 1.0 / window
        self.mass = [0.0] * positions
        self.base = [0.0] * positions

    def fade(self) -> None:
        """`_IDLE_ROUNDS` went by that showed nothing."""
        self.mass = [_IDLE * mass for mass in self.mass]
        self.base = [_IDLE * base for base in self.base]

    def add(self, seen: Sequence[float], mass: Sequence[float], base: Sequence[float]) -> None:
        """Take in one round by position; `seen` counts its observations, 1 or a share of one."""
        for place, (weight, more, of) in enumerate(zip(seen, mass, base, strict=True)):
            kept = self._kept**weight
            self.mass[place] = self.mass[place] * kept + more
            self.base[place] = self.base[place] * kept + of


class Pool:
    """What all requests of one kind taught, by stage of their outputs."""

    def __init__(self, positions: int) -> None:
        self._positions = positions
        self._whole = Tally(positions, _POOL_WINDOW)
        self._stages: dict[int, Tally] = {}
        self._idle = 0
        self._means: list[float] | None = None
        self._alphas: dict[int, list[float]] = {}

    def add(self, stage: int, seen: SpeculationStats) -> None:
        """Take in one request's round. It makes what was seen at other stages older too."""
        if stage not in self._stages:
            self._stages[stage] = Tally(self._positions, _POOL_WINDOW)
        nothing = (0.0,) * len(seen.base)
        for each, tally in self._stages.items():
            if each == stage:
                tally.add(seen.base, seen.mass, seen.base)
            else:
                tally.add(seen.base, nothing, nothing)
        self._whole.add(seen.base, seen.mass, seen.base)
        self._forget_estimates()

    def fade(self) -> None:
        """A round went by that showed nothing."""
        self._idle += bool(self._stages)
        if self._idle == _IDLE_ROUNDS:
            self._idle = 0
            for tally in (self._whole, *self._stages.values()):
                tally.fade()
            self._forget_estimates()

    def known(self) -> Sequence[float]:
        """How many observations of late stand behind each position."""
        return self._whole.base

    def alphas(self, stage: int) -> Sequence[float]:
        """The estimates of all positions at one stage; none is 0.

        Each starts from that of all stages, times the ratio of this stage to it at the position
        before: what is hard at its first positions is not taken for easy at those it never showed.
        """
        if self._means is None:
            self._means = _chained(self._whole)
        if stage not in self._stages:
            return self._means
        if stage not in self._alphas:
            self._alphas[stage] = _beside(self._means, self._stages[stage])
        return self._alphas[stage]

    def _forget_estimates(self) -> None:
        self._means = None
        self._alphas.clear()


def _chained(tally: Tally) -> list[float]:
    """The estimates of all stages, each shrunk to the one before it."""
    before, found = _START, []
    for mass, base in zip(tally.mass, tally.base, strict=True):
        before = min((mass + _START_WEIGHT * before) / (base + _START_WEIGHT), 1.0)
        found.append(before)
    return found


def _beside(means: Sequence[float], tally: Tally) -> list[float]:
    """The estimates of one stage, shrunk to those of all."""
    ratio, found = 1.0, []
    for mean, mass, base in zip(means, tally.mass, tally.base, strict=True):
        start = _STAGE_WEIGHT * min(ratio * mean, 1.0)
        found.append(min((mass + start) / (base + _STAGE_WEIGHT), 1.0))
        ratio = found[-1] / mean
    return found


@dataclass(slots=True, kw_only=True)
class _Own:
    """One request's account: its masses over those that the pool expected at the time.

    `teaches`: whether the pool may learn from it. `pool` is that of `kind`, the last asked for.
    """

    tally: Tally
    teaches: bool
    emitted: int = 0
    kind: Kind | None = None
    pool: Pool = field(default_factory=lambda: Pool(0))

    @property
    def stage(self) -> int:
        return min((self.emitted // _STAGE_TOKENS).bit_length(), _STAGES - 1)

    def compare(self, seen: SpeculationStats, alphas: Sequence[float]) -> None:
        """Book what was seen beside what was expected of it."""
        expected = [alpha * base for alpha, base in zip(alphas, seen.base, strict=False)]
        self.tally.add(seen.base, seen.mass, expected)


class AcceptanceBook:
    """Estimates of every request, each shrunk to the pool of its proposer and policy.

    A request whose client chose its seed teaches the pool nothing where draws decide: another one
    may have the same draws ahead of it.
    """

    def __init__(self, k_max: int) -> None:
        self._positions = k_max
        self._pools: dict[Kind, Pool] = {}
        self._own: dict[int, _Own] = {}

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
        known = [
            (own, group) for group in groups if (own := self._own.get(group.request)) is not None
        ]
        lessons = [
            (own, group.speculation, self._pool_of(own, (group.proposer, group.policy)))
            for own, group in known
            if group.speculation is not None
        ]
        for own, seen, pool in lessons:
            own.compare(seen, pool.alphas(own.stage))
        idle = set(self._pools.values())
        for own, seen, pool in lessons:
            if own.teaches:
                pool.add(own.stage, seen)
                idle.discard(pool)
        for own, group in known:
            own.emitted += group.committed
        for pool in self._pools.values():
            if pool in idle:
                pool.fade()

    def survivals(self, request: int, kind: Kind, room: int) -> tuple[float, ...]:
        """S_1 .. S_room: the chance that so many drafts of `request` are accepted."""
        own, found, survival = self._own[request], [], 1.0
        alphas = self._pool_of(own, kind).alphas(own.stage)[:room]
        for alpha, mass, expected in zip(alphas, own.tally.mass, own.tally.base, strict=False):
            start = _POOL_WEIGHT * alpha
            survival *= min(alpha * (mass + start) / (expected + start), 1.0)
            found.append(survival)
        return tuple(found)

    def known(self, kind: Kind) -> Sequence[float]:
        """How many observations of late stand behind each position of the pool."""
        return self._pool(kind).known()

    def _pool_of(self, own: _Own, kind: Kind) -> Pool:
        if own.kind != kind:  # it hardly ever changes, and enums are slow to look up
            own.kind, own.pool = kind, self._pool(kind)
        return own.pool

    def _pool(self, kind: Kind) -> Pool:
        found = self._pools.get(kind)
        if found is None:
            found = self._pools[kind] = Pool(self._positions)
        return found
