"""Attention whose shapes never change: each row alone, its keys in splits of one fixed length.

It knows positions, blocks and masks, as `attention` does. It does not know why a row's bits must
not depend on its company, nor how many rows a call has.

Split j covers keys `[j S, (j + 1) S)` of a row's own context, counted from position 0 whatever the
call. Splits are merged in ascending order by the running maximum, sum and weighted values of
online softmax (Milakov and Gimelshein, arXiv 1805.02867). A split of which a row sees nothing
leaves all three as they were, bit for bit: it multiplies by exp(0) = 1 and adds 0. So a row may be
taken through splits that only its neighbours need.
"""

from dataclasses import dataclass

import numpy as np
import torch

from scheduler.runtime.attention import LayerAttention
from scheduler.runtime.kv_cache import KvPool
from scheduler.runtime.rows import PackedRows
from scheduler.sampling.moving import moved

SPLIT_KEYS = 128
# Below any score, yet finite: exp(m - m) of a row that has seen no key must be 1.
LOWEST = -1e30


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One split of N rows. `index` are the head rows to gather, [2 * N * kv_heads * S] for keys,
    then values; `mask` [N * kv_heads, 1, S] is additive, -inf where a row does not see a key."""

    index: torch.Tensor
    mask: torch.Tensor


class SplitAttention:
    """One call's attention over N rows, whatever segments they belong to. Float32 inside.

    A row's query heads of one K/V head make a product with that row's own keys: nothing of a
    neighbour enters it.
    """

    def __init__(self, pool: KvPool, rows: PackedRows, heads: int) -> None:
        pool.check(rows)
        self._pool = pool
        self._rows = rows
        self._slots = (rows.slots,)
        self._kv_heads = pool.shape.kv_heads
        self._dim = pool.shape.head_dim
        self._share = heads // pool.shape.kv_heads
        self._pairs = len(rows.positions) * pool.shape.kv_heads
        self._owners = np.repeat(np.arange(len(rows.counts)), rows.counts)
        self._splits: dict[int | None, list[Split]] = {}

    def attend(self, spec: LayerAttention, query: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Write the rows' K/V, then attend, as `Attention` says."""
        layer = self._pool.layers[spec.layer]
        layer.index_put_(self._slots, new)
        queries = self._scaled(query, spec)
        highest = queries.new_full((self._pairs, self._share, 1), LOWEST)
        total = torch.zeros_like(highest)
        values = torch.zeros_like(queries)
        for split in self._splits_of(spec.window):
            keys, seen = self._gather(layer, split)
            scores = torch.bmm(queries, keys.transpose(1, 2))
            if spec.softcap is not None:
                scores.tanh_().mul_(spec.softcap)
            scores.add_(split.mask)
            top = torch.maximum(highest, scores.amax(dim=-1, keepdim=True))
            weights = scores.sub_(top).exp_()
            decay = highest.sub_(top).exp_()
            total.mul_(decay).add_(weights.sum(dim=-1, keepdim=True))
            values.mul_(decay).baddbmm_(weights, seen)
            highest = top
        return self._joined(values.div_(total)).to(new.dtype)

    def _scaled(self, query: torch.Tensor, spec: LayerAttention) -> torch.Tensor:
        """Float32 queries [N * kv_heads, share, head_dim] times the scale (over the cap)."""
        scale = spec.scale if spec.softcap is None else spec.scale / spec.softcap
        by_head = query.reshape(-1, self._share, self._kv_heads, self._dim).transpose(1, 2)
        return by_head.to(torch.float32).mul(scale).reshape(self._pairs, self._share, self._dim)

    def _joined(self, values: torch.Tensor) -> torch.Tensor:
        """[N * kv_heads, share, head_dim] back to [N, heads * head_dim]."""
        by_head = values.view(-1, self._kv_heads, self._share, self._dim)
        return by_head.transpose(1, 2).reshape(len(by_head), -1)

    def _gather(self, layer: torch.Tensor, split: Split) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [N * kv_heads, S, head_dim] of one split, float32."""
        gathered = layer.view(-1, self._dim).index_select(0, split.index).to(torch.float32)
        keys, values = gathered.view(2, self._pairs, SPLIT_KEYS, self._dim)
        return keys, values

    def _splits_of(self, window: int | None) -> list[Split]:
        """The splits that any row sees a key of, made once a call."""
        if window not in self._splits:
            rows = self._rows
            oldest = 0 if window is None else max(0, int(rows.starts.min()) - window + 1)
            numbers = range(oldest // SPLIT_KEYS, rows.highest_position // SPLIT_KEYS + 1)
            self._splits[window] = [self._split(number, window) for number in numbers]
        return self._splits[window]

    def _split(self, number: int, window: int | None) -> Split:
        rows, heads = self._rows, self._kv_heads
        keys = np.arange(number * SPLIT_KEYS, (number + 1) * SPLIT_KEYS)
        columns, offsets = np.divmod(keys, rows.block_size)
        # Past its own end a row repeats its last block, which its mask hides.
        columns = np.minimum(columns, rows.blocks.shape[1] - 1)
        slots = rows.blocks[self._owners[:, None], columns] * rows.block_size + offsets
        places = np.arange(2 * heads).reshape(2, 1, heads, 1)
        index = torch.from_numpy((slots[None, :, None, :] * (2 * heads) + places).ravel())
        device = rows.positions.device
        after = moved(torch.from_numpy(keys), device) - rows.positions[:, None]
        hidden = after > 0 if window is None else (after > 0) | (after <= -window)
        mask = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -torch.inf)
        return Split(
            index=moved(index, device),
            mask=mask.repeat_interleave(heads, dim=0)[:, None],
        )
