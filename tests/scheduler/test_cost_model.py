"""Corrections of a start-up table by rounds of a machine that differs from it in a known way."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.cost_model import CostModel
from scheduler.goodput import GoodputController
from scheduler.stats import CommitOutcome
from tests.scheduler.crowds import CONTEXT, group, seen, table, took, truth, view

K = 4
TABLE = table(step_row=0.0001)


def told(model, ks, factor=1.0, **changes):
    """Learn a round of these K that took the table's seconds times `factor`."""
    groups = [group(number, k) for number, k in enumerate(ks)]
    model.learn(took(factor * truth(TABLE, ks), *groups, **changes))


def relative(model, emitters):
    """Factors by K, over that of plain rounds: all that a choice can see of them."""
    costs = model.costs(emitters, emitters, CONTEXT, K * emitters)
    return [each / costs.relative[0] for each in costs.relative]


def trained(rounds=100, loads=(1, 4), factor=lambda n, k: 1.0, model=None):
    """A model that saw rounds of these loads, at random K."""
    chance, model = random.Random(1), model or CostModel(TABLE, K)
    for _ in range(rounds):
        n, k = chance.choice(loads), chance.randint(0, K)
        told(model, [k] * n, factor(n, k))
    return model


# ---- the table as it is --------------------------------------------------------------------------


def test_costs_are_those_of_the_table_before_anything_is_learnt():
    found = CostModel(TABLE, K).costs(3, 5, CONTEXT, 12)
    assert found.emitters == 3
    assert [found.verify[n] for n in (0, 1, 12)] == pytest.approx(
        [TABLE.round(3, 5 + n, CONTEXT) for n in (0, 1, 12)]
    )
    assert found.relative == [1.0] * (K + 1)
    assert found.step == [0.0, *(TABLE.draft_step(n, CONTEXT) for n in (1, 2, 3))]
    assert found.seconds(2, 0.5, 1) == pytest.approx(TABLE.round(3, 7, CONTEXT) + 0.5)


def test_costs_reach_as_far_as_asked():
    model = CostModel(TABLE, K)
    model.costs(1, 1, CONTEXT, 1)
    assert len(model.costs(1, 1, CONTEXT, 99).verify) >= 100
    assert model.catch_up(0) == 0.0
    assert model.catch_up(7) == model.catch_up(7) == pytest.approx(TABLE.draft_rows(7))


def test_costs_follow_the_context_in_steps():
    model = CostModel(replace(TABLE, row_key=1e-6), K)
    near, same, far = (model.costs(1, 1, context, 4).verify[4] for context in (1000, 1020, 9000))
    assert near == same
    assert far == pytest.approx(near + 5 * 1e-6 * 8000, rel=0.02)


# ---- one factor ----------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.4, 1.7, 20.0])
def test_a_table_wrong_by_one_factor_changes_the_speed_and_no_choice(factor):
    model = trained(factor=lambda n, k: factor)
    assert model.speed == pytest.approx(factor)
    for load in (1, 4):
        assert relative(model, load) == pytest.approx([1.0] * (K + 1))


def test_expected_seconds_count_what_a_draft_caught_up():
    model = CostModel(TABLE, K)
    for _ in range(20):
        groups = [group(1, 2), group(2, 0)]
        seconds = truth(TABLE, [2, 0]) + TABLE.draft_rows(50)
        model.learn(took(seconds, *groups, extra=50))
    assert model.speed == pytest.approx(1.0)


# ---- one K ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", range(K + 1))
def test_a_table_wrong_at_one_k_is_found_there_within_60_rounds(wrong):
    """At equal chances for every K, with another load between, which stays as it was."""
    model = trained(120, factor=lambda n, k: 1.4 if (n, k) == (4, wrong) else 1.0)
    expected = [1.4 if k == wrong else 1.0 for k in range(K + 1)]
    assert relative(model, 4) == pytest.approx([each / expected[0] for each in expected], rel=0.06)
    assert relative(model, 1) == pytest.approx([1.0] * (K + 1), rel=0.03)


def test_what_is_wrong_at_the_usual_k_is_found_there_too():
    """Three rounds in four have it: the speed takes it over, and the others come out faster."""
    chance, model = random.Random(3), CostModel(TABLE, K)
    for number in range(100):
        k = 2 if number % 4 else chance.choice((0, 1, 3, 4))
        told(model, [k] * 4, 1.4 if k == 2 else 1.0)
    assert relative(model, 4) == pytest.approx([1.0, 1.0, 1.4, 1.0, 1.0], rel=0.08)


def test_what_is_wrong_at_one_k_is_no_matter_of_speed_when_k_changes_for_long():
    """Fifty rounds at a K that is dearer than its table, fifty without drafts, and so on."""
    model = CostModel(TABLE, K)
    for _ in range(4):
        for k in [2] * 50 + [0] * 50:
            told(model, [k] * 4, 1.4 if k == 2 else 1.0)
    assert relative(model, 4)[2] == pytest.approx(1.4, rel=0.01)


def test_between_two_known_k_lies_a_line_and_beyond_them_a_level():
    chance, model = random.Random(2), CostModel(TABLE, K)
    for _ in range(120):
        k = chance.choice((1, 3))
        told(model, [k] * 4, 1.3 if k == 3 else 1.0)
    costs = model.costs(4, 4, CONTEXT, 16)
    none, low, half, high, most = costs.relative
    assert high / low == pytest.approx(1.3, rel=0.01)
    assert (none, most) == (low, high)
    assert half == pytest.approx((low + high) / 2)


def test_rounds_belong_to_their_longest_draft():
    """It says how many draft steps they had. Here steps take three times what the table says, and
    the lengths differ: what rounds of 3, 2, 2 and 2 took is no cost of 2, 2, 2 and 2."""
    dear = table(step=3.0 * TABLE.draft_step(1, CONTEXT), step_row=0.0)
    believed = table(step=TABLE.draft_step(1, CONTEXT), step_row=0.0)
    chance, model = random.Random(4), CostModel(believed, K)
    for _ in range(200):
        ks = chance.choice(([0] * 4, [1] * 4, [3, 2, 2, 2], [3, 3, 3, 2], [3] * 4, [4] * 4))
        model.learn(took(truth(dear, ks), *(group(n, k) for n, k in enumerate(ks))))
    costs = model.costs(4, 4, CONTEXT, 16)
    for k in range(K + 1):
        assert model.speed * costs.alike(k) == pytest.approx(truth(dear, [k] * 4), rel=0.04)


@pytest.mark.parametrize("k", [1, 3])
def test_a_probe_of_one_among_many_teaches_nothing_of_its_k(k):
    """Rounds in which all draft take 1.4 times what the table says, one draft among many 1.0: the
    table is right about it, and wrong about them."""
    model = CostModel(TABLE, K)
    for _ in range(20):
        for ks in [[k] * 8] * 5 + [[0] * 8] * 5:
            told(model, ks, 1.4 if any(ks) else 1.0)
        for _ in range(10):
            told(model, [k] + [0] * 7)
            told(model, [0] * 8)
    assert relative(model, 8)[k] == pytest.approx(1.4, rel=0.02)
    for last in ([0] * 8, [k] + [0] * 7):  # by whichever rounds the speed is told
        for _ in range(7):
            told(model, last)
        plain = model.speed * model.costs(8, 8, CONTEXT, 8).alike(0)
        assert plain == pytest.approx(truth(TABLE, [0] * 8), rel=0.02)


def test_rounds_of_very_unlike_drafts_still_tell_how_fast_the_machine_is():
    """And what comes after them is not held against what was before: the machine may have changed
    in between."""
    model = trained(loads=(4,))
    before = relative(model, 4)
    for _ in range(20):
        told(model, [4, 0, 0, 0], 2.0)
    assert model.speed == pytest.approx(2.0, rel=0.03)
    for _ in range(20):
        told(model, [1] * 4, 2.0)
    assert relative(model, 4) == before


def test_a_factor_is_believed_up_to_a_limit():
    model = trained(300, loads=(4,), factor=lambda n, k: 100.0 if k == 2 else 1.0)
    assert 2.0 < relative(model, 4)[2] <= 3.0 + 1e-9


# ---- disturbances --------------------------------------------------------------------------------


@pytest.mark.parametrize("slower", [0.5, 2.0, 4.0])
def test_a_machine_that_is_slower_for_a_while_changes_no_choice(slower):
    """Every K is seen in that time; neither during it nor afterwards."""
    model = trained(loads=(4,))
    for factor in (slower, 1.0):
        trained(100, loads=(4,), factor=lambda n, k, now=factor: now, model=model)
        assert model.speed == pytest.approx(factor, rel=0.01)
        assert relative(model, 4) == pytest.approx([1.0] * (K + 1), rel=0.03)


def test_one_round_in_twenty_that_takes_five_times_as_long_hardly_moves_anything():
    chance = random.Random(5)
    model = trained(400, factor=lambda n, k: 5.0 if chance.random() < 0.05 else 1.0)
    assert model.speed == pytest.approx(1.0, rel=0.1)
    for load in (1, 4):
        assert relative(model, load) == pytest.approx([1.0] * (K + 1), rel=0.1)


def odd_rounds():
    """Rounds that took long for a reason that is no cost of decoding."""
    usual = [group(1, 2), group(2, 2)]
    chunk = group(3, 0, terminal=None, committed=0, prefilled=64)
    return {
        "prefill beside": ([*usual, chunk], {}),
        "first token": ([*usual, group(3, 0, prefilled=9)], {}),
        "prefill alone": ([chunk], {}),
        "stale": ([*usual, group(3, 2, outcome=CommitOutcome.STALE)], {}),
        "aborted": ([*usual, group(3, 2, outcome=CommitOutcome.ABORTED)], {}),
        "replayed": ([*usual, group(3, 2, outcome=CommitOutcome.REPLAYED)], {}),
        "retained, no rows": (usual, {"target_rows": 0}),
        "retained, too few rows": (usual, {"target_rows": 1}),
        "nobody": ([], {}),
        "shapes met or recorded": (usual, {"prepared": True}),
    }


@pytest.mark.parametrize("name", odd_rounds())
def test_other_rounds_than_those_of_decoding_alone_teach_nothing(name):
    model = trained(40)
    groups, changes = odd_rounds()[name]
    before = model.speed, relative(model, 1), relative(model, 4)
    for _ in range(100):
        model.learn(took(9.0, *groups, **changes))
    assert (model.speed, relative(model, 1), relative(model, 4)) == before
    for _ in range(100):
        model.learn(took(9.0, group(1, 2), group(2, 2)))
    assert model.speed != pytest.approx(before[0])


@given(
    row_key=st.floats(0.0, 1e-2),
    at=st.integers(0, 4000),
    context=st.integers(1, 4000),
    count=st.integers(1, 8),
    prefill_rows=st.sampled_from((0, 0, 100)),
    tpot=st.sampled_from((None, None, 0.01)),
)
@settings(max_examples=60, deadline=None)
def test_a_decision_can_be_made_by_a_table_that_is_steep_over_contexts(
    row_key, at, context, count, prefill_rows, tpot
):
    """Short contexts would take less than no time by it."""
    steep = replace(table(), context=at, row_key=row_key, draft_row_key=row_key)
    controller = GoodputController(steep, 4)
    views = [seen(n, context=context, tpot=tpot) for n in range(count)]
    for _ in range(4):
        forecast = controller.decide(view(*views, prefill_rows=prefill_rows)).forecast
        assert forecast is None or min(forecast.seconds, forecast.plain_seconds) > 0.0
