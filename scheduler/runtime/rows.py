"""Lays out the ragged rows of one packed model call: positions, cache slots, attention groups.

It knows segments of block tables and integers. It knows nothing of models, layers, token ids or
what a row means to a request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from scheduler.sampling.moving import moved

Integers = NDArray[np.int64]

# A segment with more rows than this is attended alone: its own work outweighs one more call, and
# its neighbours need no padding to its width.
WIDE_ROWS = 16
# Contexts up to this many tokens share a group whatever their lengths; the padding is cheap.
SHORT_CONTEXT = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One request's share of a packed call.

    `start` is the absolute position of its first row, `rows` their number; `blocks` are its K/V
    block ids from position 0 on.
    """

    start: int
    rows: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Segments attended together, each padded to `width` query rows by repeating its last row.

    `members` [B] are segment numbers. `rows` [B * width] are the packed rows of the padded
    queries, None when they are all packed rows in order. `query_positions` is [B, width].
    """

    members: Integers
    width: int
    rows: Integers | None
    query_positions: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """Where the N rows of a call stand, on the device and (small arrays) on the host.

    `positions` and `slots` are int64 [N] on the device; a slot is `block * block_size + offset`.
    `starts` and `counts` are [S], `blocks` [S, most blocks of one segment]. The groups' outputs,
    concatenated, are put back into packed order by `restore` [N]; None when they already are.
    """

    positions: torch.Tensor
    slots: torch.Tensor
    block_size: int
    starts: Integers
    counts: Integers
    blocks: Integers
    groups: tuple[RowGroup, ...]
    restore: Integers | None
    highest_block: int
    highest_position: int

    def check_call(self, tokens: int, positions: int) -> None:
        """Raise ValueError when they are not the rows of `tokens` inputs, or a model of `positions`
        positions has none for one of them."""
        if tokens != len(self.positions):
            raise ValueError(f"{tokens} tokens for {len(self.positions)} rows")
        if self.highest_position >= positions:
            raise ValueError(f"position {self.highest_position} is past the model's {positions}")

    def check_pool(self, blocks: int, block_size: int) -> None:
        """Raise ValueError when they do not fit a pool of `blocks` blocks."""
        if self.block_size != block_size:
            raise ValueError(
                f"rows packed for blocks of {self.block_size}, the pool has {block_size}"
            )
        if self.highest_block >= blocks:
            raise ValueError(f"block {self.highest_block} is outside the pool of {blocks} blocks")


def pack(segments: Sequence[Segment], block_size: int, device: torch.device) -> PackedRows:
    """Lay out `segments` in the order given; row u of the call belongs to exactly one of them.

    Raises ValueError when a segment is empty, its block table too short, or two rows share a slot.
    """
    starts = np.array([segment.start for segment in segments], dtype=np.int64)
    counts = np.array([segment.rows for segment in segments], dtype=np.int64)
    blocks = _block_table(segments, block_size)
    firsts = np.cumsum(counts) - counts
    owners = np.repeat(np.arange(len(segments)), counts)
    positions = np.arange(len(owners)) + (starts - firsts)[owners]
    columns, offsets = np.divmod(positions, block_size)
    slots = blocks[owners, columns] * block_size + offsets
    if len(set(slots.tolist())) != len(slots):
        raise ValueError("two rows of one packed call share a cache slot")
    groups, restore = _group_rows(segments, firsts, positions)
    return PackedRows(
        positions=moved(torch.from_numpy(positions), device),
        slots=moved(torch.from_numpy(slots), device),
        block_size=block_size,
        starts=starts,
        counts=counts,
        blocks=blocks,
        groups=groups,
        restore=restore,
        highest_block=int(blocks.max()),
        highest_position=max(segment.start + segment.rows for segment in segments) - 1,
    )


def _block_table(segments: Sequence[Segment], block_size: int) -> Integers:
    """Block ids [S, longest], each row padded with its own last block."""
    if not segments:
        raise ValueError("a packed call needs at least one segment")
    needed = [_blocks_needed(segment, block_size) for segment in segments]
    table = np.empty((len(segments), max(needed)), dtype=np.int64)
    for number, (segment, count) in enumerate(zip(segments, needed, strict=True)):
        table[number, :count] = segment.blocks[:count]
        table[number, count:] = segment.blocks[count - 1]
    if table.min() < 0:
        raise ValueError(f"block id {int(table.min())} is negative")
    return table


def _blocks_needed(segment: Segment, block_size: int) -> int:
    if segment.rows < 1 or segment.start < 0:
        raise ValueError(f"a segment of {segment.rows} rows at {segment.start} holds no row")
    needed = -(-(segment.start + segment.rows) // block_size)
    if len(segment.blocks) < needed:
        raise ValueError(
            f"{segment.start + segment.rows} tokens need {needed} blocks of {block_size}, "
            f"the table has {len(segment.blocks)}"
        )
    return needed


def _group_rows(
    segments: Sequence[Segment], firsts: Integers, positions: Integers
) -> tuple[tuple[RowGroup, ...], Integers | None]:
    """The attention groups and the index that undoes their order."""
    memberships = _memberships(segments)
    widths = {segment.rows for segment in segments}
    if len(memberships) == 1 and len(widths) == 1:
        width = widths.pop()
        whole = RowGroup(
            members=np.array(memberships[0]),
            width=width,
            rows=None,
            query_positions=positions.reshape(-1, width),
        )
        return (whole,), None
    restore = np.empty_like(positions)
    groups = []
    offset = 0
    for members in memberships:
        counts = np.array([segments[number].rows for number in members])
        width = int(counts.max())
        rows = firsts[members, None] + np.minimum(np.arange(width), counts[:, None] - 1)
        # A padded query repeats a row under the same mask, so either copy is that row's output.
        restore[rows.ravel()] = np.arange(offset, offset + rows.size)
        offset += rows.size
        group = RowGroup(
            members=np.array(members),
            width=width,
            rows=rows.ravel(),
            query_positions=positions[rows],
        )
        groups.append(group)
    return tuple(groups), restore


def _memberships(segments: Sequence[Segment]) -> list[list[int]]:
    """Split segment numbers so that no narrow segment is padded to more than twice its context.

    Wide segments stand alone; narrow ones make one group for each halving of the longest context,
    so there are at most log2(longest / SHORT_CONTEXT) + 1 of those.
    """
    groups = [[n] for n, segment in enumerate(segments) if segment.rows > WIDE_ROWS]
    narrow = [n for n, segment in enumerate(segments) if segment.rows <= WIDE_ROWS]
    ends = [segment.start + segment.rows for segment in segments]
    while narrow:
        longest = max(ends[number] for number in narrow)
        least = 0 if longest <= SHORT_CONTEXT else longest // 2
        groups.append([number for number in narrow if ends[number] > least])
        narrow = [number for number in narrow if ends[number] <= least]
    return groups
