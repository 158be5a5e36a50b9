"""What rounds of the retained layout cost: one without drafts calls no model, and the append that
it waits for is a round of its own, with or without drafts."""

import random
from dataclasses import replace

import pytest

from scheduler.controller import LoadView
from scheduler.cost_model import CostModel
from scheduler.goodput import GoodputController
from scheduler.plan import Layout
from tests.scheduler.crowds import CONTEXT, group, seen, table, took
from tests.telemetry.rounds import LOAD

K = 4
TABLE = table(step=0.0002)
RETAINED = Layout.RETAINED_FRONTIER


def deciding(requests):
    """A round in which these requests emit from retained logits: no rows but drafts."""
    return LoadView(requests=tuple(requests), rows=0, prefill_rows=0, load=LOAD)


def decided(ks, accepted=None):
    """What such a round takes, and its record."""
    drafts = sum(ks)
    seconds = TABLE.round(len(ks), drafts, CONTEXT) if drafts else 0.00001
    seconds += sum(TABLE.draft_step(sum(k > d for k in ks), CONTEXT) for d in range(max(ks)))
    hits = accepted or [(1.0,) * k for k in ks]
    groups = [group(n, k, masses or None) for n, (k, masses) in enumerate(zip(ks, hits))]  # noqa: B905
    return seconds, took(seconds, *groups, target_rows=drafts)


def appended(count, factor=1.0):
    """What the append of so many requests takes, and its record."""
    seconds = factor * TABLE.round(count, count, CONTEXT)
    groups = [group(n, 0, terminal=None, committed=0) for n in range(count)]
    return seconds, took(seconds, *groups, target_rows=count)


def test_a_round_without_drafts_is_its_append():
    costs = CostModel(TABLE, K, RETAINED).costs(3, 0, CONTEXT, 12)
    append = TABLE.round(3, 3, CONTEXT)
    assert costs.alike(0) == pytest.approx(append)
    assert costs.seconds(5, 0.25, 2) == pytest.approx(TABLE.round(3, 5, CONTEXT) + 0.25 + append)
    beside = CostModel(TABLE, K, RETAINED).costs(3, 2, CONTEXT, 12)  # two others append in it
    assert beside.seconds(0, 0.0, 0) == pytest.approx(TABLE.round(3, 2, CONTEXT) + append)


def test_all_that_decode_at_once_have_no_rows_but_drafts():
    retained, replayed = CostModel(TABLE, K, RETAINED), CostModel(TABLE, K)
    assert retained.decoding(4, CONTEXT, 8) == retained.costs(4, 0, CONTEXT, 8)
    assert replayed.decoding(4, CONTEXT, 8) == replayed.costs(4, 4, CONTEXT, 8)


def test_appends_teach_the_speed_and_what_a_round_costs_beside_them():
    model = CostModel(TABLE, K, RETAINED)
    for _ in range(40):
        model.learn(appended(4, 1.7)[1])
    assert model.speed == pytest.approx(1.7)
    for _ in range(100):
        model.learn(replace(decided([2] * 4)[1], round_seconds=1.4 * 1.7 * decided([2] * 4)[0]))
        model.learn(appended(4, 1.7)[1])
    relative = model.costs(4, 0, CONTEXT, 16).relative
    assert relative[2] / relative[0] == pytest.approx(1.4, rel=0.03)


def test_rounds_that_call_no_model_teach_nothing():
    model = CostModel(TABLE, K, RETAINED)
    for _ in range(40):
        model.learn(decided([0] * 4)[1])
    assert model.speed == 1.0


def rate(controller, alpha, rounds=400, count=2):
    """Tokens a second of requests that emit together, then append together."""
    chance, tokens, total = random.Random(1), 0.0, 0.0
    for number in range(rounds):
        decision = controller.decide(deciding(seen(n) for n in range(count)))
        ks = [decision.k(n) for n in range(count)]
        hits = [[float(chance.random() < alpha) for _ in range(k)] for k in ks]
        reached = [each[: each.index(0.0) + 1] if 0.0 in each else each for each in hits]
        for seconds, stats in (decided(ks, reached), appended(count)):
            controller.learn(stats)
            if number >= rounds // 4:
                total += seconds
        if number >= rounds // 4:
            tokens += count + sum(sum(each) for each in reached)
    return tokens / total


class Fixed(GoodputController):
    def __init__(self, k):
        super().__init__(TABLE, K, RETAINED)
        self.k = k

    def decide(self, view):
        return super().decide(
            replace(view, requests=tuple(replace(each, asked=self.k) for each in view.requests))
        )


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.8, 0.95])
def test_it_is_never_slower_than_a_fixed_k_or_none(alpha):
    """Drafts cost a second call of the target here: at 0.5 they do not pay, as they would where
    the frontier is replayed in the same call."""
    auto = rate(GoodputController(TABLE, K, RETAINED), alpha)
    assert auto >= 0.97 * max(rate(Fixed(k), alpha) for k in range(K + 1))
