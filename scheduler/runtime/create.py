"""Loads a pair and sizes its K/V pools: from model names to a runner and the engine's limits."""

import logging
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import transformers
from transformers import PreTrainedTokenizerBase

from scheduler.config import PoolConfig
from scheduler.errors import ConfigRefused, ModelRefused
from scheduler.runner import Capabilities
from scheduler.runtime.admission_checks import check_pair, event_space_digest
from scheduler.runtime.forward import TransformersForward
from scheduler.runtime.invariant import InvariantForward, invariant_forward
from scheduler.runtime.loading import (
    DtypeChoice,
    LoadedModel,
    ModelSource,
    load_model,
    load_tokenizer,
)
from scheduler.runtime.torch_runner import Pair, TorchRunner
from scheduler.sampling.rng import CounterRandomness

logger = logging.getLogger(__name__)

# K/V memory when nothing is said: enough for short contexts on a small machine's CPU, and on a
# GPU the share of free memory that leaves room for activations and row buffers.
CPU_KV_BYTES = 1 << 30
CUDA_KV_SHARE = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """What to load and how much memory to take. None leaves a limit to the models."""

    target: ModelSource
    draft: ModelSource | None
    device: str = "auto"
    dtype: DtypeChoice = "auto"
    pack: bool = True
    max_model_len: int | None = None
    draft_max_len: int | None = None
    max_requests: int = 64
    kv_bytes: int | None = None
    block_size: int = 16
    batch_invariant: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPair:
    """A runner with the limits that its models and its memory set.

    `target_row_bytes` and `draft_row_bytes` are those of one token's K/V row in all layers, 0 where
    there is no draft; `law_row_bytes` those of one position's float32 law over the vocabulary.
    """

    runner: TorchRunner
    tokenizer: PreTrainedTokenizerBase
    vocabulary: int
    max_model_len: int
    draft_max_len: int
    target_pool: PoolConfig
    draft_pool: PoolConfig | None
    target_row_bytes: int
    draft_row_bytes: int
    law_row_bytes: int


def create_runner(options: PairOptions, clock: Callable[[], float]) -> LoadedPair:
    """Load, check and size. Raises ModelRefused or ConfigRefused, naming model or setting."""
    device = _device(options)
    tokenizer = load_tokenizer(options.target)
    drafter = None if options.draft is None else load_tokenizer(options.draft)
    if drafter is not None:  # before any weights: a wrong tokenizer is told at once
        check_pair(tokenizer, drafter, len(tokenizer), len(drafter))
    target = load_model(options.target, device=device, dtype=options.dtype, pack=options.pack)
    draft = None
    if options.draft is not None:
        draft = load_model(options.draft, device=device, dtype=options.dtype, pack=options.pack)
    vocabulary = _event_space(options, tokenizer, drafter, target, draft)
    tokens = _pool_tokens(options, device, target, draft)
    max_model_len = _context(options, target, tokens)
    pool = PoolConfig(blocks=tokens // options.block_size, block_size=options.block_size)
    forward = _target_forward(options, target, pool)
    pair = Pair(
        target=forward,
        draft=None if draft is None else TransformersForward(draft, pool),
        vocabulary=vocabulary,
    )
    capabilities = replace(
        _capabilities(target, draft, vocabulary, forward),
        event_space=event_space_digest(tokenizer),
    )
    return LoadedPair(
        runner=TorchRunner(pair, capabilities, CounterRandomness(), clock),
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


def _target_forward(
    options: PairOptions, target: LoadedModel, pool: PoolConfig
) -> TransformersForward | InvariantForward:
    """The target over its pool. A draft has no such mode: where texts are promised (temperature 0,
    shared noise) it only proposes."""
    if options.batch_invariant:
        return invariant_forward(target, pool)
    return TransformersForward(target, pool)


def _event_space(
    options: PairOptions,
    tokenizer: PreTrainedTokenizerBase,
    drafter: PreTrainedTokenizerBase | None,
    target: LoadedModel,
    draft: LoadedModel | None,
) -> int:
    """Ids that both models and the tokenizer know; padded logits past them are cut off."""
    if drafter is not None and draft is not None:
        report = check_pair(tokenizer, drafter, target.head.vocabulary, draft.head.vocabulary)
        return min(report.event_space, report.tokens)
    tokens = max(tokenizer.get_vocab().values()) + 1
    if tokens > target.head.vocabulary:
        raise ModelRefused(
            f"{options.target.path_or_id}: logits for {target.head.vocabulary} ids, but the "
            f"tokenizer uses {tokens}"
        )
    return tokens


def _pool_tokens(
    options: PairOptions, device: torch.device, target: LoadedModel, draft: LoadedModel | None
) -> int:
    """Token rows in each pool: what the memory holds, at most what all requests could fill."""
    each = target.kv_shape.bytes_per_token()
    each += draft.kv_shape.bytes_per_token() if draft is not None else 0
    limit = options.kv_bytes
    if limit is None:
        limit = CPU_KV_BYTES
        if device.type == "cuda":
            limit = int(torch.cuda.mem_get_info(device)[0] * CUDA_KV_SHARE)
    most = options.max_requests * (options.max_model_len or target.max_positions)
    blocks = min(limit // each, most) // options.block_size
    if not blocks:
        raise ConfigRefused(
            f"kv_memory={limit}: one K/V block of {options.block_size} tokens takes "
            f"{each * options.block_size} bytes"
        )
    logger.info(
        "K/V pool: %d blocks of %d tokens, %.0f MiB",
        blocks,
        options.block_size,
        blocks * options.block_size * each / 2**20,
    )
    return blocks * options.block_size


def _context(options: PairOptions, target: LoadedModel, tokens: int) -> int:
    """The context length: as asked, else as long as the model and the pool allow."""
    asked = options.max_model_len
    if asked is not None and asked > target.max_positions:
        raise ConfigRefused(
            f"max_model_len={asked}: the model has {target.max_positions} positions"
        )
    return min(target.max_positions, tokens) if asked is None else asked


def _draft_context(options: PairOptions, draft: LoadedModel | None, most: int) -> int:
    """The draft's own context length, within the target's; 0 without a draft."""
    if draft is None:
        return 0
    return min(options.draft_max_len or draft.max_positions, draft.max_positions, most)


def _capabilities(
    target: LoadedModel,
    draft: LoadedModel | None,
    vocabulary: int,
    forward: TransformersForward | InvariantForward,
) -> Capabilities:
    return Capabilities(
        target=target.identity,
        draft=None if draft is None else draft.identity,
        vocabulary=vocabulary,
        max_positions=target.max_positions,
        draft_max_positions=0 if draft is None else draft.max_positions,
        device=str(target.device),
        software=(
            f"torch {torch.__version__}, transformers {transformers.__version__}, "
            f"{platform.machine()}"
        ),
        numerics=forward.numerics,
    )
