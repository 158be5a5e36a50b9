"""The closed forms against worked numbers, enumerated laws in exact fractions, and properties."""

import math
from fractions import Fraction
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.speedup import (
    Choice,
    acceptance_mass,
    accepted_law,
    best_k,
    block_expected_accepted,
    break_even_acceptance,
    committed_law,
    discarded_rows,
    expected_accepted,
    expected_committed,
    goodput,
    iid_profile,
    kv_row_bytes,
    leverage,
    marginal_gain,
    ratio_speedup,
    reach_profile,
    round_bytes,
    round_time,
    sensitivity,
    speedup,
    survivals,
    verify_line,
)

SHARES = st.floats(0.0, 1.0)
PROFILES = st.lists(SHARES, max_size=8)
TIMES = st.floats(0.01, 100.0)
FRONT = (0.95, 0.9, 0.6, 0.4)
SHORT = "lesson on proposals and verified output"  # the shorter of the two texts we started from
LONG = "M7.1, section"
CONTRACT = "contract, section"


# ---- worked numbers, each with the place it comes from -------------------------------------------


def toy_round(verify):
    """Two draft steps that take 2 ms together, the target's call, 1 ms for the rest."""
    return round_time(2, draft=1e-3, verify=verify, other=1e-3)


TOY = iid_profile(0.6, 2)
WORKED = [
    (SHORT + ": output count", lambda: expected_committed(TOY), 1.96, 1e-12),
    (SHORT + ": P(1 token)", lambda: committed_law(TOY)[0], 0.4, 1e-12),
    (SHORT + ": P(2 tokens)", lambda: committed_law(TOY)[1], 0.24, 1e-12),
    (SHORT + ": P(3 tokens)", lambda: committed_law(TOY)[2], 0.36, 1e-12),
    (SHORT + ": at least 2 accepted", lambda: survivals(TOY)[1], 0.36, 1e-12),
    (SHORT + ": 9 ms round", lambda: goodput(TOY, toy_round(6e-3)), 217.8, 0.05),
    (SHORT + ": verify in 12 ms", lambda: goodput(TOY, toy_round(12e-3)), 130.7, 0.05),
    (SHORT + ": 6 ms baseline", lambda: goodput((), 6e-3), 166.7, 0.05),
    (SHORT + ": acceptance", lambda: acceptance_mass([0.6, 0.3, 0.1], [0.2, 0.3, 0.5]), 0.6, 1e-12),
    (
        LONG + " 0x03E: mass",
        lambda: acceptance_mass([0.3, 0.45, 0.25], [0.6, 0.2, 0.2]),
        0.7,
        1e-12,
    ),
    (LONG + " 0x05A: E[A]", lambda: expected_accepted(TOY), 0.96, 1e-12),
    (LONG + " 0x05D: K + 1 at 1", lambda: expected_committed(iid_profile(1.0, 7)), 8.0, 0.0),
    (
        LONG + " 0x05D: paper's form by hand",
        lambda: ratio_speedup(iid_profile(0.8, 5), 0.05),
        2.951424,
        1e-12,
    ),
    (LONG + " 0x05E: same mean", lambda: sum(FRONT) / 4 - sum(FRONT[::-1]) / 4, 0.0, 1e-12),
    (LONG + " 0x05E: front", lambda: survivals(FRONT)[3], 0.2052, 1e-12),
    (LONG + " 0x05E: back", lambda: survivals(FRONT[::-1])[3], 0.2052, 1e-12),
    (LONG + " 0x05F: discarded", lambda: discarded_rows(TOY), 1.04, 1e-12),
    (LONG + " 0x06: 3 drafts all kept", lambda: expected_committed((1, 1, 1)), 4.0, 0.0),
    (LONG + " 0x06: cap after d_3", lambda: expected_committed((1, 1, 1), 3), 3.0, 0.0),
    (LONG + " 0x06: EOS at d_2", lambda: expected_committed((1, 1, 1), 2), 2.0, 0.0),
    (LONG + " 0x06: A = 2 of 4", lambda: discarded_rows((1, 1, 0, 1)), 2.0, 0.0),
    (CONTRACT + " 2: token", lambda: expected_accepted(iid_profile(2 / 3, 2)), 10 / 9, 1e-12),
    (
        CONTRACT + " 2: token by mass",
        lambda: acceptance_mass([1 / 3, 2 / 3], [2 / 3, 1 / 3]),
        2 / 3,
        1e-12,
    ),
    (
        CONTRACT + " 2: block",
        lambda: block_expected_accepted([1 / 3, 2 / 3], [2 / 3, 1 / 3], 2),
        11 / 9,
        1e-12,
    ),
    (CONTRACT + " 10: profile", lambda: expected_committed(FRONT), 3.5232, 1e-12),
    (CONTRACT + " 10: reversed", lambda: expected_committed(FRONT[::-1]), 2.0612, 1e-12),
    (CONTRACT + " 10: speed-up", lambda: speedup(TOY, 9e-3, 6e-3), 1.96 * 6 / 9, 1e-12),
    (CONTRACT + " 10: Leviathan", lambda: ratio_speedup(TOY, 0.1), 1.96 / 1.2, 1e-12),
]


@pytest.mark.parametrize(
    ("value", "expected", "within"), [row[1:] for row in WORKED], ids=[row[0] for row in WORKED]
)
def test_worked_number(value, expected, within):
    assert value() == pytest.approx(expected, rel=0.0, abs=within)


# ---- oracles: enumeration of every outcome, in fractions -----------------------------------------


def enumerated(profile, horizon=None):
    """The law of A and of G by walking through accept and reject at every position."""
    accepted, committed = {}, {}
    for outcome in product((True, False), repeat=len(profile)):
        weight = Fraction(1)
        for passed, alpha in zip(outcome, profile, strict=True):
            weight *= Fraction(alpha) if passed else 1 - Fraction(alpha)
        a = (*outcome, False).index(False)
        g = a + 1 if horizon is None else min(a + 1, horizon)
        accepted[a] = accepted.get(a, 0) + weight
        committed[g] = committed.get(g, 0) + weight
    return accepted, committed


def mean(law):
    return sum(value * weight for value, weight in law.items())


@settings(deadline=None)
@given(st.lists(SHARES, max_size=6), st.none() | st.integers(1, 8))
def test_laws_and_means_equal_the_enumeration(profile, horizon):
    accepted, committed = enumerated(profile, horizon)
    assert accepted_law(profile) == pytest.approx(
        [float(accepted.get(a, 0)) for a in range(len(profile) + 1)]
    )
    law = committed_law(profile, horizon)
    assert law == pytest.approx([float(committed.get(g, 0)) for g in range(1, len(law) + 1)])
    assert max(committed) == len(law)
    assert expected_accepted(profile) == pytest.approx(float(mean(accepted)), rel=1e-14)
    assert expected_committed(profile, horizon) == pytest.approx(
        float(mean(committed)), rel=1e-14, abs=0
    )
    assert math.fsum(law) == pytest.approx(1.0, rel=1e-14)
    tails = [
        float(sum(w for a, w in accepted.items() if a >= j)) for j in range(1, len(profile) + 1)
    ]
    assert survivals(profile) == pytest.approx(tails, rel=1e-14)


@pytest.mark.parametrize(
    "alpha", [0.0, 1e-9, 0.3, 0.5, 0.999, 1 - 1e-9, 1 - 2.0**-40, 1 - 2.0**-53, 1.0]
)
@pytest.mark.parametrize("k", [0, 1, 5, 64])
def test_equal_alphas_equal_the_closed_form_to_the_last_bits(alpha, k):
    exact = Fraction(alpha)
    closed = k + 1 if exact == 1 else (1 - exact ** (k + 1)) / (1 - exact)
    assert expected_committed(iid_profile(alpha, k)) == pytest.approx(
        float(closed), rel=1e-14, abs=0
    )
    lost = Fraction(k) - (closed - 1)
    assert discarded_rows(iid_profile(alpha, k)) == pytest.approx(float(lost), rel=1e-9, abs=1e-13)


def laws(events):
    weights = st.lists(st.integers(0, 9), min_size=events, max_size=events)
    return weights.filter(any).map(lambda row: [Fraction(each, sum(row)) for each in row])


def block_oracle(p, q, k):
    """E[A] of block verification from its acceptance tests, over all drafts."""
    total = Fraction(0)
    for drafts in product([x for x in range(len(q)) if q[x]], repeat=k):
        reach = [Fraction(1)]
        for x in drafts:
            reach.append(min(Fraction(1), reach[-1] * p[x] / q[x]))
        bounds = []
        for i in range(1, k + 1):
            surplus = sum(max(reach[i] * there - here, 0) for there, here in zip(p, q, strict=True))
            below = surplus + 1 - reach[i]
            bounds.append(reach[k] if i == k else surplus / below if below else Fraction(1))
        weight, mean_accepted = math.prod(q[x] for x in drafts), Fraction(0)
        none_longer = Fraction(1)
        for i in range(k, 0, -1):
            mean_accepted += i * bounds[i - 1] * none_longer
            none_longer *= 1 - bounds[i - 1]
        total += weight * mean_accepted
    return total


@settings(deadline=None)
@given(st.integers(2, 3).flatmap(lambda n: st.tuples(laws(n), laws(n))), st.integers(0, 3))
def test_block_verification_accepts_what_its_tests_say_and_never_less_than_token(pair, k):
    p, q = pair
    rows = list(map(float, p)), list(map(float, q))
    found = block_expected_accepted(*rows, k)
    assert found == pytest.approx(float(block_oracle(p, q, k)), abs=1e-12)
    token = expected_accepted(iid_profile(min(1.0, acceptance_mass(*rows)), k))
    assert found >= token - 1e-12
    if k < 2:
        assert found == pytest.approx(token, abs=1e-12)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_a_profile_from_counts_looks_only_at_rounds_that_reached(rounds):
    """Rounds of (K, A) with mixed K, counted as the server counts them."""
    rounds = [(k, min(k, a)) for k, a in rounds]
    reached = [sum(min(a + 1, k) > place for k, a in rounds) for place in range(5)]
    accepted = [sum(a > place for _, a in rounds) for place in range(5)]
    found = reach_profile(reached, accepted)
    for place, alpha in enumerate(found):
        tried = [a > place for k, a in rounds if k > place and a >= place]
        assert alpha == sum(tried) / len(tried)
    assert len(found) == next((n for n, count in enumerate(reached) if not count), 5)


def test_a_profile_ends_where_nobody_came():
    assert reach_profile((4, 2, 0, 3), (2, 2, 0, 3)) == (0.5, 1.0)
    assert reach_profile((), ()) == ()


def test_rates_over_rows_that_nobody_reached_give_another_number():
    # All four drafts are looked at in each round; only the first rejection was reached.
    passed = [(True, False, True, True), (False, True, True, True), (True, True, False, True)]
    unreached = [sum(column) / 3 for column in zip(*passed, strict=True)]
    accepted = [sum(all(row[: i + 1]) for row in passed) for i in range(4)]
    reached = [3, *accepted[:-1]]
    profile = reach_profile(reached, accepted)
    committed = sum((*row, False).index(False) + 1 for row in passed) / 3
    assert expected_committed((*profile, 0.0)[:4]) == pytest.approx(committed)
    assert expected_committed(unreached) > committed + 0.5


# ---- properties ----------------------------------------------------------------------------------


@settings(deadline=None)
@given(PROFILES)
def test_a_round_commits_between_one_token_and_all_drafts_and_a_bonus(profile):
    value = expected_committed(profile)
    assert 1.0 <= value <= len(profile) + 1
    assert value == 1.0 + expected_accepted(profile)
    assert discarded_rows(profile) == pytest.approx(len(profile) + 1 - value)


@settings(deadline=None)
@given(st.lists(st.tuples(SHARES, SHARES).map(sorted), max_size=8))
def test_more_acceptance_anywhere_never_commits_less(pairs):
    low, high = [low for low, _ in pairs], [high for _, high in pairs]
    assert expected_committed(low) <= expected_committed(high)
    for place in range(len(pairs)):
        raised = [*low[:place], high[place], *low[place + 1 :]]
        assert expected_committed(low) <= expected_committed(raised)


@settings(deadline=None)
@given(PROFILES)
def test_leverage_is_the_slope_of_the_mean(profile):
    for place, worth in enumerate(leverage(profile)):
        ends = [[*profile[:place], end, *profile[place + 1 :]] for end in (0.0, 1.0)]
        low, high = map(expected_committed, ends)
        assert worth == pytest.approx(high - low, abs=1e-12)


@settings(deadline=None)
@given(st.lists(SHARES, min_size=2, max_size=6))
def test_early_acceptance_is_worth_more_than_late(profile):
    falling, rising = sorted(profile, reverse=True), sorted(profile)
    assert expected_committed(falling) >= expected_committed(profile) * (1 - 1e-12)
    assert expected_committed(profile) >= expected_committed(rising) * (1 - 1e-12)


@settings(deadline=None)
@given(st.lists(SHARES, max_size=8), st.lists(TIMES, min_size=9, max_size=9), st.data())
def test_the_best_k_is_the_argmax_and_never_slower_than_plain(profile, costs, data):
    candidates = data.draw(st.sets(st.integers(0, len(profile)))) | {0}
    times = {k: costs[k] for k in candidates}
    choice = best_k(profile, times)
    speedups = {k: expected_committed(profile[:k]) * times[0] / times[k] for k in candidates}
    assert choice.speedup == max(speedups.values()) >= 1.0
    assert choice.k == min(k for k in candidates if speedups[k] == choice.speedup)


def test_ties_go_to_the_smaller_k():
    # K = 1 and K = 2 bring 1.5 and 2 tokens for 3 and 4 units of time: no faster than plain.
    assert best_k((0.5, 1.0), {0: 2.0, 1: 3.0, 2: 4.0}) == Choice(k=0, speedup=1.0)
    assert best_k((1.0, 1.0, 1.0), {0: 2.0, 1: 2.0, 3: 4.0}) == Choice(k=1, speedup=2.0)


def test_a_valley_does_not_hide_a_better_k_behind_it():
    times = {0: 1.0, 1: 1.0, 2: 2.0, 3: 2.0, 4: 2.0}
    assert best_k((0.9,) * 4, times).k == 4
    assert best_k((0.9, 0.2, 0.9, 0.9), times).k == 1


def test_an_interior_optimum_under_a_cost_that_grows_with_k():
    profile = iid_profile(0.75, 8)
    times = {
        k: round_time(k, draft=0.12, verify=verify_line(1.0, 0.05, k), other=0.1)
        for k in range(1, 9)
    } | {0: 1.0}
    assert best_k(profile, times).k == 4
    alone = {k: time for k, time in times.items() if k in {0, 8}}
    assert best_k(profile, alone) == Choice(
        k=8, speedup=pytest.approx((1 - 0.75**9) / 0.25 / (1 + 8 * 0.17 + 0.1))
    )


@settings(deadline=None)
@given(SHARES, TIMES, TIMES, st.floats(0.0, 10.0))
def test_one_more_draft_pays_exactly_when_the_goodput_rises(alpha, time, start, added):
    profile = (alpha, start / 100.0)
    rate = goodput(profile[:1], time)
    gain = marginal_gain(survivals(profile)[1], added, rate)
    change = goodput(profile, time + added) - rate
    assert gain / (time + added) == pytest.approx(change, abs=1e-9 * rate)


@settings(deadline=None)
@given(st.integers(1, 8), TIMES, TIMES)
def test_break_even_is_the_least_acceptance_that_is_enough(k, time, plain):
    found = break_even_acceptance(k, time, plain)
    needed = time / plain
    if found is None:
        assert needed > k + 1
        return
    assert expected_committed(iid_profile(found, k)) >= needed
    if found > 0:
        below = math.nextafter(found, 0.0)
        assert expected_committed(iid_profile(below, k)) < needed


@pytest.mark.parametrize("c", [0.01, 0.1, 0.5, 1.0])
def test_one_draft_breaks_even_at_the_price_of_a_draft_step(c):
    # Corollary 3.9: with a flat verify cost, some K is faster than plain if and only if alpha > c.
    assert break_even_acceptance(1, 1.0 + c, 1.0) == pytest.approx(c, abs=1e-15)
    times = {k: round_time(k, draft=c, verify=1.0) for k in range(1, 9)} | {0: 1.0}
    assert best_k(iid_profile(max(0.0, c - 1e-3), 8), times).k == 0
    if c < 1:
        assert best_k(iid_profile(c + 1e-3, 8), times).k > 0


def test_break_even_at_the_ends():
    assert break_even_acceptance(0, 1.0, 1.0) == 0.0
    assert break_even_acceptance(0, 1.1, 1.0) is None
    assert break_even_acceptance(3, 4.0, 1.0) == 1.0
    assert break_even_acceptance(3, 4.1, 1.0) is None
    assert break_even_acceptance(3, 0.5, 1.0) == 0.0


@settings(deadline=None)
@given(SHARES, st.integers(0, 8), st.floats(0.0, 2.0), st.floats(0.1, 3.0))
def test_ratios_are_times_in_units_of_a_plain_step(alpha, k, c, verify):
    profile = iid_profile(alpha, k)
    time = round_time(k, draft=7 * c, verify=7 * verify)
    assert ratio_speedup(profile, c, verify) == pytest.approx(speedup(profile, time, 7.0))


def test_the_sensitivity_table_is_made_of_speedups():
    times = {0: 1.0, 2: 1.5, 4: 2.5}
    table = sensitivity([0.2, 1.0], times)
    assert table[0] == pytest.approx([1.0, 1.24 / 1.5, (1 - 0.2**5) / 0.8 / 2.5])
    assert table[1] == pytest.approx([1.0, 2.0, 2.0])
    assert all(low <= high for column in zip(*table, strict=True) for low, high in pairwise(column))


def test_bytes_of_a_round():
    # Two layers, three heads of four numbers of two bytes: a key and a value each.
    row = kv_row_bytes(2, 3, 4, 2)
    assert row == 96
    found = round_bytes((1.0, 0.25, 0.0), row_bytes=row, vocabulary=10, number_bytes=4)
    assert found.branch_kv == 3 * 96
    assert found.probabilities == (4 + 3) * 10 * 4  # p_1 .. p_4 and q_1 .. q_3
    assert found.discarded_kv == 1.75 * 96
    assert found.committed_kv == 2.25 * 96  # the frontier and the accepted drafts
    assert found.temporary == 288 + 280
    plain = round_bytes((), row_bytes=row, vocabulary=10)
    assert (plain.branch_kv, plain.discarded_kv, plain.committed_kv) == (0, 0, 96)
