"""Rounds in which a runner meets or records a shape of call, and what is learnt of their time."""

import itertools
import time

import pytest

from scheduler.costs import CostTable, RoundCurve, rising
from scheduler.goodput import GoodputController
from scheduler.profiling import profile_costs
from scheduler.runtime.graphs import GraphedForward
from scheduler.runtime.torch_runner import Pair, TorchRunner
from scheduler.sampling.rng import CounterRandomness
from tests.oracles.desk import Paced, desk, outcomes
from tests.oracles.rig import DRAFT, Rig, capabilities, config, expected, request, tabular_runner
from tests.oracles.tabular import TabularForward
from tests.scheduler.test_planning import decoding

K_MAX = 3
ROUND, STEP = 1.0, 0.1


class FixedTable:
    """A `Fixable` over a table; a shape is the number of rows of each segment."""

    numerics, prepared = "plain", 0

    def __init__(self, inner: TabularForward):
        self.inner = inner
        self.hidden, self.logits = inner.hidden, inner.logits
        self.clear_blocks, self.memory_bytes = inner.clear_blocks, inner.memory_bytes
        self.vocabulary, self.device = inner.vocabulary, inner.device
        self.max_positions, self.block_size = inner.max_positions, inner.block_size

    def shape_of(self, rows):
        return tuple(rows.counts.tolist())

    def fixed(self, shape):
        return FixedTableCall(self.inner)


class FixedTableCall:
    def __init__(self, inner):
        self._inner = inner

    def fill(self, token_ids, rows):
        self._call = token_ids, rows

    def launch(self):
        return self._inner.hidden(*self._call)

    def pick(self, states, rows):
        return states

    def bytes(self):
        return 0


def recorded(runner):
    """A runner like this one whose calls are recorded; tables need no recording to be replayed."""
    target, draft = (
        GraphedForward(FixedTable(each), lambda launch: launch)
        for each in (runner._pair.target, runner._pair.draft)
    )
    pair = Pair(target=target, draft=draft, vocabulary=runner._pair.vocabulary)
    return TorchRunner(pair, capabilities(), CounterRandomness(), time.perf_counter)


def test_a_round_says_whether_a_shape_was_met_or_recorded_in_it():
    """By either model: K changes the number of draft steps, and the rows of the target's call."""
    rig = Rig(draft=DRAFT)
    decoding(rig, request(1, k=2, max_tokens=40))
    plan, _ = rig.plan()
    runner = recorded(rig.runner)
    assert [runner.run(plan).prepared for _ in range(4)] == [True, True, False, False]
    assert [rig.runner.run(plan).prepared for _ in range(2)] == [False, False]


def test_a_shape_that_the_draft_alone_meets_counts_too():
    rig = Rig(draft=DRAFT)
    decoding(rig, request(1, k=2, max_tokens=40))
    plan, _ = rig.plan()
    runner = recorded(rig.runner)
    runner._pair.target.inner.shape_of = lambda rows: None
    assert [runner.run(plan).prepared for _ in range(3)][::2] == [True, False]
    assert runner._pair.target.prepared == 0


def test_a_profile_ends_every_shape_with_a_round_that_prepares_nothing():
    """Over recording forwards, with time for the few alone that are always measured."""
    settings = config(max_requests=4)
    runner, last = recorded(tabular_runner(settings)[0]), {}
    ticks = itertools.count()

    def run(plan):
        result = TorchRunner.run(runner, plan)
        kind = [(len(group.tokens), group.draft) for group in plan.groups]
        last[repr(kind)] = result.prepared
        return result

    runner.run = run
    profile_costs(runner, settings, lambda: next(ticks), seconds=1.0)
    assert set(last.values()) == {False}
    assert runner._pair.target.recorded > 1
    assert runner._pair.draft.recorded > 0


class Slow(Paced):
    """Rounds of a recording runner: what prepares takes three times as long as its table says."""

    def __init__(self, real):
        super().__init__(recorded(real), self.seconds)
        self.prepared = 0

    def seconds(self, result):
        self.prepared += result.prepared
        depth = max((len(group.outcomes) for group in result.groups), default=0)
        return (ROUND + STEP * depth) * (3.0 if result.prepared else 1.0)


def costs():
    """The table of that machine, without error."""
    return CostTable(
        context=0,
        rounds=tuple(
            RoundCurve(emitters=n, seconds=rising([(n, ROUND), (99, ROUND)])) for n in (1, 16)
        ),
        step=rising([(1, STEP), (16, STEP)]),
        catch_up=rising([(1, STEP), (99, STEP)]),
    )


@pytest.mark.anyio
async def test_rounds_that_prepare_teach_no_cost():
    """Through the engine, with a table that is right: no level and no speed moves."""
    controller = GoodputController(costs(), K_MAX)
    asked = [request(n, (n, 3), k=n % (K_MAX + 1), max_tokens=30) for n in range(1, 9)]
    settings = config(k=K_MAX, k_max=K_MAX)
    async with desk(settings, runner=Slow, controller=controller) as d:
        for each in asked:
            ((tokens, _, _),) = await outcomes(d.ask(each))
            assert tokens == expected(each)
        controller._take_in()
        steps = d.sink.steps
    assert d.runner.prepared == sum(step.prepared for step in steps) >= 2 * K_MAX
    assert any(one.prepared and not other.prepared for one, other in itertools.pairwise(steps))
    model = controller._model
    assert model.speed == pytest.approx(1.0)
    assert model._levels.factors(1) == pytest.approx([1.0] * (K_MAX + 1))
