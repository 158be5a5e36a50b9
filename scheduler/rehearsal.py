"""Rounds that serve nobody: plans of a given shape, to be run for the time that they take.

What their K/V rows hold does not matter, so none is prefilled. Knows shapes, pools and plans;
nothing of time.
"""

from dataclasses import dataclass

from scheduler.config import EngineConfig, PoolConfig
from scheduler.plan import Coordinate, DeviceDraft, Group, HostDraft, Layout, Role, RoundPlan
from scheduler.request import SamplingParams, StopRules, Verifier

_NO_COORDINATE = Coordinate(manifest="", digest="")
_NO_STOP = StopRules(token_ids=frozenset(), max_tokens=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A decoding round: `emitters` requests of `context` tokens with `k` drafts each.

    The drafts are given, or the draft model makes them where `modelled`. `catch_up` are rows of the
    first request that the draft model reads beside a round with no drafts.
    """

    emitters: int
    context: int
    k: int = 0
    modelled: bool = False
    catch_up: int = 0

    @property
    def rows(self) -> int:
        """Target rows."""
        return self.emitters * (self.k + 1)

    @property
    def draft_rows(self) -> int:
        """Rows of the draft model."""
        return self.catch_up + self.emitters * self.k * self.modelled


class Rehearsal:
    """Makes plans within the limits of one engine. `vocabulary` bounds its token ids."""

    def __init__(self, config: EngineConfig, vocabulary: int) -> None:
        self._config = config
        self._vocabulary = vocabulary

    def fits(self, shape: Shape) -> bool:
        """Whether such a round could come up in this engine."""
        config = self._config
        if shape.rows > config.max_batched_tokens or shape.emitters > config.max_requests:
            return False
        if shape.k > config.k_max or shape.catch_up >= shape.context:
            return False
        end = shape.context + shape.k
        if end > config.max_model_len or not _has_room(config.target_pool, shape, Role.TARGET):
            return False
        if not shape.draft_rows:
            return True
        pool = config.draft_pool
        within = end - 1 <= config.draft_max_len
        return pool is not None and within and _has_room(pool, shape, Role.DRAFT)

    def plan(self, shape: Shape) -> RoundPlan:
        """A round of this shape, which must fit. Both layouts run it: it starts from no row that
        another one retained."""
        return RoundPlan(
            round_id=0,
            layout=Layout.REPLAY_FRONTIER,
            groups=tuple(self._group(shape, number) for number in range(shape.emitters)),
            coordinate=_NO_COORDINATE,
        )

    def _group(self, shape: Shape, number: int) -> Group:
        return Group(
            request=-1 - number,  # never the id of a request that is served
            generation=0,
            tokens=self._tokens(number, shape.context),
            prompt_length=shape.context,
            start=shape.context - 1,
            rows=1,
            emits=True,
            max_emit=shape.k + 1,
            draft=self._draft(shape, number),
            blocks=self._blocks(shape, number),
            sampling=SamplingParams(seed=number),
            verifier=Verifier.TOKEN,
            stop=_NO_STOP,
            choice=0,
        )

    def _tokens(self, start: int, count: int) -> tuple[int, ...]:
        return tuple((start + place) % self._vocabulary for place in range(count))

    def _draft(self, shape: Shape, number: int) -> HostDraft | DeviceDraft | None:
        known = shape.context - 1
        if shape.catch_up:
            rows = shape.catch_up
            return None if number else DeviceDraft(depth=0, rows=known - rows, catch_up=rows)
        if not shape.k:
            return None
        if shape.modelled:
            return DeviceDraft(depth=shape.k, rows=known, catch_up=1)
        return HostDraft(token_ids=self._tokens(number, shape.k))

    def _blocks(self, shape: Shape, number: int) -> dict[Role, tuple[int, ...]]:
        tables = {Role.TARGET: _table(self._config.target_pool, shape, number, Role.TARGET)}
        if shape.draft_rows and self._config.draft_pool is not None:
            tables[Role.DRAFT] = _table(self._config.draft_pool, shape, number, Role.DRAFT)
        return tables


def _has_room(pool: PoolConfig, shape: Shape, role: Role) -> bool:
    first, end = _written(pool, shape, role)
    return shape.emitters * (end - first) <= pool.blocks and end <= pool.blocks


def _written(pool: PoolConfig, shape: Shape, role: Role) -> tuple[int, int]:
    """The places in a request's block table, from and to, whose blocks the round writes to."""
    caught = shape.catch_up if role is Role.DRAFT else 0
    first = shape.context - 1 - caught
    return first // pool.block_size, -(-(shape.context + shape.k) // pool.block_size)


def _table(pool: PoolConfig, shape: Shape, number: int, role: Role) -> tuple[int, ...]:
    """Blocks of one request. Those that are written to are its own; those before, which are only
    read, are shared with others where the pool is too small."""
    first, end = _written(pool, shape, role)
    own = range(number * (end - first), (number + 1) * (end - first))
    read = shape.emitters * (end - first) + number * first
    return (*((read + place) % pool.blocks for place in range(first)), *own)
