"""Loads a pair and stands an engine for every way to choose K over its weights: one without the
draft model, one for each fixed K, and one that chooses K. They take turns.

Knows how engines are put together, nothing of what is measured.
"""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, replace

from scheduler.assembly import build_engine, controller_for
from scheduler.config import EngineConfig, PoolConfig
from scheduler.costs import CostTable
from scheduler.engine import Engine
from scheduler.profiling import profile_costs
from scheduler.request import ProposerKind
from scheduler.runtime.create import LoadedPair, PairOptions, create_runner
from scheduler.runtime.forward import TransformersForward
from scheduler.runtime.kv_cache import KvPool
from scheduler.runtime.loading import ModelSource
from scheduler.runtime.torch_runner import Pair, TorchRunner
from scheduler.sampling.rng import CounterRandomness
from tests.bench.k.crowd import Crowd, Relay
from tests.bench.k.options import Options
from tests.bench.k.reduction import AUTO, BARE, Way
from tests.bench.k.turns import PatientRunner, Place, Turnstile
from tests.bench.measure import Source

_CLOCK: Callable[[], float] = time.perf_counter


@dataclass(frozen=True, slots=True, kw_only=True)
class Studio:
    """A loaded pair, its start-up profile, and the seconds that the profile took."""

    loaded: LoadedPair
    config: EngineConfig
    costs: CostTable
    profile_took: float


def prepare(source: Source, options: Options) -> Studio:
    """Load and profile. Raises what loading raises."""
    loaded = create_runner(
        PairOptions(
            target=ModelSource(path_or_id=source.target),
            draft=ModelSource(path_or_id=source.draft),
            max_model_len=options.prompt_tokens + options.tokens + options.k_max,
            max_requests=max(options.concurrency),
        ),
        _CLOCK,
    )
    config = EngineConfig(
        max_model_len=loaded.max_model_len,
        draft_max_len=loaded.draft_max_len,
        max_requests=max(options.concurrency),
        k_max=options.k_max,
        layout=options.layout,
        target_pool=loaded.target_pool,
        draft_pool=loaded.draft_pool,
    )
    started = _CLOCK()
    costs = profile_costs(loaded.runner, config, _CLOCK, seconds=options.profile_seconds)
    return Studio(loaded=loaded, config=config, costs=costs, profile_took=_CLOCK() - started)


@asynccontextmanager
async def open_crowds(
    studio: Studio, ways: Sequence[Way], span: float
) -> AsyncIterator[dict[Way, Crowd]]:
    """A started engine for each way, stopped in the end; they take turns of `span` seconds."""
    turnstile = Turnstile(span)
    engines: dict[Way, Engine] = {}
    crowds: dict[Way, Crowd] = {}
    for way in ways:
        relay, place = Relay(), Place(turnstile)
        engines[way] = _engine(studio, way, relay, place)
        crowds[way] = Crowd(engines[way], relay, place)
    for engine in engines.values():
        await engine.start()
    try:
        yield crowds
    finally:
        for engine in engines.values():
            await engine.stop()


def _engine(studio: Studio, way: Way, relay: Relay, place: Place) -> Engine:
    config = studio.config
    runner = twin(studio.loaded.runner, place.clock, draft=way != BARE)
    if way == BARE:
        config = replace(config, draft_pool=None, draft_max_len=0, proposer=ProposerKind.NONE)
    return build_engine(
        config,
        PatientRunner(runner, place),
        sink=relay,
        clock=place.clock,
        controller=controller_for(config, studio.costs) if way == AUTO else None,
    )


def twin(runner: TorchRunner, clock: Callable[[], float], *, draft: bool) -> TorchRunner:
    """A runner of the same weights with K/V pools of its own, with or without the draft model."""
    pair, capabilities = runner._pair, runner.capabilities()
    if not draft:
        capabilities = replace(capabilities, draft=None, draft_max_positions=0)
    own = Pair(
        target=_twin(pair.target),
        draft=_twin(pair.draft) if draft else None,
        vocabulary=pair.vocabulary,
    )
    return TorchRunner(own, capabilities, CounterRandomness(), clock)


def _twin(forward: TransformersForward) -> TransformersForward:
    other, pool = copy(forward), forward.pool
    size = PoolConfig(blocks=pool.blocks, block_size=pool.block_size)
    other.pool = KvPool(pool.shape, size, forward.device)
    return other
