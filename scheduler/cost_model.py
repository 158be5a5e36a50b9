"""What a round will cost: the start-up table, corrected by what rounds took.

Two corrections. The speed is common to all rounds of late: a machine that slows down slows every
choice and changes none. A relative factor belongs to a load (emitters by powers of two) and the
longest K of a round, which is how many draft steps it has: that is where a table may be wrong about
a choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.cost_levels import CostLevels
from scheduler.costs import CostTable
from scheduler.plan import Layout
from scheduler.request import ProposerKind
from scheduler.stats import CommitOutcome, GroupStats, StepStats

_CONTEXT_STEP = 128.0
_RENEWAL = 8
"""Rounds between two looks at the factors: what is built from them serves until then."""
_UNLIKE = 2
"""The longest draft over the mean beyond which a round says nothing of rounds in which all draft so
much: a probe of one among many is one."""
_KEPT_COSTS = 256
_KEPT_CATCH_UPS = 1 << 14


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """Seconds of one round by what is drafted, at the table's speed.

    `verify[d]` is the round with `d` drafts in it, draft steps left out; `step[n]` one draft step
    of n requests; `relative[k]` the factor on the whole of a round whose longest draft is `k`.
    `append` are the seconds in which what it emits is appended, in the retained layout, whatever is
    drafted: a later round's.
    """

    emitters: int
    verify: Sequence[float]
    relative: Sequence[float]
    step: Sequence[float]
    append: float = 0.0

    def seconds(self, drafts: int, drafting: float, longest: int) -> float:
        """The round with `drafts` drafts that took `drafting` seconds to make, the longest of
        `longest` tokens, and its append."""
        return (self.verify[drafts] + drafting) * self.relative[longest] + self.append

    def alike(self, k: int) -> float:
        """The round in which all draft `k` tokens."""
        return self.seconds(self.emitters * k, k * self.step[self.emitters], k)


class CostModel:
    """A table and its corrections.

    In the retained layout a round without drafts calls no model: what it emits it has from logits
    that an append before it left, which is a round of its own.
    """

    def __init__(
        self, table: CostTable, k_max: int, layout: Layout = Layout.REPLAY_FRONTIER
    ) -> None:
        self._table = table
        self._k_max = k_max
        self._appends = layout is Layout.RETAINED_FRONTIER
        self._levels = CostLevels(k_max)
        self._factors: dict[int, list[float]] = {}
        self._built: dict[tuple[int, int, float], RoundCosts] = {}
        self._catch_ups: dict[int, float] = {}
        self._moved: set[int] = set()
        self._rounds = 0

    @property
    def speed(self) -> float:
        """Seconds that a second of the table takes of late."""
        return self._levels.speed

    def decoding(self, emitters: int, context: float, drafts: int) -> RoundCosts:
        """Costs of a round in which so many requests decode, and nothing else."""
        return self.costs(emitters, self.frontiers(emitters), context, drafts)

    def frontiers(self, emitters: int) -> int:
        """Target rows besides drafts of a round in which so many decode, and nothing else."""
        return 0 if self._appends else emitters

    def costs(self, emitters: int, rows: int, context: float, drafts: int) -> RoundCosts:
        """Costs of a round with `rows` rows besides drafts, for up to `drafts` of those."""
        near = _near(context)
        found = self._built.get((emitters, rows, near))
        if found is None or len(found.verify) <= drafts:
            found = self._build(emitters, rows, near, max(drafts, emitters * self._k_max))
            if len(self._built) >= _KEPT_COSTS:
                self._built.clear()
            self._built[emitters, rows, near] = found
        return found

    def _build(self, emitters: int, rows: int, context: float, drafts: int) -> RoundCosts:
        factors = self._factors.get(emitters.bit_length(), [1.0] * (self._k_max + 1))
        verify = self._table.by_rows(emitters, rows, drafts + 1, context)
        step = [self._table.draft_step(n, context) for n in range(emitters + 1)]
        if not self._appends:
            return RoundCosts(emitters, verify, factors, step)
        if not rows:
            verify[0] = 0.0
        append = self._table.round(emitters, emitters, context) * factors[0]
        return RoundCosts(emitters, verify, factors, step, append)

    def catch_up(self, rows: int) -> float:
        """Seconds that `rows` further draft rows take."""
        found = self._catch_ups.get(rows)
        if found is None:
            if len(self._catch_ups) >= _KEPT_CATCH_UPS:
                self._catch_ups.clear()
            found = self._catch_ups[rows] = self._table.draft_rows(rows)
        return found

    def learn(self, stats: StepStats) -> None:
        """Compare a round of nothing but decoding with the table."""
        emitting = [group for group in stats.groups if group.terminal is not None]
        # What only appends is what a plain round of the other layout is.
        decoding = emitting or (stats.groups if self._appends else ())
        drafts = sum(map(_k, emitting))
        least = drafts if self._appends else drafts + len(emitting)
        if not decoding or stats.target_rows < max(least, 1) or _unusual(stats):
            return
        expected = self._expected(stats, decoding)
        if min(expected, stats.round_seconds) <= 0.0:
            return
        load, ratio = len(decoding).bit_length(), stats.round_seconds / expected
        longest = max(map(_k, decoding))
        if longest * len(decoding) > _UNLIKE * drafts:
            self._levels.pass_by(load, round(drafts / len(decoding)), ratio)
        elif self._levels.learn(load, longest, ratio):
            self._moved.add(load)
        self._rounds += 1
        if self._moved and self._rounds % _RENEWAL == 0:
            self._factors |= {each: self._levels.factors(each) for each in self._moved}
            self._moved.clear()
            self._built.clear()

    def _expected(self, stats: StepStats, decoding: Sequence[GroupStats]) -> float:
        """Seconds of the round by the table alone."""
        count, drafts = len(decoding), sum(map(_k, decoding))
        context = sum(group.position for group in decoding) / count
        costs = self.costs(count, stats.target_rows - drafts, context, drafts)
        depths = [_k(each) for each in decoding if each.proposer is ProposerKind.DRAFT_MODEL]
        seconds = costs.verify[drafts]
        for depth in range(max(depths, default=0)):
            seconds += costs.step[sum(k > depth for k in depths)]
        return seconds + self.catch_up(max(stats.draft_rows - sum(depths), 0))


def _near(context: float) -> float:
    """The context rounded, so that costs are built for few of them."""
    return round(context / _CONTEXT_STEP) * _CONTEXT_STEP


def _unusual(stats: StepStats) -> bool:
    """Whether anything but decoding was in the round, such as a recording for later ones, or
    anything of it went wrong."""
    odd = any(g.prefilled or g.outcome is not CommitOutcome.PUBLISHED for g in stats.groups)
    return odd or stats.prepared


def _k(group: GroupStats) -> int:
    return 0 if group.speculation is None else group.speculation.k
