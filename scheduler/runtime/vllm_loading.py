"""Loads one model through vLLM, below its engine: a configuration of its own, layers, weights.

vLLM finds a model's layers by name in the configuration of the call that is being made, and two
models name their layers alike. So a model is bound to its configuration: a call under another one
is an error. It knows checkpoints and vLLM's process-wide state; no rows, no K/V memory.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
import vllm.ir
from huggingface_hub import snapshot_download
from torch.distributed import HashStore, init_process_group, is_initialized  # type: ignore[attr-defined]
from vllm.config import LoggingConfig, VllmConfig, set_current_vllm_config
from vllm.distributed.parallel_state import (
    ensure_model_parallel_initialized,
    init_distributed_environment,
    model_parallel_is_initialized,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import get_forward_context
from vllm.model_executor.model_loader import get_model
from vllm.platforms import current_platform

from scheduler.errors import ConfigRefused, ModelRefused
from scheduler.runner import ModelIdentity
from scheduler.runtime.kv_cache import KvShape
from scheduler.runtime.loading import (
    DtypeChoice,
    ModelSource,
    compute_dtype,
    load_config,
    revision_of,
)
from scheduler.runtime.model_checks import check_config
from scheduler.runtime.vllm_kv import kv_shape

logger = logging.getLogger(__name__)

# Nothing of a repository but its configuration and its safetensors is read.
_FILES = ("*.json", "*.safetensors")
_MOST_REQUESTS = 1024
_CPU_KERNEL = "cpu_attention_with_kv_cache"


class WrongContext(RuntimeError):
    """A model was run under the configuration of another one."""


class CausalModule(Protocol):
    """A language model of vLLM's, as far as it is used here."""

    def __call__(self, *, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Final hidden states [N, H]."""
        ...

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Logits [M, V] of chosen states [M, H], in the type of the weights."""
        ...

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The weights."""
        ...

    def register_forward_pre_hook(self, hook: Callable[..., None]) -> object:
        """Have `hook` called before every call."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmModel:
    """A loaded model and the one configuration that it may run under."""

    identity: ModelIdentity
    module: CausalModule
    config: VllmConfig
    kv_shape: KvShape
    vocabulary: int
    max_positions: int
    block_size: int
    device: torch.device


def load_vllm_model(
    source: ModelSource, *, device: torch.device, dtype: DtypeChoice, block_size: int
) -> VllmModel:
    """Load a causal language model for K/V blocks of `block_size` rows.

    Raises ModelRefused when it cannot be served, ConfigRefused when the vLLM that is installed
    cannot run on `device`.
    """
    check_device(device)
    _follow_our_logging()
    name = source.path_or_id
    checked = load_config(source)
    architecture = check_config(name, checked)
    chosen = compute_dtype(checked, device, dtype)
    try:
        config = _configure(source, chosen, block_size, checked.max_position_embeddings)
        module = _load_module(config, device)
    except Exception as problem:
        reason = str(problem).strip().partition("\n")[0]
        raise ModelRefused(f"{name}: vLLM: {type(problem).__name__}: {reason}") from problem
    _bind(name, module, config)
    label = str(chosen).removeprefix("torch.")
    logger.info("%s: %s, %s by vLLM %s", name, architecture, label, vllm.__version__)
    return VllmModel(
        identity=ModelIdentity(
            name=name,
            revision=revision_of(source, checked),
            architecture=architecture,
            dtype=f"{label}+vllm",
            parameters=sum(weight.numel() for weight in module.parameters()),
        ),
        module=module,
        config=config,
        kv_shape=kv_shape(config, chosen),
        vocabulary=checked.vocab_size,
        max_positions=checked.max_position_embeddings,
        block_size=block_size,
        device=device,
    )


def check_device(device: torch.device) -> None:
    """Raise ConfigRefused when the vLLM that is installed cannot run models on `device`."""
    if current_platform.device_type != device.type:
        raise ConfigRefused(
            f"device={device.type}, runtime=vllm: the vLLM that is installed runs models on "
            f"{current_platform.device_type or 'nothing that is here'}"
        )
    # vLLM goes on without them until the first call.
    if device.type == "cpu" and not hasattr(torch.ops._C, _CPU_KERNEL):  # noqa: SLF001
        raise ConfigRefused(
            "device=cpu, runtime=vllm: its kernels cannot be loaded; they need libnuma "
            "(Debian: apt-get install libnuma1), on x86 AVX2 too"
        )


def _configure(
    source: ModelSource, dtype: torch.dtype, block_size: int, positions: int
) -> VllmConfig:
    """A configuration for one model alone. Eager: rows of a round are of no few sizes."""
    arguments = EngineArgs(
        model=_folder(source),
        skip_tokenizer_init=True,
        dtype=str(dtype).removeprefix("torch."),
        enforce_eager=True,
        max_model_len=positions,
        max_num_seqs=_MOST_REQUESTS,
        max_num_batched_tokens=max(positions, 2 * _MOST_REQUESTS),
        block_size=block_size,
        enable_prefix_caching=False,
        disable_log_stats=True,
        use_tqdm_on_load=False,
        logging_config=LoggingConfig(configure_logging=False),
        # Logits of 16 bits would tie in a few per cent of rows.
        hf_overrides={"head_dtype": "float32"},
    )
    config: VllmConfig = arguments.create_engine_config()
    return config


def _folder(source: ModelSource) -> str:
    """The folder of a checkpoint: itself, or what the hub's client keeps of a repository."""
    if Path(source.path_or_id).is_dir():
        return source.path_or_id
    return str(
        snapshot_download(
            source.path_or_id,
            revision=source.revision,
            token=source.token,
            local_files_only=source.offline,
            allow_patterns=list(_FILES),
        )
    )


def _load_module(config: VllmConfig, device: torch.device) -> CausalModule:
    """Layers and weights, after the steps of vLLM's own workers that they need."""
    with set_current_vllm_config(config):
        _join_no_one(device)
        config.kernel_config.ir_op_priority.set_default()
        vllm.ir.set_default_torch_wrap(config.compilation_config.ir_enable_torch_wrap)
        with _no_accelerator_to_empty():
            module: CausalModule = get_model(vllm_config=config).eval()
    return module


@contextmanager
def _no_accelerator_to_empty() -> Iterator[None]:
    """vLLM's loader empties an accelerator's cache, and a torch without one refuses to."""
    theirs = torch.accelerator.empty_cache
    if not torch.accelerator.is_available():
        torch.accelerator.empty_cache = lambda: None
    try:
        yield
    finally:
        torch.accelerator.empty_cache = theirs


def _join_no_one(device: torch.device) -> None:
    """Be the one rank of all of vLLM's groups, which are the process's: once, for all models."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    if not is_initialized():
        init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    if not model_parallel_is_initialized():
        init_distributed_environment(1, 0, "env://", 0, backend)
        ensure_model_parallel_initialized(1, 1)


def _bind(name: str, module: CausalModule, config: VllmConfig) -> None:
    """Let `module` run under `config` only: elsewhere its layers would read and write the K/V rows
    of the model that has layers of the same names there."""
    own = config.compilation_config.static_forward_context

    def check(*_: object) -> None:
        if get_forward_context().no_compile_layers is not own:
            raise WrongContext(f"{name} was run under the configuration of another model")

    module.register_forward_pre_hook(check)


def _follow_our_logging() -> None:
    """Send vLLM's errors where ours go, it writes to standard output. What it warns of are settings
    that are made here."""
    theirs = logging.getLogger("vllm")
    theirs.handlers.clear()
    theirs.propagate = True
    theirs.setLevel(logging.ERROR)
