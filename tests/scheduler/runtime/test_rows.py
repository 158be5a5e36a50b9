"""Positions, slots and groups of packed calls."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scheduler.runtime.rows import SHORT_CONTEXT, WIDE_ROWS, Segment, pack

CPU = torch.device("cpu")


@st.composite
def _packs(draw):
    block_size = draw(st.sampled_from([1, 4, 16]))
    sizes = draw(
        st.lists(st.tuples(st.integers(0, 700), st.integers(1, 40)), min_size=1, max_size=9)
    )
    needs = [-(-(start + rows) // block_size) for start, rows in sizes]
    numbers = list(range(sum(needs)))
    random.Random(draw(st.integers(0, 99))).shuffle(numbers)
    segments = [
        Segment(start=start, rows=rows, blocks=tuple(numbers.pop() for _ in range(need)))
        for (start, rows), need in zip(sizes, needs, strict=True)
    ]
    return segments, block_size


@given(_packs())
def test_every_row_stands_at_its_own_position_and_slot(packed):
    segments, block_size = packed
    rows = pack(segments, block_size, CPU)
    positions = [s.start + step for s in segments for step in range(s.rows)]
    slots = [
        s.blocks[(s.start + step) // block_size] * block_size + (s.start + step) % block_size
        for s in segments
        for step in range(s.rows)
    ]
    assert rows.positions.tolist() == positions
    assert rows.slots.tolist() == slots
    assert rows.highest_position == max(positions)
    assert rows.highest_block == max(block for s in segments for block in _used(s, block_size))


@given(_packs())
def test_groups_cover_each_segment_once_and_bound_their_padding(packed):
    segments, block_size = packed
    rows = pack(segments, block_size, CPU)
    members = [number for group in rows.groups for number in group.members.tolist()]
    assert sorted(members) == list(range(len(segments)))
    narrow = 0
    for group in rows.groups:
        ends = [segments[n].start + segments[n].rows for n in group.members.tolist()]
        if len(ends) > 1:
            assert group.width <= WIDE_ROWS
            assert max(ends) < max(2 * min(ends), SHORT_CONTEXT + 1)
        narrow += group.width <= WIDE_ROWS
    assert narrow <= 4  # contexts up to 740: above 370, 185, 128, and the short ones


@given(_packs())
def test_restoring_the_groups_gives_the_packed_order(packed):
    segments, block_size = packed
    rows = pack(segments, block_size, CPU)
    indices = [
        np.arange(len(rows.positions)) if group.rows is None else group.rows
        for group in rows.groups
    ]
    for group, index in zip(rows.groups, indices, strict=True):
        flat = torch.from_numpy(group.query_positions.ravel())
        assert torch.equal(rows.positions[torch.from_numpy(index)], flat)
        owners = np.repeat(group.members, group.width)
        first = np.cumsum([0, *(s.rows for s in segments)])
        for owner, row in zip(owners.tolist(), index.tolist(), strict=True):
            assert first[owner] <= row < first[owner + 1]
    joined = np.concatenate(indices)
    restored = joined if rows.restore is None else joined[rows.restore]
    assert restored.tolist() == list(range(len(rows.positions)))


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([], "at least one segment"),
        ([Segment(start=4, rows=0, blocks=(0, 1))], "holds no row"),
        ([Segment(start=-1, rows=2, blocks=(0,))], "holds no row"),
        ([Segment(start=7, rows=2, blocks=(0, 1))], "9 tokens need 3 blocks of 4, .* has 2"),
        ([Segment(start=0, rows=2, blocks=(-1,))], "block id -1 is negative"),
        (
            [Segment(start=0, rows=2, blocks=(3,)), Segment(start=1, rows=1, blocks=(3,))],
            "share a cache slot",
        ),
    ],
)
def test_impossible_segments_are_refused(segments, message):
    with pytest.raises(ValueError, match=message):
        pack(segments, 4, CPU)


def _used(segment, block_size):
    return segment.blocks[: -(-(segment.start + segment.rows) // block_size)]
