"""The ways in which the same requests are served: how long drafts are, who drafts, who shares.

Knows engine settings and controllers, nothing of what comes out.
"""

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from scheduler.config import EngineConfig, PoolConfig
from scheduler.controller import Controller, FixedController, LoadView, fixed
from scheduler.plan import Layout
from scheduler.request import ProposerKind
from scheduler.runner import ModelRunner
from scheduler.runtime.create import LoadedPair
from scheduler.runtime.torch_runner import Pair, TorchRunner
from scheduler.sampling.rng import CounterRandomness
from scheduler.stats import Decision, StepStats
from tests.identity.cases import Case, request_of
from tests.oracles.driver import Output, run_requests

MODEL, NGRAM, NONE = ProposerKind.DRAFT_MODEL, ProposerKind.NGRAM, ProposerKind.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way. A request's K and proposer go round `ks` and `proposers`; with `history` K changes
    with what was committed. `blocks` and `draft_blocks` None leave the pools as they are;
    `forgetful` takes the draft's rows away now and then."""

    name: str
    at_once: int
    ks: tuple[int, ...] = (4,)
    proposers: tuple[ProposerKind, ...] = (MODEL,)
    rows: int = 512
    history: bool = False
    blocks: int | None = None
    draft_blocks: int | None = None
    forgetful: bool = False
    layout: Layout = Layout.REPLAY_FRONTIER


ALONE = Way(name="alone, no drafts", at_once=1, ks=(0,), proposers=(NONE,))
# Half of what sixteen of the requests take, and all that the longest does.
_SCARCE = 64
WAYS = (
    Way(name="k 0, 32 at once", at_once=32, ks=(0,)),
    Way(name="k 4, alone", at_once=1),
    Way(name="k 1, 4 at once, 16 rows a round", at_once=4, ks=(1,), rows=16),
    Way(name="k 4, 8 at once", at_once=8),
    Way(name="k 8, 32 at once, 64 rows a round", at_once=32, ks=(8,), rows=64),
    Way(name="k by request, 16 at once", at_once=16, ks=tuple(range(9)), rows=96),
    Way(name="k by history, 8 at once", at_once=8, history=True, rows=48),
    Way(name="n-grams, 8 at once", at_once=8, proposers=(NGRAM,)),
    Way(
        name="drafters by request, 12 at once",
        at_once=12,
        ks=(4, 8, 1),
        proposers=(MODEL, NGRAM, NONE, MODEL),
        rows=40,
    ),
    Way(name="few blocks, 16 at once", at_once=16, blocks=_SCARCE, rows=80),
    Way(name="few draft blocks, 16 at once", at_once=16, draft_blocks=_SCARCE // 2),
    Way(name="draft restarts, 8 at once", at_once=8, forgetful=True),
    Way(
        name="retained frontier, k by request, 8 at once",
        at_once=8,
        ks=(4, 0, 8, 1, 2),
        layout=Layout.RETAINED_FRONTIER,
    ),
    Way(
        name="retained frontier, few blocks, 16 at once",
        at_once=16,
        blocks=_SCARCE,
        rows=60,
        history=True,
        layout=Layout.RETAINED_FRONTIER,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Outputs in the order of the cases, and what the way was seen to do."""

    outputs: list[Output]
    accepted: int
    preemptions: int
    seconds: float

    @property
    def tokens(self) -> int:
        """Emitted tokens of all requests."""
        return sum(len(output.ids) for output in self.outputs)


def serve(pair: LoadedPair, cases: Sequence[Case], way: Way, seed: int = 0) -> Served:
    """Serve all cases in one engine, in an order of their own. Raises RuntimeError when a request
    ends with an error."""
    requests = [
        request_of(
            case,
            None if way.history else way.ks[case.number % len(way.ks)],
            way.proposers[case.number % len(way.proposers)],
            place,
        )
        for place, case in enumerate(random.Random(seed).sample(list(cases), len(cases)))
    ]
    controller = ByHistory() if way.history else FixedController(0)
    started = time.perf_counter()
    found, sink = run_requests(_config(pair, way), _runner(pair, way), requests, controller)
    seconds = time.perf_counter() - started
    for request, output in zip(requests, found, strict=True):
        if output.finish.error is not None:
            raise RuntimeError(f"{way.name}, request {request.request_id}: {output.finish.error}")
    by_id = {request.request_id: output for request, output in zip(requests, found, strict=True)}
    return Served(
        outputs=[by_id[case.number + 1] for case in cases],
        accepted=sum(output.finish.stats.accepted for output in found),
        preemptions=sum(step.preemptions for step in sink.steps),
        seconds=seconds,
    )


class ByHistory(Controller):
    """A K that changes every round, with the number of tokens that a request has committed."""

    def __init__(self) -> None:
        self._committed: Counter[int] = Counter()

    def decide(self, view: LoadView) -> Decision:
        """Anything from 0 to 8, by history alone."""
        return fixed(
            {
                each.request: min(each.room, (self._committed[each.request] * 5 + each.request) % 9)
                for each in view.requests
            }
        )

    def learn(self, stats: StepStats) -> None:
        """Count what was committed."""
        for group in stats.groups:
            self._committed[group.request] += group.committed

    def forget(self, request: int) -> None:
        """A request that ended is not asked for again."""


class Forgetful:
    """A draft forward that breaks now and then: its logits are not finite, or its K/V is gone."""

    def __init__(self, forward) -> None:
        self._forward = forward
        self._calls = 0

    def __getattr__(self, name):
        return getattr(self._forward, name)

    def logits(self, hidden):
        """The forward's logits; every 23rd time NaN, and every 31st without any K/V after."""
        self._calls += 1
        if self._calls % 31 == 0:
            self._forward.clear_blocks(range(self._forward.pool.blocks))
        logits = self._forward.logits(hidden)
        return torch.full_like(logits, torch.nan) if self._calls % 23 == 0 else logits


def _runner(pair: LoadedPair, way: Way) -> ModelRunner:
    if not way.forgetful:
        return pair.runner
    models = pair.runner._pair
    broken = Pair(target=models.target, draft=Forgetful(models.draft), vocabulary=models.vocabulary)
    return TorchRunner(broken, pair.runner.capabilities(), CounterRandomness(), time.perf_counter)


def _config(pair: LoadedPair, way: Way) -> EngineConfig:
    pool = _pool(pair.target_pool, way.blocks)
    length = min(pair.max_model_len, pool.blocks * pool.block_size)
    return EngineConfig(
        max_model_len=length,
        draft_max_len=min(pair.draft_max_len, length),
        max_requests=way.at_once,
        max_batched_tokens=way.rows,
        layout=way.layout,
        target_pool=pool,
        draft_pool=_pool(pair.draft_pool, way.draft_blocks),
    )


def _pool(whole: PoolConfig, blocks: int | None) -> PoolConfig:
    """The first `blocks` of a pool: the engine gives out no others."""
    return whole if blocks is None else PoolConfig(blocks=blocks, block_size=whole.block_size)
