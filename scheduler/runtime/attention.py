"""Attention of packed rows over the paged pool: the one entry for every layer of every model.

It knows positions, blocks and masks. It knows nothing of requests or of how queries were made.
Row u sees key v iff both belong to one segment and `position(v) <= position(u)` (and, in a
sliding-window layer, `position(v) > position(u) - window`).
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from scheduler.runtime.kv_cache import KvPool
from scheduler.runtime.rows import Integers, PackedRows, RowGroup
from scheduler.runtime.threads import one_thread
from scheduler.sampling.moving import moved

# Up to so many bytes of K/V in a layer, one thread of a CPU is faster than waking others.
LITTLE_BYTES = 1 << 21


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAttention:
    """What differs by layer: `softmax(cap(scale * q k))`, `window` in tokens or None for all."""

    layer: int
    scale: float
    window: int | None = None
    softcap: float | None = None


@runtime_checkable
class Attention(Protocol):
    """The attention of one packed call over N rows, asked once a layer."""

    def attend(self, spec: LayerAttention, query: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Write the rows' K/V, then attend.

        `query` [N, heads, head_dim], `new` [N, 2 * kv_heads, head_dim] (K heads, then V heads),
        both rotated already; returns [N, heads * head_dim], all in the pool's dtype. With
        `share = heads / kv_heads`, query head `g * kv_heads + k` reads K/V head `k`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """What one group gathers and sees, in all layers of one window.

    `rows` [count * width] are its padded query rows, None for all in order. `table` are the block
    ids to gather. In the gathered rows, keys are the view `size`, `stride` at `keys_at`, values
    at `values_at`. `mask` is additive [count, 1, width * share, L], None when all is seen.
    """

    rows: torch.Tensor | None
    count: int
    width: int
    table: torch.Tensor
    size: tuple[int, int, int, int]
    stride: tuple[int, int, int, int]
    keys_at: int
    values_at: int
    mask: torch.Tensor | None


class PackedAttention:
    """One packed call's attention. Built once a call, asked once a layer.

    With `share = heads / kv_heads`, query head `g * kv_heads + k` reads K/V head `k`: then the
    heads of a row, its groups first, are rows of their K/V head without a copy, before and after.
    """

    def __init__(self, pool: KvPool, rows: PackedRows, heads: int) -> None:
        pool.check(rows)
        self._pool = pool
        self._rows = rows
        self._slots = (rows.slots,)
        self._kv_heads = pool.shape.kv_heads
        self._dim = pool.shape.head_dim
        self._share = heads // pool.shape.kv_heads
        self._restore = _on_device(rows.restore, rows.slots.device)
        self._views: dict[int | None, list[GroupView]] = {}
        self._little = _is_little(pool, rows)

    def attend(self, spec: LayerAttention, query: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Write the rows' K/V, then attend, as `Attention` says."""
        if not self._little:
            return self._attended(spec, query, new)
        with one_thread():
            return self._attended(spec, query, new)

    def _attended(
        self, spec: LayerAttention, query: torch.Tensor, new: torch.Tensor
    ) -> torch.Tensor:
        self._pool.layers[spec.layer].index_put_(self._slots, new)
        views = self._views.get(spec.window)
        if views is None:
            views = self._views_of(spec.window)
        if self._restore is None:
            return attend_view(self._pool, spec, query, views[0])
        outputs = [attend_view(self._pool, spec, query, view) for view in views]
        return torch.cat(outputs).index_select(0, self._restore)

    def _views_of(self, window: int | None) -> list[GroupView]:
        # A window longer than every context hides nothing.
        used = None if window is None or window > self._rows.highest_position else window
        if used not in self._views:
            self._views[used] = [self._view(group, used) for group in self._rows.groups]
        self._views[window] = self._views[used]
        return self._views[window]

    def _view(self, group: RowGroup, window: int | None) -> GroupView:
        rows, size = self._rows, self._rows.block_size
        starts = rows.starts[group.members]
        ends = starts + rows.counts[group.members]
        oldest = 0 * starts if window is None else np.maximum(starts - window + 1, 0)
        low, high = oldest // size, -(-ends // size)
        columns = low[:, None] + np.arange((high - low).max())
        # Past its own end a segment repeats its last block, which its mask hides.
        table = rows.blocks[group.members[:, None], np.minimum(columns, high[:, None] - 1)]
        gathered = columns.shape[1] * size
        first, length, mask = 0, gathered, None
        if group.query_positions.size == 1:
            first, length = int(oldest[0] - low[0] * size), int(ends[0] - oldest[0])
        else:
            mask = self._mask(group.query_positions - low[:, None] * size, gathered, window)
        row = 2 * self._kv_heads * self._dim
        return GroupView(
            rows=_on_device(group.rows, rows.slots.device),
            count=len(group.members),
            width=group.width,
            table=moved(torch.from_numpy(table.ravel()), rows.slots.device),
            size=(len(group.members), self._kv_heads, length, self._dim),
            stride=(gathered * row, self._dim, row, 1),
            keys_at=first * row,
            values_at=first * row + row // 2,
            mask=mask,
        )

    def _mask(self, queries: Integers, length: int, window: int | None) -> torch.Tensor:
        """Additive mask [B, 1, width * share, length]; `queries` [B, width] count from key 0.

        One ramp holds the mask by `key - query`: zeros from `1 - window` to 0, -inf around them.
        A query's row of the mask is the stretch of the ramp that starts at minus its position.
        """
        device = self._rows.slots.device
        ramp = torch.full((2 * length,), -torch.inf, dtype=self._pool.shape.dtype, device=device)
        ramp[0 if window is None else max(0, length - window) : length] = 0.0
        starts = np.repeat(length - 1 - queries, self._share, axis=1)
        index = moved(torch.from_numpy(starts.ravel()), device)
        return ramp.unfold(0, length, 1).index_select(0, index).view(len(queries), 1, -1, length)


def _is_little(pool: KvPool, rows: PackedRows) -> bool:
    if rows.slots.device.type != "cpu" or torch.get_num_threads() == 1:
        return False
    tokens = int((rows.starts + rows.counts).sum())
    return tokens * pool.shape.bytes_per_token() <= LITTLE_BYTES * pool.shape.layers


def _on_device(host: Integers | None, device: torch.device) -> torch.Tensor | None:
    return None if host is None else moved(torch.from_numpy(host), device)


def attend_view(
    pool: KvPool, spec: LayerAttention, query: torch.Tensor, view: GroupView
) -> torch.Tensor:
    """One group's attention [count * width, heads * head_dim] in one layer, of a call's `query`
    [N, heads, head_dim]."""
    if view.rows is not None:
        query = query.index_select(0, view.rows)
    count, kv_heads, _, dim = view.size
    # Query heads of one K/V head are rows of it: no K/V head is ever repeated in memory.
    query = query.reshape(count, -1, kv_heads, dim).transpose(1, 2)
    gathered = pool.by_block[spec.layer].index_select(0, view.table)
    keys = gathered.as_strided(view.size, view.stride, view.keys_at)
    values = gathered.as_strided(view.size, view.stride, view.values_at)
    if spec.softcap is None:
        output = scaled_dot_product_attention(query, keys, values, view.mask, scale=spec.scale)
    else:
        output = _softcapped(query, keys, values, view.mask, spec)
    return output.transpose(1, 2).reshape(view.count * view.width, -1)


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
