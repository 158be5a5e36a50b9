"""Sinks and controllers that raise: each kind is logged once, and all are served all the same."""

from dataclasses import replace

import pytest

from scheduler.controller import DraftView, FixedController, LoadView
from scheduler.goodput import GoodputController
from scheduler.guards import GuardedController, GuardedSink
from scheduler.request import ProposerKind
from scheduler.stats import Policy
from telemetry.fan_out import FanOut
from tests.oracles.desk import MIXED, Sink, desk, outcome, outcomes
from tests.oracles.rig import NGRAM, expected, request
from tests.scheduler.crowds import table
from tests.telemetry.rounds import LOAD, drafted, ended, step

pytestmark = pytest.mark.anyio

FAULTS = (ZeroDivisionError, KeyError)


def raising(calls, *kinds):
    """A method that notes its calls and raises these in turn."""

    def broken(*_):
        calls.append(kinds[len(calls) % len(kinds)])
        raise calls[-1]("planted")

    return broken


def told(caplog):
    """(text, type of what was raised) of every record; each has its traceback."""
    found = [(each.getMessage(), each.exc_info) for each in caplog.records]
    assert all(where is not None for _, (_, _, where) in found)
    return [(text, kind) for text, (kind, _, _) in found]


def view(*asked):
    """Requests of one server, with the K that each fixed."""
    return LoadView(
        requests=tuple(
            DraftView(
                request=n,
                asked=k,
                room=5,
                policy=Policy.TOKEN,
                proposer=ProposerKind.DRAFT_MODEL,
                lag=0,
                context=9,
                emitted=3,
                left=40,
            )
            for n, k in enumerate(asked, 1)
        ),
        rows=len(asked),
        prefill_rows=0,
        spare=512,
        load=LOAD,
    )


# ---- one by one ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "argument"), [("step", step()), ("load", LOAD), ("finished", ended())]
)
def test_what_a_sink_raises_is_logged_once_a_kind(method, argument, caplog):
    sink, calls = Sink(), []
    setattr(sink, method, raising(calls, *FAULTS))
    guarded = GuardedSink(sink)
    for _ in range(6):
        getattr(guarded, method)(argument)
    assert len(calls) == 6
    found = told(caplog)
    assert [kind for _, kind in found] == list(FAULTS)
    assert all(f"Sink.{method} failed" in text for text, _ in found)


def test_one_sink_of_several_that_raises_costs_the_others_nothing():
    broken, whole = Sink(), Sink()
    broken.step = raising([], ValueError)
    told_all = FanOut(*map(GuardedSink, (broken, whole)))
    rounds = [step(drafted(2, 1)), step(drafted(2, 2))]
    for each in rounds:
        told_all.step(each)
    told_all.load(LOAD)
    assert whole.steps == rounds
    assert whole.loads == broken.loads == [LOAD]


def test_a_controller_that_cannot_decide_leaves_plain_decoding_and_the_k_that_was_asked(caplog):
    controller, calls = FixedController(4), []
    guarded = GuardedController(controller)
    seen = view(None, 3, 9)
    before = guarded.decide(seen)
    controller.decide = raising(calls, *FAULTS)
    for _ in range(5):
        decision = guarded.decide(seen)
        assert [decision.k(n) for n in (1, 2, 3)] == [0, 3, 5]
        assert decision.forecast is None
    del controller.decide
    assert guarded.decide(seen) == before
    assert [before.k(n) for n in (1, 2, 3)] == [4, 3, 5]
    assert [kind for _, kind in told(caplog)] == list(FAULTS)


def test_a_controller_that_cannot_learn_goes_by_what_it_knew(caplog):
    controller = FixedController(4)
    controller.learn, controller.forget = raising([], *FAULTS), raising([], KeyError)
    guarded = GuardedController(controller)
    for n in range(6):
        guarded.learn(step())
        guarded.forget(n)
        assert guarded.decide(view(None)).k(1) == 4
    assert [kind for _, kind in told(caplog)] == [ZeroDivisionError, KeyError, KeyError]


def test_rounds_that_cannot_be_learnt_from_are_not_kept():
    """A goodput controller takes several in at once, and forgets who ended, come what may."""
    found = GoodputController(table(), 8)
    calls = []
    found._model.learn = raising(calls, KeyError)
    guarded = GuardedController(found)
    for n in range(100, 200):
        alone = view(None).requests[0]
        guarded.decide(replace(view(None), requests=(replace(alone, request=n),)))
        for _ in range(3):
            guarded.learn(step(drafted(2, 1, request=n)))
        guarded.forget(n)
    guarded.decide(view(None))
    assert len(calls) >= 30
    assert len(found._untaken) <= 8
    assert len(found._ended) <= 8
    assert len(found._book._own) <= 8


# ---- in an engine --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["step", "load", "finished"])
async def test_a_sink_that_raises_ends_nobody(method, caplog):
    async with desk() as d:
        setattr(d.sink, method, raising([], *FAULTS))
        d.runner.open.clear()
        left = d.ask(request(90, (1, 2), max_tokens=50))[0]
        asked = d.ask(*MIXED)
        await d.runner.reached()
        d.engine.abort(90)
        d.runner.open.set()
        for each, (tokens, _, _) in zip(MIXED, await outcomes(asked), strict=True):
            assert tokens == expected(each)
        assert await outcome(left) == ([], "", None)
        assert d.engine.accepting
    assert 1 <= len(told(caplog)) <= len(FAULTS)


@pytest.mark.parametrize("method", ["decide", "learn", "forget"])
async def test_a_controller_that_raises_ends_nobody(method, caplog):
    controller = FixedController(3)
    setattr(controller, method, raising([], *FAULTS))
    asked = [*MIXED, request(6, (1, 2, 3), proposer=NGRAM, max_tokens=9)]
    async with desk(controller=controller) as d:
        for each, (tokens, _, _) in zip(asked, await outcomes(d.ask(*asked)), strict=True):
            assert tokens == expected(each)
    own = {each.request_id for each in MIXED if each.speculation.k}
    drafted_for = {each.request for each in d.stats if each.speculation is not None}
    assert 2 in drafted_for  # it fixed its own K
    assert (drafted_for <= own) == (method == "decide")
    assert [kind for _, kind in told(caplog)] == list(FAULTS)
