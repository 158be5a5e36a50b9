"""What breaks in a round: the runner, a row, a commit, the loop itself. Nobody else may notice."""

import asyncio
import random
from itertools import pairwise

import anyio
import pytest

from scheduler.commit import FaultPoint
from scheduler.config import PoolConfig
from scheduler.errors import EngineBusy
from scheduler.plan import Layout
from scheduler.request import FinishReason
from scheduler.stats import CommitOutcome
from tests.oracles.desk import MIXED, Breaks, Desk, Gone, Narrow, Poisoned, desk, outcome, outcomes
from tests.oracles.rig import (
    BLOCK,
    NOISE,
    TARGET,
    TOKEN,
    Letters,
    config,
    expected,
    letters,
    request,
)

pytestmark = pytest.mark.anyio


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
        ended = [each for step in d.sink.steps for each in step.finished]
        assert (2, FinishReason.ERROR) in [(each.request, each.reason) for each in ended]
        broken = [step for step in d.sink.steps if not step.target_rows]
        assert len(broken) == 2
        assert {g.outcome for step in broken for g in step.groups} == {CommitOutcome.ABORTED}
        assert d.sink.steps[-1].load.running == d.sink.steps[-1].load.waiting == 0
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


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_blocks_of_a_sick_request_do_not_infect_the_next(temperature):
    """The block freed last is used first, and the new request fills it one row at a time."""
    sick = request(1, (15,) * 4, temperature=temperature)
    async with desk(poison=frozenset({15}), target=never(15), draft=never(15)) as d:
        _, _, finish = await outcome(d.ask(sick)[0])
        assert finish.reason is FinishReason.ERROR
        reused = request(2, (1,), max_tokens=6, k=1)
        assert (await outcome(d.ask(reused)[0]))[0] == expected(reused, never(15))


async def test_a_sick_prompt_ends_at_its_first_chunk_and_leaves_nothing():
    """It never reaches its frontier: its blocks must be clean all the same."""
    sick = request(1, (15, *[1] * 60), max_tokens=5)
    async with desk(
        config(max_batched_tokens=12), poison=frozenset({15}), target=never(15), draft=never(15)
    ) as d:
        _, _, finish = await outcome(d.ask(sick)[0])
        assert finish.reason is FinishReason.ERROR
        assert len(d.sink.steps) == 1
        reused = request(2, (1,), max_tokens=6, k=1)
        assert (await outcome(d.ask(reused)[0]))[0] == expected(reused, never(15))


@pytest.mark.parametrize("seed", [10, 14])
async def test_a_round_that_breaks_where_blocks_are_short_stalls_nobody(seed):
    """The retry runs on the blocks that it holds, whatever the budget would allow it alone."""
    dice = random.Random(seed)
    broken = dice.randint(3, 8)
    settings = config(
        max_model_len=48,
        draft_max_len=48,
        k=2,
        k_max=4,
        max_batched_tokens=dice.choice([12, 16, 20]),
        target_pool=PoolConfig(blocks=dice.randint(13, 20), block_size=4),
        draft_pool=PoolConfig(blocks=64, block_size=8),
    )
    async with desk(settings, runner=lambda runner: Breaks(runner, broken)) as d:
        asked = [request(n, [n] * dice.randint(4, 9), max_tokens=25) for n in (1, 2, 3)]
        asked.append(request(4, [4] * dice.randint(25, 40), max_tokens=4))
        with anyio.fail_after(20):
            found = await outcomes(d.ask(*asked))
        for each, (tokens, _, _) in zip(asked, found, strict=True):
            assert tokens == expected(each)


async def test_a_draft_row_that_is_not_finite_only_ends_the_drafting():
    """The draft's cache holds a poisoned row; the target knows nothing of it."""
    async with desk(
        draft=lambda prefix: [float("nan")] * 16 if len(prefix) > 9 else TARGET(prefix)
    ) as d:
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
        assert aborted == [CommitOutcome.ABORTED] * (point is not FaultPoint.AFTER_PUBLICATION)


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


@pytest.mark.parametrize("layout", Layout)
async def test_rounds_that_are_too_large_for_the_device_become_smaller(layout):
    """Twice the full round breaks and runs one by one; then there is an end of that, and all go on
    by turns."""
    async with desk(config(layout=layout), runner=lambda runner: Narrow(runner, 2)) as d:
        asked = [request(n, (n, 3), max_tokens=30, k=0) for n in range(1, 9)]
        for each, (tokens, _, finish) in zip(asked, await outcomes(d.ask(*asked)), strict=True):
            assert tokens == expected(each)
            assert finish.reason is FinishReason.LENGTH
        sizes = d.runner.sizes
        assert sizes[:24] == [8, *[1] * 8, 8, *[1] * 8, 4, *[1] * 4, 2]
        assert sizes.count(8) == 2
        assert sizes.count(4) <= 3
        served = [[g.request for g in step.groups] for step in d.sink.steps if step.target_rows]
        turns = [pair for pair in served[20:30] if len(pair) == 2]
        assert len(turns) > 8
        assert all(set(one).isdisjoint(two) for one, two in pairwise(turns))
        assert d.engine.load().target_pool.used == 0


async def test_a_break_by_chance_leaves_rounds_as_large_as_they_were():
    async with desk(runner=lambda runner: Breaks(runner, 4)) as d:
        asked = [request(n, (n, 3), max_tokens=12, k=0) for n in range(1, 5)]
        await outcomes(d.ask(*asked))
        assert [len(step.groups) for step in d.sink.steps] == [4, 4, 4, 4, *[1] * 4, *[4] * 8]


async def test_a_request_that_breaks_whole_rounds_makes_no_round_smaller():
    """One after the other, each alone in its fault: what breaks is no matter of size."""
    async with desk(runner=lambda runner: Poisoned(runner, 2)) as d:
        for number in (2, 5, 6):
            d.runner._number = number
            asked = [request(number, (number, 1), max_tokens=4, k=0)]
            asked += [request(10 * number + n, (n, 3), max_tokens=4, k=0) for n in (1, 2)]
            found = await outcomes(d.ask(*asked))
            assert [finish.reason.value for _, _, finish in found] == ["error", "length", "length"]
        assert d.engine._book.company.limit is None


class Unspeakable(Letters):
    """A text that cannot be staged, whatever the tokens."""

    def stage(self, state, token_ids, *, final):
        raise ValueError("no text for it")


def staging_fault(point, number):
    """Fails request 2 wherever it is staged."""
    if number == 2 and point is FaultPoint.AFTER_KV_STAGED:
        raise ValueError(point.value)


@pytest.mark.parametrize(
    ("text", "hook"), [(Unspeakable(), None), (Letters(), staging_fault)], ids=["text", "commit"]
)
async def test_staging_that_breaks_for_one_request_costs_the_others_one_round(text, hook):
    """Everybody else's share of the round is published, and no round of theirs is run alone."""
    async with desk(fault=hook) as d:
        asked = [request(n, (n, 3), max_tokens=6, k=0) for n in (1, 3, 4)]
        ill = request(2, (2, 3), max_tokens=6, k=0, text=text)
        found = await outcomes(d.ask(ill, *asked))
        tokens, _, finish = found[0]
        assert (tokens, finish.reason) == ([], FinishReason.ERROR)
        assert finish.error == "the output could not be committed (ValueError)"
        for each, (tokens, _, _) in zip(asked, found[1:], strict=True):
            assert tokens == expected(each)
        published, aborted = CommitOutcome.PUBLISHED, CommitOutcome.ABORTED
        first, second, *later = [
            {group.request: group.outcome for group in step.groups} for step in d.sink.steps
        ]
        assert first == {1: published, 2: aborted, 3: published, 4: published}
        assert second == {2: aborted}
        assert later == [dict.fromkeys((1, 3, 4), published)] * 5
        assert d.engine.load().target_pool.used == 0


async def test_a_loop_that_dies_ends_every_subscription():
    d = Desk()

    def broken(now):
        raise ZeroDivisionError("planning")

    d.engine._scheduler.plan = broken
    await d.engine.start()
    (subscription,) = d.ask(request(1, max_tokens=40))
    await outcome(subscription)
    health = d.engine.health()
    assert not health.alive
    assert "ZeroDivisionError" in health.error
    with pytest.raises(EngineBusy):
        d.ask(request(2))
    d.engine.abort(1)
    await asyncio.wait_for(d.engine.stop(grace=1.0), 60)
    assert [each.reason for each in d.sink.ended] == [FinishReason.ERROR]


async def test_a_runner_that_is_gone_takes_its_requests_along():
    """None of them is tried again, alone or with others."""
    d = Desk(runner=Gone)
    await d.engine.start()
    d.runner.open.clear()
    subscriptions = d.ask(*MIXED)
    await d.runner.reached()
    d.runner.lost = "a process died"
    d.runner.open.set()
    for tokens, _, finish in await outcomes(subscriptions):
        assert (tokens, finish) == ([], None)
    assert d.runner.rounds == 1
    ended = [(each.request, each.reason) for each in d.sink.ended]
    assert ended == [(each.request_id, FinishReason.ERROR) for each in MIXED]
    health = d.engine.health()
    assert not health.alive
    assert "the device does not answer" in health.error
    await asyncio.wait_for(d.engine.stop(grace=1.0), 60)


async def test_a_runner_that_goes_while_nothing_runs_is_told_at_once():
    d = Desk(runner=Gone)
    await d.engine.start()
    assert d.engine.accepting
    assert d.engine.health().alive
    d.runner.lost = "a process died"
    assert not d.engine.accepting
    assert (d.engine.health().alive, d.engine.health().error) == (False, "a process died")
    with pytest.raises(EngineBusy):
        d.ask(request(1))
    await asyncio.wait_for(d.engine.stop(grace=1.0), 60)
