"""The whole controller on loads made by hand: what it chooses, what it leaves alone, and why."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.goodput import GoodputController
from scheduler.request import ProposerKind
from scheduler.stats import Decision, Policy, Reason
from tests.scheduler.crowds import group, seen, table, took, truth, view

K = 4
CHEAP = table()
DEAR = table(step=0.05)
BY_ROW = table(base=0.005, row=0.005, step=0.0002)
"""A row of a batch costs so much that drafting makes it slower and each request faster."""


def ks_of(decision, *requests):
    return [decision.k(each) for each in requests]


def made(alpha, chance, request, k):
    """A round of `k` drafts of which each is accepted with chance `alpha`."""
    hits = [float(chance.random() < alpha) for _ in range(k)]
    reached = hits.index(0.0) + 1 if 0.0 in hits else k
    return group(request, k, hits[:reached] or None)


def lived(controller, costs, rounds, *, alpha=0.8, views=None, seed=1):
    """Decisions of so many rounds on a machine with these costs."""
    chance, views = random.Random(seed), views or [seen(n) for n in range(4)]
    found = []
    for number in range(rounds):
        decision = controller.decide(view(*views))
        ks = ks_of(decision, *(each.request for each in views))
        level = alpha(number) if callable(alpha) else alpha
        groups = [made(level, chance, e.request, k) for e, k in zip(views, ks, strict=True)]
        controller.learn(took(truth(costs, ks), *groups))
        found.append(decision)
    return found


def reasons_of(decision):
    return {each.reason for each in decision.choices.values()}


# ---- plain decoding ------------------------------------------------------------------------------


def test_where_drafts_cannot_pay_nobody_drafts_ever():
    for decision in lived(GoodputController(DEAR, K), DEAR, 500):
        assert ks_of(decision, 0, 1, 2, 3) == [0] * 4


def test_after_a_run_of_plain_rounds_most_are_decided_without_a_look():
    """Such a decision forecasts nothing."""
    found = lived(GoodputController(DEAR, K), DEAR, 100)
    assert all(each.forecast is not None for each in found[:8])
    looked = sum(each.forecast is not None for each in found[8:])
    assert 0 < looked <= 92 // 2


def dozing(controller, costs=DEAR):
    """Rounds of four until one was decided without a look."""
    while lived(controller, costs, 1)[0].forecast is not None:
        pass
    return controller


@pytest.mark.parametrize(
    "views",
    [
        [seen(n) for n in range(3)],
        [*(seen(n) for n in range(3)), seen(3, asked=2)],
        [*(seen(n) for n in range(3)), seen(3, tpot=1.0)],
    ],
    ids=["the load falls", "a K is asked for", "a pace is asked for"],
)
def test_it_looks_again_at_once(views):
    decision = dozing(GoodputController(DEAR, K)).decide(view(*views))
    assert decision.forecast is not None
    assert decision.k(3) == (2 if len(views) > 3 and views[3].asked else 0)


def test_it_goes_on_without_a_look_as_long_as_nothing_changes():
    decision = dozing(GoodputController(DEAR, K)).decide(view(*(seen(n) for n in range(5))))
    assert decision.forecast is None
    assert ks_of(decision, *range(5)) == [0] * 5
    assert reasons_of(decision) == {Reason.KEPT}


def test_one_of_many_that_ends_wakes_nobody():
    many = [seen(n) for n in range(16)]
    controller = GoodputController(DEAR, K)
    while lived(controller, DEAR, 1, views=many)[0].forecast is not None:
        pass
    assert controller.decide(view(*many[1:])).forecast is None
    assert controller.decide(view(*many[3:])).forecast is not None


# ---- the same drafts once more ------------------------------------------------------------------


def napping(views=None):
    """A controller whose next round would be drafted as the one before, and that decision."""
    controller, found = GoodputController(CHEAP, K), None
    while found is None or found.forecast is not None:
        (found,) = lived(controller, CHEAP, 1, alpha=0.95, views=views)
    return controller, found


def test_a_settled_choice_is_repeated_three_times_without_a_look():
    found = lived(GoodputController(CHEAP, K), CHEAP, 120, alpha=0.95)
    looks = [number for number, each in enumerate(found) if each.forecast is not None]
    assert {b - a for a, b in pairwise(looks)} == {1, 4}
    assert len(looks) < 60
    for before, after in pairwise(found):
        if after.forecast is None and before.forecast is None:
            assert ks_of(after, *range(4)) == ks_of(before, *range(4))
            assert reasons_of(after) == {Reason.KEPT}


def test_a_repeated_k_ends_where_the_request_has_room():
    controller, decision = napping()
    assert min(ks_of(decision, *range(4))) >= 2
    short = controller.decide(view(seen(0, room=1), *(seen(n) for n in range(1, 4))))
    assert short.forecast is None
    assert ks_of(short, *range(4)) == [1, *ks_of(decision, 1, 2, 3)]


@pytest.mark.parametrize(
    ("views", "prefill_rows"),
    [
        ([seen(n) for n in range(3)], 0),
        ([seen(n) for n in range(5)], 0),
        ([seen(n) for n in (0, 1, 2, 9)], 0),
        ([*(seen(n) for n in range(3)), seen(3, asked=1)], 0),
        ([*(seen(n) for n in range(3)), seen(3, tpot=1.0)], 0),
        ([*(seen(n) for n in range(3)), seen(3, shared_seed=True)], 0),
        ([seen(n) for n in range(4)], 64),
    ],
    ids=[
        "one less",
        "one more",
        "another one",
        "a K is asked for",
        "a pace",
        "a twin",
        "a prefill",
    ],
)
def test_nothing_is_repeated_when_anything_changes(views, prefill_rows):
    controller, _ = napping()
    assert controller.decide(view(*views, prefill_rows=prefill_rows)).forecast is not None


def test_drafting_ends_where_nothing_is_accepted_and_comes_back():
    """No one-way switch: probes find out that drafts are accepted again."""
    controller = GoodputController(CHEAP, K)
    found = lived(controller, CHEAP, 3000, alpha=lambda number: 0.0 if 200 < number < 800 else 0.9)
    drafts = [sum(ks_of(each, 0, 1, 2, 3)) for each in found]
    assert sum(drafts[100:200]) > 100 * 4
    assert sum(drafts[500:800]) < 0.1 * 300
    assert sum(drafts[2500:]) > 500 * 4


def test_nobody_there_nothing_decided():
    assert GoodputController(CHEAP, K).decide(view()) == Decision()


# ---- the best K ----------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("step", [0.001, 0.003, 0.006])
def test_alike_requests_get_a_k_within_two_percent_of_the_best(alpha, step):
    """By the closed form for the very costs and acceptance that it met."""
    costs = table(step=step)
    found = lived(GoodputController(costs, K), costs, 500, alpha=alpha)

    def rate(k):
        return 4 * sum(alpha**place for place in range(k + 1)) / truth(costs, [k] * 4)

    late = [each for each in found[300:] if not reasons_of(each) & {Reason.PROBE, Reason.BASELINE}]
    seconds = sum(1.0 / rate(round(sum(ks_of(each, 0, 1, 2, 3)) / 4)) for each in late)
    assert len(late) / seconds >= 0.98 * max(map(rate, range(K + 1)))


def test_the_forecast_is_the_sum_of_its_parts():
    costs = table(step=0.003)
    decision = GoodputController(costs, K).decide(view(*(seen(n) for n in range(4))))
    ks = ks_of(decision, 0, 1, 2, 3)
    expected = sum(each.accepted for each in decision.choices.values())
    assert 0 < max(ks) < K
    assert decision.forecast.tokens == pytest.approx(4 + expected)
    assert decision.forecast.seconds == pytest.approx(truth(costs, ks))
    assert decision.forecast.plain_tokens == 4
    assert decision.forecast.plain_seconds == pytest.approx(truth(costs, [0] * 4))
    assert decision.forecast.gain > 1.0


# ---- what is not free ----------------------------------------------------------------------------


@given(
    asked=st.lists(st.none() | st.integers(0, 9), min_size=1, max_size=6),
    room=st.integers(0, K),
    costs=st.sampled_from((CHEAP, DEAR, BY_ROW)),
)
@settings(deadline=None)
def test_a_k_that_was_asked_for_is_given_exactly(asked, room, costs):
    views = [seen(n, asked=k, room=room) for n, k in enumerate(asked)]
    decision = GoodputController(costs, K).decide(view(*views))
    for request, k in enumerate(asked):
        if k is not None:
            choice = decision.choices[request]
            assert (choice.k, choice.reason) == (min(k, room), Reason.FIXED)


def test_who_shares_a_seed_drafts_nothing_unless_asked_to():
    views = [seen(0, shared_seed=True), seen(1), seen(2, shared_seed=True, asked=3)]
    for decision in lived(GoodputController(CHEAP, K), CHEAP, 400, views=views):
        assert (decision.choices[0].k, decision.choices[0].reason) == (0, Reason.SHARED_SEED)
        assert (decision.choices[2].k, decision.choices[2].reason) == (3, Reason.FIXED)
    assert decision.k(1) > 0


# ---- the pace that a client wants ----------------------------------------------------------------


def paced(tpot, count=8, costs=BY_ROW):
    """K of all when request 0 wants this pace."""
    views = [seen(0, tpot=tpot), *(seen(n) for n in range(1, count))]
    decision = GoodputController(costs, K).decide(view(*views))
    return ks_of(decision, *range(count)), decision.choices[0].reason


@pytest.mark.parametrize("tpot", [0.038, 0.026, 0.023, 0.020, 0.018, 0.0168])
def test_a_pace_that_can_be_met_is_met_by_the_least_k(tpot):
    """In the round as long as it becomes; plain decoding takes 40 ms a token here."""
    ks, reason = paced(tpot)

    def pace(k):
        accepted = sum(0.85**place for place in range(1, k + 1))
        return truth(BY_ROW, [k, *ks[1:]]) / (1.0 + accepted)

    assert paced(None)[0] == [0] * 8
    assert (ks[1:], reason) == ([0] * 7, Reason.SLO)
    assert pace(ks[0]) <= tpot < pace(ks[0] - 1)


@pytest.mark.parametrize("tpot", [0.012, 0.001, 1e-9])
def test_a_hopeless_pace_is_given_up(tpot):
    """Four drafts make 16.4 ms a token."""
    ks, reason = paced(tpot)
    assert ks == [0] * 8
    assert reason is not Reason.SLO


def test_a_pace_that_plain_decoding_meets_changes_nothing():
    assert paced(0.5)[0] == paced(None)[0] == [0] * 8
    assert paced(0.5, costs=CHEAP)[0] == paced(None, costs=CHEAP)[0]


def test_a_pace_is_of_seconds_as_they_are():
    """A machine that is half as fast as its table needs the next K for the same wish."""
    views = [seen(0, tpot=0.060), *(seen(n) for n in range(1, 8))]
    controller = GoodputController(BY_ROW, K)
    assert controller.decide(view(*views)).k(0) == 0
    for _ in range(40):
        controller.learn(took(2 * truth(BY_ROW, [0] * 8), *(group(n, 0) for n in range(8))))
    assert controller.decide(view(*views)).choices[0].reason is Reason.SLO


# ---- waking a draft ------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_4000_tokens_to_catch_up_are_not_worth_the_last_three(place):
    """Its neighbours with short contexts draft, wherever it stands."""
    costs = table(caught=0.0005)
    long = seen(9, lag=3999, context=4000, emitted=60, left=3, room=2)
    views = [seen(n, lag=20) for n in range(3)]
    views.insert(place, long)
    decision = GoodputController(costs, K).decide(view(*views))
    assert decision.k(9) == 0
    assert all(decision.k(n) > 0 for n in range(3))


def test_a_draft_near_at_hand_is_worth_them():
    decision = GoodputController(CHEAP, K).decide(
        view(seen(9, lag=0, context=4000, left=3, room=2), seen(1))
    )
    assert decision.k(9) > 0


# ---- steadiness ----------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.50 + 0.02 * place for place in range(16)])
def test_small_swings_of_acceptance_hardly_change_k(level):
    """Every ten rounds up or down, at levels between some of which K changes: twice in 400 rounds
    at most, probes left out. Without a margin for what stands it is up to 16 times."""
    costs = table(step=0.002)
    controller, found = GoodputController(costs, K), []
    for number in range(600):
        alpha = level + (0.08 if number // 10 % 2 else -0.08)
        decision = controller.decide(view(seen(1)))
        k = decision.k(1)
        controller.learn(took(truth(costs, [k]), group(1, k, (alpha,) * k)))
        if not reasons_of(decision) & {Reason.PROBE, Reason.BASELINE}:
            found.append(k)
    assert sum(left != right for left, right in pairwise(found[200:])) <= 2


# ---- prefill beside ------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0.002, 0.003])
@pytest.mark.parametrize("prefill", [16, 64, 400])
def test_a_round_that_prefills_drafts_no_more_than_one_of_decoding_would(step, prefill):
    """Though by its own ratio it would have drafted more: the prefill is paid anyway."""
    costs, views = table(step=step, row=0.0005), [seen(n) for n in range(4)]
    alone = sum(ks_of(GoodputController(costs, K).decide(view(*views)), 0, 1, 2, 3))
    beside = GoodputController(costs, K).decide(view(*views, prefill_rows=prefill))

    def ratio(k):
        accepted = sum(0.85**place for place in range(k + 1))
        return 4 * accepted / (truth(costs, [k] * 4) + prefill * 0.0005)

    assert sum(ks_of(beside, 0, 1, 2, 3)) <= alone
    if prefill == 400:
        assert 4 * max(range(K + 1), key=ratio) > alone


# ---- any view ------------------------------------------------------------------------------------

VIEWS = st.lists(
    st.builds(
        lambda **given: given,
        asked=st.none() | st.integers(0, 9),
        room=st.integers(0, K),
        policy=st.sampled_from(Policy),
        proposer=st.sampled_from((ProposerKind.DRAFT_MODEL, ProposerKind.NGRAM)),
        lag=st.integers(0, 5000),
        context=st.integers(1, 5000),
        emitted=st.integers(0, 3000),
        left=st.integers(1, 3000),
        tpot=st.none() | st.floats(1e-9, 1e3),
        own_seed=st.booleans(),
        shared_seed=st.booleans(),
    ),
    max_size=6,
)
LIVES = st.lists(
    st.tuples(VIEWS, st.sampled_from((0, 0, 7, 300)), st.floats(1e-6, 10.0)), max_size=12
)


def driven(controller, life):
    """Decisions along arbitrary loads, each learnt with what it decided."""
    chance, found = random.Random(7), []
    for given_views, prefill, seconds in life:
        views = [seen(number, **each) for number, each in enumerate(given_views)]
        decision = controller.decide(view(*views, prefill_rows=prefill))
        found.append((views, decision))
        groups = [
            replace(made(0.6, chance, e.request, decision.k(e.request)), policy=e.policy)
            for e in views
        ]
        controller.learn(took(seconds, *groups))
        if chance.random() < 0.2:
            controller.forget(0)
    return found


@given(life=LIVES, costs=st.sampled_from((CHEAP, DEAR, BY_ROW)))
@settings(max_examples=50, deadline=None)
def test_every_request_gets_a_k_within_its_room(life, costs):
    for views, decision in driven(GoodputController(costs, K), life):
        assert set(decision.choices) == {each.request for each in views}
        for each in views:
            assert 0 <= decision.k(each.request) <= each.room


@given(life=LIVES)
@settings(max_examples=50, deadline=None)
def test_two_that_were_told_the_same_decide_the_same(life):
    left, right = (driven(GoodputController(CHEAP, K), life) for _ in range(2))
    assert left == right
