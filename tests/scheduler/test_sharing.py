"""Rows that do not go round: who gets how many."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from scheduler.sharing import Turns, level

WANTED = st.dictionaries(st.integers(0, 40), st.integers(0, 8), max_size=12)
ROWS = st.integers(0, 60)


@given(wanted=WANTED, rows=ROWS, before=st.lists(st.tuples(WANTED, ROWS), max_size=3))
def test_all_rows_are_shared_and_nobody_is_two_behind_another(wanted, rows, before):
    """Whatever was shared before."""
    turns = Turns()
    for each in before:
        turns.share(*each)
    given_ = turns.share(wanted, rows)
    assert given_.keys() == wanted.keys()
    assert sum(given_.values()) == min(rows, sum(wanted.values()))
    most = max(given_.values(), default=0)
    for each, k in given_.items():
        assert 0 <= k <= wanted[each]
        assert k == wanted[each] or k >= most - 1


@given(wanted=WANTED, rows=ROWS)
def test_the_level_is_the_highest_that_all_can_have(wanted, rows):
    found = level(wanted, rows)
    assert sum(min(k, found) for k in wanted.values()) <= rows
    if found < max(wanted.values(), default=0):
        assert sum(min(k, found + 1) for k in wanted.values()) > rows


@given(count=st.integers(1, 12), k=st.integers(1, 8), rows=st.integers(0, 60))
def test_what_is_left_over_goes_round_in_turn(count, k, rows):
    """After as many times as there are requests, all had the same."""
    turns, total = Turns(), Counter()
    for _ in range(count):
        total.update(turns.share(dict.fromkeys(range(count), k), rows))
    assert len(set(total.values())) == 1


def test_the_turn_goes_on_when_requests_come_and_go():
    turns = Turns()
    assert turns.share({1: 1, 2: 1, 3: 1}, 2) == {1: 1, 2: 1, 3: 0}
    assert turns.share({1: 1, 3: 1, 4: 1}, 1) == {1: 0, 3: 1, 4: 0}
    assert turns.share({1: 1, 4: 0, 5: 1}, 1) == {1: 0, 4: 0, 5: 1}
    assert turns.share({1: 1, 5: 1}, 1) == {1: 1, 5: 0}
