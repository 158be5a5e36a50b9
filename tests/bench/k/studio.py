"""Loads a pair and stands three engines over the same weights and K/V pools, to take turns: one
without the draft model, one for every fixed K, and one that chooses K.

Knows how engines are put together, nothing of what is measured.
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from scheduler.assembly import build_engine, controller_for
from scheduler.config import EngineConfig
from scheduler.controller import Controller
from scheduler.costs import CostTable
from scheduler.engine import Engine
from scheduler.profiling import profile_costs
from scheduler.request import ProposerKind
from scheduler.runner import ModelRunner
from scheduler.runtime.create import LoadedPair, PairOptions, create_runner
from scheduler.runtime.loading import ModelSource
from scheduler.runtime.torch_runner import TorchRunner
from scheduler.sampling.rng import CounterRandomness
from tests.bench.k.crowd import Crowd, Relay
from tests.bench.k.options import Options
from tests.bench.measure import Source

_CLOCK: Callable[[], float] = time.perf_counter


@dataclass(frozen=True, slots=True, kw_only=True)
class Studio:
    """A loaded pair, its start-up profile, and the seconds that the profile took."""

    loaded: LoadedPair
    config: EngineConfig
    costs: CostTable
    profile_took: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowds:
    """The engines, each with its crowd. Only one may serve at a time: they share K/V blocks."""

    bare: Crowd
    fixed: Crowd
    auto: Crowd


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
        target_pool=loaded.target_pool,
        draft_pool=loaded.draft_pool,
    )
    started = _CLOCK()
    costs = profile_costs(loaded.runner, config, _CLOCK, seconds=options.profile_seconds)
    return Studio(loaded=loaded, config=config, costs=costs, profile_took=_CLOCK() - started)


@asynccontextmanager
async def open_crowds(studio: Studio) -> AsyncIterator[Crowds]:
    """Three started engines, stopped in the end."""
    config, runner = studio.config, studio.loaded.runner
    plain = replace(config, draft_pool=None, draft_max_len=0, proposer=ProposerKind.NONE)
    relays = [Relay() for _ in range(3)]
    engines = [
        _engine(plain, without_draft(runner), relays[0], None),
        _engine(config, runner, relays[1], None),
        _engine(config, runner, relays[2], controller_for(config, studio.costs)),
    ]
    for engine in engines:
        await engine.start()
    try:
        bare, fixed, auto = map(Crowd, engines, relays)
        yield Crowds(bare=bare, fixed=fixed, auto=auto)
    finally:
        for engine in engines:
            await engine.stop()


def without_draft(runner: TorchRunner) -> TorchRunner:
    """A runner over the very same target and pool that knows no draft model."""
    capabilities = replace(runner.capabilities(), draft=None, draft_max_positions=0)
    pair = replace(runner._pair, draft=None)
    return TorchRunner(pair, capabilities, CounterRandomness(), _CLOCK)


def _engine(
    config: EngineConfig, runner: ModelRunner, relay: Relay, controller: Controller | None
) -> Engine:
    return build_engine(config, runner, sink=relay, clock=_CLOCK, controller=controller)
