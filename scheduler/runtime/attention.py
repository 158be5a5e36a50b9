"""Attention of packed rows over the paged pool: the one entry for every layer of every model.

It knows positions, blocks and masks. It knows nothing of requests or of how queries were made.
Row u sees key v iff both belong to one segment and `position(v) <= position(u)` (and, in a
sliding-window layer, `position(v) > position(u) - window`).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from scheduler.runtime.kv_cache import KvPool
from scheduler.runtime.rows import PackedRows, RowGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAttention:
    """What differs by layer: `softmax(cap(scale * q k))`, `window` in tokens or None for all."""

    layer: int
    scale: float
    window: int | None = None
    softcap: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyView:
    """The keys that one group gathers, all layers with one window alike.

    `table` [B * blocks] are block ids; of the gathered rows of each segment those in
    `first : last` are used. `mask` is additive [B, 1, width * queries per K/V head, L], None when
    every gathered key is seen.
    """

    table: torch.Tensor
    first: int
    last: int
    mask: torch.Tensor | None


class PackedAttention:
    """One packed call's attention. Built once a call, asked once a layer.

    `heads` query heads share the pool's K/V heads in equal groups, consecutive ones together.
    """

    def __init__(self, pool: KvPool, rows: PackedRows, heads: int) -> None:
        pool.check(rows)
        self._pool = pool
        self._rows = rows
        self._slots = (rows.slots,)
        self._kv_heads = pool.shape.kv_heads
        self._share = heads // pool.shape.kv_heads
        self._longest = rows.highest_position + 1
        self._views: dict[int | None, list[KeyView]] = {}

    def attend(self, spec: LayerAttention, query: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Write the rows' K/V, then attend.

        `query` [N, heads, head_dim], `new` [N, 2 * kv_heads, head_dim] (K heads, then V heads),
        both rotated already; returns [N, heads * head_dim], all in the pool's dtype.
        """
        self._pool.layers[spec.layer].index_put_(self._slots, new)
        views = self._views_of(spec.window)
        rows = self._rows
        outputs = [
            self._attend_group(spec, query, group, view)
            for group, view in zip(rows.groups, views, strict=True)
        ]
        if rows.restore is None:
            return outputs[0]
        return torch.cat(outputs).index_select(0, rows.restore)

    def _attend_group(
        self, spec: LayerAttention, query: torch.Tensor, group: RowGroup, view: KeyView
    ) -> torch.Tensor:
        count, width, dim = len(group.members), group.width, query.shape[-1]
        if group.rows is not None:
            query = query.index_select(0, group.rows)
        # Query heads of one K/V head become rows of it: no K/V head is ever repeated in memory.
        query = query.view(count, width, self._kv_heads, self._share, dim)
        query = query.transpose(1, 2).reshape(count, self._kv_heads, width * self._share, dim)
        gathered = self._pool.by_block[spec.layer].index_select(0, view.table)
        gathered = gathered.view(count, -1, 2 * self._kv_heads, dim)
        both = gathered[:, view.first : view.last].transpose(1, 2)
        keys, values = both[:, : self._kv_heads], both[:, self._kv_heads :]
        if spec.softcap is None:
            output = scaled_dot_product_attention(query, keys, values, view.mask, scale=spec.scale)
        else:
            output = _softcapped(query, keys, values, view.mask, spec)
        if width == 1:
            return output.reshape(count, -1)
        output = output.view(count, self._kv_heads, width, self._share, dim).transpose(1, 2)
        return output.reshape(count * width, -1)

    def _views_of(self, window: int | None) -> list[KeyView]:
        if window is not None and window >= self._longest:
            window = None
        views = self._views.get(window)
        if views is None:
            views = [self._view(group, window) for group in self._rows.groups]
            self._views[window] = views
        return views

    def _view(self, group: RowGroup, window: int | None) -> KeyView:
        rows, size = self._rows, self._rows.block_size
        starts, ends = rows.starts[group.members], (rows.starts + rows.counts)[group.members]
        oldest = np.zeros_like(starts) if window is None else np.maximum(starts - window + 1, 0)
        low, high = oldest // size, -(-ends // size)
        columns = low[:, None] + np.arange(int((high - low).max()))
        # Past its own end a segment repeats its last block, which its mask hides.
        table = rows.blocks[group.members[:, None], np.minimum(columns, high[:, None] - 1)]
        device = rows.slots.device
        index = torch.from_numpy(table.ravel()).to(device, non_blocking=True)
        if group.query_positions.size == 1:
            base = int(low[0]) * size
            first, last = int(oldest[0]) - base, int(ends[0]) - base
            return KeyView(table=index, first=first, last=last, mask=None)
        length = columns.shape[1] * size
        keys = torch.from_numpy(low * size).to(device)[:, None] + torch.arange(
            length, device=device
        )
        queries = torch.from_numpy(group.query_positions).to(device)
        return KeyView(table=index, first=0, last=length, mask=self._mask(queries, keys, window))

    def _mask(self, queries: torch.Tensor, keys: torch.Tensor, window: int | None) -> torch.Tensor:
        """Additive mask from positions: queries [B, width], keys [B, L]."""
        behind = queries[:, :, None] - keys[:, None, :]
        hidden = behind < 0 if window is None else (behind < 0) | (behind >= window)
        mask = torch.zeros(hidden.shape, dtype=self._pool.shape.dtype, device=hidden.device)
        mask.masked_fill_(hidden, -torch.inf)
        count, width, length = mask.shape
        shared = mask[:, :, None].expand(count, width, self._share, length)
        return shared.reshape(count, 1, width * self._share, length)


def _softcapped(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    spec: LayerAttention,
) -> torch.Tensor:
    """Attention with scores capped to `cap * tanh(score / cap)`, softmax in float32 (Gemma 2)."""
    if spec.softcap is None:
        raise ValueError("the softcapped path needs a cap")
    scores = torch.matmul(query, keys.transpose(2, 3))
    scores = scores.mul_(spec.scale / spec.softcap).tanh_().mul_(spec.softcap)
    if mask is not None:
        scores.add_(mask)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)
    return torch.matmul(weights, values)
