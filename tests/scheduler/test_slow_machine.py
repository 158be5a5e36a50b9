"""A machine that is slower for a while, met at one K: the slowness must not be booked on that K.

That needs levels that learn only when K or load has just changed.
"""

import random

import pytest

from scheduler.cost_model import CostModel
from scheduler.goodput import GoodputController
from tests.scheduler.crowds import CONTEXT, group, seen, table, took, truth, view


def test_slowness_is_no_matter_of_k():
    costs, model = table(), CostModel(table(), 4)
    for k, factor, rounds in ((0, 1.0, 5), (4, 1.0, 100), (4, 2.0, 100)):
        for _ in range(rounds):
            model.learn(took(factor * truth(costs, [k] * 4), *(group(n, k) for n in range(4))))
    found = model.costs(4, 4, CONTEXT, 16).relative
    assert found[4] / found[0] == pytest.approx(1.0)
    assert model.speed == pytest.approx(2.0)


def rates(costs, alpha):
    return [sum(alpha**i for i in range(k + 1)) * 4 / truth(costs, [k] * 4) for k in range(5)]


@pytest.mark.parametrize(("step", "alpha"), [(0.001, 0.8), (0.002, 0.6), (0.003, 0.6)])
def test_drafting_comes_back_after_a_slow_spell(step, alpha):
    """100 rounds at half the speed. Today (0.002, 0.6) decodes plainly ever after: 0.78 of the
    best fixed K, (0.003, 0.6) 0.85. A spell of 20 rounds at a third of the speed: 0.61 at worst."""
    costs, chance = table(step=step), random.Random(1)
    controller, chosen = GoodputController(costs, 4), []
    for number in range(1500):
        decision = controller.decide(view(*(seen(n) for n in range(4))))
        ks = [decision.k(n) for n in range(4)]
        groups = []
        for n, k in enumerate(ks):
            hits = [float(chance.random() < alpha) for _ in range(k)]
            reached = hits.index(0.0) + 1 if 0.0 in hits else k
            groups.append(group(n, k, hits[:reached] or None))
        slow = 2.0 if 600 <= number < 700 else 1.0
        controller.learn(took(slow * truth(costs, ks), *groups))
        chosen.append(round(sum(ks) / 4))
    found = rates(costs, alpha)
    late = chosen[800:]
    assert len(late) / sum(1 / found[k] for k in late) >= 0.97 * max(found)
