"""A fault at each point of a round: what is authoritative stays, field by field."""

import pytest

from scheduler.commit import FaultPoint
from scheduler.controller import FixedController, fixed
from scheduler.plan import Layout, Role
from scheduler.request import FinishReason
from scheduler.stats import CommitOutcome
from tests.oracles.breakage import Break, break_round
from tests.oracles.rig import BLOCK, NOISE, TOKEN, Rig, config, expected, request
from tests.oracles.scenes import KINDS, STYLES

TWINS = {}
POINTS = list(FaultPoint)
NAMES = [f"{kind.layout.value}-{kind.name}" for kind in KINDS]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("point", FaultPoint)
@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_a_fault_leaves_the_state_before_or_after(kind, point, times):
    """Once: the retry does what the first try would have done. Twice: the request ends alone."""
    style = STYLES[(KINDS.index(kind) + POINTS.index(point) + 2 * times) % len(STYLES)]
    assert break_round(Break(kind=kind, style=style, point=point, times=times), TWINS) == []


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("point", FaultPoint)
def test_a_fault_that_stays_ends_its_request_only(point, layout):
    def fault(where, number):
        if where is point and number == 2:
            raise RuntimeError(point.value)

    asked = [
        request(n, (n, 3, 1), max_tokens=16, k=3, temperature=warm, verifier=verifier)
        for n, (warm, verifier) in enumerate([(0.0, TOKEN), (0.8, NOISE), (0.0, BLOCK)], 1)
    ]
    rig = Rig(config(layout=layout), fault=fault)
    rig.submit(*asked)
    rig.drain()
    reasons = {n: output.finish.reason for n, output in rig.outputs.items()}
    assert reasons[1] is reasons[3] is FinishReason.LENGTH
    published = point is FaultPoint.AFTER_PUBLICATION
    assert reasons[2] is (FinishReason.LENGTH if published else FinishReason.ERROR)
    for each in asked:
        if each.request_id != 2:
            assert rig.outputs[each.request_id].tokens == expected(each)
    assert [rig.book.tables.pool(role).stats().used for role in Role] == [0, 0]


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("verifier", [TOKEN, BLOCK, NOISE])
def test_the_same_plan_twice_gives_the_same_result(verifier, temperature, layout):
    rig = Rig(config(layout=layout))
    rig.submit(*(request(n, (n, 2), temperature=temperature, verifier=verifier) for n in (1, 2)))
    while (work := rig.plan()) is not None:
        plan, jobs = work
        first, staged = rig.execute(plan, jobs)
        second, again = rig.execute(plan, jobs)
        assert first.groups == second.groups
        assert [each.successor for each in staged] == [each.successor for each in again]
        rig.land(jobs, staged, first)
        landed = rig.land(jobs, again, second)
        outcomes = {each.request: each.outcome for each in landed.groups}
        assert not landed.events
        assert outcomes == {
            number: CommitOutcome.REPLAYED if number in rig.book.entries else CommitOutcome.STALE
            for number in outcomes
        }


class Moody(FixedController):
    """A controller that never asks for the same K twice in a row."""

    def __init__(self):
        self.calls = 0

    def decide(self, view):
        self.calls += 1
        return fixed({each.request: min(each.room, self.calls % 4) for each in view.requests})


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("rounds", [2, 3, 4, 5])
def test_a_retry_keeps_its_drafts_whatever_the_controller_says(layout, rounds):
    rig = Rig(config(layout=layout), controller=Moody())
    rig.submit(*(request(n, (n, 3), max_tokens=30, temperature=0.9) for n in (1, 2)))
    for _ in range(rounds):
        rig.step()
    plan, jobs = rig.plan()
    result, _ = rig.execute(plan, jobs)
    rig.fail(plan)
    for group, first in zip(plan.groups, result.groups, strict=True):
        again, jobs = rig.plan()
        assert again.groups == (group,)
        second, staged = rig.execute(again, jobs)
        assert second.groups == (first,)
        rig.land(jobs, staged, second)
    rig.drain()
