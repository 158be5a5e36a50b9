"""The gain of rounds, and that what is counted of a real engine's choices adds up."""

from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.controller import FixedController
from scheduler.costs import CostTable, RoundCurve, rising
from scheduler.goodput import GoodputController
from scheduler.stats import Choice, Decision, Reason
from telemetry.gains import Gain, compare
from tests.oracles.desk import MIXED, Gate, desk, outcomes
from tests.telemetry.conftest import Board
from tests.telemetry.rounds import decided, drafted, forecast, plain, step

sizes = st.integers(1, 64).map(float)


def test_nothing_gained_is_no_number():
    assert Gain().predicted is None
    assert Gain().measured is None
    assert compare(step(plain())) is None
    assert compare(step(plain(), decision=decided(0))) is None


@given(st.lists(st.builds(forecast, sizes, sizes, sizes, sizes), min_size=1), sizes)
def test_sums_of_rounds_predict_what_their_forecasts_do(forecasts, seconds):
    rounds = [
        compare(step(drafted(4, 3), round_seconds=seconds, decision=decided(4, forecast=each)))
        for each in forecasts
    ]
    for each, one in zip(forecasts, rounds, strict=True):
        assert one.predicted == pytest.approx(each.gain)
        plain_rate = each.plain_tokens / each.plain_seconds
        assert one.measured == pytest.approx(4 / seconds / plain_rate)
    total = sum(rounds, Gain())
    assert astuple(total) == pytest.approx(
        [sum(n) for n in zip(*map(astuple, rounds), strict=True)]
    )
    lowest, highest = min(f.gain for f in forecasts), max(f.gain for f in forecasts)
    assert lowest * (1 - 1e-9) <= total.predicted <= highest * (1 + 1e-9)


def test_an_append_counts_for_the_round_before_it():
    """Rounds of the retained layout that draft nothing take no time of their own."""
    plain_round = forecast(1.0, 0.01, 1.0, 0.01)
    appended = replace(plain_round, append_seconds=0.01)
    found = compare(step(plain(), round_seconds=0.0, decision=decided(0, forecast=appended)))
    assert (found.predicted, found.measured) == (1.0, 1.0)


class Wavering(FixedController):
    """Drafts 3 in two rounds of four, always with the same forecast."""

    def __init__(self):
        self.rounds = 0

    def decide(self, view):
        self.rounds += 1
        wanted = 3 if self.rounds & 2 else 0
        return Decision(
            choices={
                each.request: Choice(k=min(wanted, each.room), reason=Reason.ACCEPTANCE)
                for each in view.requests
            },
            forecast=forecast() if view.requests else None,
        )


class Watched(Gate):
    """A runner that keeps its plans."""

    def __init__(self, runner):
        super().__init__(runner)
        self.plans = []

    def run(self, plan):
        self.plans.append(plan)
        return super().run(plan)


def goodput():
    """The controller that is served by, on a machine where a round takes 10 ms and a draft 1 ms."""
    rounds = [RoundCurve(emitters=n, seconds=rising([(1, 0.01), (48, 0.02)])) for n in (1, 2, 4, 8)]
    step_curve, catch_up = rising([(1, 0.001), (8, 0.002)]), rising([(1, 0.001), (48, 0.004)])
    table = CostTable(context=16, rounds=tuple(rounds), step=step_curve, catch_up=catch_up)
    return GoodputController(table, 8)


@pytest.mark.anyio
@pytest.mark.parametrize("controller", [Wavering, goodput])
async def test_counts_of_a_real_engine_add_up(controller):
    board = Board(k_max=8)
    async with desk(controller=controller(), runner=Watched) as served:
        await outcomes(served.ask(*MIXED))
    for stats in served.sink.steps:
        board.sink.step(stats)
    emitters = sum(group.emits for plan in served.runner.plans for group in plan.groups)
    assert emitters > 20
    assert board.total("fencepost_controller_decisions_total") == emitters
    assert board.value("controller_k_count") == emitters
    assert board.total("fencepost_spec_rounds_total") == emitters
    # n-gram drafts may be shorter than chosen, none is longer.
    assert board.value("controller_k_sum") >= board.value("round_k_sum") > 0
    pure = [
        stats
        for stats, plan in zip(served.sink.steps, served.runner.plans, strict=True)
        if all(group.emits and group.rows == 1 for group in plan.groups)
        and stats.decision.forecast is not None
    ]
    seconds = board.value("controller_round_seconds_total")
    assert seconds == pytest.approx(sum(stats.round_seconds for stats in pure))
    assert 0 < seconds < sum(stats.round_seconds for stats in served.sink.steps)
    committed = sum(group.committed for stats in pure for group in stats.groups)
    assert board.value("controller_committed_tokens_total") == committed
    expected = sum(stats.decision.forecast.tokens for stats in pure)
    assert board.value("controller_predicted_tokens_total") == pytest.approx(expected)
