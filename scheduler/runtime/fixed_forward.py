"""PyTorch's own models over buffers that stay in place: calls of fixed shapes beside ragged ones.

It knows models, pools and shapes. It does not know who records a call, nor requests.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from scheduler.config import PoolConfig
from scheduler.runtime.fixed_attention import FixedAttention
from scheduler.runtime.fixed_rows import SPARE_BLOCKS, FixedRows, FixedShape, shape_of
from scheduler.runtime.forward import TransformersForward
from scheduler.runtime.kv_cache import KvPool
from scheduler.runtime.loading import LoadedModel
from scheduler.runtime.rows import PackedRows


class TransformersCall:
    """A `FixedCall` of a model that PyTorch runs. `pool` has the spare blocks past `blocks`."""

    def __init__(self, model: LoadedModel, pool: KvPool, blocks: int, shape: FixedShape) -> None:
        self._model = model
        self._pool = pool
        self._limits = PoolConfig(blocks=blocks, block_size=pool.block_size)
        self._rows = FixedRows(shape, blocks, model.device)
        self._ids = torch.zeros(shape.rows, dtype=torch.int64, device=model.device)

    def fill(self, token_ids: Tensor, rows: PackedRows) -> None:
        """Bring one call's int64 `token_ids` [N] and `rows` into the buffers, padded.

        Raises ValueError when `rows` do not fit the pool, the context or the tokens.
        """
        rows.check_call(len(token_ids), self._model.max_positions)
        rows.check_pool(self._limits.blocks, self._limits.block_size)
        self._rows.fill(rows)
        torch.index_select(token_ids, 0, self._rows.places, out=self._ids)

    def launch(self) -> Tensor:
        """Final hidden states [rows of the shape, H]; writes K/V."""
        attention = FixedAttention(self._pool, self._rows, self._model.heads)
        return self._model.decoder.hidden(self._ids, self._rows.positions, attention)

    def pick(self, states: Tensor, rows: PackedRows) -> Tensor:
        """The call's own rows [N, H], in order."""
        return states.index_select(0, self._rows.own[: len(rows.positions)])

    def bytes(self) -> int:
        """Bytes of the buffers."""
        return self._rows.bytes() + self._ids.nbytes


class FixableTransformers:
    """A `TransformersForward` that also runs calls of fixed shapes, over the same pool."""

    numerics = "plain"
    prepared = 0

    def __init__(self, model: LoadedModel, pool: PoolConfig) -> None:
        whole = PoolConfig(blocks=pool.blocks + SPARE_BLOCKS, block_size=pool.block_size)
        self.inner = TransformersForward(model, whole)
        self.identity = model.identity
        self.vocabulary = self.inner.vocabulary
        self.max_positions = self.inner.max_positions
        self.block_size = pool.block_size
        self.device = model.device
        self._model = model
        self._blocks = pool.blocks
        # All that a context can reach, now: a recorded call reads what is there when it is
        # recorded.
        model.decoder.reach(min(model.max_positions, pool.blocks * pool.block_size))

    def hidden(self, token_ids: Tensor, rows: PackedRows, wanted: Tensor | None = None) -> Tensor:
        """Final hidden states [N, H] of int64 `token_ids` [N] at `rows`, or of the `wanted` rows
        alone; writes K/V.

        Raises ValueError when `rows` do not fit the pool, the context or the tokens.
        """
        rows.check_call(len(token_ids), self.max_positions)
        rows.check_pool(self._blocks, self.block_size)
        return self.inner.hidden(token_ids, rows, wanted)

    def shape_of(self, rows: PackedRows) -> FixedShape | None:
        """The shape that holds `rows`, None where padding would cost more than it saves."""
        return shape_of(rows)

    def fixed(self, shape: FixedShape) -> TransformersCall:
        """Buffers for calls of `shape`."""
        return TransformersCall(self._model, self.inner.pool, self._blocks, shape)

    def logits(self, hidden: Tensor) -> Tensor:
        """Raw next-token logits [M, V] float32 of hidden states [M, H]."""
        return self.inner.logits(hidden)

    def clear_blocks(self, blocks: Sequence[int], first: int = 0) -> None:
        """Zero the K/V rows of a table of blocks from its row `first` on."""
        self.inner.clear_blocks(blocks, first)

    def memory_bytes(self) -> int:
        """Bytes of weights and K/V pool, the spare blocks with it."""
        return self.inner.memory_bytes()
