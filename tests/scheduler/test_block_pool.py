"""The block pool against a set of held blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.block_pool import BlockPool

MOVES = st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=30)


@given(size=st.integers(1, 12), moves=MOVES)
def test_it_behaves_like_a_set(size, moves):
    pool = BlockPool(size, 4)
    held = []
    for allocates, count in moves:
        if allocates:
            taken = pool.try_allocate(count)
            if count > size - len(held):
                assert taken is None
            else:
                assert len(set(taken)) == count
                assert set(taken).isdisjoint(held)
                assert set(taken) <= set(range(size))
                held += taken
        else:
            given_back, held = held[:count], held[count:]
            pool.free(given_back)
        assert pool.num_free == size - len(held)
        stats = pool.stats()
        assert (stats.used, stats.free, stats.cached) == (len(held), size - len(held), 0)
        pool.check_integrity(held)


@given(size=st.integers(1, 9), rows=st.integers(0, 100))
def test_blocks_for_is_the_least_count_that_holds_the_rows(size, rows):
    count = BlockPool(1, size).blocks_for(rows)
    assert count * size >= rows
    assert count == 0 or (count - 1) * size < rows


def test_a_block_is_freed_once():
    pool = BlockPool(4, 2)
    taken = pool.try_allocate(2)
    pool.free(taken[:1])
    with pytest.raises(ValueError, match="not held"):
        pool.free(taken[:1])
    pool.check_integrity(taken[1:])


def test_the_block_freed_last_is_used_first():
    pool = BlockPool(4, 2)
    first, second = pool.try_allocate(2)
    pool.free([first])
    pool.free([second])
    assert pool.try_allocate(1) == (second,)


@pytest.mark.parametrize("claimed", [(), (0,), (0, 1, 2), (0, 0, 1), (1, 2)])
def test_integrity_names_what_differs(claimed):
    pool = BlockPool(4, 2)
    assert set(pool.try_allocate(2)) == {0, 1}
    with pytest.raises(ValueError, match="blocks held"):
        pool.check_integrity(claimed)
