"""Keeps a number of requests running in an engine and times its rounds.

A request that ends is replaced before the next round is planned, so that the number stays as it
is. The first requests have short prompts and lengths spread evenly, as if the crowd had been there
for long: nothing but their first tokens lies before the time that counts. Judges nothing.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from scheduler.engine import Engine
from scheduler.request import (
    FinishReason,
    Request,
    SamplingParams,
    Speculation,
    StopRules,
    Verifier,
)
from scheduler.stats import FinishedStats, LoadStats, StepStats
from tests.bench.k.turns import Place
from tests.bench.load import NoText
from tests.bench.prompts import Prompt

_FIRST_PROMPT = 8
_LOOK = 1.0
"""Seconds between two looks at whether the engine lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """So many requests at once, until so many tokens are committed."""

    concurrency: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What one run asks of the engine: stages one after another, requests running on.

    Request number i has prompt i, from the start again where they end, and seed `seed` + i. `k` is
    what each asks for, None to leave it open.
    """

    stages: tuple[Stage, ...]
    k: int | None
    prompts: tuple[Prompt, ...]
    tokens: int
    temperature: float
    verifier: Verifier
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A stage as it went: its whole rounds, what they committed, and their seconds."""

    stage: Stage
    tokens: int
    seconds: float
    steps: tuple[StepStats, ...]


class Relay:
    """A stats sink that hands rounds to whoever listens. `empty` is set when blocks were given back
    between rounds and none is held any more."""

    def __init__(self) -> None:
        self.listener: Callable[[StepStats], None] | None = None
        self.empty = asyncio.Event()

    def step(self, stats: StepStats) -> None:
        """Hand on one round."""
        if self.listener is not None:
            self.listener(stats)

    def load(self, load: LoadStats) -> None:
        """Note whether all blocks are free."""
        if not load.target_pool.used:
            self.empty.set()

    def finished(self, finished: FinishedStats) -> None:
        """Not needed here: only requests that a crowd sends away end between rounds."""


class Crowd:
    """A started engine, the relay that it reports to, and its place among others."""

    def __init__(self, engine: Engine, relay: Relay, place: Place) -> None:
        self._engine = engine
        self._relay = relay
        self._place = place

    async def serve(self, trace: Trace) -> tuple[Timed, ...]:
        """Serve `trace`, then send away whoever still runs. Raises RuntimeError when a request or
        the engine failed."""
        visit = _Visit(self._engine, trace, self._place)
        self._relay.listener = visit.hear
        self._place.enter()
        visit.start()
        try:
            await self._happens(visit.ended)
            self._relay.empty.clear()
            visit.leave()
            # Blocks are freed between rounds: with the last of them no round runs any more.
            if self._engine.load().target_pool.used:
                await self._happens(self._relay.empty)
        finally:
            self._relay.listener = None
            self._place.leave()
        if visit.problem is not None:
            raise RuntimeError(visit.problem)
        return tuple(visit.timed)

    async def _happens(self, event: asyncio.Event) -> None:
        while not event.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), _LOOK)
            health = self._engine.health()
            if not health.alive:
                raise RuntimeError(f"the engine ended: {health.error}")


class _Visit:
    """One trace under way."""

    def __init__(self, engine: Engine, trace: Trace, place: Place) -> None:
        self._engine = engine
        self._trace = trace
        self._place = place
        self._sent = 0
        self._live: dict[int, None] = {}
        self._silent: set[int] = set()  # the first requests, until they have had a token
        self._since: float | None = None
        self._tokens = 0
        self._steps: list[StepStats] = []
        self.timed: list[Timed] = []
        self.problem: str | None = None
        self.ended = asyncio.Event()

    @property
    def _stage(self) -> Stage:
        return self._trace.stages[len(self.timed)]

    def start(self) -> None:
        """Send the first stage's requests."""
        self._change()
        self._silent = set(self._live)

    def leave(self) -> None:
        """Send everybody away."""
        self._send_away(len(self._live))

    def hear(self, stats: StepStats) -> None:
        """Count one round and keep the number of requests; called before the next is planned."""
        if not self.ended.is_set():
            self._hear(stats, self._place.clock())
        self._place.progress = self._progress

    @property
    def _progress(self) -> float:
        """How much of the trace is over; what runs on after its end can wait."""
        if self.ended.is_set():
            return math.inf
        return (len(self.timed) + self._tokens / self._stage.tokens) / len(self._trace.stages)

    def _hear(self, stats: StepStats, now: float) -> None:
        for finished in stats.finished:
            del self._live[finished.request]
            if finished.reason is not FinishReason.LENGTH:
                self.problem = f"a request ended early: {finished.reason}"
                self.ended.set()
        if self.ended.is_set():
            return
        self._replace()
        self._silent -= {group.request for group in stats.groups if group.committed}
        if self._since is not None:
            self._count(stats, self._since, now)
        elif not self._silent:
            self._since = now

    def _count(self, stats: StepStats, since: float, now: float) -> None:
        self._steps.append(stats)
        self._tokens += sum(group.committed for group in stats.groups)
        if self._tokens < self._stage.tokens:
            return
        done = Timed(
            stage=self._stage,
            tokens=self._tokens,
            seconds=now - since,
            steps=tuple(self._steps),
        )
        self.timed.append(done)
        self._since, self._tokens, self._steps = now, 0, []
        if len(self.timed) == len(self._trace.stages):
            self.ended.set()
        else:
            self._change()

    def _change(self) -> None:
        """A new stage: some leave, or newcomers join. These have short prompts, and lengths spread
        evenly over a request's."""
        more = self._stage.concurrency - len(self._live)
        self._send_away(-more)
        for number in range(more):
            length = -(-self._trace.tokens * (2 * number + 1) // (2 * more))
            self._send(max(length, 2), _FIRST_PROMPT)

    def _replace(self) -> None:
        for _ in range(self._stage.concurrency - len(self._live)):
            self._send(self._trace.tokens, None)

    def _send(self, length: int, prompt_tokens: int | None) -> None:
        trace, number = self._trace, self._sent
        request = Request(
            request_id=self._engine.next_request_id(),
            prompt=trace.prompts[number % len(trace.prompts)][:prompt_tokens],
            sampling=SamplingParams(seed=trace.seed + number, temperature=trace.temperature),
            speculation=Speculation(k=trace.k, verifier=trace.verifier),
            stop=StopRules(token_ids=frozenset(), max_tokens=length),
            text=NoText(),
            arrival=self._place.clock(),
        )
        self._engine.submit([request])
        self._sent += 1
        self._live[request.request_id] = None

    def _send_away(self, count: int) -> None:
        """The latest leave first."""
        for _ in range(count):
            request, _ = self._live.popitem()
            self._engine.abort(request)
