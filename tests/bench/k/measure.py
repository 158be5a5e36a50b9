"""Runs every way to choose K at every load, in turns: inside each round, in an order drawn by seed,
so that a disturbance of the machine meets all of them and none always follows the same one.
"""

import asyncio
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench.k.crowd import Crowd, Stage, Timed, Trace
from tests.bench.k.figures import Level, Models, Ramp
from tests.bench.k.options import Options
from tests.bench.k.reduction import AUTO, BARE, Stretch, Way, fixed, level, ramp, stretch
from tests.bench.k.studio import Crowds, Studio, open_crowds
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
    crowds: Crowds
    prompts: Sequence[Prompt]

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
        return await self._crowd(way).serve(trace)

    def _crowd(self, way: Way) -> Crowd:
        own = {BARE: self.crowds.bare, AUTO: self.crowds.auto}
        return own.get(way, self.crowds.fixed)

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
    async with open_crowds(studio) as crowds:
        subject = _Subject(options=options, crowds=crowds, prompts=prompts)
        await _warm_up(subject)
        levels = await _levels(subject)
        ramped = await _ramp(subject) if options.ramps else None
    return Measured(models=_models(source, studio), levels=levels, ramp=ramped)


async def _warm_up(subject: _Subject) -> None:
    """Auto at every load, for what it learns; the other engines once."""
    options = subject.options
    least = Stage(concurrency=min(options.concurrency), tokens=1)
    for way in (BARE, fixed(max(options.ks))):
        await subject.serve(way, 0, (least,))
    for concurrency in options.concurrency:
        (timed,) = await subject.serve(AUTO, 0, (subject.stage(concurrency),))
        _say(f"warm-up, {concurrency} at once, auto", stretch(timed))


async def _levels(subject: _Subject) -> tuple[Level, ...]:
    options = subject.options
    ways = [BARE, *map(fixed, (0, *options.ks)), AUTO]
    runs: dict[int, dict[Way, list[Stretch]]] = {
        concurrency: {way: [] for way in ways} for concurrency in options.concurrency
    }
    for number in range(1, options.rounds + 1):
        for concurrency, found in runs.items():
            for way in _shuffled(ways, f"{options.seed} {number} {concurrency}"):
                (timed,) = await subject.serve(way, number, (subject.stage(concurrency),))
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
        for way in _shuffled(ways, f"{options.seed} ramp {number}"):
            timed = await subject.serve(way, options.rounds + number, stages)
            traces[way].append(timed)
            for part in timed:
                said = (
                    f"ramp {number}/{options.ramps}, {part.stage.concurrency} at once, {way.name}"
                )
                _say(said, stretch(part))
    return ramp(options.least, traces)


def _shuffled(ways: Sequence[Way], seed: str) -> list[Way]:
    return random.Random(seed).sample(ways, len(ways))


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
