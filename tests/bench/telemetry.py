"""What telemetry costs: an engine that reports everything beside the same one that reports nothing.

Runs with and without take turns on one engine, on the same prompts and seeds, so that both give
the same tokens. Then a page is scraped while many requests run. Run it as a module; `--help`.
"""

import argparse
import asyncio
import json
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from prometheus_client import CollectorRegistry

from deploy.pair import DRAFT, TARGET
from scheduler.assembly import build_engine
from scheduler.config import EngineConfig
from scheduler.request import Verifier
from scheduler.runtime.create import LoadedPair, PairOptions, create_runner
from scheduler.runtime.loading import ModelSource
from scheduler.stats import FinishedStats, LoadStats, StatsSink, StepStats
from telemetry.aliases import VllmAliases
from telemetry.batches import Batches
from telemetry.decision_log import DecisionLog
from telemetry.fan_out import FanOut
from telemetry.metrics import Metrics, new_registry
from telemetry.page import render
from telemetry.round_log import RoundLog
from telemetry.sink import PrometheusSink
from telemetry.state_bytes import RowBytes
from tests.bench.figures import spread
from tests.bench.load import Bench, Load, Recorder
from tests.bench.machine import describe_machine, describe_versions
from tests.bench.measure import use_threads
from tests.bench.options import at_least_1
from tests.bench.prompts import Prompt, text_prompts
from tests.bench.telemetry_figures import Level, Report, Scrape, render_report

_K = 4
_K_MAX = 8
_PROMPT_TOKENS = 64
_TOKENS = {1: 128, 8: 48}
"""Output tokens a request by requests at once: about a second each."""
_CROWD = 64
_CROWD_PROMPT = 8
"""So short that one round prefills them all: then all run at once."""
_CROWD_TOKENS = 48
_DEBUG_ROUNDS = 200
_SCRAPE_SECONDS = 5.0
"""As deploy/prometheus/prometheus.yml has it."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`tokens` None leaves the lengths of answers to what is usual here."""

    rounds: int = 50
    threads: int | None = 1
    tokens: int | None = None
    json: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """One run: tokens per second, and its seconds on the clock and on processors."""

    rate: float
    seconds: float
    cpu: float


@dataclass(slots=True)
class Spent:
    """Seconds and calls of one thing."""

    seconds: float = 0.0
    calls: int = 0
    each: list[float] = field(default_factory=list)

    def run(self, work: Callable[[], T]) -> T:
        """Do it, and note the time."""
        started = time.perf_counter()
        result = work()
        self.each.append(time.perf_counter() - started)
        self.seconds += self.each[-1]
        self.calls += 1
        return result


class Switch:
    """A `StatsSink` that passes all on to `full` while it is on, and forgets all else.

    `crowded` is set once as many requests ran as the scrape wants.
    """

    def __init__(self, full: StatsSink) -> None:
        self.on = False
        self.spent = Spent()
        self.running = 0
        self.crowded = asyncio.Event()
        self._full = full

    def step(self, stats: StepStats) -> None:
        """Pass one round on."""
        self.running = stats.load.running
        if self.running == _CROWD:
            self.crowded.set()
        if self.on:
            self.spent.run(lambda: self._full.step(stats))

    def load(self, load: LoadStats) -> None:
        """Pass the load on."""
        if self.on:
            self._full.load(load)

    def finished(self, finished: FinishedStats) -> None:
        """Pass an end outside a round on."""
        if self.on:
            self._full.finished(finished)


class Studio:
    """One engine with a switch before everything that the server would tell."""

    def __init__(self, loaded: LoadedPair) -> None:
        self.loaded = loaded
        self.registry: CollectorRegistry = new_registry()
        metrics = Metrics(
            self.registry,
            model="fencepost-pair",
            k_max=_K_MAX,
            domains=(),
            device_memory=lambda: float(loaded.runner.memory_bytes()),
            build={},
        )
        metrics.state.size(
            RowBytes(
                target=loaded.target_row_bytes,
                draft=loaded.draft_row_bytes,
                law=loaded.law_row_bytes,
            )
        )
        VllmAliases(self.registry, metrics, model_name="fencepost-pair")
        self.switch = Switch(
            Batches(
                FanOut(
                    PrometheusSink(metrics),
                    DecisionLog(time.perf_counter),
                    RoundLog(_DEBUG_ROUNDS),
                )
            )
        )
        self.scraped = Spent()

    @asynccontextmanager
    async def bench(self) -> AsyncIterator[Bench]:
        """The started engine, stopped in the end."""
        config = EngineConfig(
            max_model_len=self.loaded.max_model_len,
            draft_max_len=self.loaded.draft_max_len,
            max_requests=_CROWD,
            k=_K,
            k_max=_K_MAX,
            target_pool=self.loaded.target_pool,
            draft_pool=self.loaded.draft_pool,
        )
        engine = build_engine(config, self.loaded.runner, sink=self.switch, clock=time.perf_counter)
        await engine.start()
        try:
            yield Bench(engine, Recorder())
        finally:
            await engine.stop()

    async def scrape(self) -> bytes:
        """The page, made in a thread as the server makes it."""
        page, _ = await asyncio.to_thread(self.scraped.run, lambda: render(self.registry))
        return page

    async def scrape_on(self) -> None:
        """Scrape again and again in time with telemetry, until cancelled."""
        while True:
            if self.switch.on:
                await self.scrape()
            await asyncio.sleep(_SCRAPE_SECONDS)


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and write the data if asked to."""
    options = Options(**vars(_parser().parse_args(arguments)))
    report = measure(options)
    sys.stdout.write(render_report(report) + "\n")
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(report), indent=2) + "\n", "utf-8")
    return 0


def measure(options: Options) -> Report:
    """Load the embedded pair and measure. Logs what the decision log says, to nowhere."""
    logging.getLogger("fencepost").addHandler(logging.NullHandler())
    logging.getLogger("fencepost.controller").setLevel(logging.INFO)
    threads = use_threads(options.threads)
    pair = PairOptions(
        target=ModelSource(path_or_id=str(TARGET)),
        draft=ModelSource(path_or_id=str(DRAFT)),
        max_model_len=_PROMPT_TOKENS + max(_TOKENS.values()) + _K,
        max_requests=_CROWD,
    )
    studio = Studio(create_runner(pair, time.perf_counter))
    machine = describe_machine()
    levels, scrape = asyncio.run(_measure(studio, options))
    return Report(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine,
        versions=describe_versions(),
        rounds=options.rounds,
        threads=threads,
        k=_K,
        prompt_tokens=_PROMPT_TOKENS,
        levels=levels,
        scrape=scrape,
    )


async def _measure(studio: Studio, options: Options) -> tuple[tuple[Level, ...], Scrape]:
    count = (options.rounds + 1) * _CROWD
    prompts = text_prompts(count, _PROMPT_TOKENS, studio.loaded.tokenizer)
    async with studio.bench() as bench:
        await bench.warm_up(_load(prompts[:8], 8, 0))
        levels = [
            await _level(studio, bench, prompts, concurrency, options) for concurrency in _TOKENS
        ]
        return tuple(levels), await _scrape(studio, bench, prompts, options)


async def _level(
    studio: Studio,
    bench: Bench,
    prompts: Sequence[Prompt],
    concurrency: int,
    options: Options,
) -> Level:
    tokens = options.tokens or _TOKENS[concurrency]
    runs: dict[bool, list[_Timed]] = {True: [], False: []}
    studio.switch.spent, studio.scraped = Spent(), Spent()
    scraping = asyncio.create_task(studio.scrape_on())
    for number in range(options.rounds):
        load = _load(prompts[number * concurrency :][:concurrency], tokens, number)
        for on in (True, False) if number % 2 else (False, True):
            studio.switch.on = on
            runs[on].append(await _timed(bench, load))
            studio.switch.on = False
        _say(
            f"{concurrency} at once, {number + 1}/{options.rounds}: {runs[True][-1].rate:.1f} "
            f"with, {runs[False][-1].rate:.1f} without"
        )
    scraping.cancel()
    return _reduced(studio, concurrency, tokens, runs[True], runs[False])


def _reduced(
    studio: Studio, concurrency: int, tokens: int, full: Sequence[_Timed], none: Sequence[_Timed]
) -> Level:
    seconds = sum(each.seconds for each in full)
    spent = studio.switch.spent
    return Level(
        concurrency=concurrency,
        tokens=tokens,
        full=spread([each.rate for each in full]),
        none=spread([each.rate for each in none]),
        ratio=spread([a.rate / b.rate for a, b in zip(full, none, strict=True)]),
        total_ratio=sum(each.seconds for each in none) / seconds,
        cpu_ratio=sum(each.cpu for each in none) / sum(each.cpu for each in full),
        sink_share=spent.seconds / seconds,
        sink_microseconds_a_round=1e6 * spent.seconds / max(spent.calls, 1),
        scrape_share=studio.scraped.seconds / seconds,
    )


async def _timed(bench: Bench, load: Load) -> _Timed:
    before = time.process_time()
    run = await bench.serve(load)
    return _Timed(rate=run.rate, seconds=run.seconds, cpu=time.process_time() - before)


async def _scrape(
    studio: Studio, bench: Bench, prompts: Sequence[Prompt], options: Options
) -> Scrape:
    """Scrape again and again while the crowd runs; then as often with nobody there."""
    studio.switch.on, studio.scraped = True, Spent()
    tokens = options.tokens or _CROWD_TOKENS
    crowd = [prompt[:_CROWD_PROMPT] for prompt in prompts[-_CROWD:]]
    serving = asyncio.create_task(bench.serve(_load(crowd, tokens, 1)))
    await asyncio.wait_for(studio.switch.crowded.wait(), 60)
    running, page = studio.switch.running, b""
    while studio.switch.running == _CROWD and not serving.done():
        page = await studio.scrape()
        await asyncio.sleep(0.05)
    await serving
    busy, studio.scraped = studio.scraped, Spent()
    for _ in busy.each:
        await studio.scrape()
    return Scrape(
        running=running,
        busy_seconds=spread(busy.each),
        idle_seconds=spread(studio.scraped.each),
        page_bytes=len(page),
        samples=sum(bool(line) and line[:1] != b"#" for line in page.splitlines()),
    )


def _load(prompts: Sequence[Prompt], tokens: int, seed: int) -> Load:
    return Load(
        prompts=tuple(prompts),
        k=_K,
        tokens=tokens,
        temperature=1.0,
        verifier=Verifier.TOKEN,
        seed=1000 * seed,
    )


def _parser() -> argparse.ArgumentParser:
    start = Options()
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.telemetry",
        description="Measures what telemetry costs on the embedded pair.",
    )
    add = parser.add_argument
    add("--rounds", type=at_least_1, default=start.rounds, help="default %(default)s")
    add("--threads", type=at_least_1, default=start.threads, help="default %(default)s")
    add("--tokens", type=at_least_1, default=None, help="output tokens of each request")
    add("--json", type=Path, metavar="FILE", default=None, help="write the figures as data too")
    return parser


def _say(text: str) -> None:
    sys.stderr.write(f"telemetry: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
