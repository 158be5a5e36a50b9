"""Estimates against sums by hand; what may teach them, and what never leaves a request."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.acceptance import (
    _OWN_WINDOW,
    _POOL_WEIGHT,
    _POOL_WINDOW,
    _START,
    _START_WEIGHT,
    AcceptanceBook,
)
from scheduler.request import ProposerKind
from scheduler.stats import Policy, SpeculationStats
from tests.scheduler.crowds import KIND
from tests.telemetry.rounds import drafted, plain

K = 4
BLOCK = (ProposerKind.DRAFT_MODEL, Policy.BLOCK)
NGRAM = (ProposerKind.NGRAM, Policy.TOKEN)


def book(*requests, own_seed=()):
    found = AcceptanceBook(K)
    for each in requests:
        found.enter(each, own_seed=each in own_seed)
    return found


def shown(request, mass, base=None, *, kind=KIND, k=K):
    """A round that reached so many positions, with these sums at each."""
    base = (1.0,) * len(mass) if base is None else base
    told = SpeculationStats(k=k, accepted=0, reached=len(mass), mass=tuple(mass), base=tuple(base))
    proposer, policy = kind
    return drafted(k, 0, request=request, proposer=proposer, policy=policy, speculation=told)


def alphas(survivals):
    """What each position was taken for, given that it is reached."""
    return [after / before for before, after in pairwise((1.0, *survivals))]


def fading(rounds, place, window):
    """Sum of masses at one position, and of ones: of n later observations each keeps its power."""
    seen = [each[place] for each in rounds if len(each) > place]
    kept = [(1.0 - 1.0 / window) ** age for age in reversed(range(len(seen)))]
    return sum(share * value for share, value in zip(kept, seen, strict=True)), sum(kept)


def by_hand(rounds):
    """What one request's positions are taken for after these masses, nobody else being there."""
    found, pool = [], _START
    for place in range(K):
        mass, base = fading(rounds, place, _POOL_WINDOW)
        pool = (mass + _START_WEIGHT * pool) / (base + _START_WEIGHT)
        mass, base = fading(rounds, place, _OWN_WINDOW)
        found.append((mass + _POOL_WEIGHT * pool) / (base + _POOL_WEIGHT))
    return found


# ---- sums by hand --------------------------------------------------------------------------------


def test_before_anything_is_seen_every_position_is_the_optimistic_start():
    assert alphas(book(1).survivals(1, KIND, K)) == pytest.approx([_START] * K)


@pytest.mark.parametrize("count", [1, 7, 200])
def test_estimates_are_fading_sums_of_masses_over_those_of_bases(count):
    """The pool starts from the position before it, a request from the pool."""
    rounds = [[0.5 + 0.4 * math.sin(n + place) for place in range(1 + n % K)] for n in range(count)]
    found = book(1)
    for masses in rounds:
        found.learn([shown(1, masses)])
    assert alphas(found.survivals(1, KIND, K)) == pytest.approx(by_hand(rounds), rel=1e-9)


def test_a_position_counts_by_its_base():
    """Block verification reaches a position with a weight: 0.3 of 0.4, not of 1."""
    found, whole = book(1), book(1)
    for _ in range(2000):
        found.learn([shown(1, [0.3], [0.4])])
        whole.learn([shown(1, [0.75], [1.0])])
    assert found.survivals(1, KIND, 1)[0] == pytest.approx(0.75, abs=0.05)
    assert found.known(KIND)[0] == pytest.approx(0.4 * whole.known(KIND)[0])


def test_survivals_multiply_and_end_with_the_room():
    found = book(1)
    found.learn([shown(1, [1.0, 0.0])])
    whole = found.survivals(1, KIND, K)
    assert [len(found.survivals(1, KIND, room)) for room in (0, 1, 3, K, 99)] == [0, 1, 3, K, K]
    assert found.survivals(1, KIND, 3) == whole[:3]


# ---- censoring -----------------------------------------------------------------------------------


@pytest.mark.parametrize("reached", [1, 2, 3])
def test_what_lies_behind_the_first_rejection_counts_nowhere(reached):
    """Whether K was just long enough or longer, the same positions were seen."""
    short, long = book(1), book(1)
    for found, k in ((short, reached), (long, K)):
        for _ in range(50):
            found.learn([shown(1, [0.8] * (reached - 1) + [0.0], k=k)])
    assert short.survivals(1, KIND, K) == long.survivals(1, KIND, K)
    assert [count > 0 for count in long.known(KIND)] == [place < reached for place in range(K)]


def test_a_position_nobody_reached_is_taken_for_the_one_before_it():
    found = book(1, 2)
    for _ in range(3000):
        found.learn([shown(1, [0.3])])
    first, *others = alphas(found.survivals(2, KIND, K))
    assert first == pytest.approx(0.3, abs=0.02)
    assert others == pytest.approx([first] * (K - 1))


def test_a_round_without_drafts_and_a_stranger_teach_nothing():
    found = book(1)
    before = found.survivals(1, KIND, K)
    found.learn([plain(request=1), shown(2, [0.0] * K)])
    assert found.survivals(1, KIND, K) == before


# ---- the pool ------------------------------------------------------------------------------------


def test_a_request_without_history_has_the_numbers_of_the_pool():
    found = book(1, 2, 3)
    for _ in range(3000):
        found.learn([shown(1, [0.9, 0.5]), shown(2, [0.5, 0.1])])
    assert alphas(found.survivals(3, KIND, 2)) == pytest.approx([0.7, 0.3], abs=0.02)


def test_a_request_with_much_history_has_nearly_its_own():
    found = book(1, 2)
    for _ in range(3000):
        found.learn([shown(1, [1.0]), shown(2, [0.0])])
    good, bad = (found.survivals(each, KIND, 1)[0] for each in (1, 2))
    share = _POOL_WEIGHT / (_OWN_WINDOW + _POOL_WEIGHT)
    assert share < 0.25
    assert (good, bad) == pytest.approx((1 - share / 2, share / 2), abs=0.01)


def test_what_a_request_taught_stays_when_it_ends():
    found = book(1, 2)
    for _ in range(300):
        found.learn([shown(1, [0.1])])
    before = found.survivals(2, KIND, 1)
    found.forget(1)
    assert found.survivals(2, KIND, 1) == before
    found.enter(1, own_seed=False)
    assert found.survivals(1, KIND, 1) == before


def test_entering_again_keeps_the_account():
    found = book(1)
    found.learn([shown(1, [0.0])])
    before = found.survivals(1, KIND, 1)
    found.enter(1, own_seed=False)
    assert found.survivals(1, KIND, 1) == before


@pytest.mark.parametrize("other", [BLOCK, NGRAM], ids=["policy", "proposer"])
def test_each_proposer_and_policy_has_a_pool_of_its_own(other):
    found = book(1, 2)
    before = found.survivals(2, other, K)
    for _ in range(100):
        found.learn([shown(1, [0.1] * K)])
    assert found.survivals(2, other, K) == before
    low = found.survivals(2, KIND, K)
    assert low < before
    found.learn([shown(1, [0.9] * K, kind=other)])
    assert found.survivals(2, other, K) > before
    # Of the first kind there was nothing: it fades a little, back to where it started.
    assert low < found.survivals(2, KIND, K) < before


# ---- fading --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), [(0.9, 0.2), (0.2, 0.9)])
def test_a_step_change_is_followed(old, new):
    """Half of it within 75 rounds and three quarters within 150; the pool within 450."""
    found = book(1)
    for _ in range(1000):
        found.learn([shown(1, [old])])
    covered = []
    for _ in range(450):
        found.learn([shown(1, [new])])
        covered.append((found.survivals(1, KIND, 1)[0] - old) / (new - old))
    assert covered[74] > 0.5
    assert covered[149] > 0.75
    found.enter(2, own_seed=False)
    assert (found.survivals(2, KIND, 1)[0] - old) / (new - old) > 0.75


# ---- what does not leave a request ---------------------------------------------------------------

SHARES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=K)
ROUNDS = st.lists(st.tuples(st.integers(1, 3), SHARES), max_size=30)


@given(common=ROUNDS, one=st.lists(SHARES, max_size=30), two=st.lists(SHARES, max_size=30))
@settings(deadline=None)
def test_a_request_of_a_chosen_seed_changes_no_bit_for_all_others(common, one, two):
    """Metamorphic: two histories that differ only in what such a request showed."""
    books = []
    for secret in (one, two):
        found = book(1, 2, 3, 9, own_seed=(9,))
        for n in range(max(len(common), len(one), len(two))):
            round_ = [shown(*common[n])] if n < len(common) else []
            found.learn([*round_, shown(9, secret[n])] if n < len(secret) else round_)
        found.enter(4, own_seed=False)
        books.append(found)
    for request in (1, 2, 3, 4):
        left, right = (found.survivals(request, KIND, K) for found in books)
        assert left == right
    assert books[0].known(KIND) == books[1].known(KIND)


def test_a_request_of_a_chosen_seed_learns_from_itself_and_from_the_pool():
    found = book(1, 9, own_seed=(9,))
    start = found.survivals(9, KIND, 1)[0]
    for _ in range(300):
        found.learn([shown(1, [0.5])])
    taught = found.survivals(9, KIND, 1)[0]
    for _ in range(300):
        found.learn([shown(9, [0.0])])
    assert start > taught > found.survivals(9, KIND, 1)[0]


# ---- any input -----------------------------------------------------------------------------------


@st.composite
def masses_and_bases(draw):
    """Of block verification too: bases below 1, masses above theirs by rounding."""
    bases = draw(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=K))
    shares = [draw(st.floats(0.0, 1.0) | st.sampled_from((1.0 + 2.0**-40, 1.5))) for _ in bases]
    return [share * base for share, base in zip(shares, bases, strict=True)], bases


@given(
    told=st.lists(st.tuples(st.sampled_from((1, 9)), masses_and_bases()), max_size=40),
    repeats=st.integers(1, 20),
    kind=st.sampled_from((KIND, BLOCK)),
)
@settings(deadline=None)
def test_survivals_are_chances_that_never_rise(told, repeats, kind):
    found = book(1, 2, 9, own_seed=(9,))
    for _ in range(repeats):
        for request, (mass, base) in told:
            found.learn([shown(request, mass, base, kind=kind)])
    for request in (1, 2, 9):
        survivals = found.survivals(request, kind, K)
        assert len(survivals) == K
        assert all(0.0 <= after <= before <= 1.0 for before, after in pairwise((1.0, *survivals)))
