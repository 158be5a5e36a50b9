"""The asyncio loop over the real core: joining, leaving, draining, faults, what is reported."""

import asyncio
import threading
import time
from contextlib import asynccontextmanager

import pytest

from scheduler.assembly import build_engine
from scheduler.commit import FaultPoint
from scheduler.config import PoolConfig
from scheduler.errors import ContextOverflow, EngineBusy
from scheduler.events import Origin
from scheduler.plan import HostDraft
from scheduler.request import FinishReason
from scheduler.stats import CommitOutcome
from tests.oracles.rig import (
    BLOCK,
    MODEL,
    NGRAM,
    NOISE,
    NONE,
    TARGET,
    TOKEN,
    Letters,
    config,
    expected,
    letters,
    request,
    tabular_runner,
)

pytestmark = pytest.mark.anyio


class Sink:
    """Keeps what it is told."""

    def __init__(self):
        self.steps = []
        self.loads = []
        self.ended = []

    def step(self, stats):
        self.steps.append(stats)

    def load(self, load):
        self.loads.append(load)

    def finished(self, finished):
        self.ended.append(finished)


class Gate:
    """A runner that waits in its thread until it may go on, once it is closed."""

    def __init__(self, runner):
        self._runner = runner
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()
        self.open.set()
        self.rounds = 0

    def capabilities(self):
        return self._runner.capabilities()

    def memory_bytes(self):
        return self._runner.memory_bytes()

    def run(self, plan):
        self.rounds += 1
        self.entered.release()
        assert self.open.wait(60)
        return self._runner.run(plan)

    async def reached(self):
        """Wait, off the loop, until a round is inside."""
        assert await asyncio.to_thread(self.entered.acquire, timeout=60)


class Poisoned(Gate):
    """A runner that cannot run one request."""

    def __init__(self, runner, number):
        super().__init__(runner)
        self._number = number

    def run(self, plan):
        if any(group.request == self._number for group in plan.groups):
            raise RuntimeError("this request breaks the kernel")
        return super().run(plan)


class Desk:
    """An engine with what a test looks at."""

    def __init__(self, settings=None, *, runner=None, fault=None, **tables):
        self.settings = settings or config()
        self.sink = Sink()
        self.tabular, self.target, self.draft = tabular_runner(self.settings, **tables)
        self.runner = (runner or Gate)(self.tabular)
        options = {} if fault is None else {"fault": fault}
        self.engine = build_engine(
            self.settings, self.runner, sink=self.sink, clock=time.monotonic, **options
        )

    def ask(self, *requests):
        return self.engine.submit(requests)

    @property
    def stats(self):
        return [group for step in self.sink.steps for group in step.groups]


@asynccontextmanager
async def desk(*args, **kwargs):
    """A started engine, stopped afterwards."""
    made = Desk(*args, **kwargs)
    await made.engine.start()
    try:
        yield made
        assert made.engine.health().error is None
    finally:
        made.runner.open.set()
        await asyncio.wait_for(made.engine.stop(), 60)


async def read(subscription):
    """All events of one subscription."""
    return [event async for event in subscription]


async def outcome(subscription):
    """(tokens, text, finish) of one subscription."""
    events = await asyncio.wait_for(read(subscription), 60)
    tokens = [token.token for event in events for token in event.tokens]
    finish = events[-1].finish if events else None
    return tokens, "".join(event.text for event in events), finish


async def outcomes(subscriptions):
    return await asyncio.gather(*map(outcome, subscriptions))


MIXED = [
    request(1, (1, 2, 3), max_tokens=20),
    request(2, (4,), max_tokens=12, temperature=0.8, verifier=NOISE, k=8),
    request(3, [5, 6] * 12, max_tokens=9, proposer=NGRAM),
    request(4, (7, 8), max_tokens=14, k=0, temperature=0.8, verifier=NOISE),
    request(5, (9,) * 9, max_tokens=11, verifier=BLOCK, proposer=NONE),
]


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
    assert all(event.tokens and event.text == letters([t.token for t in event.tokens]) for event in events)
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
    assert shown == letters(tokens)[: -len(stop)] or not shown.endswith(stop)
    assert finish.stats.completion_tokens == len(tokens)


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


async def test_a_stop_without_grace_aborts_a_round_in_flight():
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


async def test_a_drain_that_takes_too_long_is_cut():
    d = Desk()
    await d.engine.start()
    d.runner.open.clear()
    (subscription,) = d.ask(request(1))
    await d.runner.reached()
    stopping = asyncio.create_task(d.engine.stop(grace=0.01))
    assert await outcome(subscription) == ([], "", None)
    d.runner.open.set()
    await asyncio.wait_for(stopping, 60)


async def test_a_full_queue_and_a_long_prompt_are_refused():
    async with desk(config(max_waiting=1)) as d:
        with pytest.raises(EngineBusy):
            d.ask(request(1), request(2))
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
    while not d.runner.entered.acquire(blocking=False) or d.engine.load().running == 0:
        await asyncio.sleep(0)
    now[0] += 7.0
    assert d.engine.health().heartbeat_age == 7.0
    d.runner.open.set()
    await d.engine.stop()


# --- faults --------------------------------------------------------------------------------------


async def test_a_request_that_breaks_the_runner_ends_alone():
    async with desk(runner=lambda runner: Poisoned(runner, 2)) as d:
        asked = [*MIXED, request(6, (1, 1), max_tokens=9)]
        found = await outcomes(d.ask(*asked))
        for each, (tokens, _, finish) in zip(asked, found, strict=True):
            if each.request_id == 2:
                assert (tokens, finish.reason) == ([], FinishReason.ERROR)
                assert "RuntimeError" in finish.error
            else:
                assert tokens == expected(each)
        assert [(each.request, each.reason) for each in d.sink.ended] == [(2, FinishReason.ERROR)]
        later = request(7, (3, 3), max_tokens=5)
        assert (await outcome(d.ask(later)[0]))[0] == expected(later)


@pytest.mark.parametrize("verifier", [TOKEN, BLOCK, NOISE])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_a_row_that_is_not_finite_ends_its_request_only(verifier, temperature):
    settings = config(
        target_pool=PoolConfig(blocks=24, block_size=4), max_requests=2, max_batched_tokens=40
    )
    sick = request(1, (15, 1, 2, 3, 4), temperature=temperature, verifier=verifier, priority=-1)
    async with desk(settings, poison=frozenset({15}), target=never(15), draft=never(15)) as d:
        well = [request(n, [n] * 30, max_tokens=20) for n in (2, 3)]
        found = await outcomes(d.ask(sick, *well))
        tokens, _, finish = found[0]
        assert (tokens, finish.reason) == ([], FinishReason.ERROR)
        assert "not finite" in finish.error
        for each, (tokens, _, _) in zip(well, found[1:], strict=True):
            assert tokens == expected(each, never(15))
        aborted = [g.request for g in d.stats if g.outcome is CommitOutcome.ABORTED]
        assert aborted == [1]
        reused = request(4, [1] * 90, max_tokens=5)
        assert (await outcome(d.ask(reused)[0]))[0] == expected(reused, never(15))


async def test_a_draft_row_that_is_not_finite_only_ends_the_drafting():
    """The draft's cache holds a poisoned row; the target knows nothing of it."""
    async with desk(draft=lambda prefix: [float("nan")] * 16 if len(prefix) > 9 else TARGET(prefix)) as d:
        asked = [request(n, (n, 1), max_tokens=20, k=8) for n in (1, 2)]
        for each, (tokens, _, _) in zip(asked, await outcomes(d.ask(*asked)), strict=True):
            assert tokens == expected(each)
        speculative = [g.speculation.k for g in d.stats if g.speculation is not None]
        assert speculative
        assert max(speculative) <= 8


def never(token):
    """The target's table without one token."""

    def row(prefix):
        values = list(TARGET(prefix))
        values[token] = -50.0
        return values

    return row


@pytest.mark.parametrize("point", FaultPoint)
@pytest.mark.parametrize("warm", [False, True])
async def test_a_fault_at_any_point_leaves_no_trace_in_the_text(point, warm):
    hits = []
    book = {}

    def fault(where, number):
        if where is point and number == 2 and len(hits) < 1:
            state = book["it"].ledger.state(2)
            if state is not None and state.emitted >= 3:
                hits.append(state)
                raise RuntimeError(where.value)

    kind = {"temperature": 0.8, "verifier": NOISE} if warm else {}
    asked = [request(n, (n, 3, 1), max_tokens=15, k=3, **kind) for n in (1, 2, 3)]
    async with desk(fault=fault) as d:
        book["it"] = d.engine._book
        for each, (tokens, text, finish) in zip(asked, await outcomes(d.ask(*asked)), strict=True):
            assert tokens == expected(each)
            assert text == letters(tokens)
            assert finish.reason is FinishReason.LENGTH
            assert finish.stats.completion_tokens == 15
        assert len(hits) == 1
        assert d.engine.load().target_pool.used == d.engine.load().draft_pool.used == 0
        aborted = [g.outcome for g in d.stats if g.outcome is not CommitOutcome.PUBLISHED]
        unpublished = point is FaultPoint.BEFORE_PUBLICATION
        assert aborted == ([CommitOutcome.ABORTED] if unpublished else [])


async def test_a_fault_that_comes_back_ends_its_request():
    def fault(where, number):
        if where is FaultPoint.BEFORE_PUBLICATION and number == 2:
            raise RuntimeError("again")

    async with desk(fault=fault) as d:
        asked = [request(n, (n, 3), max_tokens=6) for n in (1, 2, 3)]
        found = await outcomes(d.ask(*asked))
        assert [finish.reason.value for _, _, finish in found] == ["length", "error", "length"]
        assert found[1][0] == []
        assert found[0][0] == expected(asked[0])
        assert d.engine.load().target_pool.used == 0


async def test_a_loop_that_dies_ends_every_subscription():
    d = Desk()

    def broken(stats):
        raise ZeroDivisionError("telemetry")

    d.sink.step = broken
    await d.engine.start()
    (subscription,) = d.ask(request(1, max_tokens=40))
    await outcome(subscription)
    health = d.engine.health()
    assert not health.alive
    assert "ZeroDivisionError" in health.error
    with pytest.raises(EngineBusy):
        d.ask(request(2))
    await asyncio.wait_for(d.engine.stop(grace=1.0), 60)


# --- what is reported ----------------------------------------------------------------------------


def check_ladder(groups):
    """Contract section 10: who may be reached at place i + 1 was accepted at place i."""
    speculations = [(g.speculation, g.terminal) for g in groups if g.speculation is not None]
    for spec, _ in speculations:
        assert 0 <= spec.accepted <= spec.reached <= spec.k
        assert len(spec.mass) == len(spec.base) == spec.reached
    for place in range(1, 9):
        reached = sum(spec.reached > place for spec, _ in speculations)
        accepted = sum(spec.accepted >= place for spec, _ in speculations)
        stopped = sum(
            spec.accepted == place and terminal.value == "stop" for spec, terminal in speculations
        )
        full = sum(
            spec.accepted == spec.k == place and terminal.value != "stop"
            for spec, terminal in speculations
        )
        assert reached == accepted - stopped - full


async def test_the_numbers_of_steps_and_requests_agree():
    stops = frozenset({3, 11})
    asked = [
        request(n, (n, 2), max_tokens=25, k=k, temperature=warm, verifier=verifier, token_ids=stops)
        for n, (k, warm, verifier) in enumerate(
            [(1, 0.0, TOKEN), (4, 0.9, NOISE), (8, 0.9, TOKEN), (3, 0.9, BLOCK), (0, 0.9, TOKEN)], 1
        )
    ]
    async with desk(draft=TARGET) as d:
        found = await outcomes(d.ask(*asked))
    by_request = {n: [g for g in d.stats if g.request == n] for n in range(1, 6)}
    check_ladder(d.stats)
    for number, (tokens, _, finish) in enumerate(found, 1):
        groups, stats = by_request[number], finish.stats
        specs = [g.speculation for g in groups if g.speculation is not None]
        assert stats.completion_tokens == len(tokens) == sum(g.committed for g in groups)
        assert stats.rounds == len(groups)
        assert stats.steps == len(specs) == sum(stats.histogram)
        assert stats.drafted == sum(spec.k for spec in specs)
        assert stats.accepted == sum(spec.accepted for spec in specs)
        assert stats.arrival <= stats.admitted or stats.arrival == float(number)
        assert stats.admitted <= stats.first_token <= stats.finished
        assert sum(g.prefilled for g in groups) == len(asked[number - 1].prompt) - 1
        for g in groups:
            spec = g.speculation
            if spec is not None and g.terminal.value != "stop":
                assert g.committed == spec.accepted + 1
    ended = [each for step in d.sink.steps for each in step.finished]
    assert {each.request for each in ended} == set(range(1, 6))
    assert all(each.speculated == (each.request_stats.drafted > 0) for each in ended)
    assert not next(each for each in ended if each.request == 5).speculated
    for step in d.sink.steps:
        assert step.target_rows == sum(
            g.prefilled + 1 + (0 if g.speculation is None else g.speculation.k) for g in step.groups
        )
        assert step.host_syncs == 1
        assert step.round_seconds >= step.schedule_seconds + step.commit_seconds
    waits = [wait for step in d.sink.steps for wait in step.itl_seconds]
    firsts = len(asked)
    assert sum(n for _, n in waits) + sum(first_run(by_request[n]) for n in by_request) == sum(
        len(tokens) for tokens, _, _ in found
    )
    assert len(waits) + firsts == len([g for g in d.stats if g.committed])


def first_run(groups):
    return next(g.committed for g in groups if g.committed)


async def test_the_load_is_told_when_it_changes_between_rounds():
    async with desk() as d:
        d.runner.open.clear()
        (subscription,) = d.ask(request(1))
        assert d.sink.loads[-1].waiting == 1
        await d.runner.reached()
        d.engine.abort(1)
        d.runner.open.set()
        await outcome(subscription)
    assert d.sink.loads[-1].running == d.sink.loads[-1].waiting == 0
    assert d.sink.loads[-1].target_pool.used == 0


async def test_nothing_is_drafted_when_a_proposer_finds_nothing():
    async with desk() as d:
        asked = request(1, (1, 2, 3), proposer=NGRAM, max_tokens=3)
        tokens, _, finish = await outcome(d.ask(asked)[0])
    assert tokens == expected(asked)
    assert finish.stats.histogram[0] == finish.stats.steps
    assert isinstance(HostDraft(token_ids=()), HostDraft)
    assert {g.proposer for g in d.stats} <= {NONE, NGRAM}
    assert MODEL not in {g.proposer for g in d.stats}
