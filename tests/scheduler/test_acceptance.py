"""Estimates against sums by hand; what may teach them, and what never leaves a request."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.acceptance import (
    _IDLE_ROUNDS,
    _OWN_WINDOW,
    _POOL_WEIGHT,
    _POOL_WINDOW,
    _STAGE_WEIGHT,
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


def fading(rounds, place, window, only=lambda _: True):
    """Sum of masses at one position, and of ones, over those rounds whose number is wanted: of n
    later observations of the position, wanted or not, each keeps its power."""
    seen = [(each[place], only(n)) for n, each in enumerate(rounds) if len(each) > place]
    kept = [(1.0 - 1.0 / window) ** age for age in reversed(range(len(seen)))]
    shares = [(share * wanted, value) for share, (value, wanted) in zip(kept, seen, strict=True)]
    return sum(share * value for share, value in shares), sum(share for share, _ in shares)


def stage_of(emitted):
    """Stages begin at 0, 32, 64, 128, ..., 2048 tokens."""
    return sum(emitted >= 32 * 2**n for n in range(7))


def pool_by_hand(rounds, stage):
    """What the pool expects at a stage after these masses, one a token."""
    means, found = [_START], []
    for place in range(K):
        mass, base = fading(rounds, place, _POOL_WINDOW)
        means.append((mass + _START_WEIGHT * means[-1]) / (base + _START_WEIGHT))
        start = means[-1] * (found[-1] / means[-2] if found else 1.0)
        mass, base = fading(rounds, place, _POOL_WINDOW, lambda n: stage_of(n) == stage)
        found.append((mass + _STAGE_WEIGHT * start) / (base + _STAGE_WEIGHT))
    return found


def by_hand(rounds):
    """What one request's positions are taken for after these masses, nobody else being there."""
    found, expected = [], []
    for n, masses in enumerate(rounds):
        pool = pool_by_hand(rounds[:n], stage_of(n))
        expected.append(pool[: len(masses)])
    for place, alpha in enumerate(pool_by_hand(rounds, stage_of(len(rounds)))):
        shown, _ = fading(rounds, place, _OWN_WINDOW)
        hoped, _ = fading(expected, place, _OWN_WINDOW)
        start = _POOL_WEIGHT * alpha
        found.append(alpha * (shown + start) / (hoped + start))
    return found


# ---- sums by hand --------------------------------------------------------------------------------


def test_before_anything_is_seen_every_position_is_the_optimistic_start():
    assert alphas(book(1).survivals(1, KIND, K)) == pytest.approx([_START] * K)


@pytest.mark.parametrize("count", [1, 7, 32, 33, 64, 200])
def test_estimates_are_fading_sums_of_masses_over_those_of_bases(count):
    """The pool starts from the position before it, a stage from the pool, a request from both."""
    rounds = [[0.5 + 0.2 * math.sin(n + place) for place in range(1 + n % K)] for n in range(count)]
    found = book(1)
    for masses in rounds:
        found.learn([shown(1, masses)])
    assert alphas(found.survivals(1, KIND, K)) == pytest.approx(by_hand(rounds), rel=1e-9)


def test_a_position_counts_by_its_base():
    """Block verification reaches a position with a weight: five rounds of 0.3 over 0.4 are two
    observations of 0.75, and make older what was seen by as many."""
    found, whole = book(1), book(1)
    for n in range(2000):
        found.learn([shown(1, [0.3], [0.4])])
        if n % 5 in {2, 4}:
            whole.learn([shown(1, [0.75], [1.0])])
        if n in {49, 999, 1999}:  # before and after the window is full
            assert found.known(KIND)[0] == pytest.approx(whole.known(KIND)[0], rel=0.01)
            pair = [each.survivals(1, KIND, 1)[0] for each in (found, whole)]
            assert pair[0] == pytest.approx(pair[1], rel=0.01)


def test_survivals_multiply_and_end_with_the_room():
    found = book(1)
    found.learn([shown(1, [1.0, 0.0])])
    whole = found.survivals(1, KIND, K)
    assert [len(found.survivals(1, KIND, room)) for room in (0, 1, 3, K, 99)] == [0, 1, 3, K, K]
    assert found.survivals(1, KIND, 3) == whole[:3]
    found.enter(1, own_seed=False)  # again, which changes nothing
    assert found.survivals(1, KIND, K) == whole


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


@pytest.mark.parametrize("other", [BLOCK, NGRAM], ids=["policy", "proposer"])
def test_each_proposer_and_policy_has_a_pool_of_its_own(other):
    found = book(1, 2)
    before = found.survivals(2, other, K)
    for _ in range(100):
        found.learn([shown(1, [0.1] * K)])
    assert found.survivals(2, other, K) == before
    low = found.survivals(2, KIND, K)
    assert low < before
    # Of the first kind there is nothing from now on: it fades a little, back to where it started.
    for _ in range(_IDLE_ROUNDS):
        found.learn([shown(1, [0.9] * K, kind=other)])
    assert found.survivals(2, other, K) > before
    assert low < found.survivals(2, KIND, K) < before


# ---- stages of an output -------------------------------------------------------------------------


def outputs(found, count, *, tokens=128, hard=64, deep=1):
    """So many requests, the chances 0.9 at all positions and from the token `hard` on 0.3 at the
    first `deep` ones."""
    for request in range(100, 100 + count):
        found.enter(request, own_seed=False)
        for emitted in range(tokens):
            easy = emitted < hard
            found.learn([shown(request, [0.9 if easy else 0.3] * (K if easy else deep))])
        found.forget(request)


def test_a_part_that_is_hard_for_all_is_foreseen():
    """At the token where it gets hard, for a request that saw nothing but the easy part itself."""
    found = book(1)
    outputs(found, 5)
    early, late = [], []
    for emitted in range(72):
        (early if emitted < 64 else late).append(found.survivals(1, KIND, 1)[0])
        found.learn([shown(1, [0.9 if emitted < 64 else 0.3] * K)])
    assert early == pytest.approx([0.9] * len(early), abs=0.12)
    assert late == pytest.approx([0.3] * len(late), abs=0.12)


def test_deep_positions_that_a_stage_never_showed_are_not_taken_from_an_easy_one():
    """They were seen at 0.9, all of them in the other stage; this one is a third as good at its
    first position, and that is all that is known of it."""
    found = book(1)
    outputs(found, 5)
    found.learn([plain(request=1, committed=64)])
    first, *others = alphas(found.survivals(1, KIND, K))
    assert first == pytest.approx(0.3, abs=0.06)
    assert max(others) < 0.55


def test_what_a_stage_showed_outweighs_the_mean_of_all():
    found = book(1)
    outputs(found, 5, deep=K)
    found.learn([plain(request=1, committed=64)])
    assert alphas(found.survivals(1, KIND, K)) == pytest.approx([0.3] * K, abs=0.05)


def test_a_request_better_than_others_is_so_in_a_stage_that_it_did_not_reach():
    """It had 0.6 where 0.3 was usual; so much better it is taken for further on."""
    found = book(1, 2)
    outputs(found, 5, hard=0, deep=K)
    for _ in range(31):
        found.learn([shown(1, [0.6] * K)])
    found.learn([plain(request=1), plain(request=2, committed=32)])
    better, usual = (found.survivals(each, KIND, 1)[0] for each in (1, 2))
    assert usual == pytest.approx(0.3, abs=0.06)
    assert better > 1.3 * usual


def test_all_of_a_round_are_compared_with_what_was_expected_before_it():
    """None with what another one has just taught: their order changes no account of a request."""
    forward, backward = book(0, 1, 2), book(0, 1, 2)
    groups = [shown(request, [level] * K) for request, level in enumerate((0.9, 0.5, 0.1))]
    forward.learn(groups)
    backward.learn(groups[::-1])
    for request in range(3):
        left, right = (each._own[request].tally for each in (forward, backward))
        assert (left.mass, left.base) == (right.mass, right.base)


def test_an_output_of_any_length_has_a_stage():
    """The last one holds all that is longer."""
    found = book(1)
    found.learn([plain(request=1, committed=2048)])
    last = found._own[1].stage
    for _ in range(40):
        found.learn([plain(request=1, committed=100_000)])
        assert found._own[1].stage == last == stage_of(2048)


def test_plain_rounds_make_an_output_longer_too():
    """The stage goes by all tokens, drafted or not."""
    found = book(1)
    outputs(found, 5)
    for _ in range(64):
        assert found.survivals(1, KIND, 1)[0] == pytest.approx(0.9, abs=0.12)
        found.learn([plain(request=1)])
    assert found.survivals(1, KIND, 1)[0] == pytest.approx(0.3, abs=0.06)


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


def test_what_was_seen_fades_while_nothing_is_seen():
    """By 1/e in 400 rounds, at every stage."""
    found = book(1)
    for _ in range(100):
        found.learn([shown(1, [0.1] * K)])
    before = list(found.known(KIND))
    for _ in range(400):
        found.learn([])
    assert found.known(KIND) == pytest.approx([count / math.e for count in before], rel=0.01)


# ---- what does not leave a request ---------------------------------------------------------------

SHARES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=K)
ROUNDS = st.lists(st.tuples(st.integers(1, 3), SHARES), max_size=30)


def test_a_chosen_seed_does_not_start_the_clock_of_a_pool():
    """A pool that nobody taught has nothing to fade; how long it stood empty changes no bit."""
    books = []
    for early in (True, False):
        found = book(1, 2, 9, own_seed=(9,))
        for _ in range(_IDLE_ROUNDS // 2):
            found.learn([shown(9, [0.5])] if early else [])
        found.learn([shown(1, [0.5])])
        for _ in range(_IDLE_ROUNDS - 1):
            found.learn([])
        books.append(found)
    left, right = (each.survivals(2, KIND, K) for each in books)
    assert left == right


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
