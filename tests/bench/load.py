"""Runs concurrent requests through an engine in this process and keeps what each round said.

Knows requests, events and clocks. It judges nothing: `reduce` turns runs into figures.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from scheduler.assembly import build_engine
from scheduler.config import EngineConfig
from scheduler.engine import Engine, Subscription
from scheduler.request import (
    FinishReason,
    Request,
    SamplingParams,
    Speculation,
    StagedText,
    StopRules,
    Verifier,
)
from scheduler.runtime.create import LoadedPair
from scheduler.stats import FinishedStats, LoadStats, StepStats
from tests.bench.prompts import Prompt

_LAG_PERIOD = 0.005


class NoText:
    """A text stager that leaves tokens alone: text is not part of what is measured."""

    def start(self) -> object:
        """There is no state."""
        return None

    def stage(self, state: object, token_ids: tuple[int, ...], *, final: bool) -> StagedText:
        """No text, and never a stop."""
        return StagedText(state=state, text="", kept=len(token_ids), stop=None)


class Recorder:
    """A stats sink that keeps every round."""

    def __init__(self) -> None:
        self._steps: list[StepStats] = []

    def step(self, stats: StepStats) -> None:
        """Keep one round."""
        self._steps.append(stats)

    def load(self, load: LoadStats) -> None:
        """Not needed here."""

    def finished(self, finished: FinishedStats) -> None:
        """Not needed here: no request of a benchmark is cancelled."""

    def take(self) -> tuple[StepStats, ...]:
        """The rounds since the last call, which are forgotten here."""
        taken = tuple(self._steps)
        self._steps.clear()
        return taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one run asks of the engine: a request a prompt, all at once."""

    prompts: tuple[Prompt, ...]
    k: int
    tokens: int
    temperature: float
    verifier: Verifier
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """When one request's events came, in seconds, and how many tokens each brought."""

    times: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One load, served. `lags` are seconds by which short sleeps woke too late meanwhile."""

    k: int
    seconds: float
    arrivals: tuple[Arrivals, ...]
    steps: tuple[StepStats, ...]
    lags: tuple[float, ...]

    @property
    def tokens(self) -> int:
        """Committed tokens of all requests."""
        return sum(sum(each.counts) for each in self.arrivals)

    @property
    def rate(self) -> float:
        """Committed tokens per second, prefill included."""
        return self.tokens / self.seconds

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the very first event: for one request, without its prefill."""
        first = min(self.arrivals, key=lambda each: each.times[0])
        seconds = max(each.times[-1] for each in self.arrivals) - first.times[0]
        return (self.tokens - first.counts[0]) / seconds


class Bench:
    """An engine under test, with the recorder that listens to it."""

    def __init__(self, engine: Engine, recorder: Recorder) -> None:
        self._engine = engine
        self._recorder = recorder

    async def serve(self, load: Load) -> Run:
        """Serve `load` and wait for its end. Raises RuntimeError when a request failed."""
        requests = [self._request(load, number) for number in range(len(load.prompts))]
        lags: list[float] = []
        watch = asyncio.create_task(_watch_lag(lags))
        started = time.perf_counter()
        subscriptions = self._engine.submit(requests)
        arrivals = await asyncio.gather(*map(_receive, subscriptions))
        seconds = time.perf_counter() - started
        watch.cancel()
        # The last round is recorded after its events are out.
        await asyncio.sleep(0)
        return Run(
            k=load.k,
            seconds=seconds,
            arrivals=tuple(arrivals),
            steps=self._recorder.take(),
            lags=tuple(lags),
        )

    async def warm_up(self, load: Load) -> None:
        """Serve `load` for nothing, with and without drafts."""
        await self.serve(load)
        await self.serve(replace(load, k=0))

    def _request(self, load: Load, number: int) -> Request:
        return Request(
            request_id=self._engine.next_request_id(),
            prompt=load.prompts[number],
            sampling=SamplingParams(seed=load.seed + number, temperature=load.temperature),
            speculation=Speculation(k=load.k, verifier=load.verifier),
            stop=StopRules(token_ids=frozenset(), max_tokens=load.tokens),
            text=NoText(),
            arrival=time.perf_counter(),
        )


@asynccontextmanager
async def running_bench(pair: LoadedPair, k: int, requests: int) -> AsyncIterator[Bench]:
    """A started engine for up to `requests` at once, stopped in the end."""
    config = EngineConfig(
        max_model_len=pair.max_model_len,
        draft_max_len=pair.draft_max_len,
        max_requests=requests,
        k=k,
        k_max=max(k, 8),
        target_pool=pair.target_pool,
        draft_pool=pair.draft_pool,
    )
    recorder = Recorder()
    engine = build_engine(config, pair.runner, sink=recorder, clock=time.perf_counter)
    await engine.start()
    try:
        yield Bench(engine, recorder)
    finally:
        await engine.stop()


async def _receive(subscription: Subscription) -> Arrivals:
    times: list[float] = []
    counts: list[int] = []
    async for event in subscription:
        times.append(time.perf_counter())
        counts.append(len(event.tokens))
        if event.finish is not None and event.finish.reason is not FinishReason.LENGTH:
            raise RuntimeError(f"a request ended early: {event.finish}")
    if not counts:
        raise RuntimeError("the engine ended; its log says why")
    return Arrivals(times=tuple(times), counts=tuple(counts))


async def _watch_lag(lags: list[float]) -> None:
    """Note how late short sleeps end, until cancelled."""
    while True:
        due = time.perf_counter() + _LAG_PERIOD
        await asyncio.sleep(_LAG_PERIOD)
        lags.append(time.perf_counter() - due)
