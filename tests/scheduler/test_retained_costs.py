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
    return LoadView(requests=tuple(requests), rows=0, prefill_rows=0, spare=512, load=LOAD)


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
        ks, reached = chosen(controller, deciding(seen(n) for n in range(count)), alpha, chance)
        for seconds, stats in (decided(ks, reached), appended(count)):
            controller.learn(stats)
            if number >= rounds // 4:
                total += seconds
        if number >= rounds // 4:
            tokens += count + sum(sum(each) for each in reached)
    return tokens / total


def chosen(controller, view, alpha, chance):
    """K of each request of a view, and which of the drafts that were tested were accepted."""
    decision = controller.decide(view)
    ks = [decision.k(each.request) for each in view.requests]
    hits = [[float(chance.random() < alpha) for _ in range(k)] for k in ks]
    return ks, [each[: each.index(0.0) + 1] if 0.0 in each else each for each in hits]


def staggered(controller, costs, alpha, sides, rounds=1000):
    """Tokens a second of two sides, which append in the rounds in which the other one emits."""
    chance, tokens, total = random.Random(1), 0.0, 0.0
    first, second = range(sides[0]), range(sides[0], sum(sides))
    for number in range(rounds):
        emit, append = (second, first) if number % 2 else (first, second)
        view = replace(deciding(map(seen, emit)), rows=len(append))
        ks, reached = chosen(controller, view, alpha, chance)
        rows = len(append) + sum(ks)
        seconds = costs.round(len(emit), rows, CONTEXT)
        seconds += sum(costs.draft_step(sum(k > d for k in ks), CONTEXT) for d in range(max(ks)))
        groups = [group(n, k, hits or None) for n, k, hits in zip(emit, ks, reached, strict=True)]
        groups += [group(n, 0, terminal=None, committed=0) for n in append]
        controller.learn(took(seconds, *groups, target_rows=rows))
        if number >= rounds // 4:
            total += seconds
            tokens += len(emit) + sum(map(sum, reached))
    return tokens / total


def expected(costs, k, alpha, sides):
    """Tokens a second of the same sides that always draft `k`: all in step where one is empty."""
    tokens = sum(sides) * sum(alpha**depth for depth in range(k + 1))
    seconds = 0.0
    for emit, append in (sides, sides[::-1]):
        rows = append + emit * k
        seconds += costs.round(emit, rows, CONTEXT) if rows else 0.0
        seconds += k * costs.draft_step(emit, CONTEXT)
    return tokens / seconds


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.8, 0.95])
def test_it_is_never_slower_than_a_fixed_k_or_none(alpha):
    """Drafts cost a second call of the target here: at 0.5 they do not pay, as they would where
    the frontier is replayed in the same call."""
    auto = rate(GoodputController(TABLE, K, RETAINED), alpha)
    assert auto >= 0.97 * max(expected(TABLE, k, alpha, (2, 0)) for k in range(K + 1))


@pytest.mark.parametrize("sides", [(1, 1), (4, 4), (1, 7)])
@pytest.mark.parametrize("alpha", [0.3, 0.8, 0.95])
@pytest.mark.parametrize(("step", "row"), [(0.0002, 0.0002), (0.003, 0.003), (0.001, 0.002)])
def test_nor_where_some_append_while_others_emit(step, row, alpha, sides):
    """Both calls yield tokens then: time has the price of both."""
    costs = table(step=step, row=row)
    auto = staggered(GoodputController(costs, K, RETAINED), costs, alpha, sides)
    assert auto >= 0.97 * max(expected(costs, k, alpha, sides) for k in range(K + 1))


def test_a_forecast_holds_an_append_only_where_it_is_a_round_of_its_own():
    requests = [seen(n) for n in range(4)]
    alone = GoodputController(TABLE, K, RETAINED).decide(deciding(requests)).forecast
    append = TABLE.round(4, 4, CONTEXT)
    assert alone.append_seconds == alone.plain_seconds == pytest.approx(append)
    beside = replace(deciding(requests), rows=4)
    beside = GoodputController(TABLE, K, RETAINED).decide(beside).forecast
    assert beside.append_seconds == 0.0
    assert beside.plain_seconds == pytest.approx(append)
    assert beside.seconds < 1.5 * append
