"""The forward of one model that vLLM's layers and attention kernels run, over vLLM's paged K/V.

It turns packed rows into vLLM's attention metadata and asks for logits of the rows that are needed.
Nothing of vLLM's scheduler, sampler or engine takes part. It knows no requests and no drafts.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

import numpy as np
import torch
from vllm.config import CUDAGraphMode
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata

from scheduler.config import PoolConfig
from scheduler.runner import ModelIdentity
from scheduler.runtime.rows import PackedRows
from scheduler.runtime.vllm_kv import bind_kv
from scheduler.runtime.vllm_loading import VllmModel

# vLLM keeps the call that is being made in a variable of its module: one call at a time, whichever
# of the models it is of.
_CALLING = Lock()


class VllmForward:
    """A loaded model with K/V memory of its own."""

    numerics = "plain"

    def __init__(self, model: VllmModel, pool: PoolConfig) -> None:
        """Raises ValueError when the model was loaded for blocks of another size."""
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
        self.kv = bind_kv(model.config, pool, model.device)
        self._pool = pool

    def hidden(self, token_ids: torch.Tensor, rows: PackedRows) -> torch.Tensor:
        """Final hidden states [N, H] of int64 `token_ids` [N] at `rows`; writes K/V.

        Raises ValueError when `rows` do not fit the pool, the context or the tokens, RuntimeError
        when another thread is inside a call of any model.
        """
        rows.check_call(len(token_ids), self.max_positions)
        rows.check_pool(self._pool.blocks, self._pool.block_size)
        with _one_call(), self.model.inside(), torch.inference_mode():
            metadata = self.kv.metadata(_metadata(rows))
            with set_forward_context(
                metadata,
                self.model.config,
                num_tokens=len(token_ids),
                cudagraph_runtime_mode=CUDAGraphMode.NONE,
                slot_mapping=dict.fromkeys(self.kv.layers, rows.slots),
            ):
                hidden: torch.Tensor = self.model.module(
                    input_ids=token_ids, positions=rows.positions
                )
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Raw next-token logits [M, V] float32 of hidden states [M, H]."""
        with _one_call(), self.model.inside(), torch.inference_mode():
            logits: torch.Tensor = self.model.module.compute_logits(hidden)
        return logits.float()

    def clear_blocks(self, blocks: Sequence[int], first: int = 0) -> None:
        """Zero the K/V rows of a table of blocks from its row `first` on."""
        size = self.block_size
        slots = np.add.outer(np.asarray(blocks, dtype=np.int64) * size, np.arange(size)).ravel()
        with torch.inference_mode():
            self.kv.write_zeros(torch.from_numpy(slots[first:]).to(self.device))

    def memory_bytes(self) -> int:
        """Bytes of weights and K/V memory."""
        rows = self._pool.blocks * self._pool.block_size
        return self.model.weight_bytes + rows * self.model.kv_shape.bytes_per_token()


@contextmanager
def _one_call() -> Iterator[None]:
    if not _CALLING.acquire(blocking=False):
        raise RuntimeError("two threads run vLLM models at once")
    try:
        yield
    finally:
        _CALLING.release()


def _metadata(rows: PackedRows) -> CommonAttentionMetadata:
    """The rows of a call as vLLM describes them: ends [S + 1], lengths [S], block tables [S, b]."""
    device = rows.positions.device
    bounds = torch.from_numpy(np.concatenate(([0], rows.counts.cumsum())).astype(np.int32))
    lengths = torch.from_numpy((rows.starts + rows.counts).astype(np.int32))
    tables = torch.from_numpy(rows.blocks.astype(np.int32))
    return CommonAttentionMetadata(
        query_start_loc=bounds.to(device, non_blocking=True),
        query_start_loc_cpu=bounds,
        seq_lens=lengths.to(device, non_blocking=True),
        seq_lens_cpu_upper_bound=lengths,
        num_reqs=len(rows.counts),
        num_actual_tokens=len(rows.positions),
        max_query_len=int(rows.counts.max()),
        max_seq_len=rows.highest_position + 1,
        block_table_tensor=tables.to(device, non_blocking=True),
        slot_mapping=rows.slots,
        causal=True,
    )
