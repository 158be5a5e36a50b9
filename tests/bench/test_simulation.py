"""The controller simulator against closed forms and an independent ledger."""

import json
import math
import random
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest

from scheduler.controller import FixedController, fixed
from scheduler.costs import Curve
from scheduler.plan import TerminalKind
from scheduler.speedup import expected_committed
from scheduler.stats import Choice, Decision, Reason
from tests.bench.simulation.__main__ import main, run_point
from tests.bench.simulation.arms import OracleController, best_uniform, expected_rate, extended
from tests.bench.simulation.catalogue import COSTS, catalogue
from tests.bench.simulation.engine import Share, VirtualEngine, World, seconds_of
from tests.bench.simulation.measure import Point, Tally, run_arm
from tests.bench.simulation.record import outcomes
from tests.bench.simulation.table import FLOOR, render
from tests.bench.simulation.traffic import (
    Domain,
    Live,
    Traffic,
    arrivals,
    make_request,
    steady,
)
from tests.bench.simulation.truth import Noise, Truth, bent, line, stairs

TRUTH = Truth(
    rows=line(10e-3, 1e-3), emitter=2e-3, step=line(3e-3, 0.5e-3), catch_up=0.1e-3, context=0
)
QUIET = Noise(spread=0.0, outliers=0.0)


def world(*domains, load=4, span=20.0, **more):
    traffic = {"prompts": (40, 90), "outputs": (50, 120), "stop": 0.004}
    traffic |= {name: more.pop(name) for name in list(more) if name in Traffic.__slots__}
    return World(
        truth=more.pop("truth", TRUTH),
        traffic=Traffic(domains=domains or (steady(0.7),), load=((0.0, load),), **traffic),
        noise=more.pop("noise", QUIET),
        span=span,
        **more,
    )


class Watched:
    """Any controller, with what it saw."""

    def __init__(self, inner):
        self.inner = inner
        self.views, self.stats, self.ended = [], [], []

    def decide(self, view):
        self.views.append(view)
        return self.inner.decide(view)

    def learn(self, stats):
        self.stats.append(stats)
        self.inner.learn(stats)

    def forget(self, request):
        self.ended.append(request)
        self.inner.forget(request)


class Erratic(FixedController):
    """K by chance, from 0 to beyond every room."""

    def __init__(self, seed):
        super().__init__(0)
        self._chance = random.Random(seed)

    def decide(self, view):
        return fixed(
            {each.request: self._chance.choice((0, 0, 1, 3, 12)) for each in view.requests}
        )


def ran(where, controller):
    rounds = []
    watched = Watched(controller)
    engine = VirtualEngine(where, watched, rounds.append)
    if isinstance(controller, OracleController):
        controller.profile = engine.profile
    engine.run()
    return watched, rounds, engine


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


def test_rows_of_long_contexts_cost_more_and_factors_multiply():
    truth = replace(TRUTH, row_key=1e-6, context=60, by_k=((0, 1.0), (2, 3.0)), by_n=((2, 0.5),))
    assert seconds_of(truth, [share(1)])[1] == pytest.approx(10e-3 + 1e-3 + 2e-3 + 2 * 40e-6)
    chunk = share(0, rows=20, emits=False)
    chunk.live.emitted, chunk.live.rows = 0, 40  # its rows see 50 tokens on average
    assert seconds_of(truth, [chunk])[1] == pytest.approx(10e-3 + 19e-3 - 20 * 10e-6)
    longer = sum(seconds_of(truth, [share(3), share(1)]))
    plain = 10e-3 + 5e-3 + 4e-3 + 6 * 40e-6 + 3.5e-3 + 2 * 3e-3
    assert longer == pytest.approx(plain * 3.0 * 0.5)


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


# ---- arms and figures ----------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, 2, 5])
def test_the_expected_rate_is_met(k):
    where = world(prompts=(2, 2), outputs=(900, 900), stop=0.0, span=60.0, noise=QUIET)
    found = run_arm(where, FixedController(k), "", 0.1).rate
    profile = (0.7,)
    expected = expected_rate(TRUTH, {profile: 4}, {profile: k}, 0)
    assert found == pytest.approx(expected, rel=0.02)


def test_the_oracle_takes_the_best_k_of_each_profile():
    good, bad = (0.9,), (0.05,)
    chosen = best_uniform(TRUTH, {good: 2, bad: 2}, 8, 0)
    assert chosen[good] > 1
    assert chosen[bad] == 0
    where = world(steady(0.9), steady(0.05), stop=0.0, span=30.0)
    oracle = run_arm(where, OracleController(TRUTH, 8), "", 0.1).rate
    best = max(run_arm(where, FixedController(k), "", 0.1).rate for k in range(9))
    assert oracle > 1.02 * best


class Scripted(FixedController):
    """K by round for all, with reasons."""

    def __init__(self, *script):
        super().__init__(0)
        self._script = list(script)

    def decide(self, view):
        if not any(each.room for each in view.requests) or not self._script:
            return Decision()
        k, reason = self._script.pop(0)
        choices = {each.request: Choice(k=k, reason=reason) for each in view.requests}
        return Decision(choices=choices)


def test_switches_and_probes_are_counted():
    kept, probe = Reason.KEPT, Reason.PROBE
    script = [(2, kept), (2, kept), (3, kept), (0, kept), (1, probe), (0, kept), (4, kept)]
    rounds = []
    where = world(load=1, outputs=(60, 60), stop=0.0, span=0.4, prompts=(20, 20))
    VirtualEngine(where, Scripted(*script), rounds.append).run()
    assert [each.shares[0].k for each in rounds[1:8]] == [2, 2, 3, 0, 1, 0, 4]
    rounds = rounds[:8]
    tally = Tally(0.0)
    for each in rounds:
        tally.add(each)
    arm = tally.arm("x")
    assert (arm.flips, arm.changes) == (2, 3)
    assert arm.probing == pytest.approx(rounds[5].seconds / arm.seconds)
    assert arm.idle_draft == pytest.approx(rounds[5].draft_seconds / arm.seconds)
    assert arm.tokens == sum(each.tokens for each in rounds)


def test_the_first_of_the_span_is_not_counted():
    whole = run_arm(world(), FixedController(0), "", 0.0)
    part = run_arm(world(), FixedController(0), "", 0.5)
    assert part.rounds == pytest.approx(whole.rounds / 2, rel=0.05)
    assert part.rate == pytest.approx(whole.rate, rel=0.05)


def test_catalogue_names_are_unique_and_every_world_stands():
    names = [each.name for each in catalogue()]
    assert len(names) == len(set(names)) > 40
    for each in catalogue():
        for concurrency in each.concurrencies:
            assert each.world(concurrency, seed=1).span > 0


def test_recorded_outcomes_come_from_an_acceptance_log():
    def place(position, accepted):
        record = {"record": "position", "request": 3, "policy": "token", "position": position}
        return json.dumps(record | {"accepted": accepted})

    plain = {"record": "plain", "request": 3, "policy": "token", "position": 20}
    lines = ['{"record":"header"}', json.dumps(plain), place(21, True), place(22, False)]
    lines += [place(23, True), place(25, False)]
    assert outcomes(lines) == {"token": ["110110"]}


def test_the_table_names_the_worst():
    where = world(span=2.0)
    arms = [run_arm(where, FixedController(k), f"k={k}", 0.0) for k in (0, 2)]
    auto, oracle = (replace(arms[0], name=name) for name in ("auto", "oracle"))
    auto = replace(auto, rate=0.5 * arms[0].rate)
    point = Point(scenario="s", concurrency=4, paced=False, arms=(*arms, auto, oracle))
    assert point.over("k=0") == pytest.approx(0.5)
    assert point.best_fixed == "k=2"
    text = render([point])
    assert "AGAINST PLAIN DECODING: 1 OF 1 POINTS BELOW 0.97, WORST\n  0.500  s at 4" in text


def test_the_command_runs_and_writes(tmp_path, capsys):
    target = tmp_path / "figures.json"
    asked = ["--only", "iid-0.9/gpu", "--at", "1", "--quick", "--json", str(target)]
    assert main(asked) == 0
    assert "iid-0.9/gpu" in capsys.readouterr().out
    arms = json.loads(target.read_text("utf-8"))[0]["arms"]
    assert [arm["name"] for arm in arms] == [*(f"k={k}" for k in range(9)), "auto", "oracle"]
    assert main(["--only", "no such"]) == 2


# ---- the controller ------------------------------------------------------------------------------

# Steady scenarios are measured after the first fifth of the span, the others as a whole.
STRICT = (
    *(("iid-0.3/embedded", n) for n in (1, 16)),
    *(("iid-0.6/embedded", n) for n in (1, 4, 16)),
    *(("iid-0.9/gpu", n) for n in (1, 8, 32)),
    *(("dead/embedded", n) for n in (1, 16)),
    *(("iid-0.6/synthetic", n) for n in (1, 4)),
    *(("iid-0.85/graphs", n) for n in (2, 16)),
    *(("iid-0.85/moe", n) for n in (1, 8)),
    *(("iid-0.85/slow", n) for n in (4, 32)),
    *(("front/gpu", 4), ("back/embedded", 16), ("mixed/gpu", 8), ("masses-0.6/embedded", 8)),
    *(("down/embedded", 4), ("up/gpu", 16), ("recovery/gpu", 8), ("ramp/gpu", 32)),
    *(("wrong-k-dear/embedded", 16), ("wrong-k-cheap/gpu", 8), ("wrong-step/embedded", 4)),
    *(("prefill-full/gpu", 16), ("long/embedded", 8), ("recorded-token/embedded", 4)),
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "concurrency"), STRICT)
def test_the_controller_is_never_slower(name, concurrency):
    scenario = next(each for each in catalogue() if each.name == name)
    point = run_point(scenario, concurrency, seed=1, share=0.8, fixed=(0, 1, 2, 3, 4, 6, 8))
    auto = next(each for each in point.arms if each.name == "auto")
    assert point.over(point.best_fixed) >= FLOOR, point.best_fixed
    assert point.over("k=0") >= FLOOR
    assert auto.flips <= 2 + auto.rounds // 100
    assert auto.idle_draft < 0.01
