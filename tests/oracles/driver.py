"""Runs requests through a real engine, for tests that look at its output as a whole."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.assembly import build_engine
from scheduler.config import EngineConfig
from scheduler.controller import Controller
from scheduler.engine import Subscription
from scheduler.events import EmittedToken, Finish
from scheduler.request import Request, StagedText
from scheduler.runner import ModelRunner
from scheduler.stats import FinishedStats, LoadStats, StepStats


@dataclass(slots=True, kw_only=True)
class Output:
    """What one request gave: ids, the raw logprob of each if it asked, and how it ended."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish


class PlainText:
    """A stager for tests that look at ids only."""

    def start(self) -> object:
        """Nothing to remember."""
        return ()

    def stage(self, state: object, token_ids: tuple[int, ...], *, final: bool) -> StagedText:
        """Every token kept, no text."""
        return StagedText(state=state, text="", kept=len(token_ids), stop=None)


class RecordingSink:
    """Keeps every record."""

    def __init__(self) -> None:
        self.steps: list[StepStats] = []
        self.ended: list[FinishedStats] = []

    def step(self, stats: StepStats) -> None:
        """Keep a step."""
        self.steps.append(stats)

    def load(self, load: LoadStats) -> None:
        """Loads are in the steps too."""

    def finished(self, finished: FinishedStats) -> None:
        """Keep a request that ended outside a round."""
        self.ended.append(finished)


def run_requests(
    config: EngineConfig,
    runner: ModelRunner,
    requests: Sequence[Request],
    controller: Controller | None = None,
) -> tuple[list[Output], RecordingSink]:
    """What each request gave, all submitted at once, and what the sink saw."""
    sink = RecordingSink()

    async def drain(subscription: Subscription) -> Output:
        tokens: list[EmittedToken] = []
        async for event in subscription:
            tokens += event.tokens
            if event.finish is not None:
                logprobs = [each.logprobs.logprob for each in tokens if each.logprobs]
                ids = [each.token for each in tokens]
                return Output(ids=ids, logprobs=logprobs, finish=event.finish)
        raise AssertionError("the events ended without a finish")

    async def main() -> list[Output]:
        engine = build_engine(
            config, runner, sink=sink, clock=time.monotonic, controller=controller
        )
        await engine.start()
        outputs = await asyncio.gather(*map(drain, engine.submit(requests)))
        await engine.stop()
        return list(outputs)

    return asyncio.run(main()), sink
