"""Sequences that grow in a store they share: each stays what it was, whatever grows beside it."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.tokens import Tokens, tokens_of
from tests.oracles.rig import Rig, request

IDS = st.lists(st.integers(0, 2), max_size=4).map(tuple)
GROWTHS = st.lists(st.tuples(st.integers(0, 30), IDS), max_size=12)


def grown(first, growths):
    """(tokens, the tuple that they are) pairs: each growth extends one that was there before."""
    found = [(tokens_of(first), first)]
    for which, ids in growths:
        tokens, told = found[which % len(found)]
        found.append((tokens.extended(ids), told + ids))
    return found


@given(IDS, GROWTHS)
def test_every_one_stays_the_tuple_that_it_was(first, growths):
    found = grown(first, growths)
    for tokens, told in found:
        assert tokens == told
        assert told == tokens
        assert (len(tokens), list(tokens), hash(tokens)) == (len(told), list(told), hash(told))
        assert [tokens[place] for place in range(-len(told), len(told))] == [*told, *told]
        assert tokens + first == told + first
        for part in (slice(1, None), slice(None, -1), slice(-3, 2), slice(None, None, -1)):
            assert tokens[part] == told[part]
    for tokens, told in found:
        assert [tokens == other for other, _ in found] == [told == each for _, each in found]


@given(IDS, GROWTHS, IDS)
def test_what_continues_what(first, growths, ids):
    found = grown(first, growths)
    for tokens, told in found:
        for start, begun in found:
            assert tokens.continues(start, ids) == (told == begun + ids)
            assert tokens.continues(begun, ids) == (told == begun + ids)


def test_a_start_that_is_another_one_is_looked_at_whole():
    assert not tokens_of((1, 2, 3)).continues(tokens_of((9, 2)), (3,))
    assert not tokens_of((1, 2, 3)).continues((9, 2), (3,))


@pytest.mark.parametrize("place", [3, -4])
def test_nothing_stands_past_its_own_end(place):
    short = tokens_of((1, 2, 3))
    short.extended((4, 5))
    with pytest.raises(IndexError):
        short[place]


def test_a_copy_is_a_tuple():
    tokens = tokens_of((1, 2)).extended((3,))
    sent = pickle.loads(pickle.dumps(tokens))  # noqa: S301 - our own bytes
    for copied in (sent, copy.deepcopy(tokens)):
        assert type(copied) is tuple
        assert copied == (1, 2, 3)
    assert repr(tokens) == "(1, 2, 3)"
    assert tokens != [1, 2, 3]


def test_a_retry_and_a_round_after_it_copy_nothing():
    """State, plan and successor look at one store, also where a round is staged twice."""
    rig = Rig()
    rig.submit(request(1, (1, 2, 3), max_tokens=20))
    store = rig.book.ledger.state(1).tokens._store
    for _ in range(4):
        plan, jobs = rig.plan()
        result, _ = rig.execute(plan, jobs)
        _, (staged,) = rig.execute(plan, jobs)
        for tokens in (plan.groups[0].tokens, jobs[0].state.tokens, staged.successor.tokens):
            assert isinstance(tokens, Tokens)
            assert tokens.stands_in(store)
        rig.land(jobs, (staged,), result)
