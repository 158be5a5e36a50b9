"""Serves a pair through the engine at every load, with no drafts, a fixed number and auto.

Judges nothing: a cell that no longer fits the budget is skipped by name. It does not know who runs
the models.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from scheduler.assembly import build_engine, controller_for
from scheduler.config import EngineConfig, PoolConfig
from scheduler.plan import RoundPlan
from scheduler.profiling import profile_costs
from scheduler.rehearsal import Rehearsal, Shape
from scheduler.request import Verifier
from scheduler.runtime.create import PairOptions, create_runner
from scheduler.runtime.graphs import GraphedForward, Record
from scheduler.runtime.loading import ModelSource
from scheduler.runtime.torch_runner import TorchRunner
from tests.bench.k.reduction import free_choices
from tests.bench.load import Bench, Load, Recorder, Run
from tests.bench.prompts import random_prompts
from tests.bench.reduction import arm
from tests.gpu.budget import Budget, say
from tests.gpu.device_time import busy_seconds
from tests.gpu.figures import Cell, Limits, Step
from tests.gpu.options import Options
from tests.gpu.pair import BuiltPair, stand_runner
from tests.gpu.verify_step import Call, Work, least_work, stored, time_step

BLOCK_SIZE = 16
_LARGEST_BLOCK = 128
_CLOCK: Callable[[], float] = time.perf_counter
_SAMPLED_ROUNDS = 3
_FIRST_CELL = 5.0
"""Seconds that a cell is expected to take before any was seen."""
_WARM_UP_TOKENS = 4
_LEARNING_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A pair that some runtime runs, with the limits of the engines over it. `work` is the least
    that a verify step must do."""

    runtime: str
    runner: TorchRunner
    config: EngineConfig
    work: Callable[[Call], Work]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What is served and what is asked of it; both engines share one runner."""

    options: Options
    serving: Serving
    limits: Limits

    @property
    def runner(self) -> TorchRunner:
        """What runs rounds."""
        return self.serving.runner

    @property
    def config(self) -> EngineConfig:
        """Limits of the engines."""
        return self.serving.config

    def name(self, requests: int, k: int | None) -> str:
        """How a cell is named."""
        return f"throughput, {self.serving.runtime}, {requests} at once, K {shown_k(k)}"

    def load(self, requests: int, k: int | None) -> Load:
        """A load. Prompts and seeds are the same for every K."""
        options = self.options
        prompts = random_prompts(
            requests, options.prompt_tokens, options.shape.vocabulary, options.seed
        )
        return Load(
            prompts=tuple(prompts),
            k=k,
            tokens=options.tokens,
            temperature=1.0,
            verifier=Verifier.TOKEN,
            seed=options.seed,
        )


def measure(options: Options, serving: Serving, limits: Limits, budget: Budget) -> tuple[Cell, ...]:
    """A cell for each load and K that fitted. Raises what serving raises."""
    subject = _Subject(options=options, serving=serving, limits=limits)
    return asyncio.run(_cells(subject, budget))


def torch_serving(options: Options, pair: BuiltPair, record: Record | None = None) -> Serving:
    """PyTorch's layers over the built pair, with pools for the widest load; `record` records the
    models' calls."""
    each = -(-options.max_model_len // BLOCK_SIZE)
    pool = PoolConfig(blocks=max(options.requests) * each, block_size=BLOCK_SIZE)
    return Serving(
        runtime="torch",
        runner=stand_runner(pair, pool, record),
        config=engine_config(options, pool),
        # No model in it: it outlasts them.
        work=partial(least_work, options.shape, stored(pair.target)),
    )


def vllm_serving(options: Options, folder: Path, work: Callable[[Call], Work]) -> Serving:
    """vLLM's layers over the checkpoints in `folder`. Raises what loading raises."""
    target, draft = (
        ModelSource(path_or_id=str(folder / name), offline=True) for name in ("target", "draft")
    )
    loaded = create_runner(
        PairOptions(
            target=target,
            draft=draft,
            runtime="vllm",
            # Whole blocks for each request, whatever vLLM's are.
            max_model_len=-(-options.max_model_len // _LARGEST_BLOCK) * _LARGEST_BLOCK,
            max_requests=max(options.requests),
            enforce_eager=options.enforce_eager,
        ),
        _CLOCK,
    )
    config = engine_config(options, loaded.target_pool)
    return Serving(runtime="vllm", runner=loaded.runner, config=config, work=work)


def engine_config(options: Options, pool: PoolConfig) -> EngineConfig:
    """Room for the widest load, all of its drafts in one round; both models have such a pool."""
    most = max(options.requests)
    return EngineConfig(
        max_model_len=options.max_model_len,
        draft_max_len=options.max_model_len,
        max_batched_tokens=max(512, most * (options.k_max + 1)),
        max_requests=most,
        k=options.k,
        k_max=options.k_max,
        target_pool=pool,
        draft_pool=pool,
    )


async def _cells(subject: _Subject, budget: Budget) -> tuple[Cell, ...]:
    cells: list[Cell] = []
    expected = _FIRST_CELL
    async with _benches(subject, budget) as benches:
        for requests in subject.options.requests:
            for k in (0, subject.options.k, None):
                name = subject.name(requests, k)
                if k not in benches:
                    budget.skip(name, "there is no profile to choose K by")
                    continue
                if not budget.affords(name, expected):
                    continue
                started = _CLOCK()
                cell = await _cell(subject, benches[k], (requests, k), budget)
                expected = max(expected, 1.5 * (_CLOCK() - started))
                if cell is None:
                    budget.skip(name, "cut off at the end of the budget")
                    return tuple(cells)
                say(f"{name}: {cell.rate:.1f} tokens/s")
                cells.append(cell)
    return tuple(cells)


def shown_k(k: int | None) -> str:
    """How a way to choose K is written."""
    return "auto" if k is None else str(k)


@asynccontextmanager
async def _benches(subject: _Subject, budget: Budget) -> AsyncIterator[dict[int | None, Bench]]:
    """Started engines by K, stopped in the end: one for what a request asks for, one for auto.
    Only one may serve at a time: they share K/V blocks."""
    fixed = Recorder()
    engines = {0: (build_engine(subject.config, subject.runner, sink=fixed, clock=_CLOCK), fixed)}
    engines[subject.options.k] = engines[0]
    seconds = subject.options.profile_seconds
    if budget.affords(f"the start-up profile, {subject.serving.runtime}", 2 * seconds):
        say(f"{subject.serving.runtime}: profiling for {seconds:.0f} s")
        costs = profile_costs(subject.runner, subject.config, _CLOCK, seconds=seconds)
        chosen, controller = Recorder(), controller_for(subject.config, costs)
        auto = build_engine(
            subject.config, subject.runner, sink=chosen, clock=_CLOCK, controller=controller
        )
        engines[None] = (auto, chosen)
    async with AsyncExitStack() as stack:
        for engine in {id(engine): engine for engine, _ in engines.values()}.values():
            await engine.start()
            stack.push_async_callback(engine.stop)
        yield {k: Bench(engine, recorder) for k, (engine, recorder) in engines.items()}


async def _cell(
    subject: _Subject, bench: Bench, way: tuple[int, int | None], budget: Budget
) -> Cell | None:
    """One load, served after a short one of the same; None when the budget ended meanwhile."""
    load = subject.load(*way)
    short = _LEARNING_TOKENS if load.k is None else _WARM_UP_TOKENS
    try:
        async with asyncio.timeout(budget.left()):
            await bench.serve(replace(load, tokens=min(short, load.tokens)))
            run = await bench.serve(load)
    except TimeoutError:
        return None
    return _reduced(subject, way, run)


def _reduced(subject: _Subject, way: tuple[int, int | None], run: Run) -> Cell:
    """The figures of a run, with what its rounds cost the device. No engine may run meanwhile."""
    requests, k = way
    figures, full = arm([run]), all_at_once(run)
    whole = figures if full is None else arm([full])
    choices = [choice.k for step in run.steps for choice in free_choices(step)]
    mean_k = sum(choices) / len(choices) if choices else 0.0
    positions = figures.positions
    reached = sum(place.reached for place in positions)
    drafts = round(mean_k) if k is None else k
    call = Call(requests=requests, k=drafts, context=subject.options.prompt_tokens)
    verify, eager = _steps(subject, call)
    return Cell(
        runtime=subject.serving.runtime,
        requests=requests,
        k=k,
        tokens=run.tokens,
        seconds=run.seconds,
        rate=run.rate,
        round_ms=whole.parts_ms.round,
        mean_k=mean_k,
        acceptance=sum(place.accepted for place in positions) / reached if reached else None,
        verify=verify,
        eager_ms=None if eager is None else eager.milliseconds,
        host_share=_host_share(
            subject, call, None if full is None else whole.parts_ms.round, whole.host_share
        ),
    )


def all_at_once(run: Run) -> Run | None:
    """The run with the rounds alone in which all of its requests decode, as they do in the verify
    step that is timed: the last rounds have fewer. None where there is no such."""
    steps = tuple(
        step
        for step in run.steps
        if len(step.groups) == len(run.arrivals) and not any(g.prefilled for g in step.groups)
    )
    return replace(run, steps=steps) if steps else None


def _steps(subject: _Subject, call: Call) -> tuple[Step, Step | None]:
    """A verify step as it is served, and launched from the host where it is served recorded."""
    target = subject.runner._pair.target
    ways = (target, target.inner) if isinstance(target, GraphedForward) else (target,)
    work, repeats = subject.serving.work(call), subject.options.repeats
    served, *eager = (time_step(way, call, work, subject.limits, repeats) for way in ways)
    return served, eager[0] if eager else None


def _host_share(
    subject: _Subject, call: Call, round_ms: float | None, outside: float
) -> float | None:
    """The share of a decode round in which the device waits: what is outside the forwards on a CPU
    (`outside`), elsewhere what kernels of a round of this shape leave of `round_ms`; None
    where no round has that shape, which has no `round_ms` then."""
    device = subject.runner._pair.target.device
    if device.type == "cpu":
        return outside
    if round_ms is None:
        return None
    plan = round_of(subject.config, subject.options.shape.vocabulary, call)
    busy = busy_seconds(lambda: subject.runner.run(plan), _SAMPLED_ROUNDS, device)
    return None if busy is None else max(0.0, 1.0 - 1e3 * busy / round_ms)


def round_of(config: EngineConfig, vocabulary: int, call: Call) -> RoundPlan:
    """A whole round with this verify step, drafts by the draft model before it."""
    # A rehearsed request's last token has no row yet.
    shape = Shape(emitters=call.requests, context=call.context + 1, k=call.k, modelled=call.k > 0)
    return Rehearsal(config, vocabulary).plan(shape)
