"""Made-up rounds are legal, fit their engine, and are what their shape says."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.config import PoolConfig
from scheduler.plan import DeviceDraft, HostDraft, Layout, Role
from scheduler.rehearsal import Rehearsal, Shape
from tests.oracles.rig import VOCABULARY, config, tabular_runner

SMALL = config(max_requests=8)


def shapes():
    return st.builds(
        Shape,
        emitters=st.integers(1, 10),
        context=st.integers(1, 100),
        k=st.integers(0, 9),
        modelled=st.booleans(),
    ) | st.builds(
        Shape, emitters=st.integers(1, 10), context=st.integers(1, 100), catch_up=st.integers(0, 99)
    )


def engines():
    """Pools from one that holds a single context to one that holds all."""
    return st.builds(
        lambda blocks, drafts, own: replace(
            SMALL,
            target_pool=PoolConfig(blocks=blocks, block_size=4),
            draft_pool=PoolConfig(blocks=drafts, block_size=8),
            draft_max_len=own,
        ),
        st.integers(24, 90),
        st.integers(1, 40),
        st.integers(1, 96),
    )


@given(shape=shapes(), settings=engines())
def test_a_shape_that_fits_runs(shape, settings):
    """The production runner refuses a block outside the pool, a short table, a shared slot."""
    rehearsal = Rehearsal(settings, VOCABULARY)
    if not rehearsal.fits(shape):
        return
    plan = rehearsal.plan(shape)
    result = tabular_runner(settings)[0].run(plan)
    assert (result.target_rows, result.draft_rows) == (shape.rows, shape.draft_rows)
    assert [group.error for group in result.groups] == [None] * shape.emitters
    for group in plan.groups:
        assert len(group.tokens) == shape.context
        for role, pool in ((Role.TARGET, settings.target_pool), (Role.DRAFT, settings.draft_pool)):
            assert all(0 <= block < pool.blocks for block in group.blocks.get(role, ()))


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"emitters": 9, "k": 0}, False),
        ({"emitters": 8, "k": 5}, True),
        ({"emitters": 8, "k": 6}, False),
        ({"k": 9}, False),
        ({"context": 92, "k": 4}, True),
        ({"context": 93, "k": 4}, False),
        ({"k": 0, "catch_up": 40}, True),
        ({"k": 0, "catch_up": 41}, False),
    ],
)
def test_what_fits(changes, fits):
    shape = replace(Shape(emitters=2, context=41, k=4), **changes)
    assert Rehearsal(SMALL, VOCABULARY).fits(shape) is fits


def tables(settings, shape):
    plan = Rehearsal(settings, VOCABULARY).plan(shape)
    return [group.blocks[Role.TARGET] for group in plan.groups]


def test_written_blocks_are_not_shared_and_others_need_not_be_many():
    shape = Shape(emitters=8, context=90, k=5)
    few = replace(SMALL, target_pool=PoolConfig(blocks=24, block_size=4))
    assert Rehearsal(few, VOCABULARY).fits(shape)
    assert not Rehearsal(few, VOCABULARY).fits(replace(shape, context=89, k=4, emitters=13))
    whole = replace(SMALL, target_pool=PoolConfig(blocks=8 * 24, block_size=4))
    tables = [
        group.blocks[Role.TARGET] for group in Rehearsal(whole, VOCABULARY).plan(shape).groups
    ]
    assert len({block for table in tables for block in table}) == 8 * 24
    tables = [group.blocks[Role.TARGET] for group in Rehearsal(few, VOCABULARY).plan(shape).groups]
    written = [block for table in tables for block in table[89 // 4 :]]
    assert len(set(written)) == len(written) == 16


def test_a_draft_needs_a_draft_pool_with_room():
    shape = Shape(emitters=2, context=41, k=4, modelled=True)
    assert Rehearsal(SMALL, VOCABULARY).fits(shape)
    assert Rehearsal(replace(SMALL, draft_max_len=44), VOCABULARY).fits(shape)
    assert not Rehearsal(replace(SMALL, draft_max_len=43), VOCABULARY).fits(shape)
    assert not Rehearsal(replace(SMALL, draft_pool=None), VOCABULARY).fits(shape)
    tiny = replace(SMALL, draft_pool=PoolConfig(blocks=5, block_size=8))
    assert not Rehearsal(tiny, VOCABULARY).fits(shape)
    assert Rehearsal(replace(SMALL, draft_pool=None), VOCABULARY).fits(
        replace(shape, modelled=False)
    )


@pytest.mark.parametrize(
    ("shape", "drafts"),
    [
        (Shape(emitters=2, context=5), [None, None]),
        (Shape(emitters=1, context=5, k=2), [HostDraft(token_ids=(0, 1))]),
        (
            Shape(emitters=2, context=5, k=2, modelled=True),
            [DeviceDraft(depth=2, rows=4, catch_up=1)] * 2,
        ),
        (
            Shape(emitters=2, context=5, catch_up=3),
            [DeviceDraft(depth=0, rows=1, catch_up=3), None],
        ),
    ],
)
def test_drafts(shape, drafts):
    plan = Rehearsal(SMALL, VOCABULARY).plan(shape)
    assert plan.layout is Layout.REPLAY_FRONTIER
    assert [group.draft for group in plan.groups] == drafts
    assert all(group.request < 0 for group in plan.groups)
    assert {(group.start, group.rows, group.emits) for group in plan.groups} == {(4, 1, True)}
