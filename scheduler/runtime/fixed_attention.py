"""Attention of rows in a fixed shape: what `PackedAttention` computes, without the host.

Tables and masks come from the buffers by operations on the device, so that they can be recorded
and replayed for other rows. It knows positions, blocks and masks; nothing of recordings.
"""

import torch
from torch import Tensor

from scheduler.runtime.attention import GroupView, LayerAttention, attend_view
from scheduler.runtime.fixed_rows import FixedRows
from scheduler.runtime.kv_cache import KvPool


class FixedAttention:
    """One launch's attention, as `Attention` says. Built once a launch, asked once a layer."""

    def __init__(self, pool: KvPool, rows: FixedRows, heads: int) -> None:
        self._pool = pool
        self._rows = rows
        self._share = heads // pool.shape.kv_heads
        self._slots = (rows.slots,)
        self._views: dict[int | None, GroupView] = {}

    def attend(self, spec: LayerAttention, query: Tensor, new: Tensor) -> Tensor:
        """Write the rows' K/V, then attend, as `Attention` says."""
        self._pool.layers[spec.layer].index_put_(self._slots, new)
        view = self._views.get(spec.window)
        if view is None:
            view = self._views[spec.window] = self._view(spec.window)
        return attend_view(self._pool, spec, query, view)

    def _view(self, window: int | None) -> GroupView:
        shape, size = self._rows.shape, self._pool.block_size
        positions = self._rows.positions.view(shape.segments, shape.width)
        columns = self._columns(window)
        counted = torch.arange(columns, device=positions.device)
        if window is not None:
            oldest = (positions[:, :1] - window + 1).clamp_(min=0)
            counted = oldest.div_(size, rounding_mode="floor") + counted
        else:
            counted = counted.expand(shape.segments, -1)
        table = self._rows.table.gather(1, counted.clamp(max=shape.columns - 1))
        kv = self._pool.shape
        row = 2 * kv.kv_heads * kv.head_dim
        return GroupView(
            rows=None,
            count=shape.segments,
            width=shape.width,
            table=table.flatten(),
            size=(shape.segments, kv.kv_heads, columns * size, kv.head_dim),
            stride=(columns * size * row, kv.head_dim, row, 1),
            keys_at=0,
            values_at=row // 2,
            mask=self._mask(positions, counted, window),
        )

    def _columns(self, window: int | None) -> int:
        """Blocks to gather: `window - 1` rows before the first row, wherever they begin, and the
        rows themselves."""
        shape, size = self._rows.shape, self._pool.block_size
        if window is None:
            return shape.columns
        return min(shape.columns, (window + shape.width - 2) // size + 2)

    def _mask(self, positions: Tensor, columns: Tensor, window: int | None) -> Tensor:
        """Additive mask [B, 1, width * share, L] of keys in block `columns` [B, c]."""
        size, dtype = self._pool.block_size, self._pool.shape.dtype
        offsets = torch.arange(size, device=positions.device)
        keys = (columns[:, :, None] * size + offsets).flatten(1)[:, None]
        queries = positions[:, :, None]
        hidden = keys > queries
        if window is not None:
            hidden = hidden | (keys <= queries - window)
        mask = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
        mask.masked_fill_(hidden, -torch.inf)
        return mask.repeat_interleave(self._share, dim=1)[:, None]
