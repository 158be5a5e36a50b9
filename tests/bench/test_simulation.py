"""The controller simulator against closed forms and an independent ledger."""

import math
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest

from scheduler.controller import FixedController
from scheduler.costs import Curve
from scheduler.plan import TerminalKind
from scheduler.speedup import expected_committed
from scheduler.stats import Choice, Reason
from tests.bench.simulation.arms import extended
from tests.bench.simulation.catalogue import COSTS
from tests.bench.simulation.engine import Share, seconds_of
from tests.bench.simulation.measure import run_arm
from tests.bench.simulation.traffic import (
    Domain,
    Live,
    arrivals,
    make_request,
    steady,
)
from tests.bench.simulation.truth import Noise, bent, line, stairs
from tests.bench.virtual import TRUTH, Erratic, ran, world

# ---- what is committed ---------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("profile", [(0.3,), (0.6,), (0.9,), (0.95, 0.9, 0.6, 0.4)])
def test_tokens_a_round_have_the_closed_form(k, profile):
    _, rounds, _ = ran(world(steady(*profile), stop=0.0, span=40.0), FixedController(k))
    found = [s.accepted + 1 for each in rounds for s in each.shares if s.k == k]
    mean = sum(found) / len(found)
    error = math.sqrt(sum((each - mean) ** 2 for each in found)) / len(found)
    assert mean == pytest.approx(expected_committed(extended(profile, k)), abs=4.5 * error)
    assert len(found) > 500


def test_outcomes_or_chances_are_reported():
    watched, _, _ = ran(world(steady(0.7)), FixedController(4))
    drafted = [g.speculation for s in watched.stats for g in s.groups if g.speculation]
    for each in drafted:
        assert each.mass == (1.0,) * each.accepted + (0.0,) * (each.reached - each.accepted)
        assert each.base == (1.0,) * each.reached
    watched, _, _ = ran(world(steady(0.7, 0.5), masses=True), FixedController(3))
    masses = {g.speculation.mass for s in watched.stats for g in s.groups if g.speculation}
    assert masses <= {(), (0.7,), (0.7, 0.5), (0.7, 0.5, 0.5)}
    assert len(masses) > 2


def test_an_accepted_prefix_that_meets_the_end_is_cut_there():
    watched, _, _ = ran(world(steady(0.95), stop=0.05), FixedController(8))
    groups = [g for stats in watched.stats for g in stats.groups if g.speculation]
    cut = [group for group in groups if group.terminal is TerminalKind.STOP]
    assert cut
    for group in groups:
        whole = group.speculation.accepted + (group.terminal is not TerminalKind.STOP)
        assert group.committed == whole
        assert (group.terminal is TerminalKind.BONUS) == (
            group.speculation.accepted == group.speculation.k
            and group.terminal is not TerminalKind.STOP
        )
    assert all(group.speculation.reached == group.speculation.accepted for group in cut)


def test_recorded_outcomes_are_replayed():
    strings = ("1" * 10 + "0" + "1" * 29, "1" * 40)
    watched, _, _ = ran(
        world(Domain(recorded=strings), load=1, span=2.0, stop=0.0), FixedController(8)
    )
    committed = defaultdict(list)
    for stats in watched.stats:
        for group in stats.groups:
            if group.committed:
                committed[group.request].append(group.committed)
    # The first token, a round of 9, then position 10 is refused at once; 39 is the budget's last.
    assert committed[0] == [1, 9, 1, 9, 9, 9, 2]
    assert committed[1] == [1, 9, 9, 9, 9, 3]


# ---- what it costs -------------------------------------------------------------------------------


def share(k, *, rows=1, emits=True, extra=0, tokens=100):
    live = Live(0, steady(0.5))
    live.prompt, live.emitted = tokens - 1, 1
    return Share(live, rows=rows, emits=emits, room=8, k=k, extra=extra)


def test_seconds_are_the_sums_of_their_parts():
    shares = [share(3, extra=1), share(1), share(0, rows=20, emits=False)]
    draft, target = seconds_of(TRUTH, shares)
    # Steps of 2, 1 and 1 requests, one row of catching up; 26 rows of target, two that emit.
    assert draft == pytest.approx(3.5e-3 + 3e-3 + 3e-3 + 0.1e-3)
    assert target == pytest.approx(10e-3 + 25e-3 + 2 * 2e-3)


def test_rows_of_long_contexts_cost_more():
    truth = replace(TRUTH, row_key=1e-6, context=60)
    assert seconds_of(truth, [share(1)])[1] == pytest.approx(10e-3 + 1e-3 + 2e-3 + 2 * 40e-6)
    chunk = share(0, rows=20, emits=False)
    chunk.live.emitted, chunk.live.rows = 0, 40  # its rows see 50 tokens on average
    assert seconds_of(truth, [chunk])[1] == pytest.approx(10e-3 + 19e-3 - 20 * 10e-6)


def test_factors_lie_on_lines_and_one_of_them_is_for_what_decodes():
    truth = replace(TRUTH, by_k=((0, 1.0), (2, 3.0)), by_n=((1, 1.0), (3, 0.5)))
    assert sum(seconds_of(truth, [share(0)])) == pytest.approx(10e-3 + 2e-3)
    plain = 10e-3 + 4e-3 + 4e-3 + 3.5e-3 + 3e-3
    halves = sum(seconds_of(truth, [share(1), share(2)]))  # a mean K of 1.5, two emitters
    assert halves == pytest.approx(2.5 * 0.75 * plain)
    further = sum(seconds_of(truth, [share(3), share(3)]))
    assert further == pytest.approx(3.0 * 0.75 * (10e-3 + 7e-3 + 4e-3 + 3 * 3.5e-3))
    chunk = share(0, rows=20, emits=False)
    chunk.live.emitted, chunk.live.rows = 0, 40
    beside = sum(seconds_of(truth, [share(1), share(2), chunk]))
    assert beside == pytest.approx(halves + 0.75 * 20 * 1e-3)


@pytest.mark.parametrize("name", sorted(COSTS))
def test_the_table_says_what_is_true(name):
    truth = COSTS[name]
    table = truth.table()
    for emitters in (1, 2, 3, 8, 20, 32):
        for rows in (emitters, emitters * 2 + 1, emitters * 9):
            found = table.round(emitters, rows, truth.context + 100)
            assert found == pytest.approx(truth.target(emitters, rows, rows * 100.0))
        assert table.draft_step(emitters, 0) == pytest.approx(truth.draft([emitters], 0))
    assert table.draft_rows(300) == pytest.approx(300 * truth.catch_up)


def test_stairs_and_bends():
    curve = stairs((1, 2, 4, 8), 10.0, 1.0)
    assert [curve.at(n) for n in (1, 2, 3, 4, 5, 8, 9)] == [11, 12, 14, 14, 18, 18, 19]
    assert bent((1, 5.0), (9, 6.0), slope=2.0).at(12) == pytest.approx(12.0)
    assert line(4.0, 0.5) == Curve(points=((1, 4.0), (4096, 4.0 + 0.5 * 4095)))


def test_the_clock_is_true_and_the_controller_is_told_noise():
    noisy = world(noise=Noise(spread=0.05, outliers=0.02, longer=7.0))
    watched, rounds, engine = ran(noisy, FixedController(2))
    ratios = [s.round_seconds / r.seconds for s, r in zip(watched.stats, rounds, strict=True)]
    outliers = sum(ratio > 4 for ratio in ratios)
    assert 0.005 < outliers / len(ratios) < 0.05
    assert sorted(ratios)[len(ratios) // 2] == pytest.approx(1.0, abs=0.02)
    assert engine.now == pytest.approx(sum(each.seconds for each in rounds))
    quiet, rounds, _ = ran(world(), FixedController(2))
    assert [s.round_seconds for s in quiet.stats] == [each.seconds for each in rounds]
    timings = [s.timings.draft for s in quiet.stats]
    assert timings == [each.draft_seconds for each in rounds]


# ---- rows, lag, conservation ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_lag_follows_the_contract(seed):
    watched, _, _ = ran(world(steady(0.8), load=6), Erratic(seed))
    expected = {}
    for view, stats in zip(watched.views, watched.stats, strict=True):
        for each in view.requests:
            assert each.lag == expected.get(each.request, each.context - 1)
        for group in stats.groups:
            tokens = group.position + group.committed
            if group.speculation is None:
                before = expected.get(group.request, group.position - 1)
                expected[group.request] = before + group.committed
            elif group.terminal is not TerminalKind.STOP:
                full = group.speculation.accepted == group.speculation.k
                expected[group.request] = int(full)
            assert expected.get(group.request, 0) < tokens


@pytest.mark.parametrize("seed", range(4))
def test_everything_is_served_once_and_within_the_rows(seed):
    where = world(steady(0.8), load=9, places=5, prompts=(2, 700), seed=seed)
    watched, rounds, _ = ran(where, Erratic(seed))
    prefilled, committed = Counter(), Counter()
    for stats in watched.stats:
        assert stats.target_rows <= 512
        assert stats.draft_rows <= 512 + 7 * 5
        for group in stats.groups:
            prefilled[group.request] += group.prefilled
            committed[group.request] += group.committed
    assert len(watched.ended) == len(set(watched.ended)) > 10
    for number in watched.ended:
        request = make_request(where.traffic, number, seed)
        assert prefilled[number] == request.prompt - 1
        assert committed[number] == request.length
    ended = [each for stats in watched.stats for each in stats.finished]
    assert [each.request for each in ended] == watched.ended
    assert [each.request_stats.completion_tokens for each in ended] == [
        committed[number] for number in watched.ended
    ]
    assert max(len(each.shares) for each in rounds) <= 5
    drafts = [s for each in rounds for s in each.shares if s.k]
    assert all(s.k <= s.room for s in drafts)


def test_rows_of_target_and_draft_are_counted():
    watched, _, _ = ran(world(load=1, span=1.0, stop=0.0), FixedController(3))
    first = watched.stats[1]
    prompt = watched.stats[0].target_rows
    assert (first.target_rows, first.logit_rows) == (4, 4)
    assert first.draft_rows == 3 + prompt  # the first step takes lag + 1 rows
    assert watched.views[0].prefill_rows == prompt - 1


def test_a_long_prompt_comes_in_chunks_and_its_draft_catches_up_in_chunks():
    traffic = {"prompts": (1300, 1300), "outputs": (50, 50), "stop": 0.0}
    watched, rounds, _ = ran(world(load=1, span=2.0, **traffic), FixedController(4))
    assert [s.target_rows for s in watched.stats[:3]] == [512, 512, 276]
    assert [view.prefill_rows for view in watched.views[:4]] == [512, 512, 275, 0]
    assert [s.draft_rows for s in watched.stats[3:6]] == [512, 512, 4 + 1302 - 1024]
    assert [each.shares[0].k for each in rounds[3:6]] == [0, 0, 4]
    cut = [s.decision.choices[0] for s in watched.stats[3:5]]
    assert cut == [Choice(k=0, reason=Reason.ROWS)] * 2
    assert rounds[3].draft_seconds == pytest.approx(3e-3 + 511e-4, rel=0.01)


def test_drafts_leave_rows_for_prefill():
    where = world(load=40, prompts=(300, 300), stop=0.0, places=40, span=30.0)
    watched, _, _ = ran(where, FixedController(8))
    shared = [
        stats
        for stats in watched.stats
        if any(g.prefilled for g in stats.groups) and any(g.speculation for g in stats.groups)
    ]
    assert len(shared) > 5
    assert max(s.target_rows for s in shared) == 512


# ---- who comes -----------------------------------------------------------------------------------


def test_all_arms_meet_the_same_requests_and_repeat():
    where = world(steady(0.9), steady(0.2))
    one, two = (make_request(where.traffic, 7, 1) for _ in range(2))
    assert (one.prompt, one.budget, one.length) == (two.prompt, two.budget, two.length)
    assert one.draws == two.draws
    assert one.domain is where.traffic.domains[1]
    assert run_arm(where, Erratic(3), "a", 0.1) == run_arm(where, Erratic(3), "a", 0.1)


def test_profiles_change_with_time_and_with_tokens():
    domain = Domain(phases=((0.0, (0.8,)), (0.5, (0.2,))))
    assert [domain.at(share, 0) for share in (0.0, 0.49, 0.5)] == [(0.8,), (0.8,), (0.2,)]
    within = replace(domain, phases=((0.0, (0.9,)), (64.0, (0.3,))), by_tokens=True)
    assert [within.at(0.9, tokens) for tokens in (0, 63, 64)] == [(0.9,), (0.9,), (0.3,)]
    _, rounds, engine = ran(world(domain, stop=0.0), FixedController(4))
    halves = [[], []]
    for each in rounds:
        half = halves[each.start >= engine._world.span / 2]
        half += [s.accepted > 0 for s in each.shares if s.k]
    assert [sum(half) / len(half) for half in halves] == pytest.approx([0.8, 0.2], abs=0.05)


def test_load_is_kept_and_ramps():
    ramp = ((0.0, 1), (0.3, 6), (0.7, 2))
    where = world(outputs=(20, 40))
    where = replace(where, traffic=replace(where.traffic, load=ramp))
    _, rounds, _ = ran(where, FixedController(0))
    counts = Counter()
    for each in rounds:
        share = each.start / where.span
        if 0.1 < share < 0.3 or 0.4 < share < 0.7 or share > 0.9:
            counts[1 if share < 0.3 else 6 if share < 0.7 else 2, len(each.shares)] += 1
    assert {wanted for wanted, seen in counts if wanted == seen} == {1, 2, 6}
    assert all(wanted == seen for wanted, seen in counts)


def test_those_that_wait_count_as_load():
    where = world(load=6, prompts=(600, 600), span=6.0)
    watched, _, _ = ran(where, FixedController(0))
    assert watched.views[0].load.running == 1
    assert watched.views[0].load.waiting == 5
    assert max(view.load.running + view.load.waiting for view in watched.views) == 6


def test_arrivals_are_poisson():
    times = arrivals(40.0, 100.0, 5)
    gaps = [later - before for before, later in pairwise(times)]
    assert len(times) == pytest.approx(4000, abs=4 * math.sqrt(4000))
    assert max(times) < 100.0
    variance = sum((gap - 1 / 40) ** 2 for gap in gaps) / len(gaps)
    assert math.sqrt(variance) == pytest.approx(1 / 40, rel=0.1)


def test_an_open_loop_waits_when_nobody_comes():
    where = world(rate=0.5, load=0, outputs=(10, 20), span=60.0)
    watched, rounds, _ = ran(where, FixedController(2))
    busy = sum(each.seconds for each in rounds)
    assert 10 < len(watched.ended) < 60
    assert busy < 0.5 * (rounds[-1].start + rounds[-1].seconds)
