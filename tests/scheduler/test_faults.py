"""A fault at each point of a round: what is authoritative stays, field by field."""

from dataclasses import fields

import pytest

from scheduler.commit import FaultPoint
from scheduler.plan import Role
from scheduler.request import FinishReason
from scheduler.stats import CommitOutcome
from tests.oracles.rig import BLOCK, NOISE, TOKEN, Rig, expected, letters, request

ASKED = [
    request(n, (n, 3, 1), max_tokens=16, k=3, temperature=warm, verifier=verifier)
    for n, (warm, verifier) in enumerate([(0.0, TOKEN), (0.8, NOISE), (0.0, BLOCK)], 1)
]


class Fault:
    """Raises at one point for one request, while it is armed."""

    def __init__(self, point, number):
        self.point = point
        self.number = number
        self.armed = False

    def __call__(self, point, number):
        if self.armed and (point, number) == (self.point, self.number):
            raise RuntimeError(point.value)


def picture(rig, number):
    """All that is authoritative about one request."""
    entry = rig.book.entries[number]
    state = rig.book.ledger.state(number)
    return {
        **{each.name: getattr(state, each.name) for each in fields(state)},
        "status": entry.status,
        "blocks": dict(entry.blocks),
        "draft_rows": entry.draft_rows,
        "rounds": entry.counters.rounds,
        "text": rig.outputs[number].text,
        "events": len(rig.outputs[number].events),
    }


def held(rig):
    return [rig.book.tables.pool(role).stats().used for role in Role]


def broken_round(rig, fault, work):
    """Run a planned round with the fault armed; the ids of those that it must leave alone."""
    fault.armed = True
    if fault.point not in {FaultPoint.BEFORE_PUBLICATION, FaultPoint.AFTER_PUBLICATION}:
        with pytest.raises(RuntimeError, match=fault.point.value):
            rig.execute(*work)
        rig.fail(work[0])
        return {each.request_id for each in ASKED}
    result, staged = rig.execute(*work)
    landed = rig.land(work[1], staged, result)
    outcomes = {each.request: each.outcome for each in landed.groups}
    published = fault.point is FaultPoint.AFTER_PUBLICATION
    mine = CommitOutcome.PUBLISHED if published else CommitOutcome.ABORTED
    assert outcomes == {n: mine if n == fault.number else CommitOutcome.PUBLISHED for n in outcomes}
    return set() if published else {fault.number}


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("point", FaultPoint)
def test_a_fault_leaves_the_state_before_or_after(point, number):
    fault = Fault(point, number)
    rig = Rig(fault=fault)
    rig.submit(*ASKED)
    for _ in range(3):
        rig.step()
    work = rig.plan()
    before = {each.request_id: picture(rig, each.request_id) for each in ASKED}
    untouched = broken_round(rig, fault, work)
    for each in ASKED:
        same = picture(rig, each.request_id) == before[each.request_id]
        assert same == (each.request_id in untouched)
    fault.armed = False
    rig.drain()
    for each in ASKED:
        output = rig.outputs[each.request_id]
        assert output.tokens == expected(each)
        assert output.text == letters(output.tokens)
        assert output.finish.reason is FinishReason.LENGTH
    assert held(rig) == [0, 0]


@pytest.mark.parametrize("point", FaultPoint)
def test_a_fault_that_stays_ends_its_request_only(point):
    fault = Fault(point, 2)
    fault.armed = point is not FaultPoint.AFTER_PUBLICATION
    rig = Rig(fault=fault)
    rig.submit(*ASKED)
    rig.drain()
    reasons = {n: output.finish.reason for n, output in rig.outputs.items()}
    assert reasons[1] is reasons[3] is FinishReason.LENGTH
    assert reasons[2] is (FinishReason.ERROR if fault.armed else FinishReason.LENGTH)
    for each in ASKED:
        if each.request_id != 2:
            assert rig.outputs[each.request_id].tokens == expected(each)
    assert held(rig) == [0, 0]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("verifier", [TOKEN, BLOCK, NOISE])
def test_the_same_plan_twice_gives_the_same_result(verifier, temperature):
    rig = Rig()
    rig.submit(*(request(n, (n, 2), temperature=temperature, verifier=verifier) for n in (1, 2)))
    rig.step()
    plan, jobs = rig.plan()
    first, staged = rig.execute(plan, jobs)
    second, again = rig.execute(plan, jobs)
    assert first.groups == second.groups
    assert [each.successor for each in staged] == [each.successor for each in again]
    assert rig.land(jobs, staged, first).events
    landed = rig.land(jobs, again, second)
    assert {each.outcome for each in landed.groups} == {CommitOutcome.REPLAYED}
    assert not landed.events
