"""Runs every way to choose K at every load: inside a round all at once, taking short turns, so that
a disturbance of the machine meets all of them.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from server.assembly import settle
from tests.bench.k.crowd import Crowd, Stage, Timed, Trace
from tests.bench.k.figures import Level, Models, Ramp
from tests.bench.k.options import Options
from tests.bench.k.reduction import AUTO, BARE, Stretch, Way, fixed, level, ramp, stretch
from tests.bench.k.studio import Studio, open_crowds
from tests.bench.measure import Source, shown
from tests.bench.prompts import Prompt, random_prompts, text_prompts

_RAMP_KS = (2, 4)
_PROMPTS = 256
_SEEDS = 100_000
"""Seeds of one round; no run has as many requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run of the benchmark found. `ramp` is None when it was left out."""

    models: Models
    levels: tuple[Level, ...]
    ramp: Ramp | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """The engines under test, and what they are asked for."""

    options: Options
    crowds: Mapping[Way, Crowd]
    prompts: Sequence[Prompt]

    async def serve_all(
        self, ways: Sequence[Way], number: int, stages: tuple[Stage, ...]
    ) -> dict[Way, tuple[Timed, ...]]:
        """Round `number` of all these ways, which take turns."""
        async with asyncio.TaskGroup() as group:
            runs = {way: group.create_task(self.serve(way, number, stages)) for way in ways}
        return {way: run.result() for way, run in runs.items()}

    async def serve(self, way: Way, number: int, stages: tuple[Stage, ...]) -> tuple[Timed, ...]:
        """One run of round `number`: its prompts and seeds are the same for every way."""
        trace = Trace(
            stages=stages,
            k=way.k,
            prompts=_from(self.prompts, number * max(self.options.concurrency)),
            tokens=self.options.tokens,
            temperature=self.options.temperature,
            verifier=self.options.verifier,
            seed=self.options.seed + _SEEDS * number,
        )
        return await self.crowds[way].serve(trace)

    def stage(self, concurrency: int) -> Stage:
        """The load of one run."""
        options = self.options
        tokens = max(options.least, options.per_client * concurrency)
        return Stage(concurrency=concurrency, tokens=tokens)


def measure(source: Source, studio: Studio, options: Options) -> Measured:
    """Everything that the report says of the pair. Raises what running raises."""
    return asyncio.run(_measure(source, studio, options))


async def _measure(source: Source, studio: Studio, options: Options) -> Measured:
    prompts = _prompts(source, studio, options)
    settle()
    async with open_crowds(studio, _ways(options), options.turn) as crowds:
        subject = _Subject(options=options, crowds=crowds, prompts=prompts)
        await _warm_up(subject)
        levels = await _levels(subject)
        ramped = await _ramp(subject) if options.ramps else None
    return Measured(models=_models(source, studio), levels=levels, ramp=ramped)


def _ways(options: Options) -> list[Way]:
    return [BARE, *map(fixed, (0, *options.ks)), AUTO]


async def _warm_up(subject: _Subject) -> None:
    """Auto at every load, for what it learns; the other engines once."""
    options = subject.options
    least = Stage(concurrency=min(options.concurrency), tokens=1)
    await subject.serve_all(_ways(options), 0, (least,))
    for concurrency in options.concurrency:
        (timed,) = await subject.serve(AUTO, 0, (subject.stage(concurrency),))
        _say(f"warm-up, {concurrency} at once, auto", stretch(timed))


async def _levels(subject: _Subject) -> tuple[Level, ...]:
    options, ways = subject.options, _ways(subject.options)
    runs: dict[int, dict[Way, list[Stretch]]] = {
        concurrency: {way: [] for way in ways} for concurrency in options.concurrency
    }
    for number in range(1, options.rounds + 1):
        for concurrency, found in runs.items():
            served = await subject.serve_all(ways, number, (subject.stage(concurrency),))
            for way, (timed,) in served.items():
                found[way].append(stretch(timed))
                said = f"round {number}/{options.rounds}, {concurrency} at once, {way.name}"
                _say(said, found[way][-1])
    return tuple(
        level(concurrency, subject.stage(concurrency).tokens, found)
        for concurrency, found in runs.items()
    )


async def _ramp(subject: _Subject) -> Ramp:
    options = subject.options
    rising = sorted(options.concurrency)
    stages = tuple(
        Stage(concurrency=each, tokens=options.least) for each in [*rising, *rising[-2::-1]]
    )
    few = [k for k in options.ks if k in _RAMP_KS] or options.ks
    ways = [*map(fixed, (0, *few)), AUTO]
    traces: dict[Way, list[tuple[Timed, ...]]] = {way: [] for way in ways}
    for number in range(1, options.ramps + 1):
        served = await subject.serve_all(ways, options.rounds + number, stages)
        for way, trace in served.items():
            traces[way].append(trace)
            for part in trace:
                at_once = part.stage.concurrency
                _say(f"ramp {number}/{options.ramps}, {at_once} at once, {way.name}", stretch(part))
    return ramp(options.least, traces)


def _prompts(source: Source, studio: Studio, options: Options) -> list[Prompt]:
    count = max(_PROMPTS, (options.rounds + 1) * max(options.concurrency))
    if source.random_ids:
        vocabulary = studio.loaded.vocabulary
        return random_prompts(count, options.prompt_tokens, vocabulary, options.seed)
    return text_prompts(count, options.prompt_tokens, studio.loaded.tokenizer)


def _from(prompts: Sequence[Prompt], first: int) -> tuple[Prompt, ...]:
    start = first % len(prompts)
    return (*prompts[start:], *prompts[:start])


def _models(source: Source, studio: Studio) -> Models:
    capabilities = studio.loaded.runner.capabilities()
    return Models(
        name=source.name,
        target=shown(source.target),
        draft=shown(source.draft),
        dtype=capabilities.target.dtype,
        parameters=(
            capabilities.target.parameters,
            capabilities.draft.parameters if capabilities.draft else 0,
        ),
    )


def _say(what: str, run: Stretch) -> None:
    mean = f", mean K {run.k_total / run.k_count:.2f}" if run.k_count else ""
    how_long = f"{run.steps} rounds, {run.seconds:.1f} s"
    sys.stderr.write(f"bench-k: {what}: {run.rate:.1f} tokens/s in {how_long}{mean}\n")
    sys.stderr.flush()
