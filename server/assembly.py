"""From settings to something that answers: models, engine, tokenizer. Part of the composition root.

Loading blocks and belongs in a thread; the rest belongs to the event loop.
"""

import time
from dataclasses import dataclass

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast

from deploy.pair import DRAFT, TARGET
from scheduler import assembly
from scheduler.config import EngineConfig
from scheduler.coordinate import digest_of, engine_manifest
from scheduler.engine import Engine
from scheduler.errors import ConfigRefused, ModelRefused
from scheduler.plan import Layout
from scheduler.request import (
    ProposerKind,
    Request,
    SamplingParams,
    Speculation,
    StopRules,
    Verifier,
)
from scheduler.runtime.create import LoadedPair, PairOptions, create_runner
from scheduler.runtime.loading import ModelSource
from scheduler.stats import FinishedStats, LoadStats, StatsSink, StepStats
from server.backend import Serving
from server.settings import Settings
from server.text.stager import Stager, TextRules
from server.tokenizer import TokenizerService
from server.version import version

__all__ = ["Loaded", "build_engine", "load", "serving_over", "warm_up"]

_WARM_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What loading gave, before any event loop object exists."""

    pair: LoadedPair
    config: EngineConfig
    tokenizer: TokenizerService


def load(settings: Settings) -> Loaded:
    """Load models and tokenizer and check that all settings agree. Blocks.

    Raises ConfigRefused or ModelRefused, which name what does not fit.
    """
    torch.set_num_threads(settings.tensor_threads)
    pair = build_runner(settings)
    if not isinstance(pair.tokenizer, PreTrainedTokenizerFast):
        raise ModelRefused("tokenizer: it has no tokenizer.json, and cannot be converted")
    ends = _end_ids(_target(settings), pair.tokenizer)
    return Loaded(
        pair=pair,
        config=_engine_config(settings, pair),
        tokenizer=TokenizerService(pair.tokenizer, ends),
    )


def build_runner(settings: Settings) -> LoadedPair:
    """The models of `settings` behind a runner. Blocks. Raises ConfigRefused or ModelRefused."""
    options = PairOptions(
        target=_target(settings),
        draft=_draft(settings),
        device=settings.device,
        dtype=settings.dtype,
        pack=settings.pack_weights,
        max_model_len=settings.max_model_len,
        draft_max_len=settings.draft_max_len,
        max_requests=settings.max_requests,
        kv_bytes=settings.kv_memory,
        block_size=settings.block_size,
        batch_invariant=settings.batch_invariant,
    )
    return create_runner(options, time.monotonic)


def build_engine(loaded: Loaded, sink: StatsSink) -> Engine:
    """An engine over what was loaded, not started."""
    return assembly.build_engine(loaded.config, loaded.pair.runner, sink=sink, clock=time.monotonic)


def serving_over(engine: Engine, loaded: Loaded, settings: Settings) -> Serving:
    """What the HTTP side needs of a started engine."""
    manifest = engine_manifest(loaded.pair.runner.capabilities())
    digest = digest_of(manifest + repr(loaded.config))[:8]
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
    tokenizer = loaded.tokenizer
    prompt = tokenizer.begun((await tokenizer.encode([""], special=True))[0])
    requests = [_warm_request(engine, loaded, prompt, temperature) for temperature in (0.0, 1.0)]
    error: str | None = None
    for subscription in engine.submit(requests):
        async for event in subscription:
            error = error or (event.finish.error if event.finish else None)
    error = error or engine.health().error
    await engine.stop()
    if error is not None:
        raise ModelRefused(f"the models cannot run: {error}")


class _NoStats:
    """A sink that forgets."""

    def step(self, stats: StepStats) -> None: ...
    def load(self, load: LoadStats) -> None: ...
    def finished(self, finished: FinishedStats) -> None: ...


def _warm_request(
    engine: Engine, loaded: Loaded, prompt: tuple[int, ...], temperature: float
) -> Request:
    room = loaded.config.max_model_len - len(prompt)
    return Request(
        request_id=engine.next_request_id(),
        prompt=prompt,
        sampling=SamplingParams(temperature=temperature, seed=0),
        speculation=Speculation(proposer=loaded.config.proposer),
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
