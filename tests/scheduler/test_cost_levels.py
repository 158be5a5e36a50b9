"""Where a table is wrong, told apart from how fast the machine is."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cost_levels import CostLevels

K = 4
RATIOS = st.floats(0.01, 100.0)


def shown(rounds, truth, noise=0.0, seed=1, speed=lambda number: 1.0):
    """Levels that saw `rounds` of (load, K), each taking `truth` of it."""
    levels, dice = CostLevels(K), random.Random(seed)
    for number, (load, k) in enumerate(rounds):
        seen = truth(load, k) * speed(number) * dice.lognormvariate(0.0, noise)
        levels.learn(load, k, seen)
    return levels


def over_plain(levels, load=2):
    found = levels.factors(load)
    return [each / found[0] for each in found]


def test_nothing_seen_is_nothing_known():
    levels = CostLevels(K)
    assert (levels.speed, levels.factors(3)) == (1.0, [1.0] * (K + 1))


@given(st.lists(RATIOS, min_size=1, max_size=40), st.integers(0, K))
def test_one_cell_alone_is_all_speed(ratios, k):
    """A slow machine and a wrong table look alike while K stays as it is."""
    levels = CostLevels(K)
    assert not any(levels.learn(2, k, ratio) for ratio in ratios)
    assert levels.factors(2) == [1.0] * (K + 1)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, K), RATIOS), max_size=60))
def test_no_level_is_further_from_another_than_a_factor_of_three(rounds):
    levels = CostLevels(K)
    for load, k, ratio in rounds:
        levels.learn(load, k, ratio)
    found = [factor for load in (1, 2, 3) for factor in levels.factors(load)]
    assert max(found) / min(found) <= 3.0 + 1e-9
    assert levels.speed > 0.0


def test_a_few_changes_tell_what_a_long_stay_cannot():
    """Drafting for long, plain rounds now and then, one by one as probes come."""
    rounds = ([(2, 3)] * 80 + [(2, 0)]) * 6
    levels = shown(rounds, lambda load, k: 1.5 if k else 1.0, noise=0.05)
    assert over_plain(levels)[3] == pytest.approx(1.5, rel=0.05)
    assert levels.speed * levels.factors(2)[3] == pytest.approx(1.5, rel=0.05)


def test_an_early_mistake_is_put_right():
    """A few rounds at twice the time just as drafting begins; then changes as they come."""
    rounds = [(2, 0)] * 20 + [(2, 2)] * 60 + ([(2, 0)] + [(2, 2)] * 60) * 8
    levels = shown(rounds, lambda load, k: 1.0, speed=lambda number: 1 + (20 <= number < 26))
    assert over_plain(levels)[2] == pytest.approx(1.0, rel=0.03)


def test_a_machine_that_slows_down_in_a_long_stay_moves_no_level():
    rounds = ([(2, 0)] * 10 + [(2, 2)] * 40) * 6
    levels = shown(rounds, lambda load, k: 1.0, speed=lambda number: 1.0 + (number // 30 % 2))
    assert over_plain(levels) == pytest.approx([1.0] * (K + 1), rel=0.02)


def test_loads_are_told_apart_too():
    rounds = ([(2, 0)] * 5 + [(4, 0)] * 5) * 10
    levels = shown(rounds, lambda load, k: 1.7 if load == 4 else 1.0, noise=0.03)
    assert levels.factors(4)[0] / levels.factors(2)[0] == pytest.approx(1.7, rel=0.03)


def test_levels_of_a_right_table_stay_together():
    """K changes all the time and rounds scatter by 5 %: choices are a few per cent apart."""
    chance = random.Random(6)
    rounds = [(2, chance.randint(0, K)) for _ in range(2000)]
    levels, dice, widest = CostLevels(K), random.Random(7), 1.0
    for number, (load, k) in enumerate(rounds):
        levels.learn(load, k, dice.lognormvariate(0.0, 0.05))
        found = levels.factors(load)
        widest = max(widest, max(found) / min(found) if number > 1000 else 1.0)
    assert widest < 1.07


def test_a_cost_that_changes_for_good_is_followed():
    """Half of it within 150 rounds in which K changes all the time."""
    chance = random.Random(8)
    rounds = [(2, chance.randint(0, K)) for _ in range(2150)]
    late = iter(range(len(rounds)))
    levels = shown(rounds, lambda load, k: 1.3 if next(late) >= 2000 and k == 2 else 1.0, 0.02)
    assert over_plain(levels)[2] > 1.15
