"""The asyncio loop over the real core: who joins and leaves, how it starts and stops."""

import asyncio

import pytest

from scheduler.assembly import build_engine
from scheduler.config import PoolConfig
from scheduler.errors import ContextOverflow, EngineBusy
from scheduler.events import Origin
from scheduler.request import FinishReason
from scheduler.stats import CommitOutcome
from tests.oracles.desk import MIXED, Desk, desk, outcome, outcomes, read
from tests.oracles.rig import TARGET, TOKEN, Letters, config, expected, letters, request

pytestmark = pytest.mark.anyio


async def test_everyone_gets_the_serial_text():
    async with desk() as d:
        for asked, (tokens, text, finish) in zip(MIXED, await outcomes(d.ask(*MIXED)), strict=True):
            assert tokens == expected(asked)
            assert text == letters(tokens)
            assert finish.reason is FinishReason.LENGTH


async def test_requests_join_and_leave_between_rounds():
    async with desk() as d:
        first = request(1, max_tokens=40)
        (long,) = d.ask(first)
        early = [await anext(long) for _ in range(2)]
        short = [request(n, (n,), max_tokens=3) for n in range(2, 6)]
        for asked, (tokens, _, _) in zip(short, await outcomes(d.ask(*short)), strict=True):
            assert tokens == expected(asked)
        rest, _, finish = await outcome(long)
        assert [t.token for e in early for t in e.tokens] + rest == expected(first)
        assert finish.stats.completion_tokens == 40
        mixed = [step for step in d.sink.steps if len(step.groups) > 1]
        assert mixed
        assert {step.load.running for step in d.sink.steps} >= {0, 1}


async def test_tokens_text_and_finish_come_in_one_event():
    async with desk() as d:
        whole = expected(request(1, max_tokens=20))
        stop = whole[9]
        asked = request(1, max_tokens=20, token_ids=frozenset({stop}), include_stop=True)
        events = await read(d.ask(asked)[0])
    tokens = [token.token for event in events for token in event.tokens]
    assert tokens == expected(asked)
    assert all(
        event.tokens and event.text == letters([t.token for t in event.tokens]) for event in events
    )
    assert [event.finish is not None for event in events] == [False] * (len(events) - 1) + [True]
    assert (events[-1].finish.reason, events[-1].finish.stop) == (FinishReason.STOP, stop)
    positions = [token.position for event in events for token in event.tokens]
    assert positions == list(range(3, 3 + len(tokens)))


async def test_a_stop_string_ends_the_request_inside_a_run():
    text = letters(expected(request(1, max_tokens=30)))
    stop = text[11:13]
    asked = request(1, max_tokens=30, text=Letters(stops=(stop,)), k=8)
    async with desk(draft=TARGET) as d:
        tokens, shown, finish = await outcome(d.ask(asked)[0])
    assert tokens == expected(asked)
    assert finish.stop == stop
    assert shown == letters(tokens)[: -len(stop)]
    assert finish.stats.completion_tokens == len(tokens)


async def test_a_stop_string_may_span_rounds():
    text = letters(expected(request(1, max_tokens=30)))
    asked = request(1, max_tokens=30, text=Letters(stops=(text[10:13],)), k=0)
    async with desk() as d:
        tokens, _, finish = await outcome(d.ask(asked)[0])
    assert tokens == expected(asked)
    assert finish.stop == text[10:13]


async def test_origins_and_probabilities_tell_where_tokens_came_from():
    async with desk() as d:
        asked = request(1, max_tokens=30, temperature=0.9, verifier=TOKEN, logprobs=2)
        events = await read(d.ask(asked)[0])
    for event in events:
        *drafts, terminal = event.tokens
        assert all(token.origin is Origin.DRAFT for token in drafts)
        assert all(0 < token.target_prob <= 1 and 0 < token.draft_prob <= 1 for token in drafts)
        assert terminal.origin is not Origin.DRAFT
        assert terminal.target_prob is terminal.draft_prob is None
        assert all(len(token.logprobs.top) == 2 for token in event.tokens)


# --- leaving early -------------------------------------------------------------------------------


async def test_a_cancel_before_the_first_round():
    async with desk() as d:
        gone, kept = d.ask(request(1), request(2, (4, 5)))
        d.engine.abort(1)
        d.engine.abort(1)
        assert await outcome(gone) == ([], "", None)
        assert (await outcome(kept))[0] == expected(request(2, (4, 5)))
        assert [each.reason for each in d.sink.ended] == [FinishReason.ABORT]
        assert all(group.request == 2 for group in d.stats)


async def test_a_cancel_while_its_round_runs():
    async with desk() as d:
        d.runner.open.clear()
        gone, kept = d.ask(request(1), request(2, (4, 5)))
        await d.runner.reached()
        d.engine.abort(1)
        assert await outcome(gone) == ([], "", None)
        # Its blocks stay while rows may still be written to them.
        assert d.engine.load().target_pool.used == 2
        d.runner.open.set()
        assert (await outcome(kept))[0] == expected(request(2, (4, 5)))
        assert [g.outcome for g in d.sink.steps[0].groups] == [
            CommitOutcome.STALE,
            CommitOutcome.PUBLISHED,
        ]
        assert d.engine.load().target_pool.used == 0


async def test_blocks_of_a_cancelled_request_serve_the_next_round():
    settings = config(target_pool=PoolConfig(blocks=24, block_size=4))
    async with desk(settings) as d:
        large, second = request(1, [1] * 80, max_tokens=10), request(2, [2] * 40)
        first, waiting = d.ask(large, second)
        await anext(first)
        assert d.engine.load().waiting == 1
        d.engine.abort(1)
        assert (await outcome(waiting))[0] == expected(second)
        steps = [step for step in d.sink.steps if any(g.request == 2 for g in step.groups)]
        assert all(g.request == 2 for step in steps[1:] for g in step.groups)


async def test_a_cancel_after_the_end_is_nothing():
    async with desk() as d:
        await outcome(d.ask(request(1))[0])
        ended = len(d.sink.ended)
        d.engine.abort(1)
        d.engine.abort(99)
        assert len(d.sink.ended) == ended


async def test_blocks_are_free_when_all_is_done():
    async with desk() as d:
        await outcomes(d.ask(*MIXED))
        load = d.sink.steps[-1].load
        assert (load.running, load.waiting) == (0, 0)
        assert load.target_pool.used == load.draft_pool.used == 0


# --- coming and going of the engine --------------------------------------------------------------


async def test_nothing_is_taken_before_the_start_or_after_the_stop():
    d = Desk()
    with pytest.raises(EngineBusy):
        d.ask(request(1))
    await d.engine.start()
    with pytest.raises(EngineBusy, match="already"):
        await d.engine.start()
    assert d.engine.accepting
    await d.engine.stop()
    assert not d.engine.accepting
    with pytest.raises(EngineBusy):
        d.ask(request(1))


async def test_a_drain_serves_what_it_has():
    d = Desk()
    await d.engine.start()
    asked = request(1, max_tokens=30)
    (subscription,) = d.ask(asked)
    await anext(subscription)
    await asyncio.wait_for(d.engine.stop(grace=60.0), 90)
    tokens, _, finish = await outcome(subscription)
    assert finish.reason is FinishReason.LENGTH
    assert len(tokens) < 30


async def test_a_stop_without_grace_aborts_requests_that_wait():
    d = Desk()
    await d.engine.start()
    subscriptions = d.ask(*MIXED)
    await asyncio.wait_for(d.engine.stop(), 60)
    assert [await outcome(each) for each in subscriptions] == [([], "", None)] * len(MIXED)
    assert len(d.sink.ended) == len(MIXED)
    assert d.engine.load().target_pool.used == 0


async def test_a_stop_without_grace_ends_a_round_in_flight_as_an_error():
    d = Desk()
    await d.engine.start()
    d.runner.open.clear()
    (subscription,) = d.ask(request(1))
    await d.runner.reached()
    stopping = asyncio.create_task(d.engine.stop())
    assert await outcome(subscription) == ([], "", None)
    d.runner.open.set()
    await asyncio.wait_for(stopping, 60)
    assert d.engine.load().target_pool.used == 0
    assert [each.reason for each in d.sink.ended] == [FinishReason.ERROR]


async def test_a_drain_that_takes_too_long_is_cut_and_its_requests_are_errors():
    """But not the one whose client left meanwhile."""
    d = Desk()
    await d.engine.start()
    d.runner.open.clear()
    gone, subscription = d.ask(request(1), request(2))
    await d.runner.reached()
    d.engine.abort(1)
    stopping = asyncio.create_task(d.engine.stop(grace=0.01))
    assert await outcomes([gone, subscription]) == [([], "", None)] * 2
    d.engine.abort(2)
    ended = {each.request: each.reason for each in d.sink.ended}
    assert ended == {1: FinishReason.ABORT, 2: FinishReason.ERROR}
    assert len(d.sink.ended) == 2
    d.runner.open.set()
    await asyncio.wait_for(stopping, 60)


async def test_a_full_queue_and_a_long_prompt_are_refused():
    async with desk(config(max_waiting=1, max_requests=1)) as d:
        with pytest.raises(EngineBusy, match="0 requests wait and 0 run"):
            d.ask(request(1), request(2), request(3))
        both = [request(1, max_tokens=3), request(2, max_tokens=3)]
        assert [tokens for tokens, _, _ in await outcomes(d.ask(*both))] == [
            expected(each) for each in both
        ]
        with pytest.raises(ContextOverflow, match="maximum context length is 96"):
            d.ask(request(3, [1] * 96))
        assert (await outcome(d.ask(request(4))[0]))[0] == expected(request(4))


async def test_the_loop_goes_on_while_the_runner_blocks():
    async with desk() as d:
        d.runner.open.clear()
        (subscription,) = d.ask(request(1))
        await d.runner.reached()
        turns = 0
        for _ in range(50):
            await asyncio.sleep(0)
            turns += 1
        (other,) = d.ask(request(2, (4, 5)))
        assert turns == 50
        assert d.engine.health().alive
        assert d.engine.health().heartbeat_age > 0
        assert d.engine.load().waiting == 1
        d.runner.open.set()
        assert (await outcome(subscription))[0] == expected(request(1))
        assert (await outcome(other))[0] == expected(request(2, (4, 5)))


async def test_an_engine_at_rest_is_not_a_stalled_one():
    now = [100.0]
    d = Desk()
    d.engine = build_engine(d.settings, d.runner, sink=d.sink, clock=lambda: now[0])
    await d.engine.start()
    await outcome(d.ask(request(1))[0])
    now[0] += 1000.0
    assert d.engine.health().heartbeat_age == 0.0
    d.runner.open.clear()
    d.ask(request(2))
    assert d.engine.health().heartbeat_age == 0.0
    while d.engine.load().running == 0:
        await d.runner.reached()
    now[0] += 7.0
    assert d.engine.health().heartbeat_age == 7.0
    d.runner.open.set()
    await d.engine.stop()
