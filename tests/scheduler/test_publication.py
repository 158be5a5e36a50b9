"""Publication in any order, late, twice, or under another's name: once, or not at all."""

from collections import Counter

import pytest

from scheduler.commit import FaultPoint
from scheduler.lifecycle import Phase, advance
from scheduler.plan import Layout
from scheduler.stats import CommitOutcome
from tests.oracles.publications import chain, late_results, mixed_up, orders
from tests.oracles.rig import NOISE, Rig, config, expected, request
from tests.oracles.scenes import KINDS, STYLES

NAMES = [f"{kind.layout.value}-{kind.name}" for kind in KINDS]
KIND = pytest.mark.parametrize("kind", KINDS, ids=NAMES)
LAYOUTS = pytest.mark.parametrize("layout", Layout)


def style_of(kind):
    return STYLES[KINDS.index(kind) % len(STYLES)]


@LAYOUTS
def test_publications_in_any_order_take_each_round_once(layout):
    kind = next(each for each in KINDS if each.layout is layout)
    cases, wrong = orders(chain(kind, STYLES[2]), length=3)
    assert cases > 1000
    assert wrong == []


@KIND
def test_late_results_change_nothing(kind):
    cases, wrong = late_results(kind, style_of(kind))
    assert cases > 2
    assert wrong == []


@KIND
def test_a_result_of_something_else_is_refused_by_name(kind):
    cases, wrong = mixed_up(kind, style_of(kind))
    assert cases > 50
    assert wrong == []


ASKED = [request(n, (n, 3, 1), max_tokens=9, k=3, temperature=0.8, verifier=NOISE) for n in (1, 2)]


def started(layout, rounds=3, fault=None):
    rig = Rig(config(layout=layout), **({} if fault is None else {"fault": fault}))
    rig.submit(*ASKED)
    for _ in range(rounds):
        rig.step()
    return rig


def outcomes(landed):
    return {each.outcome for each in landed.groups}


def finish(rig):
    rig.drain()
    assert [rig.outputs[n].tokens for n in (1, 2)] == [expected(each) for each in ASKED]


@LAYOUTS
@pytest.mark.parametrize("rounds", [0, 1, 2, 3, 4])
def test_a_result_of_a_round_that_was_given_up_is_stale(layout, rounds):
    """Its retry runs already, or will; in the retained layout the row of an append is gone."""
    rig = started(layout, rounds)
    plan, jobs = rig.plan()
    result, staged = rig.execute(plan, jobs)
    rig.fail(plan)
    before = dict(rig.book.ledger.states)
    landed = rig.land(jobs, staged, result)
    assert outcomes(landed) == {CommitOutcome.STALE}
    assert not landed.events
    rig.step()
    assert outcomes(rig.land(jobs, staged, result)) == {CommitOutcome.STALE}
    states = rig.book.ledger.states
    assert sum(states.get(number) != state for number, state in before.items()) == 1
    finish(rig)


@LAYOUTS
def test_an_error_of_a_round_that_was_given_up_ends_nobody(layout):
    rig = started(layout)
    plan, jobs = rig.plan()
    result, _ = rig.execute(plan, jobs)
    rig.fail(plan)
    landed = rig.land(jobs, (None, None), result)
    assert outcomes(landed) == {CommitOutcome.STALE}
    finish(rig)


@LAYOUTS
def test_a_round_that_fails_after_it_was_published_is_not_run_again(layout):
    rig = started(layout)
    plan, jobs = rig.plan()
    result, staged = rig.execute(plan, jobs)
    rig.land(jobs, staged, result)
    landed = rig.fail(plan)
    assert landed.groups == ()
    assert all(entry.retry is None for entry in rig.book.entries.values())
    finish(rig)


@LAYOUTS
def test_a_round_that_fails_after_a_preemption_is_not_run_again(layout):
    """The request starts anew: rows and blocks of the old round mean nothing to it."""
    rig = started(layout)
    plan, _ = rig.plan()
    rig.book.preempt(rig.book.entries[2])
    landed = rig.fail(plan)
    assert [each.request for each in landed.groups] == [1]
    assert rig.book.entries[2].retry is None
    finish(rig)


@LAYOUTS
def test_a_second_failure_in_company_ends_nobody(layout):
    """Only a request that breaks a round alone is known to be the one that breaks it."""
    rig = started(layout)
    rig.fail(rig.plan()[0])
    for entry in list(rig.book.running):
        rig.book.preempt(entry)
    plan, _ = rig.plan()
    assert len(plan.groups) == 2
    assert not rig.fail(plan).finished
    finish(rig)


@LAYOUTS
def test_a_fault_before_publication_after_a_preemption_is_no_failure_of_the_request(layout):
    """A stale round is dropped before anything can break."""
    armed = []

    def fault(point, number):
        if armed and point is FaultPoint.BEFORE_PUBLICATION:
            raise RuntimeError(point.value)

    rig = started(layout, fault=fault)
    plan, jobs = rig.plan()
    result, staged = rig.execute(plan, jobs)
    for entry in list(rig.book.running):
        rig.book.preempt(entry)
    armed.append(True)
    assert outcomes(rig.land(jobs, staged, result)) == {CommitOutcome.STALE}
    armed.clear()
    assert all(entry.failures == 0 for entry in rig.book.entries.values())
    finish(rig)


@LAYOUTS
def test_a_fault_after_publication_is_acknowledged_and_appends_nothing(layout):
    hits = []

    def fault(point, number):
        if point is FaultPoint.AFTER_PUBLICATION and len(hits) < 6:
            hits.append(number)
            raise RuntimeError(point.value)

    rig = started(layout, 0, fault)
    for _ in range(3):
        plan, jobs = rig.plan()
        result, staged = rig.execute(plan, jobs)
        assert outcomes(rig.land(jobs, staged, result)) == {CommitOutcome.PUBLISHED}
        states = dict(rig.book.ledger.states)
        again = rig.land(jobs, staged, result)
        assert outcomes(again) == {CommitOutcome.REPLAYED}
        assert not again.events
        assert rig.book.ledger.states == states
    assert hits == [1, 2] * 3
    finish(rig)


@pytest.fixture
def moves(monkeypatch):
    """Where rounds went, by the table that production asks."""
    found = []

    def noted(phase, to):
        found.append(advance(phase, to))
        return to

    monkeypatch.setattr("scheduler.commit.advance", noted)
    return found


def check_ends(rig, landed, moves):
    """What was published and what was dropped went so by the table, each once."""
    told = Counter(each.outcome.name for each in landed.groups)
    ends = Counter(each.name for each in moves if each in {Phase.PUBLISHED, Phase.ABORTED})
    assert ends == told
    for each in landed.groups:
        if each.request in rig.book.entries:
            phase = rig.book.ledger.phase(each.request, rig.plans[-1].round_id)
            assert phase.name == each.outcome.name


@LAYOUTS
@pytest.mark.parametrize("times", [1, 2, 99])
@pytest.mark.parametrize("point", FaultPoint)
def test_a_round_ends_published_or_aborted(layout, point, times, moves):
    hits = []

    def fault(where, number):
        if where is point and number == 2 and len(hits) < times:
            hits.append(rig.plans[-1].round_id)
            raise RuntimeError(point.value)

    rig = started(layout, 0, fault)
    seen = set()
    while (landed := rig.step()) is not None:
        check_ends(rig, landed, moves)
        seen |= set(moves)
        moves.clear()
    assert hits
    dropped = point is not FaultPoint.AFTER_PUBLICATION
    assert (Phase.ABORTED in seen) == dropped
    assert Phase.PUBLISHED in seen


@LAYOUTS
def test_a_round_without_a_law_is_aborted(layout, moves):
    rig = started(layout)
    plan, jobs = rig.plan()
    result, _ = rig.execute(plan, jobs)
    moves.clear()
    landed = rig.land(jobs, (None, None), result)
    assert outcomes(landed) == {CommitOutcome.ABORTED}
    check_ends(rig, landed, moves)
    assert not rig.book.entries
