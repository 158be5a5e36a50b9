"""Loads a pair and sizes its K/V pools: from model names to a runner and the engine's limits.

It picks what runs the models. vLLM is imported only when it does: that takes seconds.
"""

import importlib
import logging
import platform
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import torch
import transformers
from transformers import PreTrainedTokenizerBase

from scheduler.config import PoolConfig
from scheduler.errors import ConfigRefused, ModelRefused
from scheduler.runner import Capabilities, ModelIdentity, ModelRunner
from scheduler.runtime.admission_checks import check_pair, event_space_digest
from scheduler.runtime.cuda_graphs import GraphRecorder
from scheduler.runtime.fixed_forward import FixableTransformers
from scheduler.runtime.forward import Forward, TransformersForward
from scheduler.runtime.graphs import GraphedForward, Record
from scheduler.runtime.invariant import invariant_forward
from scheduler.runtime.kv_cache import KvShape
from scheduler.runtime.loading import (
    DtypeChoice,
    LoadedModel,
    ModelSource,
    load_model,
    load_tokenizer,
)
from scheduler.runtime.torch_runner import Pair, TorchRunner
from scheduler.runtime.vllm_choice import (
    MOST_REQUESTS,
    RuntimeChoice,
    VllmChoices,
    VllmOptions,
    uses_vllm,
    vllm_block_size,
    vllm_version,
)
from scheduler.sampling.rng import CounterRandomness

logger = logging.getLogger(__name__)

# K/V memory when nothing is said: enough for short contexts on a small machine's CPU, and on a
# GPU the share of free memory that leaves room for activations and row buffers.
CPU_KV_BYTES = 1 << 30
CUDA_KV_SHARE = 0.6
# Rows of a block where PyTorch runs the models; vLLM has sizes of its own.
BLOCK_SIZE = 16
# They miss Triton on a CPU while they are imported.
_CHATTERS = ("vllm", "torch._library.triton")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """What to load and how much memory to take. None leaves a limit to the models."""

    target: ModelSource
    draft: ModelSource | None
    runtime: RuntimeChoice = "auto"
    vllm: VllmChoices = field(default_factory=VllmChoices)
    device: str = "auto"
    dtype: DtypeChoice = "auto"
    pack: bool = True
    max_model_len: int | None = None
    draft_max_len: int | None = None
    max_requests: int = 64
    kv_bytes: int | None = None
    block_size: int | None = None
    batch_invariant: bool = False
    enforce_eager: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPair:
    """A runner with the limits that its models and its memory set.

    `target_row_bytes` and `draft_row_bytes` are those of one token's K/V row in all layers, 0 where
    there is no draft; `law_row_bytes` those of one position's float32 law over the vocabulary.
    """

    runner: ModelRunner
    tokenizer: PreTrainedTokenizerBase
    vocabulary: int
    max_model_len: int
    draft_max_len: int
    target_pool: PoolConfig
    draft_pool: PoolConfig | None
    target_row_bytes: int
    draft_row_bytes: int
    law_row_bytes: int


class _Model(Protocol):
    """What every runtime knows of a model that it loaded."""

    @property
    def identity(self) -> ModelIdentity: ...
    @property
    def kv_shape(self) -> KvShape: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def max_positions(self) -> int: ...
    @property
    def device(self) -> torch.device: ...


class _Runtime(Protocol):
    """What loads a pair, and runs it once its pools are sized."""

    block_size: int
    software: str

    def load(self, target: ModelSource, draft: ModelSource | None) -> tuple[_Model, _Model | None]:
        """Load both. Raises ModelRefused."""
        ...

    def start(self, pool: PoolConfig, capabilities: Capabilities) -> ModelRunner:
        """A runner over K/V pools of this size, one for each model."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """A model, and what makes its forward over a pool."""

    model: _Model
    over: Callable[[PoolConfig], Forward]


class _InProcess:
    """A pair in this process, each model by its own loader."""

    def __init__(
        self,
        target: Callable[[ModelSource], _Loaded],
        draft: Callable[[ModelSource], _Loaded],
        clock: Callable[[], float],
        block_size: int,
        software: str,
    ) -> None:
        self.block_size = block_size
        self.software = software
        self._loaders = (target, draft)
        self._clock = clock

    def load(self, target: ModelSource, draft: ModelSource | None) -> tuple[_Model, _Model | None]:
        """Load both. Raises ModelRefused."""
        load_target, load_draft = self._loaders
        self._target = load_target(target)
        self._draft = None if draft is None else load_draft(draft)
        return self._target.model, None if self._draft is None else self._draft.model

    def start(self, pool: PoolConfig, capabilities: Capabilities) -> ModelRunner:
        """The round executor over both."""
        forward = self._target.over(pool)
        pair = Pair(
            target=forward,
            draft=None if self._draft is None else self._draft.over(pool),
            vocabulary=capabilities.vocabulary,
        )
        told = replace(capabilities, numerics=forward.numerics)
        return TorchRunner(pair, told, CounterRandomness(), self._clock)


def create_runner(options: PairOptions, clock: Callable[[], float]) -> LoadedPair:
    """Load, check and size. Raises ModelRefused or ConfigRefused, naming model or setting."""
    device = _device(options)
    runtime = _runtime(options, device, clock)
    tokenizer = load_tokenizer(options.target)
    drafter = None if options.draft is None else load_tokenizer(options.draft)
    if drafter is not None:  # before any weights: a wrong tokenizer is told at once
        check_pair(tokenizer, drafter, len(tokenizer), len(drafter))
    target, draft = runtime.load(options.target, options.draft)
    vocabulary = _event_space(options, tokenizer, drafter, target, draft)
    pool = _pool(options, runtime.block_size, target, draft)
    max_model_len = _context(options, target, pool.blocks * pool.block_size)
    capabilities = replace(
        _capabilities(target, draft, vocabulary, runtime.software),
        event_space=event_space_digest(tokenizer),
    )
    return LoadedPair(
        runner=runtime.start(pool, capabilities),
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        max_model_len=max_model_len,
        draft_max_len=_draft_context(options, draft, max_model_len),
        target_pool=pool,
        draft_pool=None if draft is None else pool,
        target_row_bytes=target.kv_shape.bytes_per_token(),
        draft_row_bytes=0 if draft is None else draft.kv_shape.bytes_per_token(),
        law_row_bytes=vocabulary * torch.float32.itemsize,
    )


def _device(options: PairOptions) -> torch.device:
    name = options.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    elif name == "cuda" and not torch.cuda.is_available():
        raise ConfigRefused("device=cuda: torch sees no CUDA device")
    if options.batch_invariant and name != "cpu":
        raise ConfigRefused(
            f"batch_invariant=true, device={options.device}: the models would run on {name}, and "
            "the mode knows the cpu only; set device=cpu"
        )
    return torch.device(name)


def _runtime(options: PairOptions, device: torch.device, clock: Callable[[], float]) -> _Runtime:
    software = [f"torch {torch.__version__}", f"transformers {transformers.__version__}"]
    if uses_vllm(options.runtime, device):
        software += [f"vllm {vllm_version()}", platform.machine()]
        return _vllm_runtime(options, device, clock, ", ".join(software))
    options.vllm.refuse_for_torch()
    # A draft has no such mode: where texts are promised (temperature 0, shared noise) it only
    # proposes.
    record = recorder(options, device)
    plain = TransformersForward if record is None else partial(_graphed, record)
    forward = invariant_forward if options.batch_invariant else plain
    return _InProcess(
        target=partial(_load_torch, options, device, forward),
        draft=partial(_load_torch, options, device, plain),
        clock=clock,
        block_size=options.block_size or BLOCK_SIZE,
        software=", ".join((*software, platform.machine())),
    )


def recorder(options: PairOptions, device: torch.device) -> Record | None:
    """What records the models' calls, None where every call is launched from the host."""
    recording = device.type == "cuda" and not options.enforce_eager
    return GraphRecorder(device) if recording else None


def _graphed(record: Record, model: LoadedModel, pool: PoolConfig) -> Forward:
    return GraphedForward(FixableTransformers(model, pool), record)


def _load_torch(
    options: PairOptions,
    device: torch.device,
    forward: Callable[[LoadedModel, PoolConfig], Forward],
    source: ModelSource,
) -> _Loaded:
    model = load_model(source, device=device, dtype=options.dtype, pack=options.pack)
    return _Loaded(model=model, over=partial(forward, model))


def _vllm_runtime(
    options: PairOptions, device: torch.device, clock: Callable[[], float], software: str
) -> _Runtime:
    """vLLM as what loads and runs models. Raises ConfigRefused when it cannot do what is asked."""
    _refuse_for_vllm(options)
    target, draft = options.vllm.of_pair(options.dtype, vllm_block_size(options.block_size, device))
    for name in _CHATTERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        if target.ranks > 1:
            parallel = importlib.import_module("scheduler.runtime.vllm_parallel")
            pair: _Runtime = parallel.ParallelPair(
                device, target, draft, software, options.enforce_eager
            )
            return pair
        loading = importlib.import_module("scheduler.runtime.vllm_loading")
        forward = importlib.import_module("scheduler.runtime.vllm_forward")
    except ImportError as problem:
        raise ConfigRefused(
            f"runtime={options.runtime}: vLLM cannot be imported: {problem}"
        ) from problem

    record = recorder(options, device)

    def load(choices: VllmOptions, source: ModelSource) -> _Loaded:
        model = loading.load_vllm_model(source, device=device, options=choices)
        return _Loaded(model=model, over=partial(forward.vllm_forward, model, record))

    return _InProcess(
        target=partial(load, target),
        draft=partial(load, draft),
        clock=clock,
        block_size=target.block_size,
        software=software,
    )


def _refuse_for_vllm(options: PairOptions) -> None:
    if options.batch_invariant:
        raise ConfigRefused(
            f"batch_invariant=true, runtime={options.runtime}: the mode knows runtime=torch only"
        )
    if options.max_requests > MOST_REQUESTS:
        raise ConfigRefused(
            f"max_requests={options.max_requests}, runtime={options.runtime}: vLLM's layers take "
            f"{MOST_REQUESTS} at once; ask for no more, or for runtime=torch"
        )


def _event_space(
    options: PairOptions,
    tokenizer: PreTrainedTokenizerBase,
    drafter: PreTrainedTokenizerBase | None,
    target: _Model,
    draft: _Model | None,
) -> int:
    """Ids that both models and the tokenizer know; padded logits past them are cut off."""
    if drafter is not None and draft is not None:
        report = check_pair(tokenizer, drafter, target.vocabulary, draft.vocabulary)
        return min(report.event_space, report.tokens)
    tokens = max(tokenizer.get_vocab().values()) + 1
    if tokens > target.vocabulary:
        raise ModelRefused(
            f"{options.target.path_or_id}: logits for {target.vocabulary} ids, but the "
            f"tokenizer uses {tokens}"
        )
    return tokens


def _pool(
    options: PairOptions, block_size: int, target: _Model, draft: _Model | None
) -> PoolConfig:
    """Each model's pool: what the memory holds, at most what all requests could fill."""
    each = target.kv_shape.bytes_per_token()
    each += draft.kv_shape.bytes_per_token() if draft is not None else 0
    limit = options.kv_bytes
    if limit is None:
        limit = CPU_KV_BYTES
        if target.device.type == "cuda":
            limit = int(torch.cuda.mem_get_info(target.device)[0] * CUDA_KV_SHARE)
    most = options.max_requests * (options.max_model_len or target.max_positions)
    blocks = min(limit // each, most) // block_size
    if not blocks:
        raise ConfigRefused(
            f"kv_memory={limit}: one K/V block of {block_size} tokens takes "
            f"{each * block_size} bytes"
        )
    logger.info(
        "K/V pool: %d blocks of %d tokens, %.0f MiB",
        blocks,
        block_size,
        blocks * block_size * each / 2**20,
    )
    return PoolConfig(blocks=blocks, block_size=block_size)


def _context(options: PairOptions, target: _Model, tokens: int) -> int:
    """The context length: as asked, else as long as the model and the pool allow."""
    asked = options.max_model_len
    if asked is not None and asked > target.max_positions:
        raise ConfigRefused(
            f"max_model_len={asked}: the model has {target.max_positions} positions"
        )
    return min(target.max_positions, tokens) if asked is None else asked


def _draft_context(options: PairOptions, draft: _Model | None, most: int) -> int:
    """The draft's own context length, within the target's; 0 without a draft."""
    if draft is None:
        return 0
    return min(options.draft_max_len or draft.max_positions, draft.max_positions, most)


def _capabilities(
    target: _Model, draft: _Model | None, vocabulary: int, software: str
) -> Capabilities:
    return Capabilities(
        target=target.identity,
        draft=None if draft is None else draft.identity,
        vocabulary=vocabulary,
        max_positions=target.max_positions,
        draft_max_positions=0 if draft is None else draft.max_positions,
        device=str(target.device),
        software=software,
    )
