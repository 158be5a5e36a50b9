"""Lays ragged rows out in a shape that comes back: equal segments, padded, in buffers that stay.

It knows rows, blocks and integers; no models, no attention, nothing of recordings.

A padded row of a request repeats that request's last row, so that it sees what that one sees. A
padded segment sees the first row of a block that no request has. Neither writes a K/V row that
anybody else reads.
"""

from dataclasses import dataclass

import numpy as np
import torch

from scheduler.runtime.rows import SHORT_CONTEXT, WIDE_ROWS, Integers, PackedRows
from scheduler.sampling.moving import moved

# Up to so many rows a product with weights takes the time of reading them: padding is free.
FEW_ROWS = 64
# Beyond that, how many times its rows and its contexts a call may be padded to.
MOST_PADDED_ROWS = 2
MOST_PADDED_CONTEXT = 4
# Blocks past the requests' own: one that padded segments read, one that padded rows write.
SPARE_BLOCKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedShape:
    """`segments` segments of `width` rows each, `columns` blocks in each one's table."""

    segments: int
    width: int
    columns: int

    @property
    def rows(self) -> int:
        """Rows, padded ones too."""
        return self.segments * self.width


def padded_size(count: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, 16, 24.. that is not below `count`."""
    power = 1 << max(count - 1, 0).bit_length()
    between = power * 3 // 4
    return between if between >= count else power


def shape_of(rows: PackedRows) -> FixedShape | None:
    """The shape that holds `rows`, None where padding would cost more than it saves.

    So do wide segments, which a prompt has, few wide ones among many narrow ones, and one long
    context among short ones.
    """
    short = -(-SHORT_CONTEXT // rows.block_size)
    shape = FixedShape(
        segments=padded_size(len(rows.counts)),
        width=int(rows.counts.max()),
        columns=padded_size(max(rows.blocks.shape[1], short)),
    )
    if shape.width > WIDE_ROWS:
        return None
    if shape.rows > max(FEW_ROWS, MOST_PADDED_ROWS * len(rows.positions)):
        return None
    contexts = np.maximum(rows.starts + rows.counts, SHORT_CONTEXT)
    gathered = shape.segments * shape.columns * rows.block_size
    return shape if gathered <= MOST_PADDED_CONTEXT * int(contexts.sum()) else None


class FixedRows:
    """The buffers of one shape, int64 on `device`.

    `places` [rows] says which row of the call each padded one takes its token from; `positions`,
    `slots` [rows] and `table` [segments, columns] are as in `PackedRows`; the first N of `own`
    [rows] are the padded rows that the call's own N stand in. Blocks from `blocks` on are spare.
    """

    def __init__(self, shape: FixedShape, blocks: int, device: torch.device) -> None:
        self.shape = shape
        self._idle, self._sink = blocks, blocks + 1
        sizes = [shape.rows] * 4 + [shape.segments * shape.columns]
        self._inputs = torch.zeros(sum(sizes), dtype=torch.int64, device=device)
        self.places, self.positions, self.slots, self.own, table = self._inputs.split(sizes)
        self.table = table.view(shape.segments, shape.columns)

    def fill(self, rows: PackedRows) -> None:
        """Bring `rows` into the buffers, all in one copy."""
        parts = (*self._of_rows(rows), self._table_of(rows))
        host = np.concatenate([part.ravel() for part in parts])
        self._inputs.copy_(moved(torch.from_numpy(host), self._inputs.device))

    def bytes(self) -> int:
        """Bytes of the buffers."""
        return self._inputs.nbytes

    def _of_rows(self, rows: PackedRows) -> tuple[Integers, Integers, Integers, Integers]:
        shape, size, live = self.shape, rows.block_size, len(rows.counts)
        firsts = np.cumsum(rows.counts) - rows.counts
        steps = np.arange(shape.width)
        last = rows.counts[:, None] - 1
        places, positions = np.zeros((2, shape.segments, shape.width), dtype=np.int64)
        places[:live] = firsts[:, None] + np.minimum(steps, last)
        positions[:live] = rows.starts[:, None] + np.minimum(steps, last)
        slots = np.full_like(places, self._sink * size)
        slots[live:] = self._idle * size
        columns, offsets = np.divmod(positions[:live], size)
        found = np.take_along_axis(rows.blocks, columns, axis=1) * size + offsets
        own = steps <= last
        slots[:live][own] = found[own]
        taken = np.zeros(shape.rows, dtype=np.int64)
        taken[: len(rows.positions)] = np.flatnonzero(own)
        return places, positions, slots, taken

    def _table_of(self, rows: PackedRows) -> Integers:
        """Past its end a segment repeats its last block, which its mask hides."""
        table = np.full((self.shape.segments, self.shape.columns), self._idle, dtype=np.int64)
        live, known = rows.blocks.shape
        table[:live, :known] = rows.blocks
        table[:live, known:] = rows.blocks[:, -1:]
        return table
