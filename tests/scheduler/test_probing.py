"""What looking costs, whom it asks, and when it stays away."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.acceptance import AcceptanceBook
from scheduler.allocation import Candidate, best
from scheduler.cost_model import CostModel
from scheduler.goodput import GoodputController
from scheduler.probing import Plan, Prober
from scheduler.stats import Reason
from tests.scheduler.crowds import CONTEXT, FAR, group, seen, table, took, truth, view

K = 4
SHARE = 0.005
GOOD, BAD = (0.9, 0.8, 0.7, 0.6), (0.1, 0.01, 0.001, 0.0001)


class Desk:
    """A prober with the model behind it, and plans made as the controller makes them."""

    def __init__(self, costs=None):
        self.table = costs or table()
        self.book = AcceptanceBook(K)
        self.model = CostModel(self.table, K)
        self.prober = Prober(self.book, self.model)

    def plan(self, views, survivals, rows=FAR):
        """The best plan for these requests."""
        costs = self.model.costs(len(views), len(views), CONTEXT, K * len(views))
        candidates = [
            Candidate(
                request=each.request,
                survivals=survivals[: each.room],
                wake=self.model.catch_up(min(each.lag, 1)),
                modelled=True,
            )
            for each in views
        ]
        found = best(candidates, {}, costs, rows=rows)
        at_will = {each.request: each for each in views}
        given = {"candidates": candidates, "at_will": at_will, "costs": costs}
        return Plan(lengths=found.lengths, rate=found.rate, rows=rows, **given), found

    def probe(self, plan, found, *, at_liberty=True):
        return self.prober.probe(plan, found, at_liberty=at_liberty)

    def first(self, views, survivals, rounds=4000):
        """The first probe within so many rounds."""
        planned = self.plan(views, survivals)
        for _ in range(rounds):
            probe = self.probe(*planned)
            if probe is not None:
                return probe
        return None

    def price(self, views, plan, found, probe):
        """Seconds that a probe takes beyond the plan, by the table; for a plain round the time in
        which the plan would have made the tokens that it makes fewer."""
        before = [plan.lengths.get(each.request, 0) for each in views]
        after = [probe.lengths.get(each.request, k) for each, k in zip(views, before, strict=True)]
        woken = sum(
            self.table.draft_rows(each.lag)
            for each, old, new in zip(views, before, after, strict=True)
            if new and not old
        )
        seconds = truth(self.table, after) + woken
        if probe.reason is Reason.PROBE:
            return seconds - truth(self.table, before)
        return seconds - len(views) / found.rate


# ---- the budget ----------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), dear=st.sampled_from((0.2, 1.0, 3.0)), learnt=st.booleans())
@settings(max_examples=30, deadline=None)
def test_probes_take_half_a_percent_of_the_time_at_most(seed, dear, learnt):
    """At every moment of any stream of loads, lags and acceptance, good and bad mixed."""
    chance = random.Random(seed)
    desk = Desk(table(step=0.001 * dear))
    spent = total = 0.0
    for _ in range(200):
        count = chance.choice((1, 2, 4))
        views = [
            seen(n, lag=chance.choice((0, 0, 1, 2, 60, 2000)), room=chance.randint(0, K))
            for n in range(count)
        ]
        survivals = chance.choice((GOOD, BAD))
        plan, found = desk.plan(views, survivals)
        probe = desk.probe(plan, found)
        total += found.seconds
        if probe is not None:
            spent += max(desk.price(views, plan, found, probe), 0.0)
        assert spent <= SHARE * total * (1 + 1e-9)
        if learnt:
            ks = [plan.lengths.get(each.request, 0) for each in views]
            groups = [group(n, k) for n, k in enumerate(ks)]
            desk.prober.learn(took(0.01, *groups))
            desk.model.learn(took(truth(desk.table, ks), *groups))


def test_what_is_saved_up_is_bounded():
    """A long time without anything to ask does not end in a burst of probes."""
    desk = Desk()
    idle = desk.plan([seen(1, room=0)], BAD)
    for _ in range(20_000):
        desk.probe(*idle)
    views, spent, per_round = [seen(1)], 0.0, truth(desk.table, [0])
    for _ in range(100):
        plan, found = desk.plan(views, BAD)
        probe = desk.probe(plan, found)
        spent += 0.0 if probe is None else desk.price(views, plan, found, probe)
    assert 0.0 < spent <= (16.0 + 100 * SHARE) * per_round * (1 + 1e-9)


# ---- whom, and how deep --------------------------------------------------------------------------


@pytest.mark.parametrize("lags", [(300, 0, 5), (300, 1, 5), (2, 1, 2), (9, 8, 3000)])
def test_it_asks_whose_draft_cache_is_nearest(lags):
    views = [seen(n, lag=lag) for n, lag in enumerate(lags)]
    probe = Desk().first(views, BAD)
    assert probe.reason is Reason.PROBE
    assert set(probe.lengths) == {1}


def test_those_equally_near_are_asked_in_turn():
    desk, asked = Desk(), []
    views = [seen(1), seen(2, lag=1), seen(3, lag=70)]
    for _ in range(6):
        asked += desk.first(views, BAD).lengths
    assert sorted(asked) == [1, 1, 1, 2, 2, 2]
    assert all(left != right for left, right in pairwise(asked))


def test_it_goes_to_the_first_position_that_is_little_known():
    desk = Desk()
    desk.book.enter(1, own_seed=False)
    assert desk.first([seen(1)], BAD).lengths == {1: 1}
    for _ in range(200):
        desk.book.learn([group(1, 2)])
    assert desk.first([seen(1)], BAD).lengths == {1: 3}
    for _ in range(200):
        desk.book.learn([group(1, K)])
    assert desk.first([seen(1)], BAD).lengths == {1: 1}


@pytest.mark.parametrize("room", [0, 1, 2])
def test_nobody_is_asked_beyond_its_room(room):
    desk = Desk()
    for _ in range(200):
        desk.book.learn([group(1, 2)])
    probe = desk.first([seen(1, room=room)], BAD)
    assert (probe is None) if room == 0 else (probe.lengths[1] <= room)


def test_nobody_is_asked_where_no_acceptance_could_pay():
    """A draft step takes longer than a whole plain round of one request."""
    assert Desk(table(step=0.02)).first([seen(1)], BAD) is None
    assert Desk(table(step=0.02)).first([seen(n) for n in range(4)], BAD) is None
    assert Desk(table(step=0.002)).first([seen(1)], BAD) is not None


# ---- plain rounds --------------------------------------------------------------------------------


def drafting_rounds(desk, rounds, **options):
    """Rounds of two requests that draft; where a probe says so they do not. Rounds of probes."""
    views, found = [seen(1), seen(2)], []
    for number in range(rounds):
        plan, chosen = desk.plan(views, GOOD)
        probe = desk.probe(plan, chosen, **options)
        lengths = {**plan.lengths, **(probe.lengths if probe else {})}
        ks = [lengths.get(each.request, 0) for each in views]
        stats = took(truth(desk.table, ks), *(group(n, k) for n, k in enumerate(ks, 1)))
        desk.prober.learn(stats)
        desk.model.learn(stats)
        found += [(number, probe, ks)] if probe and probe.reason is Reason.BASELINE else []
    return found


def test_while_drafting_a_plain_round_comes_now_and_then():
    found = drafting_rounds(Desk(), 3000)
    assert all(ks == [0, 0] for _, _, ks in found)
    assert all(set(probe.lengths) == {1, 2} for _, probe, _ in found)
    numbers = [number for number, _, _ in found]
    assert len(numbers) >= 3000 // 512
    assert numbers[-1] > 2400
    gaps = [after - before for before, after in pairwise(numbers)]
    assert min(gaps[3:]) >= 256


def test_plain_rounds_at_a_load_are_seen_a_few_times_before_anything_else_is_looked_at():
    """Also where rounds teach the cost model nothing, as in the retained layout."""
    desk, views = Desk(), [seen(1), seen(2)]
    plain = []
    for number in range(600):
        plan, chosen = desk.plan(views, GOOD)
        probe = desk.probe(plan, chosen)
        lengths = {**plan.lengths, **(probe.lengths if probe else {})}
        desk.prober.learn(took(1.0, *(group(n, lengths.get(n, 0)) for n in (1, 2))))
        plain += [number] if probe and probe.reason is Reason.BASELINE else []
    assert len(plain) == 4
    assert plain[3] - plain[2] > 256


def test_a_round_that_prefills_is_no_plain_round():
    desk, views = Desk(), [seen(1)]
    for _ in range(50):
        desk.prober.learn(took(1.0, replace(group(1, 0), prefilled=9)))
    assert desk.first(views, GOOD).reason is Reason.BASELINE


def test_no_plain_round_where_floors_forbid_it():
    assert drafting_rounds(Desk(), 3000, at_liberty=False) == []


def test_no_plain_probe_where_nothing_is_drafted():
    desk, reasons = Desk(), set()
    planned = desk.plan([seen(1)], BAD)
    for _ in range(3000):
        probe = desk.probe(*planned)
        reasons.add(probe and probe.reason)
    assert reasons == {None, Reason.PROBE}


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 9])
def test_where_drafting_is_due_as_many_draft_as_there_are_rows_for(rows):
    """Those that are nearest; and never is a probe deeper than the rows."""
    desk = Desk()
    views = [seen(1, lag=40), seen(2), seen(3, lag=20)]
    for _ in range(300):
        desk.prober.learn(took(0.01, *(group(n, 0) for n in (1, 2, 3))))
    idle = desk.plan([seen(n, room=0) for n in (1, 2, 3)], BAD)
    for _ in range(3000):  # enough is saved up for all
        desk.probe(*idle)
    planned, probes = desk.plan(views, BAD, rows), []
    for _ in range(3000):
        probe = desk.probe(*planned)
        probes += [probe] if probe else []
    assert bool(probes) == bool(rows)
    assert all(0 < sum(each.lengths.values()) <= rows for each in probes)
    if rows:
        assert probes[0].lengths == dict.fromkeys((2, 3, 1)[:rows], 1)


@pytest.mark.parametrize("asked", [0, 1, 4])
def test_a_fixed_k_is_never_probed(asked):
    controller = GoodputController(table(), K)
    views = [seen(n, asked=asked) for n in (1, 2)]
    for _ in range(1500):
        decision = controller.decide(view(*views))
        assert {(each.k, each.reason) for each in decision.choices.values()} == {
            (asked, Reason.FIXED)
        }
        controller.learn(took(truth(table(), [asked] * 2), *(group(n, asked) for n in (1, 2))))


def test_a_wish_that_needs_drafts_keeps_plain_rounds_away():
    """Alone it would be probed: the same load without the wish is."""
    reasons = []
    for tpot in (None, 0.008):
        controller, found = GoodputController(table(), K), []
        for _ in range(1500):
            decision = controller.decide(view(seen(1, tpot=tpot)))
            found.append(decision.choices[1].reason)
            k = decision.k(1)
            controller.learn(took(truth(table(), [k]), group(1, k)))
        reasons.append(found)
    without, wishful = reasons
    assert Reason.BASELINE in without[1000:]
    assert Reason.BASELINE not in wishful
