"""Measures one pair, in a process of its own: loads it, runs every load in turns, then the peer.

Speculation on and off, and the peer's arms, take turns inside every round, so that a disturbance
of the machine meets all of them.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from deploy.pair import DRAFT, TARGET
from scheduler.runtime.create import LoadedPair, PairOptions, create_runner
from scheduler.runtime.forward import TransformersForward
from scheduler.runtime.loading import ModelSource
from scheduler.runtime.torch_runner import Pair
from server.assembly import settle
from tests.bench import ledger, peer
from tests.bench.figures import Level, Memory, PairFigures, Peer, PeerArm, Startup, spread
from tests.bench.load import Bench, Load, Run, running_bench
from tests.bench.machine import peak_rss_mib, process_age
from tests.bench.options import Options
from tests.bench.prompts import Prompt, random_prompts, text_prompts
from tests.bench.reduction import level
from tests.bench.synthetic import Shape, cached_pair

_MIB = 2**20
_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a pair lies. `random_ids`: its prompts need not be text."""

    name: str
    target: str
    draft: str
    random_ids: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """A loaded pair under test, with its prompts by round."""

    source: Source
    options: Options
    loaded: LoadedPair
    rounds: tuple[tuple[Prompt, ...], ...]

    def load(self, number: int, concurrency: int, k: int) -> Load:
        """The load of round `number`. The same round has the same prompts and seeds at any K."""
        return Load(
            prompts=self.rounds[number][:concurrency],
            k=k,
            tokens=self.options.tokens,
            temperature=self.options.temperature,
            verifier=self.options.verifier,
            seed=self.options.seed + 1000 * number,
        )


def find_pair(name: str, seed: int) -> Source:
    """The folders of a pair; builds the synthetic one. Raises FileNotFoundError."""
    if name == "synthetic":
        built = cached_pair(Shape(), seed)
        return Source(name=name, target=str(built.target), draft=str(built.draft), random_ids=True)
    if name == "embedded":
        if not TARGET.is_dir():
            raise FileNotFoundError(f"no embedded pair in {TARGET.parent}: `make pair` trains it")
        return Source(name=name, target=str(TARGET), draft=str(DRAFT), random_ids=False)
    target, _, draft = name.partition(",")
    return Source(name=name, target=target, draft=draft, random_ids=False)


def use_threads(threads: int | None) -> int:
    """Set torch's threads for one operation unless None; gives the number in use."""
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()


def measure_pair(source: Source, options: Options) -> PairFigures:
    """Everything the report says of one pair. Raises what loading and running raise."""
    imports = process_age()
    use_threads(options.threads)
    _say(f"{source.name}: loading")
    started = time.perf_counter()
    loaded = create_runner(_pair_options(source, options), time.perf_counter)
    ready = time.perf_counter()
    settle()
    subject = _Subject(
        source=source, options=options, loaded=loaded, rounds=_prompts(source, options, loaded)
    )
    return asyncio.run(_measure(subject, imports, ready - started))


def shown(path_or_id: str) -> str:
    """A model's name without the folders of one machine: its last two parts."""
    return "/".join(Path(path_or_id).parts[-2:])


async def _measure(subject: _Subject, imports: float, load_seconds: float) -> PairFigures:
    source, options, loaded = subject.source, subject.options, subject.loaded
    models = loaded.runner._pair  # the very forwards that the engine runs, to time them alone
    async with running_bench(loaded, options.k, max(options.concurrency)) as bench:
        first_token = await _first_token(bench, subject)
        _say(f"{source.name}: timing forwards")
        forwards = ledger.time_forwards(
            models, loaded.target_pool.blocks, options.k, options.repeats
        )
        levels = await _levels(bench, subject)
        memory = _memory(loaded, models)
        compared = await _compare(bench, subject) if options.peer else None
    single = [each for each in levels if each.concurrency == 1]
    capabilities = loaded.runner.capabilities()
    return PairFigures(
        name=source.name,
        target=shown(source.target),
        draft=shown(source.draft),
        target_dtype=capabilities.target.dtype,
        parameters=(
            capabilities.target.parameters,
            capabilities.draft.parameters if capabilities.draft else 0,
        ),
        vocabulary=loaded.vocabulary,
        startup=Startup(imports=imports, load=load_seconds, first_token=first_token),
        memory=memory,
        ledger=forwards,
        prediction=ledger.predict(forwards, single[0]) if single else None,
        levels=levels,
        peer=compared,
    )


def _pair_options(source: Source, options: Options) -> PairOptions:
    """K/V pools as large as the largest load needs, drafts past the last token included."""
    return PairOptions(
        target=ModelSource(path_or_id=source.target),
        draft=ModelSource(path_or_id=source.draft),
        max_model_len=options.prompt_tokens + options.tokens + options.k,
        max_requests=max(options.concurrency),
    )


def _prompts(
    source: Source, options: Options, loaded: LoadedPair
) -> tuple[tuple[Prompt, ...], ...]:
    """Prompts by round; the first round only warms up and times the first token."""
    widest, length = max(options.concurrency), options.prompt_tokens
    count = (options.rounds + 1) * widest
    if source.random_ids:
        prompts = random_prompts(count, length, loaded.vocabulary, options.seed)
    else:
        prompts = text_prompts(count, length, loaded.tokenizer)
    return tuple(tuple(prompts[first : first + widest]) for first in range(0, count, widest))


async def _first_token(bench: Bench, subject: _Subject) -> float:
    """Seconds from submitting the first request to its first token; warms up afterwards."""
    started = time.perf_counter()
    run = await bench.serve(_shortened(subject.load(0, 1, subject.options.k)))
    await bench.warm_up(_shortened(subject.load(0, max(subject.options.concurrency), 1)))
    return run.arrivals[0].times[0] - started


def _shortened(load: Load) -> Load:
    return Load(
        prompts=load.prompts,
        k=load.k,
        tokens=min(load.tokens, _WARM_UP_TOKENS),
        temperature=load.temperature,
        verifier=load.verifier,
        seed=load.seed,
    )


async def _levels(bench: Bench, subject: _Subject) -> tuple[Level, ...]:
    options = subject.options
    runs: dict[tuple[int, int], list[Run]] = {
        (concurrency, k): [] for concurrency in options.concurrency for k in (options.k, 0)
    }
    for number in _rounds(options):
        for (concurrency, k), done in runs.items():
            done.append(await bench.serve(subject.load(number, concurrency, k)))
            _say(
                f"{subject.source.name}: round {number}/{options.rounds}, "
                f"{concurrency} at once, K {k}: {done[-1].rate:.1f} tokens/s"
            )
    return tuple(level(runs[each, options.k], runs[each, 0]) for each in options.concurrency)


def _rounds(options: Options) -> Iterator[int]:
    return iter(range(1, options.rounds + 1))


def _memory(loaded: LoadedPair, models: Pair) -> Memory:
    forwards = [each for each in (models.target, models.draft) if each is not None]
    kv = sum(each.pool.bytes() for each in forwards if isinstance(each, TransformersForward))
    return Memory(
        weights=(loaded.runner.memory_bytes() - kv) / _MIB,
        kv=kv / _MIB,
        peak_rss=peak_rss_mib(),
    )


async def _compare(bench: Bench, subject: _Subject) -> Peer:
    """This engine and every arm of the peer on the same prompt, round by round."""
    source, options = subject.source, subject.options
    _say(f"{source.name}: loading the peer")
    pairs = [peer.load_peer(source.target, source.draft, dtype, options.k) for dtype in peer.DTYPES]
    arms: dict[tuple[str, str], list[float]] = {
        (mode, pair.dtype): [] for mode in ("assisted", "plain") for pair in pairs
    }
    ours: list[float] = []
    ours_off: list[float] = []
    for number in _rounds(options):
        ours.append((await bench.serve(subject.load(number, 1, options.k))).rate)
        ours_off.append((await bench.serve(subject.load(number, 1, 0))).rate)
        for pair in pairs:
            for mode in ("assisted", "plain"):
                arms[mode, pair.dtype].append(_peer_rate(pair, mode, subject, number))
    return _peer_figures(ours, ours_off, arms)


def _peer_rate(pair: peer.PeerPair, mode: str, subject: _Subject, number: int) -> float:
    options = subject.options
    torch.manual_seed(options.seed + number)
    rate = peer.generate(
        pair,
        subject.rounds[number][0],
        assisted=mode == "assisted",
        tokens=options.tokens,
        temperature=options.temperature,
    )
    _say(f"{subject.source.name}: round {number}, {mode} {pair.dtype}: {rate:.1f} tokens/s")
    return rate


def _peer_figures(
    ours: Sequence[float],
    ours_off: Sequence[float],
    arms: dict[tuple[str, str], list[float]],
) -> Peer:
    def best(mode: str) -> str:
        dtypes = {dtype: rates for (kind, dtype), rates in arms.items() if kind == mode}
        return max(dtypes, key=lambda dtype: statistics.median(dtypes[dtype]))

    assisted = arms["assisted", best("assisted")]
    return Peer(
        ours=spread(ours),
        ours_off=spread(ours_off),
        arms=tuple(
            PeerArm(mode=mode, dtype=dtype, rate=spread(rates))
            for (mode, dtype), rates in arms.items()
        ),
        best_assisted=best("assisted"),
        best_plain=best("plain"),
        over_assisted=spread([mine / theirs for mine, theirs in zip(ours, assisted, strict=True)]),
    )


def _say(text: str) -> None:
    sys.stderr.write(f"bench: {text}\n")
    sys.stderr.flush()
