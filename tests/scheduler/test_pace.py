"""Filling up by rank makes the round longer than the one that the floors were priced in."""

import pytest

from scheduler.goodput import GoodputController
from tests.scheduler.crowds import seen, table, truth, view


@pytest.mark.parametrize("tpot", [0.036, 0.030, 0.024, 0.022, 0.020, 0.018])
def test_others_do_not_draft_a_pace_away(tpot):
    """Eight requests, one with a pace that it meets alone: the others would lengthen the round."""
    costs = table(row=0.004)
    controller = GoodputController(costs, 4)
    decision = controller.decide(view(seen(0, tpot=tpot), *(seen(n) for n in range(1, 8))))
    ks = [decision.k(n) for n in range(8)]
    accepted = sum(0.85**place for place in range(ks[0] + 1))
    assert truth(costs, ks) / accepted <= tpot, (ks, truth(costs, [ks[0]] + [0] * 7) / accepted)
