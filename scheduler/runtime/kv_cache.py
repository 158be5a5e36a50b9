"""Holds the paged K/V rows of one model.

It knows blocks, slots and layers; it does not know which request owns a block.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from scheduler.config import PoolConfig
from scheduler.runtime.rows import PackedRows
from scheduler.sampling.moving import integers


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShape:
    """What one token's K/V row takes: `layers` times K and V of [kv_heads, head_dim]."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    def bytes_per_token(self) -> int:
        """Bytes of all layers' K and V for one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


class KvPool:
    """K/V rows of every layer, `blocks * block_size` slots each.

    A layer is one tensor [slots, 2 * kv_heads, head_dim]: K heads first, then V heads, so that a
    row is written and a block is gathered by one operation each. Rows start as zeros: attention
    multiplies masked rows by zero, which only a finite row survives.
    """

    def __init__(self, shape: KvShape, config: PoolConfig, device: torch.device) -> None:
        self.shape = shape
        self.block_size = config.block_size
        self.blocks = config.blocks
        size = (config.blocks * config.block_size, 2 * shape.kv_heads, shape.head_dim)
        self.layers = tuple(
            torch.zeros(size, dtype=shape.dtype, device=device) for _ in range(shape.layers)
        )
        # The same memory seen as whole blocks, for gathering.
        self.by_block = tuple(layer.view(config.blocks, -1) for layer in self.layers)

    def bytes(self) -> int:
        """Bytes of all layers."""
        return sum(layer.nbytes for layer in self.layers)

    def check(self, rows: PackedRows) -> None:
        """Raise ValueError when `rows` do not fit this pool."""
        rows.check_pool(self.blocks, self.block_size)

    def clear_blocks(self, blocks: Sequence[int], first: int = 0) -> None:
        """Zero the rows of a table of blocks from its row `first` on, in every layer: a row that is
        not finite would outlive its request."""
        device = self.layers[0].device
        starts = integers(blocks, device) * self.block_size
        rows = starts[:, None] + torch.arange(self.block_size, device=device)
        slots = rows.flatten()[first:]
        for layer in self.layers:
            layer.index_fill_(0, slots, 0)

    def copy_blocks(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy whole blocks, in every layer: int64 [P] block ids each, targets distinct."""
        for layer in self.by_block:
            layer.index_copy_(0, targets, layer.index_select(0, sources))
