"""Loads a checkpoint, picks the fastest decoder that agrees with the unmodified model, names both.

It knows where checkpoints live and how far two forwards may differ. It knows no requests.
"""

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging
from transformers.utils.peft_utils import find_adapter_config_file

from scheduler.config import PoolConfig
from scheduler.errors import ModelRefused
from scheduler.runner import ModelIdentity
from scheduler.runtime.attention import PackedAttention
from scheduler.runtime.decoder import Decoder, ModuleDecoder
from scheduler.runtime.head import OutputHead
from scheduler.runtime.kv_cache import KvPool, KvShape
from scheduler.runtime.linear import packs_exactly
from scheduler.runtime.llama_decoder import LLAMA_FAMILY, LlamaDecoder
from scheduler.runtime.model_checks import check_config, check_report
from scheduler.runtime.rows import Segment
from scheduler.runtime.rows import pack as pack_rows

logger = logging.getLogger(__name__)

DtypeChoice = Literal["auto", "float32", "bfloat16"]

# How far probe logits may be from the unmodified model's, relative to the largest logit. Float32
# differs by rounding in another order of sums; 16-bit activations by a few units in the last place.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 6e-2, torch.float16: 1e-2}

PROBE_TOKENS = 24
PROBE_BLOCK = 4
SAMPLE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where a model is: a folder or a hub id, at `revision`. `offline` never asks the network."""

    path_or_id: str
    revision: str | None = None
    token: str | None = field(default=None, repr=False)
    offline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run over a pool.

    `deviation` is the largest difference of its probe logits from the unmodified model's.
    """

    identity: ModelIdentity
    decoder: Decoder
    head: OutputHead
    kv_shape: KvShape
    heads: int
    max_positions: int
    device: torch.device
    deviation: float

    @property
    def vocabulary(self) -> int:
        """Ids that it has logits for."""
        return self.head.vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    path: str
    half: bool
    build: type[LlamaDecoder] | type[ModuleDecoder]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    decoder: Decoder
    head: OutputHead
    deviation: float
    label: str


def load_model(
    source: ModelSource, *, device: torch.device, dtype: DtypeChoice = "auto", pack: bool = True
) -> LoadedModel:
    """Load a causal language model and check its packed forward against the unmodified one.

    `auto` computes in float32 on a CPU and in the checkpoint's own type elsewhere. `pack` lets
    float32 computation read 16-bit weights where they are exact. Raises ModelRefused.
    """
    name = source.path_or_id
    with _quiet_transformers():
        config = load_config(source)
        architecture = check_config(name, config)
        model = _load_weights(source, config, device, compute_dtype(config, device, dtype))
    chosen = _choose(name, model, device, pack=pack)
    logger.info(
        "%s: %s, %s, probe deviation %.2g", name, architecture, chosen.label, chosen.deviation
    )
    return LoadedModel(
        identity=ModelIdentity(
            name=name,
            revision=revision_of(source, config),
            architecture=architecture,
            dtype=chosen.label,
            parameters=sum(weight.numel() for weight in model.parameters()),
        ),
        decoder=chosen.decoder,
        head=chosen.head,
        kv_shape=_kv_shape(model),
        heads=config.num_attention_heads,
        max_positions=config.max_position_embeddings,
        device=device,
        deviation=chosen.deviation,
    )


def load_tokenizer(source: ModelSource) -> PreTrainedTokenizerBase:
    """The tokenizer of a model. Raises ModelRefused when there is none that can be read."""
    with _quiet_transformers(), _refusing(source.path_or_id):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source.path_or_id,
            revision=source.revision or "main",
            token=source.token,
            local_files_only=source.offline,
            trust_remote_code=False,
        )
    return tokenizer


def load_config(source: ModelSource) -> PreTrainedConfig:
    """The configuration of a model. Raises ModelRefused when it is an adapter or has none."""
    name = source.path_or_id
    with _refusing(name):
        adapter = find_adapter_config_file(
            name,
            revision=source.revision or "main",
            token=source.token,
            local_files_only=source.offline,
        )
    if adapter is not None:
        raise ModelRefused(f"{name}: an adapter (LoRA/PEFT), not a whole model; merge it first")
    with _refusing(name):
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            name,
            revision=source.revision or "main",
            token=source.token,
            local_files_only=source.offline,
            trust_remote_code=False,
        )
    return config


def _load_weights(
    source: ModelSource, config: PreTrainedConfig, device: torch.device, dtype: torch.dtype
) -> PreTrainedModel:
    loader: Any = AutoModelForCausalLM
    with _refusing(source.path_or_id):
        model, report = loader.from_pretrained(
            source.path_or_id,
            config=config,
            revision=source.revision or "main",
            token=source.token,
            local_files_only=source.offline,
            trust_remote_code=False,
            dtype=dtype,
            attn_implementation="eager",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    check_report(source.path_or_id, report)
    whole: PreTrainedModel = model.eval().requires_grad_(requires_grad=False).to(device)
    return whole


def compute_dtype(
    config: PreTrainedConfig, device: torch.device, choice: DtypeChoice
) -> torch.dtype:
    """What to compute in: as chosen, else float32 on a CPU and the checkpoint's type elsewhere."""
    if choice == "bfloat16":
        return torch.bfloat16
    stored = config.dtype
    if choice == "float32" or device.type == "cpu" or stored not in TOLERANCE:
        return torch.float32
    return stored


def _choose(name: str, model: PreTrainedModel, device: torch.device, *, pack: bool) -> _Chosen:
    """Build decoders from the fastest on until one agrees with `model`; drop the others."""
    reference = _reference_logits(model, device)
    limit = TOLERANCE[model.dtype] * max(1.0, reference.abs().max().item())
    deviation = 0.0
    for candidate in _candidates(model, pack=pack):
        decoder = candidate.build(model, half=candidate.half)
        head = OutputHead(model, half=candidate.half)
        logits = _probe_logits(model, decoder, head, device)
        deviation = (logits - reference).abs().max().item()
        label = f"{str(model.dtype).removeprefix('torch.')}+{candidate.path}"
        if deviation <= limit:
            return _Chosen(decoder=decoder, head=head, deviation=deviation, label=label)
        logger.warning(
            "%s: %s dropped, its logits are %.3g off (limit %.3g)", name, label, deviation, limit
        )
    raise ModelRefused(f"{name}: packed logits are {deviation:.3g} off the model's own")


def _candidates(model: PreTrainedModel, *, pack: bool) -> list[_Candidate]:
    lean = type(model).__name__ in LLAMA_FAMILY
    halves = (True, False) if pack and _packs(model) else (False,)
    builds: list[tuple[str, type[LlamaDecoder] | type[ModuleDecoder]]] = [
        ("modules", ModuleDecoder)
    ]
    if lean:
        builds.insert(0, ("lean", LlamaDecoder))
    return [
        _Candidate(path=f"{path}-half" if half else path, half=half, build=build)
        for path, build in builds
        for half in halves
    ]


def _packs(model: PreTrainedModel) -> bool:
    """Whether any linear layer can be packed to float16 without loss."""
    linears = (module for module in model.modules() if isinstance(module, torch.nn.Linear))
    return any(packs_exactly(module.weight) for module in linears)


def _probe_ids(model: PreTrainedModel, device: torch.device) -> torch.Tensor:
    # Any fixed spread of ids will do; a prime stride visits the whole table.
    spread = torch.arange(1, PROBE_TOKENS + 1, device=device) * 7919
    return spread.remainder(model.config.vocab_size)


def _reference_logits(model: PreTrainedModel, device: torch.device) -> torch.Tensor:
    with torch.inference_mode():
        output = model(input_ids=_probe_ids(model, device)[None], use_cache=False)
        logits: torch.Tensor = output.logits[0]
    return logits.to(torch.float32)


def _probe_logits(
    model: PreTrainedModel, decoder: Decoder, head: OutputHead, device: torch.device
) -> torch.Tensor:
    """Probe logits from packed calls: two thirds of the probe first, then the rest row by row."""
    ids = _probe_ids(model, device)
    blocks = tuple(reversed(range(-(-PROBE_TOKENS // PROBE_BLOCK))))
    config = PoolConfig(blocks=len(blocks), block_size=PROBE_BLOCK)
    pool = KvPool(_kv_shape(model), config, device)
    cuts = [0, 2 * PROBE_TOKENS // 3, *range(2 * PROBE_TOKENS // 3 + 1, PROBE_TOKENS + 1)]
    parts = []
    with torch.inference_mode():
        for start, end in pairwise(cuts):
            segment = Segment(start=start, rows=end - start, blocks=blocks)
            rows = pack_rows([segment], PROBE_BLOCK, device)
            attention = PackedAttention(pool, rows, model.config.num_attention_heads)
            decoder.reach(end)
            hidden = decoder.hidden(ids[start:end], rows.positions, attention)
            parts.append(head.logits(hidden))
    return torch.cat(parts)


def _kv_shape(model: PreTrainedModel) -> KvShape:
    config = model.config
    dim: int | None = getattr(config, "head_dim", None)
    return KvShape(
        layers=config.num_hidden_layers,
        kv_heads=config.num_key_value_heads,
        head_dim=dim or config.hidden_size // config.num_attention_heads,
        dtype=model.dtype,
    )


def revision_of(source: ModelSource, config: PreTrainedConfig) -> str:
    """The hub's commit, or a digest of a local folder's files (their ends, for large ones)."""
    folder = Path(source.path_or_id)
    if not folder.is_dir():
        return str(getattr(config, "_commit_hash", None) or source.revision or "main")
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in {".json", ".safetensors", ".bin"}:
            digest.update(f"{path.name}:{path.stat().st_size};".encode())
            with path.open("rb") as file:
                digest.update(file.read(SAMPLE_BYTES))
                file.seek(-min(SAMPLE_BYTES, path.stat().st_size), 2)
                digest.update(file.read())
    return f"sha256:{digest.hexdigest()[:16]}"


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Turn what transformers raises for an unreadable model into a refusal that names it."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelRefused(f"{name}: {reason}") from error


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence advice and progress bars; what matters is refused or logged here."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
