"""Allocates vLLM's paged K/V memory of one model and binds it to the model's layers.

All that vLLM changes from release to release on this path stands here, written for 0.32: another
release is another version of this file. It knows blocks and layers, no requests and no packed rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from vllm.config import (
    CUDAGraphMode,
    VllmConfig,
    get_layers_from_vllm_config,
    set_current_vllm_config,
)
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata
from vllm.v1.attention.backends.utils import (
    get_supported_kv_cache_layouts,
    resolve_kv_cache_layout,
)
from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups, get_kv_cache_groups
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
from vllm.v1.worker.gpu.attn_utils import (
    AttentionCGSupportInfo,
    get_kv_cache_spec,
    init_attn_backend,
    init_kv_cache,
)
from vllm.v1.worker.utils import AttentionGroup

from scheduler.config import PoolConfig
from scheduler.errors import ModelRefused
from scheduler.runtime.kv_cache import KvShape


def kv_shape(config: VllmConfig) -> KvShape:
    """What one token's K/V row takes in a loaded model (in its share of it, where several processes
    hold it). Raises ModelRefused when layers differ."""
    specs = list(_specs(config).values())
    if len({(spec.num_kv_heads, spec.head_size, spec.dtype) for spec in specs}) != 1:
        raise ModelRefused(
            f"{config.model_config.model}: its layers have K/V rows of several kinds"
        )
    return KvShape(
        layers=len(specs),
        kv_heads=specs[0].num_kv_heads,
        head_dim=specs[0].head_size,
        dtype=specs[0].dtype,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmKv:
    """The K/V memory of one model, bound to its layers.

    `groups` are the layers that share one kind of attention metadata; `layers` all of them by name.
    `computed` is the type that K and V come in, whatever they are kept as. A recorded call of their
    kernels may be replayed for requests of any numbers of rows where it is `ragged`, else for
    requests that have one number of rows, up to `widest` (None for any, 0 for no recording at all).
    """

    groups: Sequence[AttentionGroup]
    layers: Mapping[str, AttentionLayerBase]
    computed: torch.dtype
    ragged: bool
    widest: int | None

    def metadata(self, common: CommonAttentionMetadata) -> dict[str, object]:
        """What each layer's attention needs of one packed call, by layer name, whether it is to be
        recorded or not."""
        # What builders make for a recording (build_for_cudagraph_capture) is the same, but that
        # some, as Triton's, then make all contexts short, in the buffers of a call that is filled.
        built = [(group, group.build_metadata(common)) for group in self.groups]
        return {name: metadata for group, metadata in built for name in group.layer_names}

    def write_zeros(self, slots: torch.Tensor) -> None:
        """Zero the K/V rows at int64 `slots` [n] of all layers, by the write path of each: what a
        row looks like inside a block is the kernels' own business."""
        for layer in self.layers.values():
            size = (len(slots), layer.num_kv_heads, layer.head_size)
            zeros = torch.zeros(size, dtype=self.computed, device=slots.device)
            layer.impl.do_kv_cache_update(layer, zeros, zeros, layer.kv_cache, slots)


def bind_kv(
    config: VllmConfig, pool: PoolConfig, device: torch.device, sizes: Sequence[int] = ()
) -> VllmKv:
    """Allocate `pool` for the model that was loaded under `config`, all zeros. `sizes` are the
    numbers of rows, rising, that calls may be recorded with.

    Raises ModelRefused when the model's layers need block tables of more than one kind or rows of a
    type that no kernel here takes, ValueError when they are bound already: who bound them would go
    on in this memory.
    """
    with set_current_vllm_config(config):
        specs = _specs(config)
        layers = get_layers_from_vllm_config(config, AttentionLayerBase, list(specs))
        if any(layer.kv_cache.numel() for layer in layers.values()):
            raise ValueError(f"{config.model_config.model} has K/V memory already")
        backends = {layer.get_attn_backend() for layer in layers.values()}
        layouts = [layout.name for layout in get_supported_kv_cache_layouts(backends)]
        resolve_kv_cache_layout(config, [layouts], list(specs.values()))
        kv_config = _memory(config, specs, pool)
        if sizes:
            _expect_recordings(config, sizes)
        by_group, info, kernel_sizes = _backends(kv_config, config, device)
        flat = [group for each in by_group for group in each]
        init_kv_cache(
            config.compilation_config.static_forward_context,
            kv_config,
            device,
            kernel_sizes,
            config,
            attn_groups=flat,
        )
    support = info.min_cg_support
    return VllmKv(
        groups=flat,
        layers=layers,
        computed=config.model_config.dtype,
        ragged=support is AttentionCGSupport.ALWAYS,
        widest=_widest(support, flat),
    )


def _memory(
    config: VllmConfig, specs: Mapping[str, KVCacheSpec], pool: PoolConfig
) -> KVCacheConfig:
    """What vLLM is to allocate for `pool`."""
    groups = get_kv_cache_groups(config, specs)
    if len(groups) != 1:
        raise ModelRefused(
            f"{config.model_config.model}: its layers need {len(groups)} kinds of block table, "
            "runtime=vllm serves models that need one"
        )
    config.cache_config.num_gpu_blocks_override = pool.blocks
    memory = pool.blocks * sum(spec.page_size_bytes for spec in specs.values())
    kv_config: KVCacheConfig = get_kv_cache_config_from_groups(config, groups, memory)
    if kv_config.num_blocks != pool.blocks:
        raise RuntimeError(f"{kv_config.num_blocks} blocks for a pool of {pool.blocks}")
    return kv_config


def _expect_recordings(config: VllmConfig, sizes: Sequence[int]) -> None:
    """Have the builders of metadata keep what kernels read in place, and room for these sizes.

    The configuration says that nothing is recorded, for the model was loaded to run without
    compilation; from here on builders alone read this.
    """
    compilation = config.compilation_config
    compilation.cudagraph_mode = CUDAGraphMode.FULL
    compilation.cudagraph_capture_sizes = list(sizes)
    compilation.max_cudagraph_capture_size = sizes[-1]


def _widest(support: AttentionCGSupport, groups: Sequence[AttentionGroup]) -> int | None:
    """How many rows each request of a recorded call may have. Some backends run more than a
    threshold of theirs as a prompt, which they do not record."""
    if support is AttentionCGSupport.NEVER:
        return 0
    if support is AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE:
        return 1
    found = [group.get_metadata_builder().reorder_batch_threshold for group in groups]
    return min((each for each in found if each is not None), default=None)


def _backends(
    kv_config: KVCacheConfig, config: VllmConfig, device: torch.device
) -> tuple[list[list[AttentionGroup]], AttentionCGSupportInfo, list[int]]:
    try:
        found: tuple[list[list[AttentionGroup]], AttentionCGSupportInfo, list[int]] = (
            init_attn_backend(kv_config, config, device)
        )
    except NotImplementedError as problem:
        raise ModelRefused(
            f"{config.model_config.model}, kv_cache_dtype={config.cache_config.cache_dtype}: "
            f"vLLM: {problem}"
        ) from problem
    return found


def _specs(config: VllmConfig) -> dict[str, KVCacheSpec]:
    specs: dict[str, KVCacheSpec] = get_kv_cache_spec(config)
    return specs
