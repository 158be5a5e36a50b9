"""From settings to something that answers: models, engine, tokenizer. Part of the composition root.

Loading blocks and belongs in a thread; the rest belongs to the event loop.
"""

import gc
import logging
import os
import time
from dataclasses import dataclass, fields

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast

from deploy.pair import DRAFT, TARGET
from scheduler import assembly
from scheduler.config import EngineConfig
from scheduler.coordinate import digest_of, engine_manifest
from scheduler.costs import CostTable
from scheduler.engine import Engine
from scheduler.errors import ConfigRefused, ModelRefused
from scheduler.plan import Layout
from scheduler.profiling import profile_costs
from scheduler.request import (
    ProposerKind,
    Request,
    SamplingParams,
    Speculation,
    StopRules,
    Verifier,
)
from scheduler.runner import ModelRunner
from scheduler.runtime.create import LoadedPair, PairOptions, create_runner
from scheduler.runtime.loading import ModelSource
from scheduler.runtime.vllm_choice import VllmChoices
from scheduler.stats import FinishedStats, LoadStats, StatsSink, StepStats
from server.backend import Serving
from server.cost_cache import CostCache, processor
from server.settings import Settings
from server.text.stager import Stager, TextRules
from server.tokenizer import TokenizerService
from server.version import version

__all__ = ["Loaded", "build_engine", "load", "round_costs", "serving_over", "settle", "warm_up"]

logger = logging.getLogger(__name__)

_WARM_TOKENS = 8
# Every vocabulary has it, and a tokenizer may have no token to begin with.
_WARM_PROMPT = (0,)
_VLLM_CHOICES = tuple(each.name for each in fields(VllmChoices))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What loading gave, before any event loop object exists. `costs` are None where K is fixed."""

    pair: LoadedPair
    config: EngineConfig
    tokenizer: TokenizerService
    costs: CostTable | None = None


def load(settings: Settings) -> Loaded:
    """Load models and tokenizer, check that all settings agree, and see what rounds cost. Blocks.

    Raises ConfigRefused or ModelRefused, which name what does not fit.
    """
    torch.set_num_threads(settings.tensor_threads)
    pair = build_runner(settings)
    if not isinstance(pair.tokenizer, PreTrainedTokenizerFast):
        raise ModelRefused("tokenizer: it has no tokenizer.json, and cannot be converted")
    ends = _end_ids(_target(settings), pair.tokenizer)
    config = _engine_config(settings, pair)
    return Loaded(
        pair=pair,
        config=config,
        tokenizer=TokenizerService(pair.tokenizer, ends),
        costs=round_costs(settings, pair.runner, config),
    )


def build_runner(settings: Settings) -> LoadedPair:
    """The models of `settings` behind a runner. Blocks. Raises ConfigRefused or ModelRefused."""
    options = PairOptions(
        target=_target(settings),
        draft=_draft(settings),
        runtime=settings.runtime,
        vllm=VllmChoices(**{name: getattr(settings, name) for name in _VLLM_CHOICES}),
        device=settings.device,
        dtype=settings.dtype,
        pack=settings.pack_weights,
        max_model_len=settings.max_model_len,
        draft_max_len=settings.draft_max_len,
        max_requests=settings.max_requests,
        kv_bytes=settings.kv_memory,
        block_size=settings.block_size,
        batch_invariant=settings.batch_invariant,
        enforce_eager=settings.enforce_eager,
    )
    return create_runner(options, time.monotonic)


def round_costs(settings: Settings, runner: ModelRunner, config: EngineConfig) -> CostTable | None:
    """What rounds cost: kept from an earlier start, else measured and kept. Blocks.

    None where there is nothing to choose: K is fixed, or nobody drafts. Raises ModelRefused when a
    round breaks.
    """
    if not _chooses(settings, config):
        return None
    folder = settings.cost_cache
    cache = None if folder is None else CostCache(folder, _cost_key(settings, runner, config))
    costs = None if cache is None else cache.load()
    if cache is not None and costs is not None:
        logger.info("costs of rounds: from %s", cache.path)
        return costs
    costs, seconds = _measured(settings, runner, config)
    kept = cache is not None and cache.store(costs)
    place = f"kept in {cache.path}" if cache is not None and kept else "not kept"
    logger.info("costs of rounds: measured in %.1f s, %s", seconds, place)
    return costs


def build_engine(loaded: Loaded, sink: StatsSink) -> Engine:
    """An engine over what was loaded, not started."""
    return assembly.build_engine(
        loaded.config,
        loaded.pair.runner,
        sink=sink,
        clock=time.monotonic,
        controller=assembly.controller_for(loaded.config, loaded.costs),
    )


def serving_over(engine: Engine, loaded: Loaded, settings: Settings) -> Serving:
    """What the HTTP side needs of a started engine."""
    manifest = engine_manifest(loaded.pair.runner.capabilities())
    chosen = "" if loaded.costs is None else "auto"
    digest = digest_of(manifest + repr(loaded.config) + chosen)[:8]
    return Serving(
        engine=engine,
        tokenizer=loaded.tokenizer,
        names=settings.names,
        root=settings.root,
        created=int(time.time()),
        vocabulary=loaded.pair.vocabulary,
        fingerprint=f"fencepost-{version()}-{digest}",
    )


async def warm_up(loaded: Loaded) -> None:
    """Run one greedy and one sampled request through an engine of their own, so that the first
    client waits for no lazy initialisation and no counter has moved."""
    engine = build_engine(loaded, _NoStats())
    await engine.start()
    requests = [_warm_request(engine, loaded, temperature) for temperature in (0.0, 1.0)]
    error: str | None = None
    for subscription in engine.submit(requests):
        async for event in subscription:
            error = error or (event.finish.error if event.finish else None)
    error = error or engine.health().error
    await engine.stop()
    if error is not None:
        raise ModelRefused(f"the models cannot run: {error}")


def settle() -> None:
    """Have the garbage collector leave alone what is loaded by now: to look through it takes tenths
    of a second, in which no request gets a token. For once a process, before it serves."""
    gc.collect()
    gc.freeze()


def _chooses(settings: Settings, config: EngineConfig) -> bool:
    drafts = config.draft_pool is not None or config.proposer is not ProposerKind.NONE
    return settings.k == "auto" and config.k_max > 0 and drafts


def _measured(
    settings: Settings, runner: ModelRunner, config: EngineConfig
) -> tuple[CostTable, float]:
    """What rounds cost, and the seconds that it took to see."""
    logger.info("measuring what rounds cost, for about %g s", settings.profile_seconds)
    clock = time.perf_counter
    started = clock()
    try:
        costs = profile_costs(runner, config, clock, seconds=settings.profile_seconds)
    except Exception as problem:
        kind = type(problem).__name__
        raise ModelRefused(f"the models cannot run: {kind}: {problem}") from problem
    return costs, clock() - started


def _cost_key(
    settings: Settings, runner: ModelRunner, config: EngineConfig
) -> dict[str, str | float | None]:
    """All that the costs of rounds depend on."""
    capabilities = runner.capabilities()
    cuda = capabilities.device.startswith("cuda")
    return {
        "engine": engine_manifest(capabilities),
        "max_requests": config.max_requests,
        "k_max": config.k_max,
        "max_batched_tokens": config.max_batched_tokens,
        "max_model_len": config.max_model_len,
        "draft_max_len": config.draft_max_len,
        "block_size": config.target_pool.block_size,
        "pack_weights": settings.pack_weights,
        "threads": settings.tensor_threads,
        "distributed_executor_backend": settings.distributed_executor_backend,
        "seconds": settings.profile_seconds,
        "processor": processor(),
        "processors": len(os.sched_getaffinity(0)),
        "accelerator": torch.cuda.get_device_name(capabilities.device) if cuda else None,
    }


class _NoStats:
    """A sink that forgets."""

    def step(self, stats: StepStats) -> None: ...
    def load(self, load: LoadStats) -> None: ...
    def finished(self, finished: FinishedStats) -> None: ...


def _warm_request(engine: Engine, loaded: Loaded, temperature: float) -> Request:
    room = loaded.config.max_model_len - len(_WARM_PROMPT)
    return Request(
        request_id=engine.next_request_id(),
        prompt=_WARM_PROMPT,
        sampling=SamplingParams(temperature=temperature, seed=0),
        # Whatever would be chosen, the draft model is to run once.
        speculation=Speculation(k=loaded.config.k, proposer=loaded.config.proposer),
        stop=StopRules(token_ids=frozenset(), max_tokens=min(_WARM_TOKENS, room)),
        text=Stager(loaded.tokenizer.pieces, TextRules()),
        arrival=time.monotonic(),
    )


def _target(settings: Settings) -> ModelSource:
    return _source(settings, settings.model or str(TARGET), settings.revision)


def _draft(settings: Settings) -> ModelSource | None:
    """The draft model; the embedded one goes with the embedded target only."""
    name = settings.draft_model
    if name is None and settings.model is None:
        name = str(DRAFT)
    return None if name is None else _source(settings, name, settings.draft_revision)


def _source(settings: Settings, name: str, revision: str | None) -> ModelSource:
    token = settings.hf_token
    return ModelSource(
        path_or_id=name,
        revision=revision,
        token=None if token is None else token.get_secret_value(),
        offline=settings.offline,
    )


def _engine_config(settings: Settings, pair: LoadedPair) -> EngineConfig:
    return EngineConfig(
        max_model_len=pair.max_model_len,
        draft_max_len=pair.draft_max_len,
        max_batched_tokens=settings.max_batched_tokens,
        max_requests=settings.max_requests,
        max_waiting=settings.max_waiting,
        k=settings.draft_length,
        k_max=settings.longest_draft,
        layout=Layout(settings.layout),
        verifier=Verifier(settings.verifier),
        proposer=_proposer(settings, has_draft=pair.draft_pool is not None),
        target_pool=pair.target_pool,
        draft_pool=pair.draft_pool,
    )


def _proposer(settings: Settings, *, has_draft: bool) -> ProposerKind:
    if settings.proposer == "auto":
        return ProposerKind.DRAFT_MODEL if has_draft else ProposerKind.NGRAM
    if settings.proposer == "draft_model" and not has_draft:
        raise ConfigRefused("proposer=draft_model: draft_model names no model")
    return ProposerKind(settings.proposer)


def _end_ids(source: ModelSource, tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    """The tokenizer's end-of-text id and those of the model's generation settings."""
    ends = {tokenizer.eos_token_id}
    try:
        generation = GenerationConfig.from_pretrained(
            source.path_or_id,
            revision=source.revision or "main",
            token=source.token,
            local_files_only=source.offline,
        )
    except OSError:  # many models have no such file
        generation = GenerationConfig()
    more = generation.eos_token_id
    ends |= set(more) if isinstance(more, list) else {more}
    return frozenset(token for token in ends if isinstance(token, int))
