"""The forward of one model that vLLM's layers and attention kernels run, over vLLM's paged K/V.

It turns packed rows into vLLM's attention metadata and asks for logits of the rows that are needed.
Nothing of vLLM's scheduler, sampler or engine takes part. It knows no requests and no drafts.
"""

from collections.abc import Sequence

import numpy as np
import torch
from vllm.v1.attention.backend import CommonAttentionMetadata

from scheduler.config import PoolConfig
from scheduler.runner import ModelIdentity
from scheduler.runtime.decoder import chosen
from scheduler.runtime.forward import Forward
from scheduler.runtime.graphs import GraphedForward, Record
from scheduler.runtime.rows import PackedRows
from scheduler.runtime.vllm_call import CallInputs, one_call, run_layers
from scheduler.runtime.vllm_fixed import SIZES, VllmBuffers, VllmCall, VllmShape, shape_of
from scheduler.runtime.vllm_kv import bind_kv
from scheduler.runtime.vllm_loading import VllmModel
from scheduler.sampling.moving import moved


class VllmForward:
    """A loaded model with K/V memory of its own."""

    numerics = "plain"
    prepared = 0

    def __init__(self, model: VllmModel, pool: PoolConfig, *, fixed: bool = False) -> None:
        """With `fixed`, calls of some shapes can be made in buffers that stay in place.

        Raises ValueError when the model was loaded for blocks of another size.
        """
        if pool.block_size != model.block_size:
            raise ValueError(
                f"blocks of {pool.block_size} rows, but {model.identity.name} was loaded for "
                f"blocks of {model.block_size}"
            )
        self.identity: ModelIdentity = model.identity
        self.vocabulary = model.vocabulary
        self.max_positions = model.max_positions
        self.block_size = pool.block_size
        self.device = model.device
        self.model = model
        self.kv = bind_kv(model.config, pool, model.device, SIZES if fixed else ())
        self._pool = pool
        self._buffers = (
            VllmBuffers(model.max_positions, pool.block_size, model.device) if fixed else None
        )

    def hidden(
        self, token_ids: torch.Tensor, rows: PackedRows, wanted: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Final hidden states [N, H] of int64 `token_ids` [N] at `rows`, or of the `wanted` rows
        alone; writes K/V.

        Raises ValueError when `rows` do not fit the pool, the context or the tokens, RuntimeError
        when another thread is inside a call of any model.
        """
        rows.check_call(len(token_ids), self.max_positions)
        rows.check_pool(self._pool.blocks, self._pool.block_size)
        inputs = CallInputs(token_ids=token_ids, positions=rows.positions, slots=rows.slots)
        with one_call(self.model):
            metadata = self.kv.metadata(_metadata(rows))
            return chosen(run_layers(self.model, self.kv, metadata, inputs), wanted)

    def shape_of(self, rows: PackedRows) -> VllmShape | None:
        """The shape that holds `rows` in buffers that stay in place, None where there is none."""
        return None if self._buffers is None else shape_of(rows, self.kv, self.max_positions)

    def fixed(self, shape: VllmShape) -> VllmCall:
        """A call of `shape`. Raises ValueError for a forward that was made without them."""
        if self._buffers is None:
            raise ValueError(f"no buffers for {shape}")
        return VllmCall(self.model, self.kv, self._pool, self._buffers, shape)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Raw next-token logits [M, V] float32 of hidden states [M, H]."""
        with one_call(self.model):
            logits: torch.Tensor = self.model.module.compute_logits(hidden)
        return logits.float()

    def clear_blocks(self, blocks: Sequence[int], first: int = 0) -> None:
        """Zero the K/V rows of a table of blocks from its row `first` on."""
        size = self.block_size
        slots = np.add.outer(np.asarray(blocks, dtype=np.int64) * size, np.arange(size)).ravel()
        with torch.inference_mode():
            self.kv.write_zeros(moved(torch.from_numpy(slots[first:]), self.device))

    def memory_bytes(self) -> int:
        """Bytes of weights, K/V memory and buffers."""
        rows = self._pool.blocks * self._pool.block_size
        buffers = 0 if self._buffers is None else self._buffers.bytes()
        return self.model.weight_bytes + rows * self.model.kv_shape.bytes_per_token() + buffers


def vllm_forward(model: VllmModel, record: Record | None, pool: PoolConfig) -> Forward:
    """The forward of `model` over K/V memory of its own; with `record` its calls are replayed."""
    if record is None:
        return VllmForward(model, pool)
    return GraphedForward(VllmForward(model, pool, fixed=True), record)


def _metadata(rows: PackedRows) -> CommonAttentionMetadata:
    """The rows of a call as vLLM describes them: ends [S + 1], lengths [S], block tables [S, b]."""
    device = rows.positions.device
    bounds = torch.from_numpy(np.concatenate(([0], rows.counts.cumsum())).astype(np.int32))
    lengths = torch.from_numpy((rows.starts + rows.counts).astype(np.int32))
    tables = torch.from_numpy(rows.blocks.astype(np.int32))
    return CommonAttentionMetadata(
        query_start_loc=moved(bounds, device),
        query_start_loc_cpu=bounds,
        seq_lens=moved(lengths, device),
        seq_lens_cpu_upper_bound=lengths,
        num_reqs=len(rows.counts),
        num_actual_tokens=len(rows.positions),
        max_query_len=int(rows.counts.max()),
        max_seq_len=rows.highest_position + 1,
        block_table_tensor=moved(tables, device),
        slot_mapping=rows.slots,
        causal=True,
    )
