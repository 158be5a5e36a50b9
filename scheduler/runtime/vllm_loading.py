"""Loads one model through vLLM, below its engine: a configuration of its own, layers, weights.

vLLM finds a model's layers by name in the configuration of the call that is being made, and two
models name their layers alike. So a model is bound to its configuration: a call under another one
is an error. It knows checkpoints and vLLM's process-wide state; no rows, no K/V memory.
"""

import logging
import math
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import torch
import vllm.ir
from huggingface_hub import snapshot_download
from safetensors import safe_open
from torch.distributed import HashStore, init_process_group, is_initialized  # type: ignore[attr-defined]
from transformers import PreTrainedConfig
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
from vllm.plugins import load_general_plugins
from vllm.v1.worker.workspace import (
    current_workspace_manager,
    init_workspace_manager,
    is_workspace_manager_initialized,
)

from scheduler.errors import ConfigRefused, ModelRefused
from scheduler.runner import ModelIdentity
from scheduler.runtime.kv_cache import KvShape
from scheduler.runtime.loading import ModelSource, compute_dtype, load_config, revision_of
from scheduler.runtime.model_checks import QUANTIZATION, check_config, rounds_activations
from scheduler.runtime.vllm_choice import MOST_REQUESTS, VllmOptions
from scheduler.runtime.vllm_kv import kv_shape
from scheduler.runtime.vllm_norms import prefer_compiled_norms

logger = logging.getLogger(__name__)

# Nothing of a repository but its configuration and its safetensors is read.
_FILES = ("*.json", "*.safetensors")
_ITEM_BYTES = {"F32": 4, "I32": 4, "I64": 8, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E5M2": 1}
_HONOURED = frozenset({QUANTIZATION})
# What is said of an error of vLLM's, which may hold a whole configuration.
_REASON = 400
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
    """A loaded model and the one configuration that it may run under. Calls are made `inside` a
    context of its own."""

    identity: ModelIdentity
    module: CausalModule
    config: VllmConfig
    kv_shape: KvShape
    weight_bytes: int
    vocabulary: int
    max_positions: int
    block_size: int
    device: torch.device
    inside: Callable[[], AbstractContextManager[None]] = nullcontext


def load_vllm_model(
    source: ModelSource, *, device: torch.device, options: VllmOptions
) -> VllmModel:
    """Load a causal language model into this process.

    Raises ModelRefused when it cannot be served, ConfigRefused when the vLLM that is installed
    cannot run on `device`.
    """
    check_device(device)
    config = configure(source, device, options)
    with refusing(source, options), set_current_vllm_config(config):
        _be_a_worker(device)
        module = load_module(config)
    return describe(source, config, module, device)


def configure(
    source: ModelSource,
    device: torch.device,
    options: VllmOptions,
    more: Mapping[str, object] = MappingProxyType({}),
) -> VllmConfig:
    """vLLM's configuration for one model alone; `more` are further arguments of its own.

    Raises ModelRefused when the model cannot be served as asked.
    """
    _follow_our_logging()
    checked = load_config(source)
    check_config(source.path_or_id, checked, honoured=_HONOURED)
    _check_sums(source.path_or_id, checked, device)
    positions = checked.max_position_embeddings
    with refusing(source, options):
        config: VllmConfig = EngineArgs(
            model=_folder(source),
            skip_tokenizer_init=True,
            dtype=str(compute_dtype(checked, device, options.dtype)).removeprefix("torch."),
            quantization=options.quantization,
            kv_cache_dtype=options.kv_cache_dtype,
            tensor_parallel_size=options.ranks,
            # Rows of a round are of no few sizes.
            enforce_eager=True,
            max_model_len=positions,
            max_num_seqs=MOST_REQUESTS,
            max_num_batched_tokens=max(positions, 2 * MOST_REQUESTS),
            block_size=options.block_size,
            enable_prefix_caching=False,
            disable_log_stats=True,
            use_tqdm_on_load=False,
            logging_config=LoggingConfig(configure_logging=False),
            # Logits of 16 bits would tie in a few per cent of rows.
            hf_overrides={"head_dtype": "float32"},
            **more,
        ).create_engine_config()
    return config


def _check_sums(name: str, checked: PreTrainedConfig, device: torch.device) -> None:
    """On x86 without VNNI pairs of 8-bit products are added in 16 bits, and overflow."""
    if device.type != "cpu" or platform.machine() != "x86_64":
        return
    if rounds_activations(checked) and not torch.cpu._is_vnni_supported():  # noqa: SLF001
        raise ModelRefused(
            f"{name}: {QUANTIZATION}: activations in 8 bits; on a CPU that needs VNNI, which "
            "this processor has not"
        )


def load_module(config: VllmConfig) -> CausalModule:
    """Layers and weights, after the steps of vLLM's own workers that they need. `config` has to be
    the current one, and this process a rank of vLLM's groups."""
    config.kernel_config.ir_op_priority.set_default()
    if current_platform.is_cpu():
        prefer_compiled_norms()
    vllm.ir.set_default_torch_wrap(config.compilation_config.ir_enable_torch_wrap)
    with _no_accelerator_to_empty():
        module: CausalModule = get_model(vllm_config=config).eval()
    return module


def describe(
    source: ModelSource,
    config: VllmConfig,
    module: CausalModule,
    device: torch.device,
    inside: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> VllmModel:
    """What was loaded, bound to its configuration. Raises ModelRefused when its K/V rows differ
    from layer to layer."""
    name, checked = source.path_or_id, load_config(source)
    _bind(name, module, config)
    kind = str(config.model_config.dtype).removeprefix("torch.")
    label = "+".join((kind, *_held(config), "vllm"))
    architecture = check_config(name, checked, honoured=_HONOURED)
    parameters, size = _weights(config)
    logger.info("%s: %s, %s %s", name, architecture, label, vllm.__version__)
    return VllmModel(
        identity=ModelIdentity(
            name=name,
            revision=revision_of(source, checked),
            architecture=architecture,
            dtype=label,
            parameters=parameters,
        ),
        module=module,
        config=config,
        kv_shape=kv_shape(config),
        weight_bytes=size // config.parallel_config.tensor_parallel_size,
        vocabulary=checked.vocab_size,
        max_positions=checked.max_position_embeddings,
        block_size=config.cache_config.block_size,
        device=device,
        inside=inside,
    )


def _weights(config: VllmConfig) -> tuple[int, int]:
    """Numbers in the checkpoint, and bytes that they take as they are held. The module's own
    parameters tell neither: kernels keep some of them in forms of their own."""
    numbers = size = 0
    for path in Path(config.model_config.model).glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                part = file.get_slice(name)
                count = math.prod(part.get_shape())
                numbers += count
                size += count * _ITEM_BYTES.get(part.get_dtype(), 2)
    if config.model_config.quantization is None:
        size = numbers * config.model_config.dtype.itemsize
    return numbers, size


def _held(config: VllmConfig) -> list[str]:
    """What else the bits of a row depend on: how weights and K/V rows are held, and by how many."""
    cached, ranks = config.cache_config.cache_dtype, config.parallel_config.tensor_parallel_size
    found = [str(config.model_config.quantization)] if config.model_config.quantization else []
    found += [] if cached == "auto" else [f"kv-{cached}"]
    return found + ([f"tp{ranks}"] if ranks > 1 else [])


@contextmanager
def refusing(source: ModelSource, options: VllmOptions) -> Iterator[None]:
    """Turn what vLLM raises for a model or its options into a ModelRefused that names them."""
    try:
        yield
    except Exception as problem:
        asked = {"quantization": options.quantization, "kv_cache_dtype": options.kv_cache_dtype}
        said = "".join(
            f", {name}={value}" for name, value in asked.items() if value not in {None, "auto"}
        )
        reason = " ".join(str(problem).split())[:_REASON]
        raise ModelRefused(
            f"{source.path_or_id}{said}: vLLM: {type(problem).__name__}: {reason}"
        ) from problem


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


def _be_a_worker(device: torch.device) -> None:
    """Set what vLLM's own workers do for the whole process before they load: once, for all models.

    The process is the one rank of all groups. Scratch memory is what some layers, such as those of
    experts, share.
    """
    if not is_workspace_manager_initialized():
        load_general_plugins()
        current_platform.register_triton_kernel_overrides()
        init_workspace_manager(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    if not is_initialized():
        init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    if not model_parallel_is_initialized():
        init_distributed_environment(1, 0, "env://", 0, backend)
        ensure_model_parallel_initialized(1, 1)


def shared_scratch(device: torch.device) -> torch.Tensor | None:
    """A part of the scratch memory that layers on a GPU share, as it stands. Whoever keeps it keeps
    all of it alive: vLLM lets go of it when a layer asks for more."""
    if device.type != "cuda":
        return None
    part: torch.Tensor = current_workspace_manager().get_simultaneous(((1,), torch.uint8))[0]
    return part


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
