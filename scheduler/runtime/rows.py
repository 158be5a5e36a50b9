"""Lays out the ragged rows of one packed model call: positions, cache slots, attention groups.

It knows segments of block tables and integers. It knows nothing of models, layers, token ids or
what a row means to a request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

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
    rows: torch.Tensor | None
    query_positions: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """Where the N rows of a call stand, on the device and (small arrays) on the host.

    `positions` and `slots` are int64 [N] tensors; a slot is `block * block_size + offset`.
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
    restore: torch.Tensor | None
    highest_block: int
    highest_position: int


def pack(segments: Sequence[Segment], block_size: int, device: torch.device) -> PackedRows:
    """Lay out `segments` in the order given; row u of the call belongs to exactly one of them.

    Raises ValueError when a segment is empty, its block table too short, or two rows share a slot.
    """
    starts = np.array([segment.start for segment in segments], dtype=np.int64)
    counts = np.array([segment.rows for segment in segments], dtype=np.int64)
    blocks = _block_table(segments, block_size)
    firsts = np.cumsum(counts) - counts
    positions = np.arange(int(counts.sum())) + np.repeat(starts - firsts, counts)
    owners = np.repeat(np.arange(len(segments)), counts)
    slots = blocks[owners, positions // block_size] * block_size + positions % block_size
    if len(set(slots.tolist())) != len(slots):
        raise ValueError("two rows of one packed call share a cache slot")
    groups, restore = _group_rows(starts + counts, counts, firsts, positions, device)
    return PackedRows(
        positions=torch.from_numpy(positions).to(device, non_blocking=True),
        slots=torch.from_numpy(slots).to(device, non_blocking=True),
        block_size=block_size,
        starts=starts,
        counts=counts,
        blocks=blocks,
        groups=groups,
        restore=restore,
        highest_block=int(blocks.max()),
        highest_position=int(positions.max()),
    )


def _block_table(segments: Sequence[Segment], block_size: int) -> Integers:
    """Block ids [S, longest], each row padded with its own last block."""
    if not segments:
        raise ValueError("a packed call needs at least one segment")
    needed = [_blocks_needed(segment, block_size) for segment in segments]
    table = np.empty((len(segments), max(needed)), dtype=np.int64)
    for row, segment, count in zip(table, segments, needed, strict=True):
        row[:count] = segment.blocks[:count]
        row[count:] = row[count - 1]
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
    ends: Integers, counts: Integers, firsts: Integers, positions: Integers, device: torch.device
) -> tuple[tuple[RowGroup, ...], torch.Tensor | None]:
    """The attention groups and the index that undoes their order."""
    memberships = _memberships(ends, counts)
    if len(memberships) == 1 and counts.min() == counts.max():
        width = int(counts[0])
        whole = RowGroup(
            members=memberships[0],
            width=width,
            rows=None,
            query_positions=positions.reshape(-1, width),
        )
        return (whole,), None
    restore = np.empty_like(positions)
    groups = []
    offset = 0
    for members in memberships:
        width = int(counts[members].max())
        steps = np.minimum(np.arange(width), counts[members, None] - 1)
        rows = firsts[members, None] + steps
        # A padded query repeats a row under the same mask, so either copy is that row's output.
        restore[rows.ravel()] = np.arange(offset, offset + rows.size)
        offset += rows.size
        index = torch.from_numpy(rows.ravel()).to(device, non_blocking=True)
        groups.append(
            RowGroup(members=members, width=width, rows=index, query_positions=positions[rows])
        )
    return tuple(groups), torch.from_numpy(restore).to(device, non_blocking=True)


def _memberships(ends: Integers, counts: Integers) -> list[Integers]:
    """Split segments so that no narrow one is padded to more than twice its context.

    Wide segments stand alone; narrow ones make one group for each halving of the longest context,
    so there are at most log2(longest / SHORT_CONTEXT) + 1 of those.
    """
    if len(counts) == 1:
        return [np.zeros(1, dtype=np.int64)]
    narrow = np.flatnonzero(counts <= WIDE_ROWS)
    groups = [np.array([number]) for number in np.flatnonzero(counts > WIDE_ROWS).tolist()]
    while narrow.size:
        longest = int(ends[narrow].max())
        fits = (
            ends[narrow] * 2 > longest
            if longest > SHORT_CONTEXT
            else np.ones(narrow.size, dtype=np.bool_)
        )
        groups.append(narrow[fits])
        narrow = narrow[~fits]
    return groups
