"""No policy can see what it must not (contract section 3): by the types of what it is given."""

import ast
import dataclasses
import enum
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest

from scheduler.commit import FaultPoint
from scheduler.controller import Controller, FixedController, LoadView, fixed
from scheduler.coordinate import round_coordinate
from scheduler.errors import CommitRejected
from scheduler.plan import DeviceDraft, Group, HostDraft, RoundPlan
from scheduler.proposal import Proposer, RequestView
from scheduler.runtime import drafting
from scheduler.staging import stage_round
from scheduler.tokens import TokenIds
from tests.oracles.desk import desk, outcomes
from tests.oracles.rig import TOKEN, Rig, request
from tests.scheduler.test_planning import decoding, drafts

NUMBERS = {int, float, bool, str, type(None)}
CONTAINERS = {tuple, frozenset, types.UnionType, typing.Union, Mapping}


def reached(kind):
    """Every type that a value of `kind` can hold, by its annotations."""
    if typing.get_origin(kind) in CONTAINERS:
        parts = [part for part in typing.get_args(kind) if part is not ...]
        return set().union(*map(reached, parts))
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = [reached(hints[each.name]) for each in dataclasses.fields(kind)]
        return {kind}.union(*fields)
    return {kind}


def leaves(kind):
    """The types at the ends: neither records nor containers of ours."""
    return {
        each
        for each in reached(kind)
        if not dataclasses.is_dataclass(each)
        and not (isinstance(each, type) and issubclass(each, enum.Enum))
    }


def arguments(method):
    """Types of a method's arguments, without self."""
    hints = typing.get_type_hints(method)
    return [kind for name, kind in hints.items() if name != "return"]


class Learner(FixedController):
    """Keeps what it is shown."""

    def __init__(self):
        super().__init__(2)
        self.seen = []

    def learn(self, stats):
        self.seen.append(stats)


@pytest.mark.anyio
async def test_a_controller_learns_counts_and_no_draw():
    learner = Learner()
    async with desk(controller=learner) as d:
        await outcomes(d.ask(request(1, (1, 2), temperature=0.9, verifier=TOKEN, max_tokens=12)))
    groups = [group for stats in learner.seen for group in stats.groups]
    assert any(group.speculation for group in groups)
    assert all(group.evidence is None for group in groups)
    assert any(group.evidence for group in d.stats)


def test_a_controller_decides_on_numbers_alone():
    assert arguments(Controller.decide) == [LoadView]
    assert leaves(LoadView) <= NUMBERS
    for record in reached(LoadView):
        if dataclasses.is_dataclass(record):
            assert record.__dataclass_params__.frozen


def test_a_proposer_sees_published_tokens_and_numbers():
    assert arguments(Proposer.propose) == [RequestView, int]
    assert reached(RequestView) == {RequestView, TokenIds, int, float}
    assert typing.get_type_hints(TokenIds.__iter__)["return"] == Iterator[int]
    names = {each.name for each in dataclasses.fields(RequestView)}
    assert names == {"request", "tokens", "draft_rows", "row_budget", "min_confidence"}


def test_what_a_policy_says_is_numbers_too():
    assert reached(DeviceDraft) == {DeviceDraft, int, float}
    assert reached(HostDraft) == {HostDraft, int}
    assert typing.get_type_hints(DeviceDraft)["min_confidence"] is float


def test_the_walk_over_types_would_see_a_row_or_a_draw():
    @dataclasses.dataclass(frozen=True)
    class Told:
        loads: tuple[LoadView, ...]
        look: Callable[[], float] | None

    assert leaves(Told) - NUMBERS == {Callable[[], float]}
    assert LoadView in reached(Told)


def test_the_plan_is_frozen():
    for record in (RoundPlan, Group, DeviceDraft, HostDraft):
        assert record.__dataclass_params__.frozen
    hints = typing.get_type_hints(RoundPlan)
    assert hints["groups"] == tuple[Group, ...]
    assert hints["coordinate"].__dataclass_params__.frozen


def function(module, name):
    """The syntax tree of a function."""
    return ast.parse(inspect.getsource(getattr(module, name))).body[0]


def names_in(tree):
    return {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)} | {
        each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute)
    }


DRAWS = {"draws", "ids", "proposal", "acceptance", "terminal", "noise", "drawn", "chosen"}


def test_the_drafter_decides_by_rows_and_thresholds():
    parameters = list(inspect.signature(drafting._sure).parameters)
    assert parameters == ["processed", "rows", "floors", "greedy"]
    assert not names_in(function(drafting, "_sure")) & {*DRAWS, "shared"}


def test_the_drafter_decides_before_it_draws():
    body = function(drafting, "_propose")
    calls = [
        (each.lineno, each.func.id)
        for each in ast.walk(body)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
    ]
    tests = sorted(line for line, name in calls if name == "_sure")
    draws = sorted(line for line, name in calls if name in {"inverse_cdf", "race", "greedy_choice"})
    assert len(tests) == 2
    # The greedy branch, which returns, then the other.
    assert tests[0] < draws[0] < tests[1] < draws[1]


def test_the_drafter_ends_a_run_by_flags_alone():
    for method in (drafting._Round.ended, drafting._Round.counts):
        found = names_in(ast.parse(textwrap.dedent(inspect.getsource(method))))
        assert not found & (DRAWS - {"ids"})
        # `ids` tells where the tensors live and nothing else.
        assert "self.ids" not in inspect.getsource(method).replace("self.ids.device", "")


def test_a_plan_whose_depth_changed_after_the_run_is_refused():
    rig = Rig()
    decoding(rig, request(1, k=2, temperature=0.9, verifier=TOKEN, max_tokens=30))
    plan, jobs = rig.plan()
    result = rig.runner.run(plan)
    (group,), job = plan.groups, jobs[0]
    longer = replace(group, draft=replace(group.draft, depth=3))
    entry = rig.book.entries[1]
    parts = [(longer, job.state, entry.settings, entry.tables)]
    other = round_coordinate('"engine"', plan.round_id, plan.layout, parts)
    assert other.digest != plan.coordinate.digest
    changed = replace(plan, groups=(longer,), coordinate=other)
    with pytest.raises(CommitRejected, match=r"groups\[0\]\.draft\.depth 2, expected 3"):
        stage_round(changed, [replace(job, group=longer)], result)


class Fickle(FixedController):
    """Another K whenever it is asked, and whatever it has learned."""

    asked = 0

    def decide(self, view):
        self.asked += 1
        return fixed({each.request: min(1 + self.asked % 4, each.room) for each in view.requests})


def test_a_round_that_broke_keeps_its_lengths_whatever_the_controller_says():
    broken = []

    def fault(point, number):
        drafted = bool(drafts(rig.plans[-1])[number])
        if point is FaultPoint.AFTER_DECISION and drafted and not broken:
            broken.append(drafts(rig.plans[-1]))
            raise RuntimeError("the round broke")

    rig = Rig(controller=Fickle(2), fault=fault)
    rig.submit(request(1, max_tokens=20))
    while not broken:
        rig.step()
    rig.step()
    assert drafts(rig.plans[-1]) == broken[0]
    rig.step()
    assert drafts(rig.plans[-1]) != broken[0]
